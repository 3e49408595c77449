// SPDX-License-Identifier: Apache-2.0
#include "base/http_client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/thread_pool.h"
#include "tests/support/loopback_listener.h"
#include "tests/support/trickling_server.h"

namespace larder {
namespace {

TEST(HttpUrl, Parts) {
  const auto whole = parse_http_url("http://[::1]:30000/v0/");
  ASSERT_TRUE(whole.is_ok()) << whole.status().to_string();
  EXPECT_EQ(whole->host, "::1");
  EXPECT_EQ(whole->port, 30000);
  EXPECT_EQ(whole->base, "/v0");
  EXPECT_EQ(parse_http_url("localhost")->port, 80);
  EXPECT_EQ(whole->trust, nullptr);
  const auto secure = parse_http_url("https://cache.example/v0");
  ASSERT_TRUE(secure.is_ok()) << secure.status().to_string();
  EXPECT_EQ(secure->host, "cache.example");
  EXPECT_EQ(secure->port, 443);
  EXPECT_EQ(secure->base, "/v0");
  EXPECT_NE(secure->trust, nullptr);
  EXPECT_EQ(parse_http_url("http://x/mail@y")->base, "/mail@y") << "behind the host an '@' is as good as any";
}

TEST(HttpUrl, WhatIsWrongIsNamedAndNoKeyIsShown) {
  const std::pair<const char*, const char*> cases[] = {
      {"http://larder:hush@host:18000", "'host:18000': a host has no '@'"},
      {"hush@host", "'host': a host has no '@'"},
      {"http://larder:hu@sh@[::1]:1/v0", "no '@'"},
      {"https://larder:hush@host", "'host': a host has no '@'"},
      {"ftp://x", "'ftp://x': ftp is not supported; write http://host:port, or https://"},
      {"http://larder:hush/x@host", "'host': the port"},
      {"http://:7", "'http://:7': no host"},
      {"http://x:0", "'http://x:0': the port"}};
  for (const auto& [url, problem] : cases) {
    const auto parsed = parse_http_url(url);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << url;
    EXPECT_NE(parsed.status().message().find(problem), std::string::npos) << parsed.status().message();
    EXPECT_EQ(parsed.status().message().find("hush"), std::string::npos) << url;
  }
}

// Answers the first connection's first request with given bytes, and closes it.
class OneAnswerServer {
 public:
  // piece: bytes that are sent at once.
  explicit OneAnswerServer(std::string answer, std::size_t piece = 1 << 20)
      : answer_(std::move(answer)), piece_(piece) {
    url_.host = "127.0.0.1";
    url_.port = listener_.port();
    EXPECT_TRUE(thread_.post([this] { serve(); }).is_ok());
  }
  ~OneAnswerServer() {
    listener_.end_accept();
    thread_.wait_idle();
  }
  OneAnswerServer(const OneAnswerServer&) = delete;
  OneAnswerServer& operator=(const OneAnswerServer&) = delete;
  [[nodiscard]] const HttpUrl& url() const { return url_; }

 private:
  void serve() {
    const int peer = listener_.accept();
    std::string request(4096, ' ');
    if (::recv(peer, request.data(), request.size(), 0) > 0) {
      const int on = 1;
      ::setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      for (std::size_t at = 0; at < answer_.size(); at += piece_) {
        (void)!::send(peer, answer_.data() + at, std::min(piece_, answer_.size() - at), MSG_NOSIGNAL);
      }
    }
    ::close(peer);
  }

