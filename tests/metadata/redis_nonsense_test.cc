// SPDX-License-Identifier: Apache-2.0
// A server that is no Redis, or a mad one: every call ends in time, with a Status, whatever comes back.
#include <atomic>
#include <functional>

#include "base/rng.h"
#include "metadata/redis_metadata.h"
#include "tests/metadata/metadata_harness.h"
#include "tests/metadata/real_scripted_server.h"

namespace larder::conformance {
namespace {

using Answer = ScriptedServer::Answer;

std::unique_ptr<RedisMetadata> client_of(const ScriptedServer& server, Nanos timeout = std::chrono::seconds(20)) {
  RedisMetadataOptions options;
  options.url = server.url();
  options.timeout = options.clear_timeout = timeout;
  return std::move(RedisMetadata::create(options).value());
}

// The words of every operation, with two keys where there are keys.
std::vector<Status> call_all(RedisMetadata& service) {
  const MetadataNamespace space{0, "kv"};
  const std::vector<MetadataKeys> keys{{&space, {"a", "b"}}};
  const std::vector<ReserveItems> items{{&space, {{"a"}, {"b", "a"}}}};
  const std::vector<ConfirmItem> pages{{&space, "a", {0, 1}}, {&space, "b", {1, 2}}};
  const auto confirmed = service.confirm({session_of(1), {pages}, {}, false});
  return {service.initialize(space, 8).status(),
          service.find(keys, kSecond).status(),
          service.reserve(session_of(1), items, kSecond).status(),
          confirmed.status(),
          service.remove(pages).status(),
          service.clear(space, "").status(),
          service.stats().status()};
}

// Answers the greeting as a Redis that tells nothing, and scripts with `answer`.
ScriptedServer::Script after_greeting(Answer answer) {
  return [answer](const std::vector<std::string>& words) {
    return words.at(0).starts_with("EVAL") ? answer : Answer{"-ERR not allowed\r\n"};
  };
}

TEST(RedisNonsenseTest, AnswersThatMakeNoSenseAreUnavailable) {
  const std::vector<std::string> nonsense{
      "hello\r\n",
      ":1\r\n",
      "+OK\r\n",
      "$-1\r\n",
      "*-1\r\n",
      "*0\r\n",
      "$2\r\nok\r\n",
      "*1\r\n:1\r\n",
      "*2\r\n$2\r\nok\r\n:-7\r\n",
      "*2\r\n$2\r\nok\r\n$1\r\n3\r\n",
      "*2\r\n$2\r\nok\r\n*1\r\n:3\r\n",
      "*2\r\n$2\r\nok\r\n:9223372036854775807\r\n",
      "*2\r\n$2\r\nno\r\n:1\r\n",
      "*4\r\n$2\r\nok\r\n:0\r\n:0\r\n:0\r\n",                    // clear: page 0 again
      "*4\r\n$2\r\nok\r\n:600\r\n:-1\r\n:1\r\n",                 // clear: too many
      "*5\r\n$2\r\nok\r\n:-2\r\n:0\r\n:0\r\n:0\r\n",             // find: page -2
      "*5\r\n$2\r\nok\r\n:99999999999\r\n:1\r\n:0\r\n:1\r\n",    // find: no such page
      "*7\r\n$2\r\nok\r\n:4\r\n:0\r\n:0\r\n:0\r\n:0\r\n:1\r\n",  // reserve: outcome 4
      "*11\r\n$2\r\nok\r\n$4\r\nx:kv\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
      "*11\r\n$2\r\nok\r\n$4\r\n0:kv\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n$1\r\n1\r\n",
      "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",  // deeper than hiredis goes
      "$99999999999999999999\r\n",
      "*-7\r\n",
      "-ERR boom\r\n",
      "-OOM command not allowed\r\n",
      "-BUSY\r\n",
      "-\r\n",
      "-NOSCRIPT no, and no\r\n"};
  for (const std::string& bytes : nonsense) {
    ScriptedServer server(after_greeting({bytes}));
    const auto service = client_of(server);
    const std::vector<Status> ends = call_all(*service);
    for (std::size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(ends[i].code(), StatusCode::kUnavailable) << "operation " << i << ", answer " << bytes;
    }
  }
}

TEST(RedisNonsenseTest, AnAnswerOfAnotherLengthIsUnavailable) {
  ScriptedServer server(after_greeting({"*1\r\n$2\r\nok\r\n"}));
  const std::vector<Status> ends = call_all(*client_of(server));
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    EXPECT_EQ(ends[i].code(), StatusCode::kUnavailable) << "operation " << i;
  }
  EXPECT_TRUE(ends.back().is_ok()) << "no namespaces: as it should be";
}

TEST(RedisNonsenseTest, SilenceAndTricklesEndAtTheDeadline) {
  for (const std::string& bytes : {std::string(), std::string("*5\r\n$2\r\nok\r\n:1")}) {
    ScriptedServer server(after_greeting({bytes}));
    const auto service = client_of(server, std::chrono::milliseconds(30));
    for (const Status& end : call_all(*service))
      EXPECT_EQ(end.code(), StatusCode::kDeadlineExceeded) << end.to_string();
  }
  ScriptedServer mute([](const std::vector<std::string>&) { return Answer{}; });
  const auto service = client_of(mute, std::chrono::milliseconds(30));
  EXPECT_EQ(service->stats().status().code(), StatusCode::kDeadlineExceeded) << "also while connecting";
}

TEST(RedisNonsenseTest, AConnectionThatBreaksIsUnavailable) {
  for (const std::string& bytes : {std::string(), std::string("*5\r\n$2\r\nok")}) {
    ScriptedServer server(after_greeting({bytes, true}));
    for (const Status& end : call_all(*client_of(server))) EXPECT_EQ(end.code(), StatusCode::kUnavailable);
  }
  ScriptedServer server([](const std::vector<std::string>&) { return Answer{"", true}; });
  EXPECT_EQ(client_of(server)->stats().status().code(), StatusCode::kUnavailable);
}

// The name of the host leads to another server by now; the one behind the connection has become its replica.
TEST(RedisNonsenseTest, AConnectionToAServerThatOnlyReadsIsNotKept) {
  for (const char* const refusal :
       {"-READONLY You can't write against a read only replica.\r\n",
        "-ERR Error running script (call to f_1): @user_script:12: -READONLY You can't write\r\n"}) {
    std::atomic<int> refused = 0;
    int connections = 0;
    bool is_replica = false;
    ScriptedServer server([&](const std::vector<std::string>& words) {
      if (words.at(0) == "INFO" && ++connections > 1) is_replica = false;
      if (!words.at(0).starts_with("EVAL")) return Answer{"-ERR not allowed\r\n"};
      refused += is_replica ? 1 : 0;
      const Answer answer{is_replica ? refusal : "*1\r\n$2\r\nok\r\n"};
      is_replica = connections == 1;  // from the second call on
      return answer;
    });
    const auto service = client_of(server);
    EXPECT_TRUE(service->stats().is_ok());
    const Status second = service->stats().status();
    EXPECT_TRUE(second.is_ok()) << second.to_string();
    EXPECT_EQ(refused, 1);
  }
}

TEST(RedisNonsenseTest, AServerThatDoesNotLetUsInIsUnavailable) {
  for (const char* const refusal : {"-NOAUTH Authentication required.\r\n", "-LOADING the dataset\r\n"}) {
    ScriptedServer server([&](const std::vector<std::string>&) { return Answer{refusal}; });
    const Status end = client_of(server)->stats().status();
    EXPECT_EQ(end.code(), StatusCode::kUnavailable);
    EXPECT_NE(end.message().find(std::string(refusal + 1, 6)), std::string::npos) << end.message();
  }
}

// Valid answers with bytes changed at random: no crash, no endless loop. What they say does not matter.
TEST(RedisNonsenseTest, DamagedAnswersEndSomehow) {
  const std::uint64_t seed = metadata_test_seed();
  SCOPED_TRACE("replay: LARDER_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);  // of the server's thread
  const std::vector<std::string> whole{
      "*2\r\n$2\r\nok\r\n:8\r\n", "*5\r\n$2\r\nok\r\n:1\r\n:1\r\n:-1\r\n:0\r\n",
      "*7\r\n$2\r\nok\r\n:0\r\n:1\r\n:7\r\n:3\r\n:0\r\n:0\r\n", "*4\r\n$2\r\nok\r\n:1\r\n:-1\r\n:9\r\n",
      "*11\r\n$2\r\nok\r\n$4\r\n0:kv\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"};
  ScriptedServer server([&](const std::vector<std::string>&) {
    std::string bytes = whole[rng.below(whole.size())];
    for (std::uint64_t i = rng.below(3); i > 0; --i) {
      // Not into a length of many bytes that never come: that is the deadline's test.
      static constexpr std::string_view kBytes = "*$:+-01\r\nok";
      bytes[rng.below(bytes.size())] = kBytes[rng.below(kBytes.size())];
    }
    return Answer{bytes, rng.chance(1, 20)};
  });
  const auto service = client_of(server, std::chrono::milliseconds(20));
  std::size_t failed = 0;
  for (int round = 0; round < 30; ++round) {
    for (const Status& end : call_all(*service)) failed += end.is_ok() ? 0 : 1;
  }
  EXPECT_GT(failed, 0u);
}

TEST(RedisNonsenseTest, NobodyThereIsUnavailable) {
  std::string url;
  {
    const ScriptedServer gone([](const std::vector<std::string>&) { return Answer{}; });
    url = gone.url();
  }
  RedisMetadataOptions options;
  options.url = url;
  const auto service = RedisMetadata::create(options);
  ASSERT_TRUE(service.is_ok());
  for (const Status& end : call_all(**service)) EXPECT_EQ(end.code(), StatusCode::kUnavailable) << end.to_string();
  EXPECT_EQ((*service)->durability().status().code(), StatusCode::kUnavailable);
}

TEST(RedisNonsenseTest, OptionsAreChecked) {
  const auto code = [](const std::function<void(RedisMetadataOptions&)>& change) {
    RedisMetadataOptions options;
    options.url = "redis://127.0.0.1:1";
    change(options);
    const auto service = RedisMetadata::create(options);
    return service.status().code();
  };
  EXPECT_EQ(code([](RedisMetadataOptions&) {}), StatusCode::kOk);
  EXPECT_EQ(code([](RedisMetadataOptions& o) { o.url = "http://x"; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](RedisMetadataOptions& o) { o.prefix.clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](RedisMetadataOptions& o) { o.connections = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](RedisMetadataOptions& o) { o.timeout = Nanos{0}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](RedisMetadataOptions& o) { o.max_ttl = Nanos{0}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](RedisMetadataOptions& o) { o.max_lease = Nanos{-1}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](RedisMetadataOptions& o) { o.max_namespaces = 0; }), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace larder::conformance
