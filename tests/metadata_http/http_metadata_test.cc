// SPDX-License-Identifier: Apache-2.0
// The client: keys, broken connections, servers that are none, are silent, or come and go; many threads.
#include "metadata/http_metadata.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "metadata/metadata_wire.h"
#include "server/http_listener.h"
#include "tests/metadata_http/http_harness.h"
#include "tests/support/loopback_listener.h"
#include "tests/support/rest.h"
#include "tests/support/signal.h"
#include "tests/support/trickling_server.h"

namespace larder::conformance {
namespace {

const MetadataNamespace kKv{0, "kv"};

std::unique_ptr<HttpMetadata> client_of(const std::string& url, Nanos timeout = std::chrono::seconds(20),
                                        std::size_t connections = 8) {
  HttpMetadataOptions options;
  options.url = url;
  options.timeout = timeout;
  options.connections = connections;
  auto made = HttpMetadata::create(options, real_clock());
  EXPECT_TRUE(made.is_ok()) << made.status().to_string();
  return std::move(*made);
}

TEST(HttpMetadataTest, WithoutTheKeyNothingIsAnswered) {
  HttpServerUnderTest server("secret");
  EXPECT_EQ(server.client()->initialize(kKv, 8).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(server.client("wrong")->stats().status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(server.client("secret")->initialize(kKv, 8).is_ok());
  for (const char* target : {"/0/exists", "/v1/metadata", "/v1/stats", "/nothing"}) {
    const HttpReply reply = server.post(target, R"({"keys":[]})");
    EXPECT_EQ(reply.status, 401u) << target;
    EXPECT_EQ(reply.body, R"({"error":"Unauthorized"})");
  }
  EXPECT_EQ(server.call("POST", "/0/exists", R"({"keys":[]})", "secret").status, 200u);
  EXPECT_EQ(server.call("GET", "/health").status, 200u);
  EXPECT_EQ(server.call("GET", "/metrics").status, 200u);
  EXPECT_TRUE(server.call("GET", "/metrics?format=json").body.starts_with('{'));
}

// What requests.Session sends for http://larder:secret@host: the reference's client knows no other key.
TEST(HttpMetadataTest, TheKeyMayBeThePasswordOfTheUrl) {
  HttpServerUnderTest server("secret");
  const auto ask = [&](const std::string& authorization) {
    HttpClient client(server.http_url(), std::chrono::seconds(20));
    const auto reply = client.raw("POST /0/initialize HTTP/1.1\r\nHost: x\r\nAuthorization: " + authorization +
                                  "\r\nContent-Length: 15\r\n\r\n{\"num_pages\":8}");
    return reply.is_ok() ? reply->status : 0u;
  };
  EXPECT_EQ(ask("Basic bGFyZGVyOnNlY3JldA=="), 204u);  // larder:secret
  EXPECT_EQ(ask("Basic OnNlY3JldA"), 204u);            // :secret
  EXPECT_EQ(ask("Basic bGFyZGVyOnNlY3JlVA=="), 401u);  // larder:secreT
  EXPECT_EQ(ask("Basic c2VjcmV0"), 401u);              // secret, without a user
  EXPECT_EQ(ask("Basic bGFyZGVyOg=="), 401u);          // no password
  EXPECT_EQ(ask("Basic ***"), 401u);
  EXPECT_EQ(ask("Basic"), 401u);
}

Result<std::unique_ptr<HttpMetadata>> client_with(const std::string& url, const std::string& api_key) {
  HttpMetadataOptions options;
  options.url = url;
  options.api_key = api_key;
  options.timeout = std::chrono::seconds(20);
  return HttpMetadata::create(options, real_clock());
}

TEST(HttpMetadataTest, OurClientTakesTheKeyOutOfTheUrlToo) {
  HttpServerUnderTest server("a/b:c%@d");
  const std::string place = server.url().substr(std::string_view("http://").size());
  const std::string key = "a%2Fb:c%25%40d";
  EXPECT_TRUE((*client_with("http://larder:" + key + "@" + place, ""))->initialize(kKv, 8).is_ok());
  EXPECT_TRUE((*client_with("http://:" + key + "@" + place + "/", "a/b:c%@d"))->stats().is_ok())
      << "both, and the same";
  EXPECT_TRUE((*client_with("larder:a%2Fb:c%25@d@" + place, ""))->stats().is_ok()) << "the last '@' counts";
  EXPECT_EQ((*client_with("http://larder:other@" + place, ""))->stats().status().code(), StatusCode::kInvalidArgument);
  server.close();
  const Status gone = (*client_with("http://larder:hush@" + place, ""))->stats().status();
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable);
  EXPECT_EQ(gone.message().find("hush"), std::string::npos) << gone.message();
}

TEST(HttpMetadataTest, AUrlWhoseKeyIsWrongIsRefusedAndTheKeyNotShown) {
  const std::pair<const char*, const char*> cases[] = {{"http://larder:hush@host", "other"},
                                                       {"http://hush@host", ""},
                                                       {"http://hush:@host", ""},
                                                       {"http://larder:hush%4@host", ""},
                                                       {"http://larder:hush%@host", ""},
                                                       {"http://larder:hush%0d%0a@host", ""},
                                                       {"http://larder:hush/hush@host", ""},
                                                       {"http://@host", ""},
                                                       {"ftp://larder:hush@host", ""},
                                                       {"http://larder:hush@host:99999", ""},
                                                       {"http://larder:hush@", ""},
                                                       {"hush@http://host", ""}};
  for (const auto& [url, api_key] : cases) {
    const Status status = client_with(url, api_key).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << url;
    EXPECT_EQ(status.message().find("hush"), std::string::npos) << status.message();
  }
}

TEST(HttpMetadataTest, TheServerMayGoAndComeBack) {
  HttpServerUnderTest server;
  const auto client = server.client();
  ASSERT_TRUE(client->initialize(kKv, 8).is_ok());
  const std::vector<ReserveItems> wanted{{&kKv, {{"a", ""}}}};
  const auto given = client->reserve(session_of(1), wanted, kMaxTtl);
  ASSERT_TRUE(given.is_ok());
  server.close();
  EXPECT_EQ(client->stats().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(client->find({}, Nanos{0}).status().code(), StatusCode::kUnavailable);
  server.open();
  EXPECT_TRUE(client->stats().is_ok());
}

// Does what it is asked, but ends the connection without an answer as often as it was told; one connection at a time.
class LossyServer {
 public:
  LossyServer(MetadataService& service, int losses) : service_(service), losses_(losses) {
    (void)thread_.post([this] { serve(); });
  }
  ~LossyServer() {
    listener_.end_accept();
    thread_.wait_idle();
  }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(listener_.port()); }
  [[nodiscard]] int requests() const { return requests_.load(); }

 private:
  void serve() {
    for (;;) {
      const int peer = listener_.accept();
      if (peer < 0) return;
      serve_peer(peer);
      ::close(peer);
    }
  }
  void serve_peer(int peer) {
    std::string bytes;
    char piece[4096];
    for (;;) {
      const std::size_t end = bytes.find("\r\n\r\n");
      const std::size_t length = bytes.find("Content-Length: ");
      if (end != std::string::npos && length != std::string::npos) {
        const std::size_t size = std::strtoul(bytes.c_str() + length + 16, nullptr, 10);
        if (bytes.size() >= end + 4 + size) {
          const std::string answer =
              metadata::answer_wire_request(service_, std::string_view(bytes).substr(end + 4, size)).bytes;
          if (requests_.fetch_add(1) < losses_) return;
          const std::string whole =
              "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(answer.size()) + "\r\n\r\n" + answer;
          (void)!::send(peer, whole.data(), whole.size(), MSG_NOSIGNAL);
          bytes.clear();
        }
      }
      const ssize_t got = ::recv(peer, piece, sizeof piece, 0);
      if (got <= 0) return;
      bytes.append(piece, static_cast<std::size_t>(got));
    }
  }

  MetadataService& service_;
  const int losses_;
  const support::LoopbackListener listener_{8};
  std::atomic<int> requests_{0};
  ThreadPoolExecutor thread_{"lossy", 1, 4};
};

TEST(HttpMetadataTest, ALostAnswerIsAskedForOnceMoreAndIsTheSame) {
  auto service = EmbeddedMetadata::create(embedded_test_options(), real_clock());
  ASSERT_TRUE(service.is_ok());
  ASSERT_TRUE((*service)->initialize(kKv, 4).is_ok());
  const std::vector<ReserveItems> wanted{{&kKv, {{"a", ""}, {"b", "a"}}}};
  {
    LossyServer server(**service, 1);
    const auto given = client_of(server.url())->reserve(session_of(1), wanted, kMaxTtl);
    ASSERT_TRUE(given.is_ok()) << given.status().to_string();
    EXPECT_EQ(outcomes(given->front()), "RR");
    EXPECT_EQ(server.requests(), 2);
    EXPECT_EQ((*service)->stats()->at(kKv).reserved, 2u) << "asked twice, reserved once";
    const auto same = (*service)->reserve(session_of(1), wanted, kMaxTtl);
    ASSERT_TRUE(same.is_ok());
    EXPECT_EQ(same->front()[0].ref, given->front()[0].ref);
  }
  LossyServer server(**service, 2);
  const auto lost = client_of(server.url())->reserve(session_of(2), wanted, kMaxTtl);
  EXPECT_EQ(lost.status().code(), StatusCode::kUnavailable) << "once more, not for ever";
}

TEST(HttpMetadataTest, WhatIsNoMetadataServerIsUnsupported) {
  MetricsRegistry metrics;
  std::atomic<unsigned> status{404};
  auto listener = HttpListener::create(
      {},
      [&](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
        HttpResponse response;
        response.status = status.load();
        response.body = "<html>";
        exchange->respond(std::move(response));
      },
      metrics);
  ASSERT_TRUE(listener.is_ok());
  const auto client = client_of("127.0.0.1:" + std::to_string((*listener)->port()));
  const std::pair<unsigned, StatusCode> expected[] = {
      {200, StatusCode::kUnsupported},      {404, StatusCode::kUnsupported}, {403, StatusCode::kInvalidArgument},
      {413, StatusCode::kInvalidArgument},  {500, StatusCode::kUnavailable}, {503, StatusCode::kUnavailable},
      {504, StatusCode::kDeadlineExceeded}, {501, StatusCode::kUnsupported}};
  for (const auto& [answered, code] : expected) {
    status = answered;
    EXPECT_EQ(client->stats().status().code(), code) << answered;
    EXPECT_NE(client->stats().status().code(), StatusCode::kNotFound) << "that would mean: initialise it";
  }
}

TEST(HttpMetadataTest, ASilentServerEndsByTheTimeOutAndAFullPoolToo) {
  MetricsRegistry metrics;
  RankedMutex mutex{LockRank::kServer};
  std::vector<std::shared_ptr<HttpExchange>> held;
  auto listener = HttpListener::create(
      {},
      [&](const HttpRequest&, std::shared_ptr<HttpExchange> exchange) {
        LockGuard guard(mutex);
        held.push_back(std::move(exchange));
      },
      metrics);
  ASSERT_TRUE(listener.is_ok());
  const auto client = client_of("127.0.0.1:" + std::to_string((*listener)->port()), std::chrono::milliseconds(200), 1);
  ThreadPoolExecutor threads("ask", 3, 8);
  std::atomic<int> timed_out{0};
  const TimePoint begin = real_clock().now();
  for (int i = 0; i < 3; ++i) {
    (void)threads.post([&] {
      if (client->stats().status().code() == StatusCode::kDeadlineExceeded) timed_out.fetch_add(1);
    });
  }
  threads.wait_idle();
  EXPECT_EQ(timed_out.load(), 3);
  EXPECT_LT(real_clock().now() - begin, std::chrono::seconds(10));
  std::vector<std::shared_ptr<HttpExchange>> asked;
  {
    LockGuard guard(mutex);
    asked.swap(held);
  }
  EXPECT_GE(asked.size(), 1u);
}

// Listens, and has no room for another connection: who connects waits.
class FullServer {
 public:
  FullServer() {
    for (int i = 0; i < 16 && !is_full_; ++i) knock();
  }
  ~FullServer() {
    for (const int guest : guests_) ::close(guest);
  }
  [[nodiscard]] bool is_full() const { return is_full_; }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(listener_.port()); }

 private:
  void knock() {
    guests_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(guests_.back(), reinterpret_cast<const sockaddr*>(&listener_.address()),
                    sizeof listener_.address());
    pollfd connected{guests_.back(), POLLOUT, 0};
    is_full_ = ::poll(&connected, 1, 50) == 0;
  }

  const support::LoopbackListener listener_{0};
  std::vector<int> guests_;
  bool is_full_ = false;
};

TEST(HttpMetadataTest, AServerThatTakesNoConnectionCostsTheTimeOutOnce) {
  const FullServer server;
  if (!server.is_full()) GTEST_SKIP() << "this kernel lets everybody in";
  constexpr Nanos kLimit = std::chrono::milliseconds(400);
  const auto client = client_of(server.url(), kLimit);
  const TimePoint begin = real_clock().now();
  const Status status = client->stats().status();
  const Nanos took = real_clock().now() - begin;
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  EXPECT_GE(took, kLimit / 2);
  EXPECT_LT(took, 2 * kLimit) << "asked once";
}

// Each byte came in time, and so did each attempt: only the whole tells.
TEST(HttpMetadataTest, AServerThatTricklesCostsTheTimeOutOnce) {
  constexpr Nanos kLimit = std::chrono::milliseconds(400);
  const std::string endless = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + std::string(1000, 'x');
  for (const std::string& answer : {endless, std::string("HTTP/1")}) {  // the second breaks off after 300 ms
    const support::TricklingServer server(answer);
    const auto client = client_of("127.0.0.1:" + std::to_string(server.port()), kLimit);
    const TimePoint begin = real_clock().now();
    const Status status = client->stats().status();
    const Nanos took = real_clock().now() - begin;
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_NE(status.message().find("(a call has 0.4 s)"), std::string::npos) << status.message();
    EXPECT_GE(took, kLimit / 2);
    EXPECT_LT(took, std::chrono::seconds(5)) << answer;
  }
}

TEST(HttpMetadataTest, ManyThreadsShareFewConnections) {
  HttpServerUnderTest server({}, true);
  const auto client = client_of(server.url(), std::chrono::seconds(20), 3);
  ASSERT_TRUE(client->initialize(kKv, 4096).is_ok());
  ThreadPoolExecutor threads("ask", 8, 64);
  std::atomic<int> wrong{0};
  for (std::uint64_t writer = 1; writer <= 8; ++writer) {
    (void)threads.post([&, writer] {
      for (std::uint64_t round = 0; round < 40; ++round) {
        const std::string key = std::to_string(writer) + "/" + std::to_string(round);
        const std::vector<ReserveItems> wanted{{&kKv, {{key, ""}}}};
        const auto given = client->reserve(session_of(writer, round), wanted, kMaxTtl);
        if (!given.is_ok() || given->front().front().outcome != ReserveOutcome::kReserved) {
          wrong.fetch_add(1);
          continue;
        }
        const PageRef ref = given->front().front().ref;
        const auto done = client->confirm({session_of(writer, round), {{{&kKv, key, ref}}}, {}, round % 2 == 0});
        const std::vector<MetadataKeys> keys{{&kKv, {key}}};
        const auto found = client->find(keys, kSecond);
        const bool is_right = done.is_ok() && done->front().is_ok() && found.is_ok() && found->front().front() == ref;
        if (!is_right) wrong.fetch_add(1);
      }
    });
  }
  threads.wait_idle();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(server.service().stats()->at(kKv).stored, 320u);
}

// Confirmations and clears wait until they are let go.
class WaitingService final : public ServiceInFront {
 public:
  using ServiceInFront::ServiceInFront;
  Result<std::vector<Status>> confirm(const ConfirmRequest& request) override {
    waiting.fetch_add(1);
    gate.wait();
    return ServiceInFront::confirm(request);
  }
  Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) override {
    waiting.fetch_add(1);
    gate.wait();
    return ServiceInFront::clear(name_space, prefix);
  }
  std::atomic<int> waiting{0};
  support::Signal gate;
};

TEST(HttpMetadataTest, AClearHasMoreTimeThanAnotherCall) {
  ManualClock clock;
  MetricsRegistry metrics;
  const auto embedded = EmbeddedMetadata::create(embedded_test_options(), clock);
  ASSERT_TRUE(embedded.is_ok());
  ASSERT_TRUE((*embedded)->initialize(kKv, 8).is_ok());
  Talker(**embedded, kKv).store(session_of(1), {"a"});
  WaitingService service(**embedded);
  MetadataServerParts parts;
  parts.service = &service;
  parts.clock = &clock;
  parts.metrics = &metrics;
  parts.changes_wait = true;
  const auto server = MetadataServer::create(parts);
  ASSERT_TRUE(server.is_ok()) << server.status().to_string();
  const auto client = client_of((*server)->url(), std::chrono::milliseconds(200));
  Result<std::uint64_t> cleared = internal_error("not answered");
  ThreadPoolExecutor clients("ask", 1, 1);
  ASSERT_TRUE(clients.post([&] { cleared = client->clear(kKv, ""); }).is_ok());
  while (service.waiting.load() < 1) rest();
  const ConfirmRequest request{session_of(1), {}, {{&kKv, "a", {0, 1}}}, false};
  EXPECT_EQ(client->confirm(request).status().code(), StatusCode::kDeadlineExceeded) << "a clear waits for longer";
  service.gate.set();
  clients.wait_idle();
  ASSERT_TRUE(cleared.is_ok()) << cleared.status().to_string();
  EXPECT_EQ(*cleared, 1u);
}

TEST(HttpMetadataTest, TheBodiesOfCallsThatWaitAreCounted) {
  constexpr int kBodies = 4;
  ManualClock clock;
  MetricsRegistry metrics;
  const auto embedded = EmbeddedMetadata::create(embedded_test_options(), clock);
  ASSERT_TRUE(embedded.is_ok());
  ASSERT_TRUE((*embedded)->initialize(kKv, 8).is_ok());
  WaitingService service(**embedded);
  std::vector<std::string> keys(1000, std::string(kMaxKeyBytes, 'k'));
  ConfirmRequest request{session_of(1), {}, {}, false};
  for (const std::string& key : keys) request.release.push_back({&kKv, key, {0, 1}});
  const std::string body = *metadata::encode_confirm(request);
  MetadataServerParts parts;
  parts.service = &service;
  parts.clock = &clock;
  parts.metrics = &metrics;
  parts.changes_wait = true;
  parts.listen.max_open_body_bytes = kBodies * body.size();
  const auto server = MetadataServer::create(parts);
  ASSERT_TRUE(server.is_ok()) << server.status().to_string();
  const HttpUrl url = *parse_http_url((*server)->url());
  const auto status_of = [&](Nanos patience) {
    const auto reply = HttpClient(url, patience).request("POST", "/v1/metadata", body);
    return reply.is_ok() ? reply->status : 0;
  };
  ThreadPoolExecutor clients("ask", kBodies, kBodies);
  for (int i = 0; i < kBodies; ++i) {
    ASSERT_TRUE(clients.post([&] { EXPECT_EQ(status_of(std::chrono::seconds(20)), 200u); }).is_ok());
  }
  while (service.waiting.load() < kBodies) rest();
  EXPECT_EQ(status_of(std::chrono::seconds(2)), 503u) << "there is no room for a fifth";
  service.gate.set();
  clients.wait_idle();
  EXPECT_EQ(status_of(std::chrono::seconds(20)), 200u);
}

TEST(HttpMetadataTest, WhoHasNoKeyIsToldSoBeforeTheBodyIsRead) {
  HttpServerUnderTest server("secret");
  const auto answer_to = [&](const std::string& first_line) {
    HttpClient client(server.http_url(), std::chrono::seconds(5));
    const auto reply = client.raw(first_line + " HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n{");
    return reply.is_ok() ? reply->status : 0u;
  };
  EXPECT_EQ(answer_to("POST /v1/metadata"), 401u);
  EXPECT_EQ(answer_to("POST /0/exists"), 401u);
  EXPECT_EQ(answer_to("POST /nothing"), 401u);
  EXPECT_EQ(answer_to("POST /health"), 405u);
  EXPECT_EQ(answer_to("POST /metrics"), 405u);
}

TEST(HttpMetadataTest, OptionsAndCallsAreChecked) {
  const auto code = [](const HttpMetadataOptions& options) {
    return HttpMetadata::create(options, real_clock()).status().code();
  };
  EXPECT_EQ(code({"ftp://x", "", kSecond, 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"http://x:99999", "", kSecond, 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"http://x", "", Nanos{0}, 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"http://x", "", kSecond, 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"http://x", "a\r\nb: c", kSecond, 1}), StatusCode::kInvalidArgument);
  HttpServerUnderTest server;
  const auto client = server.client();
  const std::vector<MetadataKeys> nameless{{nullptr, {"a"}}};
  EXPECT_EQ(client->find(nameless, Nanos{0}).status().code(), StatusCode::kInvalidArgument);
  const std::vector<MetadataKeys> many{{&kKv, std::vector<std::string_view>(metadata::kMaxWireItems, "k")}};
  EXPECT_EQ(client->find(many, Nanos{0}).status().code(), StatusCode::kInvalidArgument);
}

TEST(HttpMetadataTest, StatsAndMetricsSayTheSameAsTheService) {
  HttpServerUnderTest server;
  (void)server.post("/2/initialize", R"({"num_pages":10,"namespace":"swa"})");
  (void)server.post("/2/reserve_and_allocate_page_indices", R"({"keys":[["a",""],["b",""]],"namespace":"swa"})");
  (void)server.post("/2/confirm_write", R"({"written_keys_to_confirm":[["a",0]],"namespace":"swa"})");
  const HttpReply reply = server.call("GET", "/v1/stats");
  EXPECT_EQ(reply.status, 200u);
  const auto json = nlohmann::json::parse(reply.body, nullptr, false);
  const nlohmann::json expected = {{"pages", 10}, {"free", 8},    {"reserved", 1}, {"stored", 1}, {"quarantined", 0},
                                   {"leased", 0}, {"evicted", 0}, {"expired", 0},  {"refused", 0}};
  EXPECT_EQ(json["namespaces"]["2:swa"], expected) << reply.body;
  const std::string metrics = server.call("GET", "/metrics").body;
  EXPECT_NE(metrics.find("larder_metadata_pages{namespace=\"2:swa\",state=\"stored\"} 1"), std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("larder_metadata_requests_total{route=\"confirm_write\"} 1"), std::string::npos) << metrics;
  EXPECT_EQ(server.call("POST", "/v1/stats").status, 405u);
  EXPECT_EQ(server.call("GET", "/v1/metadata").status, 405u);
}

class CrowdedService final : public ServiceInFront {
 public:
  using ServiceInFront::ServiceInFront;
  Result<std::map<MetadataNamespace, NamespaceStats>> stats() override { return figures; }
  std::map<MetadataNamespace, NamespaceStats> figures;
};

// With series of their own they would leave the registry no room for what is counted later.
TEST(HttpMetadataTest, NamespacesBeyond1024AreOneInTheMetrics) {
  ManualClock clock;
  MetricsRegistry metrics;
  const auto embedded = EmbeddedMetadata::create(embedded_test_options(), clock);
  ASSERT_TRUE(embedded.is_ok());
  CrowdedService service(**embedded);
  MetadataServerParts parts;
  parts.service = &service;
  parts.clock = &clock;
  parts.metrics = &metrics;
  const auto server = MetadataServer::create(parts);
  ASSERT_TRUE(server.is_ok()) << server.status().to_string();
  const auto text = [&] {
    return HttpClient(*parse_http_url((*server)->url()), std::chrono::seconds(20)).request("GET", "/metrics")->body;
  };
  for (int rank = 0; rank < 1024; ++rank) service.figures[{rank, "kv"}].free = 1;
  EXPECT_EQ(text().find("namespace=\"others\""), std::string::npos);
  for (int rank = -276; rank < 0; ++rank) service.figures[{rank, "kv"}].free = 2;  // come later, and sort first
  const std::string later = text();
  EXPECT_NE(later.find("{namespace=\"1023:kv\",state=\"free\"} 1\n"), std::string::npos);
  EXPECT_NE(later.find("{namespace=\"others\",state=\"free\"} 552\n"), std::string::npos);
  EXPECT_EQ(later.find("{namespace=\"-1:kv\""), std::string::npos);
}

}  // namespace
}  // namespace larder::conformance
