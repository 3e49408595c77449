// SPDX-License-Identifier: Apache-2.0
// The server over the real scheduler, tiny models: what HTTP clients see of the three tiers.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "base/http_client.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "engine/scheduler.h"
#include "server/api_server.h"

namespace larder {
namespace {

using Json = nlohmann::json;

class RealServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/larder-server-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
    options_.model = "gdn-tiny";
    options_.port = 0;
    options_.threads = 1;
    options_.max_total_tokens = 8192;
    options_.max_mamba_cache_size = 16;
    options_.max_running_requests = 4;
  }
  void TearDown() override {
    stop();
    std::filesystem::remove_all(directory_);
  }

  void use_files(const std::string& directory) {
    options_.hicache_storage_backend = "file";
    options_.hicache_storage_prefetch_policy = "wait_complete";
    options_.hicache_storage_backend_extra_config = Json({{"directory", directory}, {"prefetch_threshold", 64}}).dump();
  }
  Status start() {
    auto scheduler = Scheduler::create(options_, real_file_system(), real_clock(), metrics_);
    if (!scheduler.is_ok()) return scheduler.status();
    scheduler_ = std::move(*scheduler);
    auto api = ApiServer::create({scheduler_.get(), &real_clock(), &metrics_, {}});
    if (!api.is_ok()) return api.status();
    api_ = std::move(*api);
    return Status::ok();
  }
  void stop() {
    api_.reset();
    scheduler_.reset();
  }

