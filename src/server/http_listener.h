// SPDX-License-Identifier: Apache-2.0
// The HTTP/1.1 front: sockets in, HttpRequest out; answers whole or in chunks.
//
// Purpose: hides the HTTP library behind a port that handlers and tests can do without. Keep-alive, chunked answers,
// "Expect: 100-continue", limits and timeouts live here; routes and JSON do not.
//
// Picture, of one request:
//   read ──► handler(request, exchange) ──► respond()                          one whole answer
//                                       └─► begin_stream(), write()..., write(last)
//   The client may leave at any time: then the on_gone function runs once, and further answers are dropped.
//
// Threads: the handler runs on an I/O thread and must not block: work that waits goes to another executor and answers
// from there. respond(), break_off() and post() may be called from any thread; begin_stream(), write() and on_gone()
// only inside the handler or a posted function (the connection's strand), where they never overlap.
// server/reply_stream.h is a stream for threads that wait.
// Lifetime: an exchange may outlive the listener; its answers are then dropped. One that is itself destroyed before its
// answer is complete breaks off.
// With a certificate it speaks TLS 1.2 and later, HTTP/1.1 in it, and nothing else: plain HTTP gets a 400 that says so.
// A connection that has not ended its handshake counts as one. Renewed files are taken up by new connections.
// Each answer has an X-Request-Id: the client's, or one that the listener makes.
// Limits (ListenOptions): connections, header and body bytes of one and of all, and a time for every wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "server/http_message.h"
#include "server/tls_files.h"

namespace larder {

struct ListenOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free one
  std::uint32_t io_threads = 2;
  // Beyond it the one that has waited longest for a request, or for the rest of a head, is closed; where none has
  // waited for least_wait, the new one gets 503.
  std::uint32_t max_connections = 768;
  Nanos least_wait = std::chrono::seconds(1);
  std::uint64_t max_body_bytes = 64ull << 20;  // longer: 413; of a GET or HEAD 64 KiB
  // Of all requests at once, for as long as they keep their bodies. A body of more than 64 KiB that goes beyond it gets
  // 503; the others go on.
  std::uint64_t max_open_body_bytes = 256ull << 20;
  std::uint32_t max_header_bytes = 64u << 10;        // longer: 431; and what a chunked body has beside it, about so
  TlsFiles tls;                                      // without a certificate: plain HTTP
  Nanos handshake_limit = std::chrono::seconds(20);  // of TLS, from the connection to its end
  Nanos idle_limit = std::chrono::seconds(120);      // between requests of a connection
  Nanos read_limit = std::chrono::seconds(60);       // from the head of a request to the end of its body
  Nanos write_limit = std::chrono::seconds(60);      // for one write: a client that does not read is dropped
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // The whole answer. The first answer of an exchange counts; later ones are dropped.
  virtual void respond(HttpResponse response) = 0;
  // The answer will not be completed: 500 if none was begun; a stream's connection is closed, so that the client sees
  // that the end is missing (on_gone runs). Nothing happens once respond() or the last write() has been given.
  virtual void break_off() = 0;
  // Runs `task` on the connection's strand. After the connection is gone it still runs, so that it can clean up; after
  // the listener is gone it is destroyed unrun.
  virtual void post(std::function<void()> task) = 0;

  // Strand only. The head of an answer whose body follows in pieces; it goes out with the first of them, which may be
  // empty. `head` has no body of its own. To HEAD, and with a status without a body, the pieces are not sent.
  virtual void begin_stream(HttpResponse head) = 0;
  // Strand only, one at a time: `written` runs on the strand when the piece is out; it is destroyed unrun when the
  // connection ends first. `last` ends the answer.
  virtual void write(std::string bytes, bool last, std::function<void()> written) = 0;
  // Strand only. `gone` runs at most once, on the strand, if the connection ends before the answer is complete. Who
  // says this makes what takes long: a client that only ends what it sends, and might still read, counts as gone then.
  virtual void on_gone(std::function<void()> gone) = 0;
};

class HttpListener {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<HttpExchange>)>;
  // Looks at a request whose body has yet to be read. What it gives is the answer, and the body is not read: who may
  // not ask costs no memory. The I/O thread; must not block.
  using Gate = std::function<std::optional<HttpResponse>(const HttpRequest& head)>;

  // Binds and starts to serve. kConflict: the port is in use; kInvalidArgument: no such address, or files of TLS that
  // cannot be used (server/tls_context.h); kUnavailable: the system refuses (privileged port, no descriptors),
  // or the resolver does not answer. `metrics` outlives the listener.
  [[nodiscard]] static Result<std::unique_ptr<HttpListener>> create(const ListenOptions& options, Handler handler,
                                                                    MetricsRegistry& metrics, Gate gate = {});
  // Closes every connection (on_gone runs) and joins the I/O threads. The handler is not called afterwards.
  virtual ~HttpListener() = default;

  [[nodiscard]] virtual std::uint16_t port() const = 0;
  [[nodiscard]] virtual std::string url() const = 0;  // "http://127.0.0.1:30000"; with a certificate https
  [[nodiscard]] virtual std::size_t connections() const = 0;
  // No new connections; idle ones, which have sent nothing of a request, are closed, the others after their answer.
  // Returns at once.
  virtual void stop_accepting() = 0;
  // Waits until no connection is left; false if `limit` ended first.
  virtual bool wait_drained(Nanos limit) = 0;
};

}  // namespace larder