  const std::string answer_;
  const std::size_t piece_;
  const support::LoopbackListener listener_{1};
  HttpUrl url_;
  ThreadPoolExecutor thread_{"answer", 1, 1};
};

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

Result<HttpReply> reply_to(const std::string& answer, std::size_t piece = 1 << 20) {
  const OneAnswerServer server(answer, piece);
  return HttpClient(server.url(), std::chrono::seconds(10)).request("GET", "/");
}

TEST(HttpClient, EveryFormOfAnAnswer) {
  const std::pair<const char*, const char*> cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"},
      {"HTTP/1.1 200 \r\ncontent-length:5\r\nConnection: Close\r\n\r\nhello", "hello"},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\n\r\n", "hello"},
      {"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n", "hello"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", "hello"},
      {"HTTP/1.0 200 OK\r\n\r\nhello", "hello"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""},
      {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""}};
  for (const auto& [answer, body] : cases) {
    const auto reply = reply_to(answer);
    ASSERT_TRUE(reply.is_ok()) << answer << reply.status().to_string();
    EXPECT_EQ(reply->status, 200u) << answer;
    EXPECT_EQ(reply->body, body) << answer;
    const auto byte_by_byte = reply_to(answer, 1);
    ASSERT_TRUE(byte_by_byte.is_ok()) << answer << byte_by_byte.status().to_string();
    EXPECT_EQ(byte_by_byte->body, body) << answer;
  }
  const auto reply = reply_to("HTTP/1.1 204 No Content\r\n\r\n");
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_EQ(reply->status, 204u);
}

TEST(HttpClient, WhatIsWrongWithAnAnswerIsNamed) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  const std::tuple<std::string, StatusCode, const char*> cases[] = {
      {"SSH-2.0-OpenSSH_9.2\r\n", StatusCode::kCorrupt, "not HTTP/1.1"},
      {"HTTP/1.1 2x0 OK\r\n\r\n", StatusCode::kCorrupt, "not HTTP/1.1"},
      {head + "nonsense\r\n\r\n", StatusCode::kCorrupt, "without a proper name"},
      {head + "Content-Length: -5\r\n\r\nhello", StatusCode::kCorrupt, "broken Content-Length"},
      {head + "Content-Length: 18446744073709551616\r\n\r\nhello", StatusCode::kCorrupt, "broken Content-Length"},
      {head + "Content-Length: 5\r\nContent-Length: 3\r\n\r\nhello", StatusCode::kCorrupt, "broken Content-Length"},
      {head + "Transfer-Encoding: gzip, chunked\r\n\r\n", StatusCode::kUnsupported, "'gzip, chunked'"},
      {head + "Transfer-Encoding: chunked\r\n\r\nxy\r\n\r\n", StatusCode::kCorrupt, "broken chunk"},
      {head + "Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n", StatusCode::kCorrupt, "broken chunk"},
      {head + "Transfer-Encoding: chunked\r\n\r\n2;" + std::string(80'000, 'x'), StatusCode::kCorrupt, "64 KiB"},
      {head + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + std::string(80'000, 'x'), StatusCode::kCorrupt, "64 KiB"},
      {head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", StatusCode::kCorrupt, "two"},
      {"HTTP/1.1 099 Early\r\n\r\n" + head + "\r\n", StatusCode::kCorrupt, "not HTTP/1.1"},
      {head + "X: " + std::string(80'000, 'x'), StatusCode::kCorrupt, "64 KiB"},
      {head + repeated("X: y\r\n", 20'000), StatusCode::kCorrupt, "64 KiB"},
      {repeated("HTTP/1.1 100 Continue\r\n\r\n", 20'000), StatusCode::kCorrupt, "64 KiB"},
      {head + "Content-Length: 9\r\n\r\nhello", StatusCode::kUnavailable, "closed the connection"},
      {head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhel", StatusCode::kUnavailable, "closed the connection"},
      {"", StatusCode::kUnavailable, "closed the connection"}};
  for (const auto& [answer, code, problem] : cases) {
    const auto reply = reply_to(answer);
    EXPECT_EQ(reply.status().code(), code) << answer.substr(0, 200) << reply.status().to_string();
    EXPECT_NE(reply.status().message().find(problem), std::string::npos) << reply.status().message();
  }
  // Field by field, nothing ever waits for more: the head is counted as a whole.
  const auto endless = reply_to(head + repeated("A: b\r\n", 20'000), 7);
  EXPECT_NE(endless.status().message().find("64 KiB"), std::string::npos) << endless.status().to_string();
  EXPECT_EQ(reply_to("+OK\r\n", 1).status().code(), StatusCode::kCorrupt);
}

TEST(HttpClient, ADeadlineEndsACallThatMovesAndAllThatComeAfterIt) {
  const support::TricklingServer server("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
  HttpUrl url;
  url.host = "127.0.0.1";
  url.port = server.port();
  HttpClient client(url, std::chrono::seconds(10));
  const TimePoint begin = real_clock().now();
  client.set_deadline(begin + std::chrono::milliseconds(300));
  for (int i = 0; i < 2; ++i) {
    const Status status = client.request("GET", "/").status();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_NE(status.message().find("the time was over"), std::string::npos) << status.message();
  }
  EXPECT_EQ(server.connections(), 1) << "no time was left to begin with";
  client.set_deadline(real_clock().now() + std::chrono::milliseconds(300));
  EXPECT_EQ(client.request("GET", "/").status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(real_clock().now() - begin, std::chrono::seconds(5)) << "bytes came all the time";
}

TEST(HttpClient, ADeadlineIsNoReasonToWait) {
  const OneAnswerServer server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  HttpClient client(server.url(), std::chrono::seconds(10));
  client.set_deadline(real_clock().now() + std::chrono::hours(1));
  const auto reply = client.request("GET", "/");
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_EQ(reply->body, "hello");
}

}  // namespace
}  // namespace larder