  std::unique_ptr<HttpClient> client() const {
    HttpUrl url;
    url.host = "127.0.0.1";
    url.port = api_->port();
    return std::make_unique<HttpClient>(url, std::chrono::seconds(60));
  }
  HttpReply call(std::string_view method, std::string_view target, const Json& body = nullptr) const {
    const auto reply = client()->request(method, target, body.is_null() ? std::string{} : body.dump());
    EXPECT_TRUE(reply.is_ok()) << reply.status().to_string();
    return reply.is_ok() ? *reply : HttpReply{};
  }
  Json generate(const std::vector<int>& ids, int new_tokens, const Json& more = Json::object()) const {
    Json body = {{"input_ids", ids}, {"sampling_params", {{"max_new_tokens", new_tokens}, {"ignore_eos", true}}}};
    body.update(more);
    const HttpReply reply = call("POST", "/generate", body);
    EXPECT_EQ(reply.status, 200u) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  static std::vector<int> prompt_of(std::uint64_t seed, std::size_t tokens) {
    Rng rng(seed);
    std::vector<int> ids(tokens);
    for (int& id : ids) id = static_cast<int>(rng.below(512));
    return ids;
  }
  // A gauge at /metrics: its first series, or that of tier="storage". -1: there is none.
  double gauge_of_storage(const std::string& name) const {
    std::istringstream page(call("GET", "/metrics").body);
    for (std::string line; std::getline(page, line);) {
      const bool is_of_others =
          line.find("tier=") != std::string::npos && line.find("\"storage\"") == std::string::npos;
      if (line.starts_with(name + "{") && !is_of_others) return std::stod(line.substr(line.rfind(' ') + 1));
    }
    return -1;
  }
  static std::uint64_t cached(const Json& reply, const char* tier) {
    return reply["meta_info"]["cached_tokens_details"].value(tier, std::uint64_t{0});
  }

  Options options_;
  MetricsRegistry metrics_;
  std::string directory_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ApiServer> api_;
};

TEST_F(RealServerTest, AStreamAddsUpToTheWholeAnswer) {
  ASSERT_TRUE(start());
  const std::vector<int> ids = prompt_of(1, 100);
  const Json whole = generate(ids, 40);
  ASSERT_EQ(whole["output_ids"].size(), 40u);
  Json last;
  const Json body = {
      {"input_ids", ids}, {"stream", true}, {"sampling_params", {{"max_new_tokens", 40}, {"ignore_eos", true}}}};
  const auto reply = client()->stream("POST", "/generate", body.dump(), [&](std::string_view line) {
    if (line.starts_with("data: {")) last = Json::parse(line.substr(6));
    return true;
  });
  ASSERT_TRUE(reply.is_ok());
  EXPECT_EQ(last["output_ids"], whole["output_ids"]);
  EXPECT_EQ(last["text"], whole["text"]);
  EXPECT_EQ(last["meta_info"]["prompt_tokens"], 100);
}

TEST_F(RealServerTest, AnEndAtAStopStringIsNoAbort) {
  ASSERT_TRUE(start());
  const Json first = {{"text", "hello there"}, {"sampling_params", {{"max_new_tokens", 60}, {"ignore_eos", true}}}};
  const std::string text = Json::parse(call("POST", "/generate", first).body)["text"];
  const auto count = [this](const std::string& name) {
    const std::string page = metrics_.render(), line = name + "{model_name=\"gdn-tiny\"} ";
    const std::size_t at = page.find(line);
    return at == std::string::npos ? -1 : std::stoi(page.substr(at + line.size()));
  };
  const auto plain = std::find_if(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  ASSERT_NE(plain, text.end()) << "no text of one byte to stop at: " << text;
  const Json body = {{"prompt", "hello there"},
                     {"max_tokens", 4000},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stop", Json::array({std::string(1, *plain)})}};
  const Json reply = Json::parse(call("POST", "/v1/completions", body).body);
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop") << reply;
  EXPECT_EQ(call("POST", "/flush_cache?timeout=60").status, 200u) << "once nobody runs";
  EXPECT_EQ(count("sglang:num_requests_total"), 2);
  EXPECT_EQ(count("sglang:num_aborted_requests_total"), 0);
  EXPECT_EQ(count("sglang:e2e_request_latency_seconds_count"), 2);
}

TEST_F(RealServerTest, TheNextTurnHitsOnTheDevice) {
  ASSERT_TRUE(start());
  std::vector<int> ids = prompt_of(2, 128);
  const Json first = generate(ids, 64);
  EXPECT_EQ(first["meta_info"]["cached_tokens"], 0);
  for (const Json& id : first["output_ids"]) ids.push_back(id.get<int>());
  ids.push_back(7);
  const Json second = generate(ids, 4);
  EXPECT_EQ(second["meta_info"]["cached_tokens"], 128);  // 191 tokens were computed: two whole pages
  EXPECT_EQ(cached(second, "device"), 128u);
}

TEST_F(RealServerTest, AConversationAsTextKeepsItsPrefix) {
  ASSERT_TRUE(start());
  Json messages = Json::array({{{"role", "user"}, {"content", std::string(200, 'a')}}});
  const Json body = {{"messages", messages}, {"max_tokens", 32}, {"temperature", 0}, {"ignore_eos", true}};
  const Json first = Json::parse(call("POST", "/v1/chat/completions", body).body);
  messages.push_back(first["choices"][0]["message"]);
  messages.push_back({{"role", "user"}, {"content", "go on"}});
  const Json next = {{"messages", messages}, {"max_tokens", 4}, {"temperature", 0}};
  const Json second = Json::parse(call("POST", "/v1/chat/completions", next).body);
  EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"], 192);
}

TEST_F(RealServerTest, AfterAFlushAndARestartTheHitComesFromStorage) {
  use_files(directory_ + "/store");
  ASSERT_TRUE(start());
  const std::vector<int> ids = prompt_of(3, 1000);
  const Json first = generate(ids, 8);
  EXPECT_EQ(call("POST", "/quiesce?timeout=30").status, 200u);
  EXPECT_EQ(call("POST", "/flush_cache?timeout=30").status, 200u);
  const Json flushed = generate(ids, 8);
  EXPECT_EQ(cached(flushed, "storage"), 960u) << flushed["meta_info"];
  EXPECT_EQ(flushed["output_ids"], first["output_ids"]);
  stop();
  ASSERT_TRUE(start());
  const Json restarted = generate(ids, 8);
  EXPECT_EQ(cached(restarted, "storage"), 960u) << restarted["meta_info"];
  EXPECT_EQ(restarted["output_ids"], first["output_ids"]);
  const Json explained = Json::parse(call("POST", "/explain", {{"input_ids", ids}}).body);
  EXPECT_EQ(explained["restore"]["host"]["pages"], 15) << explained;
}

TEST_F(RealServerTest, ADirectoryOfAnotherModelIsShared) {
  use_files(directory_ + "/store");
  ASSERT_TRUE(start());
  const std::vector<int> ids = prompt_of(4, 1000);
  const Json first = generate(ids, 8);
  stop();
  options_.model = "mamba2-tiny";
  ASSERT_TRUE(start());
  EXPECT_EQ(generate(ids, 8)["meta_info"]["cached_tokens"], 0);  // its pages have other keys
  stop();
  options_.model = "gdn-tiny";
  ASSERT_TRUE(start());
  const Json again = generate(ids, 8);
  EXPECT_EQ(cached(again, "storage"), 960u);
  EXPECT_EQ(again["output_ids"], first["output_ids"]);
}

TEST_F(RealServerTest, ADirectoryThatIsNotOursIsRefused) {
  std::filesystem::create_directory(directory_ + "/photos");
  std::ofstream(directory_ + "/photos/holiday.jpg") << "not a segment";
  use_files(directory_ + "/photos");
  const Status status = start();
  ASSERT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find("photos"), std::string::npos) << status.to_string();
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/photos/holiday.jpg"));
}

TEST_F(RealServerTest, AnUnwritableDirectoryIsRefusedClearly) {
  std::ofstream(directory_ + "/file") << "in the way";
  use_files(directory_ + "/file/store");
  Status status = start();
  ASSERT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find("file/store"), std::string::npos) << status.to_string();
  use_files("/proc/larder");
  status = start();
  ASSERT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find("/proc/larder"), std::string::npos) << status.to_string();
}

