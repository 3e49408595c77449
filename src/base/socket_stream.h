// SPDX-License-Identifier: Apache-2.0
// Bytes over a connected socket, in the clear or over TLS, with an end to each wait: what clients talk to servers with.
//
// Purpose: one face for both, which no peer can hold longer than its caller allows, and no write can end the process
// (SIGPIPE).
// Threads: confined. Another thread may shut the socket down (shutdown(2)): calls then end with kUnavailable, or as at
// the end of the stream.
// Lifetime: the socket stays its owner's, who closes it after this. It must not wait by itself (O_NONBLOCK).
// Errors: kDeadlineExceeded: `end` came first, also where bytes are there; kUnavailable: the connection broke. After an
// error of send_some(), receive_some() still gives what the peer had sent.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/tls_trust.h"

struct ssl_st;

namespace larder {

// Waits until `socket` is ready for `events` of poll(2), or has an error: 0. ETIMEDOUT: `end` came first. Another
// errno value: poll itself failed.
[[nodiscard]] int wait_for_socket(int socket, short events, TimePoint end);

class SocketStream {
 public:
  explicit SocketStream(int socket) : socket_(socket) {}
  // Over TLS it says that no more comes, if that does not wait.
  ~SocketStream();
  SocketStream(const SocketStream&) = delete;
  SocketStream& operator=(const SocketStream&) = delete;

  // Once, first: TLS from here on, with the server named `host`, a name or an address, whose certificate must be made
  // out to it by one of `trust`. protocol: what is spoken in it, by its name in ALPN ("http/1.1"); empty: it has none,
  // and nothing is said. kInvalidArgument says why it is not believed, or that the peer speaks no TLS; then, as
  // after any error, nothing of the caller's was sent.
  [[nodiscard]] Status secure(const TlsTrust& trust, const std::string& host, std::string_view protocol, TimePoint end);
  // Sends a piece of `bytes` from their begin, which has one byte at least: how much went. `bytes` is not empty.
  [[nodiscard]] Result<std::size_t> send_some(std::string_view bytes, TimePoint end);
  // What comes, one byte at least; 0: the peer has ended the stream. Over TLS it must have said so: a connection that
  // ends without is kUnavailable, as whoever is between could have cut it.
  [[nodiscard]] Result<std::size_t> receive_some(std::span<char> into, TimePoint end);
  // After an error, or the end: the connection was closed, and no more than that. False: over TLS a part of a record
  // had come, or what came was broken or an alert: the peer may have begun to answer.
  [[nodiscard]] bool is_only_closed() const;

 private:
  friend struct SocketBio;
  // Of a call of OpenSSL that gave `result`, at most 0: ok: to be called again.
  [[nodiscard]] Status wait_for_tls(int result, TimePoint end);

  const int socket_;
  ssl_st* tls_ = nullptr;
  // What the socket last failed with. OpenSSL is told to try again instead: it would take neither direction up again
  // after an error, and what a server said before it closed the connection is worth reading.
  int error_ = 0;
  bool is_at_end_ = false;  // the peer's bytes have ended
  bool is_over_ = false;    // TLS failed: nothing more is said
  bool is_broken_ = false;  // by what came, and not by its end
  TimePoint end_{};         // of the call in progress
};

}  // namespace larder
