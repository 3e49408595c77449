// SPDX-License-Identifier: Apache-2.0
// HttpClient over TLS, against servers that do exactly what a test writes: what it believes, what it refuses and how it
// says so, and that time limits, cancel() and the second attempt hold as they do in the clear.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <tuple>

#include "base/http_client.h"
#include "base/thread_pool.h"
#include "tests/support/certificates.h"
#include "tests/support/loopback_listener.h"
#include "tests/support/signal.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tls_peer.h"

namespace larder {
namespace {

using support::CertificateAuthority;
using support::CertificateWish;
using support::IssuedCertificate;
using support::LoopbackListener;
using support::Signal;
using support::TlsPeer;
using support::TlsSide;

constexpr Nanos kTlsLimit = std::chrono::seconds(20);
constexpr const char* kGreeting = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

// An authority, what it has issued to the server, and a server that runs `script` in a thread of its own.
class TlsScript {
 public:
  using Script = std::function<void(const LoopbackListener&, const TlsSide&)>;
  explicit TlsScript(Script script, const CertificateWish& wish = {}) : side_(authority_.issue(wish)) {
    ca_file_ = support::put_file(folder_.path() + "/ca.pem", authority_.pem());
    EXPECT_TRUE(thread_
                    .post([this, script = std::move(script)] {
                      support::block_sigpipe();
                      script(listener_, side_);
                    })
                    .is_ok());
  }
  ~TlsScript() {
    listener_.end_accept();
    thread_.wait_idle();
  }
  TlsScript(const TlsScript&) = delete;
  TlsScript& operator=(const TlsScript&) = delete;

  [[nodiscard]] HttpUrl url(const std::string& host = "127.0.0.1") const {
    const Result<HttpUrl> url = parse_http_url("https://" + host + ":" + std::to_string(listener_.port()), ca_file_);
    EXPECT_TRUE(url.is_ok()) << url.status().to_string();
    return *url;
  }
  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }

 private:
  const support::TemporaryDirectory folder_;
  const CertificateAuthority authority_{"an authority of tests"};
  const TlsSide side_;
  std::string ca_file_;
  const LoopbackListener listener_{4};
  ThreadPoolExecutor thread_{"script", 1, 1};
};

// Of one connection: one request, one answer, and its end as TLS has it.
TlsScript::Script greeting(std::string answer = kGreeting) {
  return [answer = std::move(answer)](const LoopbackListener& listener, const TlsSide& side) {
    TlsPeer peer(side, listener.accept());
    if (!peer.accept() || peer.read_to("\r\n\r\n").empty()) return;
    peer.send(answer);
    peer.say_end();
  };
}

Result<HttpReply> ask(const HttpUrl& url, Nanos limit = kTlsLimit) {
  return HttpClient(url, limit).request("GET", "/");
}

TEST(HttpTls, AServerThatIsBelievedIsAnswered) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const TlsScript server(greeting());
    const auto reply = ask(server.url(host));
    ASSERT_TRUE(reply.is_ok()) << host << reply.status().to_string();
    EXPECT_EQ(reply->body, "hi");
  }
}

TEST(HttpTls, TheNameAndTheProtocolAreSaid) {
  for (const auto& [host, said] : {std::pair{"localhost", "localhost"}, {"127.0.0.1", ""}}) {
    std::string name = "not called";
    int version = 0;
    {
      const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
        TlsPeer peer(side, listener.accept());
        if (!peer.accept()) return;
        const char* const sni = SSL_get_servername(peer.tls(), TLSEXT_NAMETYPE_host_name);
        name = sni == nullptr ? "" : sni;
        version = SSL_version(peer.tls());
        (void)peer.read_to("\r\n\r\n");
        peer.send(kGreeting);
      });
      EXPECT_TRUE(ask(server.url(host)).is_ok());
    }
    EXPECT_EQ(name, said) << "an address is no name (RFC 6066)";
    EXPECT_GE(version, TLS1_2_VERSION);
  }
}

