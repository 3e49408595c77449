// SPDX-License-Identifier: Apache-2.0
// HttpClient::relay() and cancel(), against servers that do exactly what a test writes.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "base/http_client.h"
#include "base/thread_pool.h"
#include "tests/support/loopback_listener.h"
#include "tests/support/signal.h"

namespace larder {
namespace {

constexpr Nanos kLimit = std::chrono::seconds(20);
using Fields = std::vector<HttpField>;
using support::Signal;

// One connection, as the server sees it.
class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) {}
  ~Peer() {
    if (socket_ >= 0) ::close(socket_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // All that came up to `end`, which it includes; what came before the client closed, if it never comes.
  std::string read_to(const std::string& end) {
    std::string text;
    char byte = 0;
    while (!text.ends_with(end) && ::recv(socket_, &byte, 1, 0) == 1) text += byte;
    return text;
  }
  void send(std::string_view text) { (void)!::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  // The client has closed its side.
  void wait_closed() { (void)read_to("\n\n nothing ends like this"); }

 private:
  const int socket_;
};

// Runs `script` in a thread of its own.
class ScriptedServer {
 public:
  using Script = std::function<void(const support::LoopbackListener&)>;
  explicit ScriptedServer(Script script) {
    EXPECT_TRUE(thread_.post([this, script = std::move(script)] { script(listener_); }).is_ok());
  }
  ~ScriptedServer() {
    listener_.end_accept();
    thread_.wait_idle();
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  [[nodiscard]] HttpUrl url(std::string base = {}) const {
    HttpUrl url;
    url.host = "127.0.0.1";
    url.port = listener_.port();
    url.base = std::move(base);
    return url;
  }
  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }

 private:
  const support::LoopbackListener listener_{4};
  ThreadPoolExecutor thread_{"script", 1, 1};
};

// Of one connection, which takes one request and gives one answer.
ScriptedServer::Script answering(std::string answer) {
  return [answer = std::move(answer)](const support::LoopbackListener& listener) {
    Peer peer(listener.accept());
    if (!peer.read_to("\r\n\r\n").empty()) peer.send(answer);
  };
}

struct Relayed {
  Status status;
  int heads = 0;
  HttpReplyHead head;
  std::string body;
};

Relayed relay(HttpClient& client, const HttpRelayRequest& request) {
  Relayed out;
  out.status = client.relay(
      request,
      [&](const HttpReplyHead& head) {
        out.heads++;
        out.head = head;
        return true;
      },
      [&](std::string_view piece) {
        EXPECT_EQ(out.heads, 1);
        EXPECT_FALSE(piece.empty());
        EXPECT_LE(piece.size(), 64u << 10);
        out.body += piece;
        return true;
      });
  return out;
}

HttpRelayRequest get(std::string_view target = "/") { return {"GET", target, {}, {}}; }

TEST(HttpRelay, EveryFormOfAnAnswer) {
  const std::optional<std::uint64_t> none;
  const std::tuple<const char*, const char*, unsigned, std::optional<std::uint64_t>, const char*> cases[] = {
      {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, 5, "hello"},
      {"GET", "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", 500, 0, ""},
      {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nA: b\r\n\r\n", 200,
       none, "hello"},
      {"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", 200, none, "hello"},
      {"GET", "HTTP/1.0 404 No\r\n\r\nhello", 404, none, "hello"},
      {"GET",
       "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5"
       "\r\n\r\nhello",
       200, 5, "hello"},
      {"GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, none, ""},
      {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, 5, ""},
      {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, 5, ""},
      {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, none, ""}};
  for (const auto& [method, answer, code, length, body] : cases) {
    const ScriptedServer server(answering(answer));
    HttpClient client(server.url(), kLimit);
    const Relayed got = relay(client, {method, "/", {}, {}});
    ASSERT_TRUE(got.status.is_ok()) << answer << got.status.to_string();
    EXPECT_EQ(got.head.status, code) << answer;
    EXPECT_EQ(got.head.length, length) << answer;
    EXPECT_EQ(got.head.fields, Fields{}) << answer;
    EXPECT_EQ(got.body, body) << answer;
    EXPECT_EQ(got.heads, 1) << answer;
  }
}

TEST(HttpRelay, AnswersThatEndByThemselvesKeepTheConnection) {
  const ScriptedServer server([](const support::LoopbackListener& listener) {
    Peer peer(listener.accept());  // the only one
    for (const char* answer : {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n",
                               "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
                               "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
                               "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"}) {
      (void)peer.read_to("\r\n\r\n");
      peer.send(answer);
    }
  });
  HttpClient client(server.url(), kLimit);
  EXPECT_EQ(relay(client, {"HEAD", "/", {}, {}}).body, "");
  EXPECT_EQ(relay(client, get()).head.status, 204u);
  EXPECT_EQ(relay(client, get()).head.status, 304u);
  EXPECT_EQ(relay(client, get()).body, "x");
  EXPECT_EQ(relay(client, get()).body, "x");
}

TEST(HttpRelay, FieldsPassBothWaysButForThoseOfAHop) {
  std::string seen;
  Relayed got;
  {
    const ScriptedServer server([&](const support::LoopbackListener& listener) {
      Peer peer(listener.accept());
      seen = peer.read_to("hello");
      peer.send(
          "HTTP/1.1 201 Made\r\nServer: llama.cpp\r\nSet-Cookie: a=1\r\nX-Empty:\r\nset-cookie: b=2 \r\n"
          "Content-Type: text/plain\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
          "Content-Length: 2\r\n\r\nok");
    });
    HttpClient client(server.url("/base"), kLimit, "a bearer that is not sent");
    const Fields fields = {{"Host", "else:1"},
                           {"accept", "*/*"},
                           {"X-Twice", "1"},
                           {"Authorization", "Bearer k"},
                           {"X-Twice", "2, \xc3\xa4"},
                           {"Connection", "close, X-Mine"},
                           {"X-Mine", "1"},
                           {"Content-length", "77"},
                           {"Transfer-Encoding", "gzip"},
                           {"Proxy-Authorization", "Basic x"},
                           {"Upgrade", "h2c"},
                           {"Content-Type", "text/plain"}};
    got = relay(client, {"PATCH", "/a%20b?x=%7B&y", fields, "hello"});
    ASSERT_TRUE(got.status.is_ok()) << got.status.to_string();
    EXPECT_EQ(seen, "PATCH /base/a%20b?x=%7B&y HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(server.port()) +
                        "\r\nConnection: keep-alive\r\naccept: */*\r\nX-Twice: 1\r\nAuthorization: Bearer k\r\n"
                        "X-Twice: 2, \xc3\xa4\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
  }
  const Fields back = {{"Server", "llama.cpp"},
                       {"Set-Cookie", "a=1"},
                       {"X-Empty", ""},
                       {"set-cookie", "b=2"},
                       {"Content-Type", "text/plain"}};
  EXPECT_EQ(got.head.fields, back);
  EXPECT_EQ(got.head.status, 201u);
  EXPECT_EQ(got.body, "ok");
}

TEST(HttpRelay, ALengthIsSaidWhereABodyIsExpected) {
  for (const auto& [method, is_said] : {std::pair{"GET", false}, {"HEAD", false}, {"POST", true}, {"PUT", true}}) {
    std::string seen;
    {
      const ScriptedServer server([&](const support::LoopbackListener& listener) {
        Peer peer(listener.accept());
        seen = peer.read_to("\r\n\r\n");
        peer.send("HTTP/1.1 204 No Content\r\n\r\n");
      });
      HttpClient client(server.url(), kLimit);
      EXPECT_TRUE(relay(client, {method, "/", {}, {}}).status.is_ok());
    }
    EXPECT_EQ(seen.find("Content-Length: 0\r\n") != std::string::npos, is_said) << seen;
  }
}

// The server sends half a chunk, half a line and half an event, and goes on only when the client has it.
TEST(HttpRelay, ABytePassesWhenItComes) {
  Signal head_came, half_came;
  const ScriptedServer server([&](const support::LoopbackListener& listener) {
    Peer peer(listener.accept());
    (void)peer.read_to("\r\n\r\n");
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    head_came.wait();
    peer.send("20\r\ndata: {");
    half_came.wait();
    peer.send(std::string(25, '}') + "\r\n0\r\n\r\n");
  });
  HttpClient client(server.url(), kLimit);
  std::string body;
  const Status status = client.relay(
      get(),
      [&](const HttpReplyHead&) {
        head_came.set();
        return true;
      },
      [&](std::string_view piece) {
        body += piece;
        if (body == "data: {") half_came.set();
        return true;
      });
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_EQ(body, "data: {" + std::string(25, '}'));
}

TEST(HttpRelay, ALargeBodyComesInSmallPieces) {
  const std::string large(8u << 20, 'x');
  const ScriptedServer server(answering("HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n" + large));
  HttpClient client(server.url(), kLimit);
  EXPECT_TRUE(relay(client, get()).body == large);
}

TEST(HttpRelay, TheCallerEndsIt) {
  for (const bool is_at_head : {true, false}) {
    Signal closed;
    const ScriptedServer server([&](const support::LoopbackListener& listener) {
      Peer peer(listener.accept());
      (void)peer.read_to("\r\n\r\n");
      peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n");
      peer.wait_closed();
      closed.set();
    });
    HttpClient client(server.url(), kLimit);
    const Status status = client.relay(
        get(), [&](const HttpReplyHead&) { return !is_at_head; }, [](std::string_view) { return false; });
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    closed.wait();
  }
}

TEST(HttpRelay, WhatIsWrongWithAnAnswerIsNamed) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  const std::tuple<std::string, StatusCode, const char*> cases[] = {
      {head + "Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", StatusCode::kCorrupt, "two ends"},
      {head + "Content-Length : 5\r\n\r\nhello", StatusCode::kCorrupt, "without a proper name"},
      {head + ": x\r\n\r\n", StatusCode::kCorrupt, "without a proper name"},
      {head + "A: b\rInjected: c\r\n\r\n", StatusCode::kCorrupt, "line ending"},
      {head + "X: " + std::string(80'000, 'x'), StatusCode::kCorrupt, "64 KiB"},
      {head + "Content-Length: 9\r\n\r\nhello", StatusCode::kUnavailable, "closed the connection"},
      {head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhel", StatusCode::kUnavailable, "closed the connection"}};
  for (const auto& [answer, code, problem] : cases) {
    const ScriptedServer server(answering(answer));
    HttpClient client(server.url(), kLimit);
    const Relayed got = relay(client, get());
    EXPECT_EQ(got.status.code(), code) << answer.substr(0, 200) << got.status.to_string();
    EXPECT_NE(got.status.message().find(problem), std::string::npos) << got.status.message();
  }
}

TEST(HttpRelay, ARequestThatWouldBeTwoIsRefused) {
  HttpUrl nowhere;
  nowhere.host = "0.0.0.0.invalid";
  HttpClient client(nowhere, kLimit);
  const Fields bad_name = {{"a b", "c"}};
  const Fields bad_value = {{"a", "b\r\nc: d"}};
  for (const HttpRelayRequest& request :
       {HttpRelayRequest{"G ET", "/", {}, {}}, HttpRelayRequest{"", "/", {}, {}}, get("/a b"), get("/\r\nA: b"),
        get("a"), get(""), HttpRelayRequest{"GET", "/", bad_name, {}}, HttpRelayRequest{"GET", "/", bad_value, {}}}) {
    EXPECT_EQ(relay(client, request).status.code(), StatusCode::kInvalidArgument);
  }
}

// --- connections that are closed in between ---

constexpr const char* kHi = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

TEST(HttpRelay, AnIdleConnectionThatWasClosedIsOpenedAgain) {
  Signal closed;
  std::string again;
  {
    const ScriptedServer server([&](const support::LoopbackListener& listener) {
      {
        Peer first(listener.accept());
        (void)first.read_to("body");
        first.send(kHi);
      }
      closed.set();
      Peer second(listener.accept());
      again = second.read_to("body");
      second.send(kHi);
    });
    HttpClient client(server.url(), kLimit);
    EXPECT_EQ(relay(client, {"POST", "/", {}, "body"}).body, "hi");
    closed.wait();
    const Relayed got = relay(client, {"POST", "/", {}, "body"});
    EXPECT_TRUE(got.status.is_ok()) << got.status.to_string();
    EXPECT_EQ(got.body, "hi");
  }
  EXPECT_TRUE(again.starts_with("POST / HTTP/1.1\r\n")) << again;
}

TEST(HttpRelay, ARequestWhoseAnswerHadBegunIsNotSentAgain) {
  const ScriptedServer server([&](const support::LoopbackListener& listener) {
    Peer peer(listener.accept());  // a second one would wait for an answer
    (void)peer.read_to("\r\n\r\n");
    peer.send(kHi);
    (void)peer.read_to("\r\n\r\n");
    peer.send("HTTP/1.1 2");
  });
  HttpClient client(server.url(), kLimit);
  EXPECT_EQ(relay(client, get()).body, "hi");
  const Relayed got = relay(client, get());
  EXPECT_EQ(got.status.code(), StatusCode::kUnavailable) << got.status.to_string();
  EXPECT_EQ(got.heads, 0);
}

TEST(HttpRelay, AnAnswerBeforeTheBodyIsReadIsSeen) {
  const ScriptedServer server([](const support::LoopbackListener& listener) {
    Peer peer(listener.accept());
    (void)peer.read_to("\r\n\r\n");
    peer.send("HTTP/1.1 413 Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
  });
  HttpClient client(server.url(), kLimit);
  const std::string large(64u << 20, 'x');
  const Relayed got = relay(client, {"POST", "/", {}, large});
  EXPECT_TRUE(got.status.is_ok()) << got.status.to_string();
  EXPECT_EQ(got.head.status, 413u);
  EXPECT_EQ(got.body, "no");
}

// --- cancel() ---

// Of each kind of answer: `sent` comes, and nothing more.
TEST(HttpCancel, EndsACallThatWaits) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  for (const std::string& sent :
       {std::string{}, head, head + "Content-Length: 9\r\n\r\nhi", head + "Transfer-Encoding: chunked\r\n\r\n9\r\nhi",
        head + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", head + "\r\nhi"}) {
    const bool has_body = sent.ends_with("hi") || sent.ends_with("hi\r\n");
    Signal is_waiting;  // as far as the server can tell, and the client if there is a body
    Signal is_over;
    const ScriptedServer server([&](const support::LoopbackListener& listener) {
      Peer peer(listener.accept());
      (void)peer.read_to("\r\n\r\n");
      peer.send(sent);
      if (!has_body) is_waiting.set();
      peer.wait_closed();
      is_over.set();
    });
    HttpClient client(server.url(), kLimit);
    ThreadPoolExecutor other("other", 1, 1);
    ASSERT_TRUE(other
                    .post([&] {
                      is_waiting.wait();
                      client.cancel();
                    })
                    .is_ok());
    const Status status = client.relay(
        get(), [](const HttpReplyHead&) { return true; },
        [&](std::string_view) {
          is_waiting.set();
          return true;
        });
    EXPECT_EQ(status.code(), StatusCode::kCancelled) << sent << ": " << status.to_string();
    is_over.wait();
    EXPECT_EQ(relay(client, get()).status.code(), StatusCode::kCancelled) << "and all later ones";
    EXPECT_EQ(client.request("GET", "/").status().code(), StatusCode::kCancelled);
    other.wait_idle();
  }
}

TEST(HttpCancel, EndsACallThatSends) {
  Signal is_accepted;
  const ScriptedServer server([&](const support::LoopbackListener& listener) {
    Peer peer(listener.accept());
    (void)peer.read_to("\r\n\r\n");
    is_accepted.set();
    (void)listener.accept();  // holds `peer` open, unread, to the end
  });
  HttpClient client(server.url(), kLimit);
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other
                  .post([&] {
                    is_accepted.wait();
                    client.cancel();
                  })
                  .is_ok());
  const std::string large(64u << 20, 'x');
  EXPECT_EQ(client.request("POST", "/", large).status().code(), StatusCode::kCancelled);
}

TEST(HttpCancel, InsideTheCallAndBeforeIt) {
  const ScriptedServer server(answering(kHi));
  HttpClient client(server.url(), kLimit);
  int pieces = 0;
  const Status status = client.relay(
      get(),
      [&](const HttpReplyHead&) {
        client.cancel();
        return true;
      },
      [&](std::string_view) { return ++pieces > 0; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(pieces, 0);
  HttpClient unused(server.url(), kLimit);
  unused.cancel();
  EXPECT_EQ(unused.raw("GET / HTTP/1.1\r\n\r\n").status().code(), StatusCode::kCancelled);
}

// Whether a socket of this machine connects to `port` and has no answer yet (/proc/net/tcp, state SYN_SENT).
bool is_connecting_to(std::uint16_t port) {
  std::ifstream table("/proc/net/tcp");
  char wanted[16];
  std::snprintf(wanted, sizeof wanted, ":%04X 02 ", port);
  for (std::string line; std::getline(table, line);) {
    if (line.find(wanted) != std::string::npos) return true;
  }
  return false;
}

TEST(HttpCancel, EndsACallThatConnects) {
  // Nobody accepts, and one connection fills the queue: the next one gets no answer.
  const support::LoopbackListener full(0);
  const int filler = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = full.address();
  ASSERT_EQ(::connect(filler, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  HttpUrl url;
  url.host = "127.0.0.1";
  url.port = full.port();
  HttpClient impatient(url, std::chrono::milliseconds(50));
  EXPECT_EQ(relay(impatient, get()).status.code(), StatusCode::kDeadlineExceeded);
  HttpClient client(url, std::chrono::hours(1));
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other
                  .post([&] {
                    const TimePoint end = real_clock().now() + kLimit;
                    while (!is_connecting_to(url.port) && real_clock().now() < end) {}
                    EXPECT_TRUE(is_connecting_to(url.port));
                    client.cancel();
                  })
                  .is_ok());
  EXPECT_EQ(relay(client, get()).status.code(), StatusCode::kCancelled);
  ::close(filler);
}

// Clients that are cancelled at any moment beside one that is not: its descriptor is never the one that is shut down.
TEST(HttpCancel, NeverHitsAnotherConnection) {
  constexpr int kRounds = 300;
  const ScriptedServer server([](const support::LoopbackListener& listener) {
    for (;;) {
      const int socket = listener.accept();
      if (socket < 0) return;
      Peer peer(socket);
      if (peer.read_to("\r\n\r\n").empty()) continue;
      peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi");
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    HttpClient doomed(server.url(), kLimit);
    Signal begun;
    ThreadPoolExecutor other("other", 1, 1);
    ASSERT_TRUE(other
                    .post([&] {
                      begun.wait();
                      doomed.cancel();
                    })
                    .is_ok());
    ASSERT_TRUE(doomed.request("GET", "/").is_ok());
    begun.set();
    for (int i = 0; i < 3; ++i) {  // often with the number that the other one had
      HttpClient bystander(server.url(), kLimit);
      const Relayed got = relay(bystander, get());
      ASSERT_TRUE(got.status.is_ok()) << got.status.to_string();
      ASSERT_EQ(got.body, "hi");
    }
    Status status;
    while (status.is_ok()) status = doomed.request("GET", "/").status();  // opens and closes a connection each time
    ASSERT_EQ(status.code(), StatusCode::kCancelled) << status.to_string();
  }
}

}  // namespace
}  // namespace larder