TEST_F(RealServerTest, BadPromptsAreRefusedAndTheServerLivesOn) {
  ASSERT_TRUE(start());
  const struct {
    Json body;
    const char* must_say;
  } bad[] = {
      {{{"input_ids", {1, 512}}}, "'input_ids[1]' is out of range"},
      {{{"input_ids", prompt_of(5, 32'768)}, {"sampling_params", {{"max_new_tokens", 1}}}}, "context"},
      {{{"input_ids", prompt_of(5, 9000)}, {"sampling_params", {{"max_new_tokens", 1}}}}, "--max-total-tokens"},
      {{{"text", "a"}, {"sampling_params", {{"max_new_tokens", 4'000'000'000u}}}}, "context"},
  };
  for (const auto& entry : bad) {
    const HttpReply reply = call("POST", "/generate", entry.body);
    EXPECT_EQ(reply.status, 400u);
    EXPECT_NE(reply.body.find(entry.must_say), std::string::npos) << reply.body;
  }
  EXPECT_EQ(generate({1, 2, 3}, 2)["output_ids"].size(), 2u);
}

TEST_F(RealServerTest, TenantsAndAdaptersShareNothing) {
  ASSERT_TRUE(start());
  const std::vector<int> ids = prompt_of(6, 300);
  (void)generate(ids, 2);
  for (const Json& identity : {Json{{"cache_salt", "a"}}, Json{{"cache_salt", "b"}}, Json{{"lora_path", "a"}},
                               Json{{"cache_salt", "a"}, {"lora_path", "a"}}}) {
    EXPECT_EQ(generate(ids, 2, identity)["meta_info"]["cached_tokens"], 0) << identity;
    EXPECT_EQ(generate(ids, 2, identity)["meta_info"]["cached_tokens"], 256) << identity;
  }
}

TEST_F(RealServerTest, ConcurrentClientsGetWhatTheyWouldGetAlone) {
  ASSERT_TRUE(start());
  std::vector<Json> alone;
  for (std::uint64_t c = 0; c < 8; ++c) alone.push_back(generate(prompt_of(100 + c, 150), 24)["output_ids"]);
  EXPECT_EQ(call("POST", "/flush_cache?timeout=30").status, 200u);
  std::atomic<int> right{0};
  {
    ThreadPoolExecutor clients("clients", 8, 8);
    for (std::uint64_t c = 0; c < 8; ++c) {
      ASSERT_TRUE(clients.post([&, c] {
        for (int i = 0; i < 3; ++i) right += generate(prompt_of(100 + c, 150), 24)["output_ids"] == alone[c] ? 1 : 0;
      }));
    }
  }
  EXPECT_EQ(right.load(), 24);
}

TEST_F(RealServerTest, AClientThatLeavesFreesItsPlace) {
  ASSERT_TRUE(start());
  for (int i = 0; i < 8; ++i) {
    const Json body = {{"input_ids", prompt_of(7, 100)},
                       {"stream", true},
                       {"sampling_params", {{"max_new_tokens", 8000}, {"ignore_eos", true}}}};
    const auto reply = client()->stream("POST", "/generate", body.dump(), [](std::string_view) { return false; });
    EXPECT_EQ(reply.status().code(), StatusCode::kCancelled);
  }
  EXPECT_EQ(call("POST", "/flush_cache?timeout=30").status, 200u);  // succeeds only when nothing runs
  const Json info = Json::parse(call("GET", "/server_info").body);
  EXPECT_EQ(info["internal_states"][0]["num_running_reqs"], 0);
}

// What SGLang's own test of attach and detach walks through, with its texts, and what is in force after each step.
TEST_F(RealServerTest, ThePublishedAttachAndDetachScript) {
  ASSERT_TRUE(start());
  constexpr const char* kRoute = "/hicache/storage-backend";
  const auto in_force = [&] {
    Json status = Json::parse(call("GET", kRoute).body);
    const Json info = Json::parse(call("GET", "/server_info").body);
    for (const char* const key :
         {"hicache_storage_backend", "hicache_storage_prefetch_policy", "hicache_write_policy"}) {
      EXPECT_EQ(info[key], status[key]) << key;
    }
    return status;
  };
  EXPECT_TRUE(in_force()["hicache_storage_backend"].is_null());
  const std::string extra = Json({{"directory", directory_ + "/a"}}).dump();
  const auto attach = [&](const char* backend, const char* prefetch, const char* write) {
    return call("PUT", kRoute,
                {{"hicache_storage_backend", backend},
                 {"hicache_storage_backend_extra_config_json", extra},
                 {"hicache_storage_prefetch_policy", prefetch},
                 {"hicache_write_policy", write}});
  };
  const HttpReply attached = attach("file", "timeout", "write_back");
  EXPECT_EQ(attached.status, 200u);
  EXPECT_EQ(attached.body, "HiCache storage backend attached.\nAttached HiCache storage backend successfully.\n");
  Json status = in_force();
  EXPECT_EQ(status["hicache_storage_backend"], "file");
  EXPECT_EQ(status["hicache_storage_backend_extra_config"], extra);
  EXPECT_EQ(status["hicache_storage_prefetch_policy"], "timeout");
  EXPECT_EQ(status["hicache_write_policy"], "write_back");

  (void)generate(prompt_of(5, 200), 8);  // in use
  EXPECT_EQ(attach("file", "best_effort", "write_through").status, 200u) << "the same again, with other policies";
  status = in_force();
  EXPECT_EQ(status["hicache_storage_prefetch_policy"], "best_effort");
  EXPECT_EQ(status["hicache_write_policy"], "write_through");
  const HttpReply other = attach("memory", "timeout", "write_back");
  EXPECT_EQ(other.status, 400u);
  EXPECT_TRUE(other.body.starts_with("Failed to attach HiCache storage backend.\n")) << other.body;
  EXPECT_NE(other.body.find("Detach first"), std::string::npos) << other.body;
  const HttpReply no_such = attach("file", "sometimes", "write_back");
  EXPECT_EQ(no_such.status, 400u);
  EXPECT_NE(no_such.body.find("Invalid hicache_storage_prefetch_policy: 'sometimes'. Expected one of ["),
            std::string::npos)
      << no_such.body;
  EXPECT_EQ(in_force(), status) << "what was refused has changed nothing";

  EXPECT_EQ(call("POST", "/hicache/storage-backend/clear").status, 200u);
  const auto capacity = [&] { return gauge_of_storage("larder_storage_capacity_bytes"); };
  EXPECT_GT(capacity(), 0);
  EXPECT_GT(gauge_of_storage("larder_tier_capacity_bytes"), 0);
  const HttpReply detached = call("DELETE", kRoute);
  EXPECT_EQ(detached.status, 200u);
  EXPECT_EQ(detached.body, "HiCache storage backend detached.\nDetached HiCache storage backend successfully.\n");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);  // it is published now and then
  const auto are_there = [&] { return capacity() > 0 || gauge_of_storage("larder_tier_capacity_bytes") > 0; };
  while (are_there() && std::chrono::steady_clock::now() < end) {}
  EXPECT_EQ(capacity(), 0) << "of what is attached now";
  EXPECT_EQ(gauge_of_storage("larder_tier_capacity_bytes"), 0);
  EXPECT_EQ(gauge_of_storage("larder_tier_used_bytes"), 0);
  status = in_force();
  EXPECT_TRUE(status["hicache_storage_backend"].is_null());
  EXPECT_TRUE(status["hicache_storage_backend_extra_config"].is_null());
  EXPECT_EQ(status["hicache_storage_prefetch_policy"], "best_effort") << "policies stay";
  EXPECT_EQ(status["hicache_write_policy"], "write_through");
  EXPECT_EQ(call("DELETE", kRoute).status, 200u) << "a second one changes nothing";
  EXPECT_EQ(call("POST", "/hicache/storage-backend/clear").status, 400u);
  EXPECT_EQ(attach("file", "timeout", "write_through").status, 200u);
  EXPECT_EQ(in_force()["hicache_storage_backend"], "file");
}

// --- the executable; the tests run in the build folder ---

class ExecutableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::access("./larder", X_OK) != 0) GTEST_SKIP() << "no ./larder here";
  }
  // Exit code and everything said.
  static std::pair<int, std::string> run(const std::string& arguments) {
    std::FILE* pipe = ::popen(("./larder " + arguments + " 2>&1").c_str(), "r");
    if (pipe == nullptr) return {-1, {}};
    std::string said;
    char piece[1024];
    while (std::fgets(piece, sizeof piece, pipe) != nullptr) said += piece;
    const int state = ::pclose(pipe);
    return {WIFEXITED(state) ? WEXITSTATUS(state) : -1, said};
  }
};

// What is wrong is in tests/command_line.
TEST_F(ExecutableTest, HelpAndVersion) {
  EXPECT_EQ(run("help").first, 0);
  EXPECT_EQ(run("serve --help").first, 0);
  EXPECT_EQ(run("version").first, 0);
}

TEST_F(ExecutableTest, EachHelpListsItsExitCodes) {
  for (const char* command : {"attach", "conformance", "detach", "explain", "metadata-server", "quickstart", "stat"}) {
    const auto [code, said] = run(std::string(command) + " --help");
    EXPECT_EQ(code, 0);
    EXPECT_NE(said.find("Exit codes: 0 "), std::string::npos) << said;
  }
}

// A file store tells of each opening what share of the disk it may take.
TEST_F(ExecutableTest, NoLogLineIsBetweenTheRowsOfAReport) {
  std::string directory = ::testing::TempDir() + "larder-report-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  for (const std::string& command :
       {"conformance --backend file --destructive --filter round_trip_per_pool --directory " + directory + "/store",
        "bench storage --quick --page-sizes 4Ki --bytes 1Mi --seconds 0.1 --exists-pages 0 --beside none --directory " +
            directory}) {
    const auto [code, said] = run(command);
    EXPECT_EQ(code, 0) << said;
    EXPECT_EQ(said.find("info "), std::string::npos) << said;
  }
  std::filesystem::remove_all(directory);
}

TEST_F(ExecutableTest, AnUnknownKeyInAFileIsNamed) {
  char path[] = "/tmp/larder-config-XXXXXX.toml";
  const int file = ::mkstemps(path, 5);
  ASSERT_GE(file, 0);
  const std::string text = "hicache_ration = 3.0\n";
  ASSERT_EQ(::write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(file);
  const auto [code, said] = run(std::string("serve --config ") + path);
  ::unlink(path);
  EXPECT_EQ(code, 2);
  EXPECT_NE(said.find("hicache-ratio"), std::string::npos) << said;
}

TEST_F(ExecutableTest, ASignalStopsItInGoodOrder) {
  // SIGTERM and not SIGINT: a shell lets its background jobs ignore the latter.
  std::FILE* pipe = ::popen("./larder serve --port 0 2>&1 & echo pid $!; wait $!", "r");
  ASSERT_NE(pipe, nullptr);
  std::string said;
  char piece[1024];
  bool signalled = false;
  while (std::fgets(piece, sizeof piece, pipe) != nullptr) {
    said += piece;
    const std::size_t at = said.find("pid ");
    if (signalled || at == std::string::npos || said.find("listening on") == std::string::npos) continue;
    signalled = ::kill(static_cast<pid_t>(std::strtol(said.c_str() + at + 4, nullptr, 10)), SIGTERM) == 0;
  }
  const int state = ::pclose(pipe);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << said;
  EXPECT_NE(said.find("listening on http://127.0.0.1:"), std::string::npos) << said;
  EXPECT_NE(said.find("stopped\n"), std::string::npos) << said;
}

TEST_F(ExecutableTest, APortInUseEndsWithCodeOne) {
  Options options;
  options.port = 0;
  options.threads = 1;
  MetricsRegistry metrics;
  auto scheduler = Scheduler::create(options, real_file_system(), real_clock(), metrics);
  ASSERT_TRUE(scheduler.is_ok());
  auto api = ApiServer::create({scheduler->get(), &real_clock(), &metrics, {}});
  ASSERT_TRUE(api.is_ok());
  const auto [code, said] = run("serve --port " + std::to_string((*api)->port()));
  EXPECT_EQ(code, 1);
  EXPECT_NE(said.find("the port is in use"), std::string::npos) << said;
}

// Two replicas that share a store: both have it, or none.
TEST_F(ExecutableTest, AStorageIsAttachedToAllServersOrToNone) {
  struct Replica {
    MetricsRegistry metrics;
    std::unique_ptr<Scheduler> scheduler;
    std::unique_ptr<ApiServer> api;
  };
  std::vector<std::unique_ptr<Replica>> replicas;
  std::string urls;
  for (const auto& [key, has_host] :
       {std::pair("secret", true), {"secret", true}, {"another", true}, {"secret", false}}) {
    Options options;
    options.enable_hierarchical_cache = has_host;
    options.model = "gdn-tiny";
    options.port = 0;
    options.threads = 1;
    options.admin_api_key = key;
    auto replica = std::make_unique<Replica>();
    auto scheduler = Scheduler::create(options, real_file_system(), real_clock(), replica->metrics);
    ASSERT_TRUE(scheduler.is_ok()) << scheduler.status().to_string();
    replica->scheduler = std::move(*scheduler);
    auto api = ApiServer::create({replica->scheduler.get(), &real_clock(), &replica->metrics, {}});
    ASSERT_TRUE(api.is_ok()) << api.status().to_string();
    replica->api = std::move(*api);
    replicas.push_back(std::move(replica));
  }
  const auto url = [&](std::size_t i) { return " http://127.0.0.1:" + std::to_string(replicas[i]->api->port()); };
  const auto has = [&](std::size_t i) { return replicas[i]->scheduler->storage().backend; };
  const std::string attach = "attach --admin-api-key secret --backend memory --extra-config '{\"max_size\": \"1Mi\"}'";
  // The third has another key: nothing changes.
  auto [code, said] = run(attach + url(0) + url(1) + url(2));
  EXPECT_EQ(code, 1) << said;
  EXPECT_NE(said.find("HTTP 401"), std::string::npos) << said;
  EXPECT_NE(said.find("Nothing was changed."), std::string::npos) << said;
  EXPECT_EQ(has(0) + has(1) + has(2), "");
  std::tie(code, said) = run(attach + url(0) + url(1));
  EXPECT_EQ(code, 0) << said;
  EXPECT_EQ(has(0) + has(1), "memorymemory");
  std::tie(code, said) = run(attach + url(0) + url(1));
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("was so already"), std::string::npos) << said;
  std::tie(code, said) = run("detach --admin-api-key secret" + url(0) + url(1));
  EXPECT_EQ(code, 0) << said;
  EXPECT_EQ(has(0) + has(1), "");
  std::tie(code, said) =
      run("attach --admin-api-key secret --backend memory --extra-config '{\"no_such\": 1}'" + url(0) + url(1));
  EXPECT_EQ(code, 1) << said;
  EXPECT_NE(said.find("no_such"), std::string::npos) << said;
  EXPECT_EQ(has(0) + has(1), "");
  EXPECT_EQ(run("attach --backend file nonsense://x").first, 2);
  // The last has no host tier, so it refuses when the first has changed already.
  const std::string policy = replicas[0]->scheduler->storage().write_policy;
  std::tie(code, said) = run(attach + " --write-policy write_through_selective" + url(0) + url(3));
  EXPECT_EQ(code, 1) << said;
  EXPECT_NE(said.find("put back"), std::string::npos) << said;
  EXPECT_EQ(has(0) + has(3), "");
  EXPECT_EQ(replicas[0]->scheduler->storage().write_policy, policy);
}

TEST_F(ExecutableTest, ASmallQuickstartHolds) {
  const auto [code, said] =
      run("quickstart --num-clients 3 --num-rounds 3 --request-length 64 --output-length 64 --max-mamba-cache-size 8");
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("quickstart: everything held"), std::string::npos) << said;
}

}  // namespace
}  // namespace larder
