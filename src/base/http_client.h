// SPDX-License-Identifier: Apache-2.0
// A small blocking HTTP/1.1 client over sockets: what bench, explain, quickstart, the proxy and tests talk to a server
// with.
//
// Purpose: one connection, kept alive between requests and reopened when the server has closed it; whole answers,
// answers line by line as they arrive (server-sent events), or answers passed on byte by byte with their head (relay).
// Threads: confined; one client per thread. Only cancel() may come from any other. All calls block, at most `timeout`
// without a byte (set_deadline() limits the whole); connecting takes at most `timeout` over all addresses of the host,
// and what the system takes to find them.
// A request that gets no byte of an answer on a connection kept from before, because the server has closed it, is sent
// once more on a new one, its body included. It is not when the connection was new, the server is silent, or the answer
// had begun.
// Functions given to a call run inside it. Of this client they may call cancel() only; they do not throw.
// To an https:// URL it speaks TLS, and checks the server's certificate and name before it sends a byte of a request.
// Beast reads the answers (a status line needs its second blank, RFC 9112); the connection, its time limits and
// cancel() are here.
// Limits: a head of 64 KiB; a whole body of 1 GiB (one that is passed on has none); a line of 16 MiB. No redirects, no
// proxies, no certificate of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/http_field.h"
#include "base/ranked_mutex.h"
#include "base/socket_stream.h"
#include "base/status.h"
#include "base/tls_trust.h"

struct addrinfo;

namespace larder {

struct HttpUrl {
  std::string host;
  std::uint16_t port = 80;
  std::string base;                         // path in front of every target, without a trailing '/'
  std::shared_ptr<const TlsTrust> trust{};  // whom to believe that it is the host; null: http://, not encrypted
};
// "http://127.0.0.1:30000", "localhost:30000/v0" (which is http), "https://cache.example". ca_file: whom to believe, as
// in TlsTrust::create(), which reads it; only https:// has a use for one. kInvalidArgument says what is wrong with it,
// and shows nothing of what stands in front of an '@', which no host has.
[[nodiscard]] Result<HttpUrl> parse_http_url(std::string_view text, const std::string& ca_file = {});

struct HttpReply {
  unsigned status = 0;
  std::string content_type;
  std::string body;  // empty when the lines were streamed
};

// A request as somebody else made it. Views: what they show stays until the call returns.
struct HttpRelayRequest {
  std::string_view method;  // any token: "PATCH"
  std::string_view target;  // as it goes on the wire, behind the URL's base: "/v1/models?x=%20"
  // In their order. Left out: what is for one hop (remove_hop_by_hop), and Host and Content-Length, which the client
  // writes itself, as it does Connection. The client's bearer is not added.
  std::span<const HttpField> fields;
  std::string_view body;
};

// What an answer begins with.
struct HttpReplyHead {
  unsigned status = 0;            // 200 or above
  std::vector<HttpField> fields;  // in their order; without what is for one hop, and Content-Length
  // Of the body, where the server says it; to HEAD and in a 304, of the body that is not sent.
  std::optional<std::uint64_t> length;
};

class HttpClient {
 public:
  // Does not connect yet. bearer: sent as "Authorization: Bearer <bearer>" unless empty.
  HttpClient(HttpUrl url, Nanos timeout, std::string bearer = {});
  // cancel() has returned wherever it was called.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status is an answer. kUnavailable: no connection, or it broke; kDeadlineExceeded: nothing came for `timeout`,
  // or an address of the host let connecting wait and none was connected; kCorrupt: not HTTP/1.1; kUnsupported: a
  // transfer encoding other than chunked; kInvalidArgument: the server's certificate is not believed, or it speaks no
  // TLS. `media_type` is the body's.
  [[nodiscard]] Result<HttpReply> request(std::string_view method, std::string_view target, std::string_view body = {},
                                          std::string_view media_type = "application/json");
  // As request(), but lines (without their end) of a 200 answer go to `on_line` as they arrive; false from it ends the
  // call (kCancelled) and closes the connection. Another status: the whole body comes back.
  [[nodiscard]] Result<HttpReply> stream(std::string_view method, std::string_view target, std::string_view body,
                                         const std::function<bool(std::string_view line)>& on_line);
  // Sends raw bytes and reads one answer, of several perhaps: for tests of malformed requests.
  [[nodiscard]] Result<HttpReply> raw(std::string_view bytes);
  // Passes a request on, and its answer back: `on_head` once, then `on_bytes` for each piece of the body as it arrives,
  // whatever the lines, events and chunks (at most 64 KiB; none is empty; none comes for HEAD, 204 and 304). False from
  // either ends the call (kCancelled) and closes the connection. Ok: the answer came whole. An error after on_head: it
  // broke off, errors as request(); kInvalidArgument: method, target or a field cannot stand in a request.
  // Interim answers (1xx) and fields behind a chunked body are passed over.
  [[nodiscard]] Status relay(const HttpRelayRequest& request, const std::function<bool(const HttpReplyHead&)>& on_head,
                             const std::function<bool(std::string_view piece)>& on_bytes);
  // Ends the connection at once (a client that leaves).
  void disconnect();

