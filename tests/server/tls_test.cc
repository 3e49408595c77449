// SPDX-License-Identifier: Apache-2.0
// The HTTP listener over TLS: what is answered, what is refused, and clients that are slow, leave, or mean no good.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/http_client.h"
#include "base/thread_pool.h"
#include "server/http_listener.h"
#include "tests/server/server_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/signal.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tls_peer.h"

namespace larder {
namespace {

using support::CertificateAuthority;
using support::IssuedCertificate;
using support::put_file;
using support::Signal;
using support::TlsPeer;
using support::TlsSide;
using Exchange = std::shared_ptr<HttpExchange>;

constexpr Nanos kPatience = std::chrono::seconds(20);

// Files of a server and of those that believe it.
class Certified {
 public:
  Certified() {
    files_.certificate = path("cert.pem");
    files_.key = path("key.pem");
    files_.look_interval = Nanos{0};
    renew(authority_);
    ca_file_ = put_file(path("ca.pem"), authority_.pem());
  }
  void renew(const CertificateAuthority& authority) const {
    const IssuedCertificate issued = authority.issue();
    put_file(path("cert.pem"), issued.certificate);
    put_file(path("key.pem"), issued.key);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  [[nodiscard]] const TlsFiles& files() const { return files_; }
  [[nodiscard]] const std::string& ca_file() const { return ca_file_; }
  [[nodiscard]] const CertificateAuthority& authority() const { return authority_; }

 private:
  const support::TemporaryDirectory folder_;
  const CertificateAuthority authority_{"an authority of tests"};
  TlsFiles files_;
  std::string ca_file_;
};

// "/hold" waits for release(), and says when its client has left; so does the 50th of "/count"; "/broken" ends in its
// middle, "/stream" says its end after its last byte; others are answered.
class TlsListenerTest : public ::testing::Test {
 protected:
  void SetUp() override { listen({}); }
  void TearDown() override { listener_.reset(); }

  void listen(ListenOptions options) {
    listener_.reset();
    if (!options.tls.is_wanted()) options.tls = certified_.files();
    auto made = HttpListener::create(
        options, [this](const HttpRequest& request, const Exchange& exchange) { handle(request, exchange); }, metrics_);
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    listener_ = std::move(*made);
  }
  void handle(const HttpRequest& request, const Exchange& exchange) {
    HttpResponse response;
    response.content_type = "text/plain";
    response.body = request.body.empty() ? "answer to " + request.path : request.body;
    if (request.path == "/hold" || (request.path == "/count" && ++counted_ == 50)) {
      held_ = exchange;
      exchange->on_gone([this] { gone_.set(); });
      return holds_.set();
    }
    if (request.path == "/broken") {
      response.body.clear();
      exchange->begin_stream(response);
      return exchange->write("half", false, [exchange] { exchange->break_off(); });
    }
    if (request.path == "/stream") {
      const std::string body = std::exchange(response.body, {});
      exchange->begin_stream(response);
      return exchange->write(body, false, [exchange] { exchange->write({}, true, {}); });
    }
    exchange->respond(std::move(response));
  }