TEST(HttpTls, AServerThatIsNotBelievedGetsNoRequestAndTheReasonIsNamed) {
  const std::tuple<CertificateWish, const char*, const char*> cases[] = {
      {{.begins_seconds = -7200, .ends_seconds = -3600}, "127.0.0.1", "has expired"},
      {{.begins_seconds = 3600, .ends_seconds = 7200}, "127.0.0.1", "not valid yet"},
      {{.names = "DNS:elsewhere.example"}, "127.0.0.1", "made out to others, not to 127.0.0.1"},
      {{.names = "DNS:elsewhere.example"}, "localhost", "made out to others, not to localhost"},
      {{.names = "email:nobody@example.com", .subject = "localhost"}, "localhost", "made out to others"},
      {{.names = "DNS:*.example"}, "localhost", "made out to others, not to localhost"}};
  for (const auto& [wish, host, problem] : cases) {
    std::string request;
    {
      const TlsScript server(
          [&](const LoopbackListener& listener, const TlsSide& side) {
            TlsPeer peer(side, listener.accept());
            if (peer.accept()) request = peer.read_all();
          },
          wish);
      const auto reply = ask(server.url(host));
      EXPECT_EQ(reply.status().code(), StatusCode::kInvalidArgument) << reply.status().to_string();
      EXPECT_NE(reply.status().message().find(problem), std::string::npos) << reply.status().message();
    }
    EXPECT_EQ(request, "") << problem;
  }
}

TEST(HttpTls, AnIssuerThatNobodyNamedIsNotBelieved) {
  const support::TemporaryDirectory folder;
  const std::string other =
      support::put_file(folder.path() + "/other.pem", CertificateAuthority("another authority").pem());
  for (const std::string& ca_file : {other, std::string()}) {  // "": the system's store
    const TlsScript server(greeting());
    const auto url = parse_http_url("https://127.0.0.1:" + std::to_string(server.port()), ca_file);
    ASSERT_TRUE(url.is_ok()) << url.status().to_string();
    const auto reply = ask(*url);
    EXPECT_EQ(reply.status().code(), StatusCode::kInvalidArgument) << reply.status().to_string();
    EXPECT_NE(reply.status().message().find("unknown here"), std::string::npos) << reply.status().message();
    EXPECT_NE(reply.status().message().find("SSL_CERT_FILE"), std::string::npos) << reply.status().message();
  }
}

TEST(HttpTls, AFileOfAuthoritiesIsReadWhenTheUrlIs) {
  const support::TemporaryDirectory folder;
  const std::string nothing = support::put_file(folder.path() + "/nothing.pem", "no certificate\n");
  const std::pair<std::string, const char*> cases[] = {{folder.path() + "/absent.pem", "absent.pem"},
                                                       {nothing, "no certificate in PEM"}};
  for (const auto& [file, problem] : cases) {
    const auto url = parse_http_url("https://localhost", file);
    EXPECT_EQ(url.status().code(), StatusCode::kInvalidArgument) << url.status().to_string();
    EXPECT_NE(url.status().message().find(problem), std::string::npos) << url.status().message();
  }
  const auto plain = parse_http_url("http://localhost", nothing);
  EXPECT_EQ(plain.status().code(), StatusCode::kInvalidArgument) << "whoever names authorities means https";
}

