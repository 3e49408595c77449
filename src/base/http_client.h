// A small blocking HTTP/1.1 client over sockets: what bench, explain, quickstart and tests talk to a server with.
//
// Purpose: one connection, kept alive between requests and reopened when the server has closed it; whole answers, or
// answers line by line as they arrive (server-sent events).
// Threads: confined; one client per thread. All calls block, at most `timeout` without a byte; connecting takes at most
// `timeout` over all addresses of the host, and what the system takes to find them.
// Limits: a head of 64 KiB; a whole body of 1 GiB; a line of 16 MiB. No TLS, no redirects, no proxies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace larder {

struct HttpUrl {
  std::string host;
  std::uint16_t port = 80;
  std::string base;  // path in front of every target, without a trailing '/'
};
// "http://127.0.0.1:30000", "localhost:30000/v0". kInvalidArgument says what is wrong with it, and shows nothing of
// what stands in front of an '@', which no host has.
[[nodiscard]] Result<HttpUrl> parse_http_url(std::string_view text);

struct HttpReply {
  unsigned status = 0;
  std::string content_type;
  std::string body;  // empty when the lines were streamed
};

class HttpClient {
 public:
  // Does not connect yet. bearer: sent as "Authorization: Bearer <bearer>" unless empty.
  HttpClient(HttpUrl url, Nanos timeout, std::string bearer = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status is an answer. kUnavailable: no connection, or it broke; kDeadlineExceeded: nothing came for `timeout`,
  // or an address of the host let connecting wait and none was connected; kCorrupt: not HTTP/1.1; kUnsupported: a
  // transfer encoding other than chunked. `media_type` is the body's.
  [[nodiscard]] Result<HttpReply> request(std::string_view method, std::string_view target, std::string_view body = {},
                                          std::string_view media_type = "application/json");
  // As request(), but lines (without their end) of a 200 answer go to `on_line` as they arrive; false from it ends the
  // call (kCancelled) and closes the connection. Another status: the whole body comes back.
  [[nodiscard]] Result<HttpReply> stream(std::string_view method, std::string_view target, std::string_view body,
                                         const std::function<bool(std::string_view line)>& on_line);
  // Sends raw bytes and reads one answer, of several perhaps: for tests of malformed requests.
  [[nodiscard]] Result<HttpReply> raw(std::string_view bytes);
  // Ends the connection at once (a client that leaves).
  void disconnect();

 private:
  using LineSink = std::function<bool(std::string_view)>;
  struct Head;
  [[nodiscard]] Status connect();
  [[nodiscard]] Status send_all(std::string_view bytes);
  [[nodiscard]] Status receive();  // appends to buffer_; kUnavailable at the end of the stream
  [[nodiscard]] Result<HttpReply> exchange(std::string_view bytes, const LineSink* on_line);
  [[nodiscard]] Result<Head> read_head();
  [[nodiscard]] Status read_body(const Head& head, const std::function<Status(std::string_view)>& sink);
  [[nodiscard]] Status read_counted(std::uint64_t size_bytes, const std::function<Status(std::string_view)>& sink);
  [[nodiscard]] Status read_chunked(const std::function<Status(std::string_view)>& sink);
  [[nodiscard]] Result<std::string> read_line(std::size_t& left);
  [[nodiscard]] std::string request_text(std::string_view method, std::string_view target, std::string_view body,
                                         std::string_view media_type) const;

  const HttpUrl url_;
  const Nanos timeout_;
  const std::string bearer_;
  int socket_ = -1;
  std::string buffer_;         // received, not consumed
  bool has_answered_ = false;  // a byte came since the request was sent
  bool is_at_end_ = false;     // the server has closed the connection
};

}  // namespace larder