  [[nodiscard]] HttpUrl url(const std::string& ca_file = {}) const {
    const auto url = parse_http_url(listener_->url(), ca_file.empty() ? certified_.ca_file() : ca_file);
    EXPECT_TRUE(url.is_ok()) << url.status().to_string();
    return *url;
  }
  [[nodiscard]] Result<HttpReply> ask(std::string_view target = "/") const {
    return HttpClient(url(), kPatience).request("GET", target);
  }
  // A connected socket that waits.
  [[nodiscard]] int connect() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(listener_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return made;
  }
  // The server's socket of the connection that `socket` is the client's of; -1: it has none any more.
  static int server_end(int socket) {
    sockaddr_in ours{}, theirs{};
    socklen_t size = sizeof ours;
    EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&ours), &size), 0);
    rlimit most{};
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &most), 0);
    for (int at = 0; at < static_cast<int>(std::min<rlim_t>(most.rlim_cur, 4096)); ++at) {
      size = sizeof theirs;
      if (::getpeername(at, reinterpret_cast<sockaddr*>(&theirs), &size) != 0) continue;
      if (theirs.sin_family == AF_INET && theirs.sin_port == ours.sin_port) return at;
    }
    return -1;
  }
  // Bytes that have come and that nobody has read.
  static int unread_bytes(int socket) {
    int bytes = 0;
    EXPECT_EQ(::ioctl(socket, SIOCINQ, &bytes), 0);
    return bytes;
  }
  // All that comes to the end of the connection.
  static std::string read_all(int socket) {
    std::string text;
    char byte = 0;
    while (::recv(socket, &byte, 1, 0) == 1) text += byte;
    return text;
  }
  [[nodiscard]] double failed_handshakes() {
    return static_cast<double>(metrics_.counter("larder_http_handshakes_failed_total", "").value());
  }

  const Certified certified_;
  MetricsRegistry metrics_;
  std::atomic<int> counted_{0};
  Signal holds_, gone_;
  Exchange held_;
  std::unique_ptr<HttpListener> listener_;
};

TEST_F(TlsListenerTest, AnswersOnOneConnection) {
  EXPECT_TRUE(listener_->url().starts_with("https://127.0.0.1:")) << listener_->url();
  HttpClient client(url(), kPatience);
  for (const char* target : {"/one", "/two", "/three"}) {
    const auto reply = client.request("GET", target);
    ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
    EXPECT_EQ(reply->body, std::string("answer to ") + target);
  }
  const std::string large(6u << 20, 'x');
  const auto reply = client.request("POST", "/", large);
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_TRUE(reply->body == large);
  EXPECT_EQ(listener_->connections(), 1u);
  EXPECT_EQ(failed_handshakes(), 0);
}

// What has no length ends with TLS's own end, which HttpClient asks for; what was broken off does not.
TEST_F(TlsListenerTest, TheEndOfAnAnswerIsSaidAndABrokenOneHasNone) {
  HttpClient client(url(), kPatience);
  const auto old = client.raw("GET /old HTTP/1.0\r\n\r\n");
  ASSERT_TRUE(old.is_ok()) << old.status().to_string();
  EXPECT_EQ(old->body, "answer to /old");
  const auto broken = client.raw("GET /broken HTTP/1.0\r\n\r\n");
  EXPECT_EQ(broken.status().code(), StatusCode::kUnavailable) << "half of a body, and no end";
}

TEST_F(TlsListenerTest, RequestsThatComeTooEarlyWait) {
  const TlsSide side(TLS_client_method());
  TlsPeer peer(side, connect());
  ASSERT_TRUE(peer.connect());
  peer.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  holds_.wait();
  peer.send("GET /second HTTP/1.1\r\nHost: x\r\n\r\nGET /third HTTP/1.1\r\nHost: x\r\n\r\n");
  HttpResponse response;
  response.body = "first";
  held_->respond(response);
  EXPECT_NE(peer.read_to("first").find("200 OK"), std::string::npos);
  EXPECT_NE(peer.read_to("answer to /second").find("200 OK"), std::string::npos);
  EXPECT_NE(peer.read_to("answer to /third").find("200 OK"), std::string::npos);
}

// Otherwise a client that never stops to send takes as much memory as it likes.
TEST_F(TlsListenerTest, OfRequestsThatComeTooEarlyFewAreTaken) {
  const TlsSide side(TLS_client_method());
  const int socket = connect();
  TlsPeer peer(side, socket);
  ASSERT_TRUE(peer.connect());
  std::string requests;
  for (int i = 0; i < 180; ++i) requests += "GET /count HTTP/1.1\r\n\r\n";
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(peer.send(requests));
  holds_.wait();
  int unsent = 0;
  EXPECT_EQ(::ioctl(socket, SIOCOUTQNSD, &unsent), 0);
  const int taken = 50 * static_cast<int>(requests.size()) - unsent - unread_bytes(server_end(socket));
  EXPECT_LT(taken, 12 * static_cast<int>(requests.size())) << "50 requests are one record";
}