TEST(HttpTls, WhatSpeaksNoTlsIsNamed) {
  const std::tuple<std::string, StatusCode, const char*> cases[] = {
      {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", StatusCode::kInvalidArgument, "write http://"},
      {"SSH-2.0-OpenSSH_9.2\r\n", StatusCode::kInvalidArgument, "speaks no TLS"},
      {"", StatusCode::kUnavailable, "during the TLS handshake"}};
  for (const auto& [answer, code, problem] : cases) {
    const TlsScript server([&](const LoopbackListener& listener, const TlsSide&) {
      const int peer = listener.accept();
      char byte = 0;
      (void)!::recv(peer, &byte, 1, 0);
      (void)!::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::shutdown(peer, SHUT_WR);
      while (::recv(peer, &byte, 1, 0) == 1) {}
      ::close(peer);
    });
    const auto reply = ask(server.url());
    EXPECT_EQ(reply.status().code(), code) << reply.status().to_string();
    EXPECT_NE(reply.status().message().find(problem), std::string::npos) << reply.status().message();
  }
}

TEST(HttpTls, AnOldProtocolIsRefused) {
  const TlsScript server([](const LoopbackListener& listener, const TlsSide& side) {
    SSL_CTX_set_min_proto_version(side.context(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(side.context(), TLS1_1_VERSION);
    SSL_CTX_set_cipher_list(side.context(), "DEFAULT@SECLEVEL=0");
    TlsPeer peer(side, listener.accept());
    EXPECT_FALSE(peer.accept());
  });
  const auto reply = ask(server.url());
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable) << reply.status().to_string();
  EXPECT_NE(reply.status().message().find("TLS: "), std::string::npos) << reply.status().message();
}

TEST(HttpTls, TheConnectionIsKept) {
  const TlsScript server([](const LoopbackListener& listener, const TlsSide& side) {
    TlsPeer peer(side, listener.accept());  // the only one
    ASSERT_TRUE(peer.accept());
    for (int i = 0; i < 3; ++i) {
      (void)peer.read_to("\r\n\r\n");
      peer.send(kGreeting);
    }
  });
  HttpClient client(server.url(), kTlsLimit);
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.request("GET", "/");
    EXPECT_TRUE(reply.is_ok()) << reply.status().to_string();
  }
}

TEST(HttpTls, AnIdleConnectionThatWasClosedIsOpenedAgain) {
  for (const bool says_end : {true, false}) {
    Signal closed;
    std::string again;
    {
      const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
        {
          TlsPeer first(side, listener.accept());
          ASSERT_TRUE(first.accept());
          (void)first.read_to("body");
          first.send(kGreeting);
          if (says_end) first.say_end();
        }
        closed.set();
        TlsPeer second(side, listener.accept());
        ASSERT_TRUE(second.accept());
        again = second.read_to("body");
        second.send(kGreeting);
      });
      HttpClient client(server.url(), kTlsLimit);
      EXPECT_TRUE(client.request("POST", "/", "body").is_ok());
      closed.wait();
      const auto reply = client.request("POST", "/", "body");
      EXPECT_TRUE(reply.is_ok()) << reply.status().to_string();
    }
    EXPECT_TRUE(again.starts_with("POST / HTTP/1.1\r\n")) << again;
  }
}

// The server may have done what was asked: a part of its answer has come, or something that was never said to be one.
TEST(HttpTls, AConnectionThatBreaksInAnAnswerIsNotTriedAgain) {
  const std::string cases[] = {std::string("\x17\x03\x03\x00\x40", 5), std::string("\x17\x03\x03", 3),
                               std::string("\x17\x03\x03\x00\x40 half of it", 16),
                               std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'x'),
                               std::string("\x15\x03\x03\x00\x02\x02\x50", 7)};
  for (const std::string& bytes : cases) {
    int asked = 0;
    {
      const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
        for (int socket = listener.accept(); socket >= 0; socket = listener.accept()) {
          TlsPeer peer(side, socket);
          if (!peer.accept()) return;
          asked += peer.read_to("body").empty() ? 0 : 1;
          if (asked == 1) {
            peer.send(kGreeting);
            asked += peer.read_to("body").empty() ? 0 : 1;
          }
          (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        }
      });
      HttpClient client(server.url(), kTlsLimit);
      EXPECT_TRUE(client.request("POST", "/", "body").is_ok());
      const auto reply = client.request("POST", "/", "body");
      EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable) << reply.status().to_string();
    }
    EXPECT_EQ(asked, 2) << bytes.size();
  }
}

// Whoever is between could have cut it: only TLS's own end is the end of a body without a length.
TEST(HttpTls, ABodyToTheEndOfTheConnectionNeedsThatEndToBeSaid) {
  for (const bool says_end : {true, false}) {
    const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
      TlsPeer peer(side, listener.accept());
      ASSERT_TRUE(peer.accept());
      (void)peer.read_to("\r\n\r\n");
      peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello");
      if (says_end) peer.say_end();
    });
    const auto reply = ask(server.url());
    EXPECT_EQ(reply.is_ok(), says_end) << reply.status().to_string();
    EXPECT_EQ(reply.is_ok() ? reply->body : "", says_end ? "hello" : "");
    EXPECT_EQ(reply.status().message().find("may not be all") != std::string::npos, !says_end);
  }
}