  // All calls from here on, until this is given again, have until `end` together: then they end with kDeadlineExceeded,
  // whatever still moves. They ask the system for the host's addresses once; what that takes is not counted.
  void set_deadline(TimePoint end);

  // Any thread. The call in progress, if there is one, and all later ones end with kCancelled: at once while they send
  // or wait for an answer or a connection; after the search when the system searches the host's addresses (no
  // connection is tried then); when it returns, if a function given to the call runs. Does not wait for that.
  void cancel() LARDER_EXCLUDES(mutex_);

 private:
  using LineSink = std::function<bool(std::string_view)>;
  class Answer;
  using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
  [[nodiscard]] TimePoint end_of_wait() const;  // of one that begins now
  [[nodiscard]] bool is_too_late() const;       // the deadline is over
  // Fills found_, unless a call of the same deadline has done so; a failure of that one is this one's, too.
  [[nodiscard]] Status find_host();
  [[nodiscard]] bool is_cancelled() const { return is_cancelled_.load(std::memory_order_relaxed); }
  [[nodiscard]] Status connect();
  // A socket that is connected to the host, or the last error of those that are not; ETIMEDOUT if one was silent.
  [[nodiscard]] int connect_one_of(const addrinfo* found, TimePoint end);
  // From here on the connection is `socket`, and cancel() reaches it.
  void adopt(int socket) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status send_all(std::string_view bytes);
  [[nodiscard]] Status receive();  // appends to buffer_; kUnavailable at the end of the stream
  [[nodiscard]] Result<HttpReply> exchange(std::string_view method, std::string_view bytes, const LineSink* on_line);
  // Sends a request and reads the head of its answer: with a second attempt on a new connection, or without. The body
  // is read after it, and then end() says what the call ends with.
  [[nodiscard]] Result<std::unique_ptr<Answer>> begin(std::string_view method, std::string_view bytes);
  [[nodiscard]] Result<std::unique_ptr<Answer>> attempt(std::string_view method, std::string_view bytes);
  [[nodiscard]] Result<std::unique_ptr<Answer>> read_head(std::string_view method);
  [[nodiscard]] Status read_body(Answer& answer, const std::function<Status(std::string_view)>& sink);
  // Gives the answer what has come, or waits for more.
  [[nodiscard]] Status feed(Answer& answer);
  [[nodiscard]] Status end(const Answer& answer, const Status& status);
  [[nodiscard]] std::string first_lines(std::string_view method, std::string_view target) const;
  [[nodiscard]] std::string request_text(std::string_view method, std::string_view target, std::string_view body,
                                         std::string_view media_type) const;
  [[nodiscard]] Result<std::string> relay_text(const HttpRelayRequest& request) const;

  const HttpUrl url_;
  const Nanos timeout_;
  const std::string bearer_;

  // owned by the calling thread
  int socket_ = -1;
  std::optional<SocketStream> stream_;  // over socket_, once that is connected
  std::string buffer_;                  // received, not consumed
  bool has_answered_ = false;           // a byte came since the request was sent
  bool is_at_end_ = false;              // the server has closed the connection
  std::optional<TimePoint> deadline_;
  std::optional<Status> searched_;  // what the search for the host ended with; kept with a deadline only
  Addresses found_{nullptr, nullptr};

  std::atomic<bool> is_cancelled_{false};  // set under mutex_, for good; relaxed: it guards nothing else
  RankedMutex mutex_{LockRank::kSocket};
  int open_socket_ LARDER_GUARDED_BY(mutex_) = -1;  // socket_; -1 before it is closed, so that no other is shut down
};

}  // namespace larder