// There is nothing to be said then; Asio would say it by a read of nothing, beside the read of the watch.
TEST_F(TlsListenerTest, AStreamThatEndsWithoutALastByte) {
  for (const char* request : {"GET /stream HTTP/1.0\r\n\r\n", "HEAD /stream HTTP/1.1\r\nConnection: close\r\n\r\n",
                              "GET /stream HTTP/1.1\r\nConnection: close\r\n\r\n"}) {
    const TlsSide side(TLS_client_method());
    TlsPeer peer(side, connect());
    ASSERT_TRUE(peer.connect());
    ASSERT_TRUE(peer.send(request));
    const std::string answer = peer.read_all();
    EXPECT_NE(answer.find("200 OK"), std::string::npos) << request << answer;
    EXPECT_EQ(answer.find("answer to /stream") != std::string::npos, request[0] == 'G') << answer;
    EXPECT_EQ(SSL_get_shutdown(peer.tls()) & SSL_RECEIVED_SHUTDOWN, SSL_RECEIVED_SHUTDOWN) << "its end is said";
  }
}

// A client that asks for new keys makes the server write where it only reads: that write, too, must not wait for ever.
TEST_F(TlsListenerTest, WhoAsksForKeysAndReadsNothingIsDropped) {
  ListenOptions options;
  options.write_limit = std::chrono::milliseconds(200);
  listen(options);
  support::block_sigpipe();
  TlsSide side(TLS_client_method());
  SSL_CTX_set_min_proto_version(side.context(), TLS1_3_VERSION);
  const int socket = connect();
  const int little = 1;  // the least that the system allows
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
  TlsPeer peer(side, socket);
  ASSERT_TRUE(peer.connect());
  ASSERT_TRUE(peer.send("GET /hold HTTP/1.1\r\n\r\n"));
  holds_.wait();
  ::setsockopt(server_end(socket), SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(SSL_key_update(peer.tls(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_EQ(SSL_do_handshake(peer.tls()), 1);
  }
  HttpResponse response;
  response.body = std::string(64u << 10, 'x');
  held_->respond(response);
  gone_.wait();
}

// A part of a record has come, but the watch does not know yet when the answer ends: it then reads on.
TEST_F(TlsListenerTest, WhoSendsHalfARecordBehindItsRequestIsClosedInTime) {
  ListenOptions options;
  options.idle_limit = std::chrono::milliseconds(500);
  listen(options);
  const TlsSide side(TLS_client_method());
  const int socket = connect();
  const timeval patience{10, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  TlsPeer peer(side, socket);
  ASSERT_TRUE(peer.connect());
  ASSERT_TRUE(peer.send("GET /hold HTTP/1.1\r\n\r\n"));
  holds_.wait();
  const std::string half("\x17\x03\x03\x00\x40 half of it", 16);
  const int server = server_end(socket);
  held_->post([&] {
    held_->respond({});
    held_->post([&] {  // when the answer is out, and before that is known
      ASSERT_EQ(::send(socket, half.data(), half.size(), MSG_NOSIGNAL), 16);
      while (unread_bytes(server) > 0) std::this_thread::yield();
    });
  });
  errno = 0;
  (void)read_all(socket);
  EXPECT_NE(errno, EAGAIN) << "it was not closed";
}

TEST_F(TlsListenerTest, AClientThatLeavesInOrderIsNoticed) {
  const TlsSide side(TLS_client_method());
  TlsPeer peer(side, connect());
  ASSERT_TRUE(peer.connect());
  peer.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  holds_.wait();
  peer.say_end();
  gone_.wait();
}

TEST_F(TlsListenerTest, AClientThatIsGoneIsNoticed) {
  const TlsSide side(TLS_client_method());
  {
    TlsPeer peer(side, connect());
    ASSERT_TRUE(peer.connect());
    peer.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    holds_.wait();
  }
  gone_.wait();
}

TEST_F(TlsListenerTest, PlainHttpIsToldSo) {
  const int socket = connect();
  const std::string request = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_EQ(::send(socket, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  const std::string answer = read_all(socket);
  ::close(socket);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 ")) << answer;
  EXPECT_NE(answer.find("https://"), std::string::npos) << answer;
  EXPECT_EQ(failed_handshakes(), 1);
  HttpUrl plain = url();
  plain.trust.reset();
  const auto reply = HttpClient(plain, kPatience).request("GET", "/");
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_EQ(reply->status, 400u);
  EXPECT_TRUE(ask().is_ok());
}

TEST_F(TlsListenerTest, GarbageAndClientsThatLeaveMidwayAreCountedAndNothingElse) {
  // The begin of a client's first message: a record of 512 bytes, of which 5 come.
  const std::string half("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", 10);
  const std::string cases[] = {"",
                               half,
                               std::string(3000, '\0'),
                               std::string(3000, '\xff'),
                               "SSH-2.0-OpenSSH_9.2\r\n",
                               half + std::string(600, 'x'),
                               std::string("\x15\x03\x01\x00\x02\x02\x28", 7)};
  double expected = 0;
  for (const std::string& bytes : cases) {
    const int socket = connect();
    (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(socket, SHUT_WR);
    (void)read_all(socket);  // the server closes it
    ::close(socket);
    ++expected;
  }
  EXPECT_TRUE(ask().is_ok());
  EXPECT_EQ(failed_handshakes(), expected);
}

TEST_F(TlsListenerTest, WhoDoesNotEndTheHandshakeIsClosedInTime) {
  ListenOptions options;
  options.handshake_limit = std::chrono::milliseconds(50);
  listen(options);
  const int socket = connect();
  EXPECT_EQ(read_all(socket), "");
  ::close(socket);
  // The socket is closed first, and counted then; a listener that ends in between would not count it.
  EXPECT_TRUE(listener_->wait_drained(kPatience));
  EXPECT_EQ(failed_handshakes(), 1);
}

TEST_F(TlsListenerTest, WhoDoesNotEndTheHandshakeMakesRoomForOthers) {
  ListenOptions options;
  options.max_connections = 1;
  options.least_wait = Nanos{0};
  listen(options);
  const int silent = connect();
  Result<HttpReply> reply = ask();
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_EQ(reply->status, 200u);
  EXPECT_EQ(read_all(silent), "");
  ::close(silent);
}

TEST_F(TlsListenerTest, OldProtocolsAreRefused) {
  TlsSide side(TLS_client_method());
  SSL_CTX_set_min_proto_version(side.context(), TLS1_VERSION);
  SSL_CTX_set_max_proto_version(side.context(), TLS1_1_VERSION);
  SSL_CTX_set_cipher_list(side.context(), "DEFAULT@SECLEVEL=0");
  TlsPeer peer(side, connect());
  EXPECT_FALSE(peer.connect());
}

TEST_F(TlsListenerTest, HttpIsChosenAmongProtocolsAndNothingElseIsSpoken) {
  const std::pair<std::string, std::string> cases[] = {
      {"\x02h2\x08http/1.1", "http/1.1"}, {"\x08http/1.1", "http/1.1"}, {"\x02h2", "refused"}};
  for (const auto& [offered, chosen] : cases) {
    TlsSide side(TLS_client_method());
    SSL_CTX_set_alpn_protos(side.context(), reinterpret_cast<const unsigned char*>(offered.data()),
                            static_cast<unsigned>(offered.size()));
    TlsPeer peer(side, connect());
    const unsigned char* name = nullptr;
    unsigned size = 0;
    const bool is_connected = peer.connect();
    SSL_get0_alpn_selected(peer.tls(), &name, &size);
    EXPECT_EQ(is_connected ? std::string(reinterpret_cast<const char*>(name), size) : "refused", chosen);
  }
}

TEST_F(TlsListenerTest, WhereClientsMustShowACertificateThoseWithoutAreRefused) {
  ListenOptions options;
  options.tls = certified_.files();
  options.tls.client_ca = certified_.ca_file();
  listen(options);
  const auto refused = ask();
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable) << refused.status().to_string();
  const CertificateAuthority other("another authority");
  const auto answer_to = [&](const CertificateAuthority& issuer) {
    support::block_sigpipe();
    TlsSide side(TLS_client_method());
    side.show(issuer.issue({.names = "DNS:a.client"}));
    TlsPeer peer(side, connect());
    if (!peer.connect()) return std::string();
    peer.send("GET /mine HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return peer.read_all();
  };
  EXPECT_NE(answer_to(certified_.authority()).find("answer to /mine"), std::string::npos);
  EXPECT_EQ(answer_to(other), "");
}

TEST_F(TlsListenerTest, ARenewedCertificateIsShownToNewConnections) {
  HttpClient before(url(), kPatience);
  EXPECT_TRUE(before.request("GET", "/").is_ok());
  const CertificateAuthority next("the next authority");
  certified_.renew(next);
  const std::string next_file = put_file(certified_.path("next.pem"), next.pem());
  const auto reply = HttpClient(url(next_file), kPatience).request("GET", "/");
  EXPECT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_TRUE(before.request("GET", "/").is_ok()) << "an open connection goes on";
  put_file(certified_.path("key.pem"), "no key");
  EXPECT_TRUE(HttpClient(url(next_file), kPatience).request("GET", "/").is_ok()) << "the last that could be used";
}

TEST_F(TlsListenerTest, FilesThatCannotBeUsedAreSaidAtTheStart) {
  ListenOptions options;
  options.tls.certificate = certified_.path("absent.pem");
  const auto made = HttpListener::create(
      options, [](const HttpRequest&, const Exchange&) {}, metrics_);
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().message().find("absent.pem: there is no such file"), std::string::npos)
      << made.status().message();
}

// Many at once, some of which leave at any point; those that stay are answered.
TEST_F(TlsListenerTest, ManyClientsAtOnce) {
  ThreadPoolExecutor clients("clients", 8, 64);
  std::atomic<int> answered{0};
  for (int i = 0; i < 32; ++i) {
    ASSERT_TRUE(clients
                    .post([this, i, &answered] {
                      if (i % 4 == 3) {
                        const TlsSide side(TLS_client_method());
                        const int socket = connect();
                        if (i % 8 == 3) ::shutdown(socket, SHUT_RD);
                        support::block_sigpipe();
                        TlsPeer peer(side, socket);
                        if (peer.connect()) peer.send("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhal");
                        return;
                      }
                      HttpClient client(url(), kPatience);
                      for (int n = 0; n < 4; ++n) answered += client.request("GET", "/").is_ok() ? 1 : 0;
                    })
                    .is_ok());
  }
  clients.wait_idle();
  EXPECT_EQ(answered.load(), 24 * 4);
}

// --- the whole API over it ---

class TlsApiTest : public ServerFixture {
 protected:
  void SetUp() override {
    ca_file_ = certified_.ca_file();
    Options options;
    options.ssl_certfile = certified_.files().certificate;
    options.ssl_keyfile = certified_.files().key;
    options.api_key = "hush";
    start(options);
  }
  const Certified certified_;
};

TEST_F(TlsApiTest, AStreamOfEvents) {
  EXPECT_TRUE(api_->url().starts_with("https://"));
  EXPECT_EQ(call("GET", "/health").status, 200u);
  EXPECT_EQ(call("GET", "/v1/models").status, 401u);
  Json body = generate_body({1, 2, 3}, 20);
  body["stream"] = true;
  std::size_t events = 0;
  bool is_done = false;
  const auto reply = client("hush")->stream("POST", "/generate", body.dump(), [&](std::string_view line) {
    events += line.starts_with("data: {") ? 1 : 0;
    is_done = is_done || line == "data: [DONE]";
    return true;
  });
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_GT(events, 0u);
  EXPECT_TRUE(is_done);
}

}  // namespace
}  // namespace larder