// Far more than a record, both ways; and a server that answers and closes before it has read the body is heard.
TEST(HttpTls, LargeBodies) {
  const std::string large(8u << 20, 'x');
  const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
    TlsPeer peer(side, listener.accept());
    ASSERT_TRUE(peer.accept());
    (void)peer.read_to("\r\n\r\n");
    std::string piece(1u << 20, ' ');
    for (std::size_t left = large.size(); left > 0;) {
      const int got = SSL_read(peer.tls(), piece.data(), static_cast<int>(piece.size()));
      if (got <= 0) break;
      left -= static_cast<std::size_t>(got);
    }
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n" + large);
  });
  const auto reply = HttpClient(server.url(), kTlsLimit).request("POST", "/", large);
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_TRUE(reply->body == large);
}

TEST(HttpTls, AnAnswerBeforeTheBodyIsReadIsSeen) {
  const TlsScript server(greeting("HTTP/1.1 413 Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"));
  const std::string large(64u << 20, 'x');
  const auto reply = HttpClient(server.url(), kTlsLimit).request("POST", "/", large);
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_EQ(reply->status, 413u);
}

// The server sends half a chunk, half a line and half an event, and goes on only when the client has it.
TEST(HttpTls, ABytePassesWhenItComes) {
  Signal head_came, half_came;
  const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
    TlsPeer peer(side, listener.accept());
    ASSERT_TRUE(peer.accept());
    (void)peer.read_to("\r\n\r\n");
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    head_came.wait();
    peer.send("20\r\ndata: {");
    half_came.wait();
    peer.send(std::string(25, '}') + "\r\n0\r\n\r\n");
  });
  HttpClient client(server.url(), kTlsLimit);
  std::string body;
  const Status status = client.relay(
      {"GET", "/", {}, {}},
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

// A server that accepts and says nothing: during the handshake, and after it.
TEST(HttpTls, ASilentServerIsNotWaitedForForEver) {
  for (const bool shakes_hands : {false, true}) {
    Signal is_over;
    const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
      TlsPeer peer(side, listener.accept());
      (void)(shakes_hands && peer.accept());
      is_over.wait();
    });
    const auto reply = ask(server.url(), std::chrono::milliseconds(shakes_hands ? 300 : 50));
    EXPECT_EQ(reply.status().code(), StatusCode::kDeadlineExceeded) << reply.status().to_string();
    is_over.set();
  }
}

TEST(HttpTls, CancelEndsACallThatWaits) {
  for (const bool shakes_hands : {false, true}) {
    Signal is_waiting, is_over;
    const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
      const int socket = listener.accept();
      char byte = 0;
      (void)(!shakes_hands && ::recv(socket, &byte, 1, 0) == 1);  // of the client's first message
      TlsPeer peer(side, socket);
      if (shakes_hands) {
        EXPECT_TRUE(peer.accept());
        (void)peer.read_to("\r\n\r\n");
      }
      is_waiting.set();
      is_over.wait();
    });
    HttpClient client(server.url(), kTlsLimit);
    ThreadPoolExecutor other("other", 1, 1);
    ASSERT_TRUE(other
                    .post([&] {
                      is_waiting.wait();
                      client.cancel();
                    })
                    .is_ok());
    EXPECT_EQ(client.request("GET", "/").status().code(), StatusCode::kCancelled);
    EXPECT_EQ(client.request("GET", "/").status().code(), StatusCode::kCancelled) << "and all later ones";
    is_over.set();
    other.wait_idle();
  }
}

// Bytes that are no TLS, after the handshake, and records that were changed on the way.
TEST(HttpTls, HostileBytesEndTheConnection) {
  const std::string cases[] = {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
                               std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'x'), std::string(100, '\xff'),
                               std::string("\x15\x03\x03\x00\x02\x02\x50", 7)};
  for (const std::string& bytes : cases) {
    const TlsScript server([&](const LoopbackListener& listener, const TlsSide& side) {
      const int socket = listener.accept();
      TlsPeer peer(side, socket);
      ASSERT_TRUE(peer.accept());
      (void)peer.read_to("\r\n\r\n");
      (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    });
    const auto reply = ask(server.url());
    EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable) << reply.status().to_string();
  }
}

}  // namespace
}  // namespace larder
