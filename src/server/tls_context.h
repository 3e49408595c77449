// SPDX-License-Identifier: Apache-2.0
// What a server shows over TLS: its certificate and key, from files, and again from them when they were renewed.
//
// Purpose: says what is wrong with the files at the start, where it can be mended; later it goes on with what it has,
// and says so in the log.
// Threads: confined (the listener's strand).
// Lifetime: the file system and the clock outlive it. A context that was given out stays valid when another has taken
// its place: connections end with the certificate that they began with.
// Limits: a file of 1 MiB.
#pragma once

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "server/tls_files.h"

struct ssl_ctx_st;

namespace larder {

class TlsContext {
 public:
  // kInvalidArgument: a file is missing, cannot be read, holds no PEM, is encrypted, or the key is not the
  // certificate's; the message names the option and how to mend it. Here and when a change is taken up: warns of a
  // key that all users of the machine can read, and of a certificate that is not valid now. `files.certificate` is not
  // empty.
  [[nodiscard]] static Result<std::unique_ptr<TlsContext>> create(const TlsFiles& files, FileSystem& file_system,
                                                                  Clock& clock);

  // ok, or what create() would say, for who wants to know before anything else is done; also that a key or authorities
  // are given and no certificate. Warns of nothing. Files that name no certificate are ok.
  [[nodiscard]] static Status check(const TlsFiles& files, FileSystem& file_system = real_file_system());

  // For a new connection: of the files as they are now. They are read at most once in files.look_interval; if what is
  // there now cannot be used, the last that could stays, with one warning for each change.
  [[nodiscard]] std::shared_ptr<ssl_ctx_st> current();

 private:
  // The files' bytes, and nothing of them afterwards: they are read again and again, and one is a key.
  struct Texts {
    Texts() = default;
    ~Texts();
    Texts(Texts&&) = default;
    Texts& operator=(Texts&&) = default;
    [[nodiscard]] Digest256 digest() const;
    std::string certificate, key, client_ca;
  };
  TlsContext(const TlsFiles& files, FileSystem& file_system, Clock& clock)
      : files_(files), file_system_(file_system), clock_(clock) {}
  [[nodiscard]] Result<Texts> read() const;
  [[nodiscard]] Result<std::shared_ptr<ssl_ctx_st>> load(const Texts& texts) const;
  [[nodiscard]] Status look();

  const TlsFiles files_;
  FileSystem& file_system_;
  Clock& clock_;
  TimePoint looked_{};
  Digest256 seen_{};  // of what was last tried
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace larder
