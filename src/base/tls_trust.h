// SPDX-License-Identifier: Apache-2.0
// Whom a client believes over TLS: the authorities that may have signed a server's certificate.
//
// Purpose: is read once and shared by connections (the system's store has more than a hundred certificates). A
// connection that has none is not encrypted; there is none that encrypts and believes everybody.
// Threads: any; constant after create().
// Cost: create() reads files.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

struct ssl_ctx_st;

namespace larder {

class TlsTrust {
 public:
  // ca_file: certificates of authorities, PEM. Empty: those of the system, or what the variables SSL_CERT_FILE and
  // SSL_CERT_DIR name, as OpenSSL reads them. kInvalidArgument: the file is missing, cannot be read, or has none.
  [[nodiscard]] static Result<std::shared_ptr<const TlsTrust>> create(const std::string& ca_file = {});
  ~TlsTrust();
  TlsTrust(const TlsTrust&) = delete;
  TlsTrust& operator=(const TlsTrust&) = delete;

  // For TLS 1.2 and later, with a look at the chain of certificates; the host's name is each connection's own.
  [[nodiscard]] ssl_ctx_st* context() const { return context_; }

 private:
  explicit TlsTrust(ssl_ctx_st* context) : context_(context) {}

  ssl_ctx_st* const context_;
};

// What OpenSSL said last in this thread, for people; takes it from OpenSSL's queue. "unknown" if it said nothing.
[[nodiscard]] std::string take_tls_error();

}  // namespace larder
