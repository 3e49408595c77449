// SPDX-License-Identifier: Apache-2.0
// Answers on their way: as they are made, to clients that leave, from a server that dies, and more than there are
// slots.
#include <atomic>
#include <future>
#include <thread>

#include "base/log.h"
#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

// A client of /completion that notes the tokens of its stream.
class Stream {
 public:
  Stream(const Rig& rig, const Tokens& prompt, int count)
      : client_(rig.url(), std::chrono::seconds(20)),
        body_(Json{{"prompt", prompt}, {"n_predict", count}, {"stream", true}, {"return_tokens", true}}.dump()),
        runs_(std::async(std::launch::async, [this] { run(); })) {}
  ~Stream() { join(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void leave() { client_.cancel(); }
  void join() { runs_.wait(); }
  // Waits until so many tokens are here.
  [[nodiscard]] bool wait_tokens(std::size_t count) {
    const TimePoint end = real_clock().now() + std::chrono::seconds(20);
    LockGuard guard(mutex_);
    while (tokens_.size() < count && real_clock().now() < end) changed_.wait_for(mutex_, std::chrono::milliseconds(5));
    return tokens_.size() >= count;
  }
  [[nodiscard]] Tokens tokens() {
    LockGuard guard(mutex_);
    return tokens_;
  }
  [[nodiscard]] bool is_over() const { return is_over_.load(); }
  // After join().
  [[nodiscard]] Result<HttpReply> reply() const { return reply_; }
  [[nodiscard]] bool is_whole() const { return is_whole_; }

 private:
  void run() {
    reply_ = client_.stream("POST", "/completion", body_, [this](std::string_view line) {
      if (line == "data: [DONE]") is_whole_ = true;
      const Json event = line.starts_with("data: {") ? Json::parse(line.substr(6), nullptr, false) : Json();
      if (!event.is_object() || !event.contains("tokens")) return true;
      LockGuard guard(mutex_);
      for (const Json& token : event["tokens"]) tokens_.push_back(token.get<TokenId>());
      changed_.notify_all();
      return true;
    });
    is_over_ = true;
  }

  HttpClient client_;
  const std::string body_;
  RankedMutex mutex_{LockRank::kServer};
  RankedCondition changed_;
  Tokens tokens_ LARDER_GUARDED_BY(mutex_);
  Result<HttpReply> reply_ = HttpReply{};
  bool is_whole_ = false;
  std::atomic<bool> is_over_{false};
  std::future<void> runs_;  // last: it uses the rest
};

// In the clear, and over TLS on both sides of the proxy.
class RelayStreams : public testing::TestWithParam<bool> {
 protected:
  Rig rig_{{.geometry = geometry_of("hybrid"), .is_secure = GetParam()}};
  const Tokens prompt_ = random_tokens(100, 1);
};

TEST_P(RelayStreams, PassAsTheyAreMade) {
  rig_.server().hold("answer", 3);
  Stream stream(rig_, prompt_, 6);
  ASSERT_TRUE(rig_.server().wait_held());
  EXPECT_TRUE(stream.wait_tokens(3)) << "the server has made three tokens, and waits";
  rig_.server().release();
  stream.join();
  EXPECT_TRUE(stream.is_whole());
  EXPECT_EQ(stream.tokens(), rig_.expected(prompt_, 6));
}

TEST_P(RelayStreams, OfClientsThatLeaveGiveTheirSlotBack) {
  rig_.server().hold("answer", 2);
  {
    Stream stream(rig_, prompt_, 1000);
    ASSERT_TRUE(stream.wait_tokens(2));
    stream.leave();
  }
  rig_.wait_idle();
  rig_.server().release();
  (void)rig_.ask(joined(prompt_, random_tokens(30, 2)));  // the only slot
  EXPECT_EQ(rig_.metric("larder_proxy_failed_requests_total"), 0) << "the client has left, and nothing has failed";
}

TEST_P(RelayStreams, ClientsThatLeaveWhileTheyWaitGetNoSlot) {
  rig_.server().hold("answer", 1);
  Stream first(rig_, prompt_, 4);
  ASSERT_TRUE(rig_.server().wait_held());
  const int answers = rig_.server().calls("answer");
  {
    Stream second(rig_, random_tokens(100, 2), 4);
    second.leave();
  }
  rig_.server().release();
  first.join();
  EXPECT_EQ(first.tokens(), rig_.expected(prompt_, 4));
  rig_.wait_idle();
  EXPECT_EQ(rig_.server().calls("answer"), answers);
}

TEST_P(RelayStreams, OfServersThatDieBreakOffAndNothingIsStuck) {
  const Tokens known = random_tokens(300, 3);
  (void)rig_.ask(known);
  rig_.wait_idle();
  rig_.server().hold("answer", 2);
  Stream stream(rig_, prompt_, 6);
  ASSERT_TRUE(stream.wait_tokens(2));
  rig_.kill_server();
  stream.join();
  EXPECT_FALSE(stream.is_whole());
  EXPECT_FALSE(stream.reply().is_ok()) << "half an answer must not look like one";
  EXPECT_EQ(rig_.metric("larder_proxy_failed_requests_total"), 1);
  const Answer lost = rig_.post("/completion", {{"prompt", prompt_}, {"n_predict", 4}});
  EXPECT_EQ(lost.http, 502u);
  EXPECT_NE(lost.body.dump().find("larder proxy: "), std::string::npos) << lost.body.dump();
  rig_.wait_idle();

  rig_.start_server();
  const Answer after = rig_.ask(known);
  EXPECT_EQ(after.reused, 288u);
  EXPECT_EQ(after.from, "host") << "the slots of the new server are empty";
  EXPECT_EQ(rig_.metric("larder_proxy_server_losses_total"), 1);
}

TEST_P(RelayStreams, AnotherServerUnderTheAddressIsGivenNothing) {
  (void)rig_.ask(prompt_);
  rig_.wait_idle();
  rig_.kill_server();
  rig_.start_server("fake-2");
  const Json body = {{"prompt", prompt_}, {"n_predict", 4}, {"id_slot", 0}};  // or the server says that it has none
  const Answer answer = rig_.post("/completion", body);
  EXPECT_EQ(answer.tokens, rig_.expected(prompt_));
  EXPECT_FALSE(answer.reused.has_value()) << "it went on as it was";
  EXPECT_EQ(rig_.server().calls("restore"), 0) << "nor does a probe have to tell that it is another one";
}

// It has let its model go meanwhile (--sleep-idle-seconds), and with it what was in its slots.
TEST(RelaySleep, ServersThatHaveSleptAreProvenAgain) {
  for (const bool is_woken_before : {false, true}) {
    Rig rig({.geometry = geometry_of("dense"), .slots = 2});
    const Tokens prompt = random_tokens(200, 1);
    (void)rig.ask(prompt);
    rig.wait_idle();
    rig.server().doze();
    if (is_woken_before) {
      EXPECT_EQ(rig.post("/tokenize", {{"content", "a"}, {"add_special", true}, {"parse_special", true}}).http, 200u);
    }
    const Answer answer = rig.ask(prompt);
    EXPECT_EQ(answer.from, "host");
    EXPECT_EQ(answer.reused, 192u);
    EXPECT_EQ(rig.ask(prompt).from, "slot");
    EXPECT_EQ(rig.metric("larder_proxy_server_losses_total"), 0);
  }
}

// llama-server keeps what it has computed, and compares the tokens itself.
TEST(RelayStops, OfAnAnswerKeepThePromptInItsSlot) {
  Rig rig({.geometry = geometry_of("dense")});
  const Tokens prompt = random_tokens(200, 1);
  rig.server().hold("answer", 2);
  {
    Stream stream(rig, prompt, 1000);
    ASSERT_TRUE(stream.wait_tokens(2));
    stream.leave();
  }
  rig.wait_idle();
  rig.server().release();
  const int erased = rig.server().calls("erase");
  const Answer again = rig.ask(prompt);
  EXPECT_EQ(again.reused, 199u);
  EXPECT_EQ(again.from, "slot");
  EXPECT_EQ(rig.server().calls("erase"), erased);
}

// The head of a stream comes before its prompt is computed.
TEST(RelayStops, OfAPromptPromiseNothingOfIt) {
  Rig rig({.geometry = geometry_of("dense")});
  const Tokens prompt = random_tokens(200, 1);
  const std::string body = Json{{"prompt", prompt}, {"n_predict", 4}, {"stream", true}}.dump();
  rig.server().hold("prompt");
  HttpClient client(rig.url(), std::chrono::seconds(20));
  const auto leave = [](const HttpReplyHead&) { return false; };
  const Status left = client.relay({.method = "POST", .target = "/completion", .fields = {}, .body = body}, leave,
                                   [](std::string_view) { return false; });
  EXPECT_EQ(left.code(), StatusCode::kCancelled) << left.to_string();
  rig.wait_idle();
  rig.server().release();
  const Answer again = rig.ask(prompt);
  EXPECT_EQ(again.reused, 0u);
  EXPECT_EQ(again.body.at("timings").at("cache_n"), 0);
}

TEST(RelayLoad, MoreRequestsThanSlotsWaitForTheirTurn) {
  Rig rig({.geometry = geometry_of("hybrid"), .slots = 2});
  const Tokens shared = random_tokens(100, 1);
  std::vector<std::future<void>> clients;
  for (std::uint64_t client = 0; client < 8; ++client) {
    clients.push_back(std::async(std::launch::async, [&rig, &shared, client] {
      Tokens talk = joined(shared, random_tokens(10 + 5 * client, 10 + client));
      for (std::uint64_t turn = 0; turn < 4; ++turn) {
        const Answer answer = rig.ask(talk);
        talk = joined(joined(talk, answer.tokens), random_tokens(20, 100 * client + turn));
      }
    }));
  }
  for (const std::future<void>& client : clients) client.wait();
  rig.wait_idle();
  EXPECT_EQ(rig.metric("larder_proxy_requests_total{how=\"cached\"}"), 32);
  EXPECT_GT(rig.metric("larder_proxy_reused_tokens_total{from=\"host\"}"), 0);
  EXPECT_TRUE(rig.slot_files().size() <= 2) << "one file of restores for each slot";
}

TEST(RelayLoad, TooManyRequestsAreToldToComeAgain) {
  Rig rig({.geometry = geometry_of("dense"), .workers = 1});
  const Tokens prompt = random_tokens(50, 1);
  rig.server().hold("answer", 1);
  Stream runs(rig, prompt, 4);
  ASSERT_TRUE(rig.server().wait_held());
  std::vector<std::unique_ptr<Stream>> others;
  for (int i = 0; i < 3; ++i) others.push_back(std::make_unique<Stream>(rig, prompt, 4));
  const auto over = [&] { return std::ranges::count_if(others, [](const auto& one) { return one->is_over(); }); };
  const TimePoint end = real_clock().now() + std::chrono::seconds(20);
  while (over() < 2 && real_clock().now() < end) std::this_thread::yield();  // the third one waits
  rig.server().release();
  int refused = 0;
  for (auto& one : others) {
    one->join();
    refused += one->reply().is_ok() && one->reply()->status == 503 ? 1 : 0;
  }
  EXPECT_EQ(refused, 2);
}

TEST(RelayLoad, AFullServerTellsHowItIs) {
  Rig rig({.geometry = geometry_of("dense"), .workers = 1});
  const Tokens prompt = random_tokens(50, 1);
  rig.server().hold("answer", 1);
  Stream runs(rig, prompt, 4), waits(rig, prompt, 4);
  ASSERT_TRUE(rig.server().wait_held());
  HttpClient client(rig.url(), std::chrono::seconds(5));
  for (const char* path : {"/health", "/props", "/metrics", "/larder/status"}) {
    const auto reply = client.request("GET", path);
    EXPECT_TRUE(reply.is_ok() && reply->status == 200) << path << ": " << reply.status().to_string();
  }
  rig.server().release();
}

// It takes connections, and says nothing.
TEST(RelayLoad, AServerThatHangsDoesNotSilenceTheProxy) {
  Rig rig({.geometry = geometry_of("dense")});
  rig.server().hold("get");
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::vector<std::future<void>> asks;
  for (int i = 0; i < 8; ++i) {
    HttpClient& one = *clients.emplace_back(std::make_unique<HttpClient>(rig.url(), std::chrono::seconds(20)));
    asks.push_back(std::async(std::launch::async, [&one] { (void)one.request("GET", "/health"); }));
  }
  EXPECT_TRUE(rig.server().wait_held(8));
  HttpClient client(rig.url(), std::chrono::seconds(10));
  for (const char* path : {"/larder/status", "/larder/recent", "/larder/ui"}) {
    const auto told = client.request("GET", path);
    EXPECT_TRUE(told.is_ok() && told->status == 200) << path << ": " << told.status().to_string();
  }
  const auto metrics = client.request("GET", "/metrics");
  EXPECT_TRUE(metrics.is_ok()) << metrics.status().to_string();
  const bool has_ours = metrics.is_ok() && metrics->body.find("\nlarder_proxy_slots_busy 0\n") != std::string::npos;
  EXPECT_TRUE(has_ours) << "without llama-server's";
  for (const auto& one : clients) one->cancel();
  for (const auto& ask : asks) ask.wait();
  rig.server().release();
}

TEST(RelayStop, OpenAnswersEndAndTheStoreHasAll) {
  Rig rig({.geometry = geometry_of("hybrid")});
  const Tokens prompt = random_tokens(300, 1);
  rig.server().hold("answer", 2);
  Stream stream(rig, prompt, 6);
  ASSERT_TRUE(stream.wait_tokens(2));
  rig.proxy().stop_accepting();
  const HttpUrl url = rig.url();
  EXPECT_FALSE(HttpClient(url, std::chrono::seconds(5)).request("GET", "/health").is_ok());
  EXPECT_FALSE(rig.proxy().wait_drained(std::chrono::milliseconds(50))) << "an answer is on its way";
  rig.server().release();
  EXPECT_TRUE(rig.proxy().wait_drained(std::chrono::seconds(20)));
  stream.join();
  EXPECT_TRUE(stream.is_whole());
  EXPECT_EQ(stream.tokens(), rig.expected(prompt, 6));
  EXPECT_TRUE(rig.proxy().drain_storage(std::chrono::seconds(20)).is_ok());
  rig.stop_proxy();
  rig.start_proxy();
  const Answer after = rig.ask(prompt);
  EXPECT_EQ(after.reused, 288u);
  EXPECT_EQ(after.from, "storage");
}

TEST(RelayStop, DoesNotWaitForAServerThatHangs) {
  Rig rig({.geometry = geometry_of("hybrid")});
  rig.server().hold("save");
  Stream stream(rig, random_tokens(100, 1), 4);
  ASSERT_TRUE(rig.server().wait_held());
  rig.stop_proxy();
  stream.join();
  EXPECT_FALSE(stream.is_whole());
}

// It would wait half an hour for a server that only loads its model.
TEST(RelayTls, AServerThatIsNotBelievedEndsTheStartAtOnce) {
  Rig rig({.geometry = geometry_of("hybrid"), .is_secure = true});
  const support::TemporaryDirectory folder;
  ProxySettings settings;
  settings.upstream = "https://127.0.0.1:" + std::to_string(rig.server().port());  // the system knows no such authority
  settings.slot_directory = folder.path();
  MetricsRegistry metrics;
  const auto proxy = LlamaProxy::create(settings, real_file_system(), real_clock(), metrics);
  EXPECT_EQ(proxy.status().code(), StatusCode::kInvalidArgument) << proxy.status().to_string();
  EXPECT_NE(proxy.status().message().find("unknown here"), std::string::npos) << proxy.status().message();
}

// After two seconds, and then once a minute. The clock moves ten seconds with each look.
TEST(RelayWait, ForAServerThatDoesNotComeIsInTheLog) {
  const support::TemporaryDirectory folder;
  ManualClock clock;
  ProxySettings settings;
  settings.upstream = "http://127.0.0.1:1";  // nobody listens there
  settings.slot_directory = folder.path();
  settings.check_wait = [&] {
    clock.advance(std::chrono::seconds(10));
    return clock.now().time_since_epoch() < std::chrono::seconds(100) ? Status::ok() : cancelled("it is enough");
  };
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view, std::string_view message) { lines.emplace_back(message); });
  MetricsRegistry metrics;
  const auto proxy = LlamaProxy::create(settings, real_file_system(), clock, metrics);
  set_log_sink({});
  EXPECT_EQ(proxy.status().message(), "it is enough");
  ASSERT_EQ(lines.size(), 2u);
  for (const std::string& line : lines) {
    EXPECT_EQ(line,
              "waiting for llama-server at http://127.0.0.1:1: cannot connect to 127.0.0.1:1: Connection refused "
              "(up to 30 min)");
  }
}

// A store that does not open is not found out after minutes of loading a model.
TEST(RelayWait, AStoreThatIsWrongEndsTheStartBeforeIt) {
  const support::TemporaryDirectory folder;
  ProxySettings settings;
  settings.upstream = "http://127.0.0.1:1";
  settings.slot_directory = folder.path() + "/slots";
  settings.check_wait = [] { return internal_error("it is waited for"); };
  settings.store.storage = "file";
  settings.store.storage_config = nlohmann::json{{"directory", folder.path()}, {"max_size", "1"}}.dump();
  MetricsRegistry metrics;
  const auto proxy = LlamaProxy::create(settings, real_file_system(), real_clock(), metrics);
  EXPECT_EQ(proxy.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(proxy.status().message().starts_with("--store, --store-size: ")) << proxy.status().message();
}

INSTANTIATE_TEST_SUITE_P(InTheClearAndOverTls, RelayStreams, testing::Bool(),
                         [](const auto& kind) { return std::string(kind.param ? "Tls" : "Clear"); });

}  // namespace
}  // namespace larder::llama::relay_test
