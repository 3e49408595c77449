// SPDX-License-Identifier: Apache-2.0
// What a Redis server does to the service beyond the conformance suite: it forgets, dies, comes back, is full, is
// shared.
#include <array>
#include <atomic>
#include <shared_mutex>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "tests/metadata/redis_harness.h"

namespace larder::conformance {
namespace {

using metadata::RedisDurability;

const MetadataNamespace kSpace{0, "kv"};

std::vector<std::string> redis_keys(const std::string& name, std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(name + std::to_string(i));
  return keys;
}

// A server, a client, one namespace.
struct Rig {
  explicit Rig(std::uint64_t pages = 8, std::vector<std::string> settings = {})
      : server(RedisServer::start(std::move(settings))), service(open_redis(redis_test_options(*server))) {
    initialize(pages);
  }
  void initialize(std::uint64_t pages = 8) {
    const auto given = service->initialize(kSpace, pages);
    EXPECT_TRUE(given.is_ok()) << given.status().to_string();
  }
  [[nodiscard]] Talker talk() const { return Talker(*service, kSpace); }
  [[nodiscard]] StatusCode find_code(const std::string& key = "a") const {
    const std::vector<MetadataKeys> wanted{{&kSpace, {key}}};
    return service->find(wanted, kSecond).status().code();
  }
  [[nodiscard]] StatusCode reserve_code(const std::string& key) const {
    const std::vector<ReserveItems> wanted{{&kSpace, {{key}}}};
    return service->reserve(session_of(99), wanted, kSecond).status().code();
  }
  [[nodiscard]] std::string check() const { return check_redis_tables(*server).to_string(); }

  std::unique_ptr<RedisServer> server;
  std::unique_ptr<RedisMetadata> service;
};

TEST(RedisMetadataTest, AForgottenNamespaceIsNotFoundUntilItIsInitialisedAgain) {
  LARDER_NEEDS_REDIS();
  Rig rig;
  const auto before = rig.talk().store(session_of(1), {"a", "b"});
  (void)rig.server->command({"FLUSHALL"});
  EXPECT_EQ(rig.find_code(), StatusCode::kNotFound);
  EXPECT_EQ(rig.reserve_code("a"), StatusCode::kNotFound);
  EXPECT_EQ(rig.talk().confirm(session_of(1), {"a"}, before).code(), StatusCode::kNotFound);
  EXPECT_TRUE(rig.service->stats().value().empty());
  rig.initialize();
  EXPECT_EQ(rig.talk().presence({"a", "b"}), "00");
  const auto after = rig.talk().store(session_of(2), {"a"});
  EXPECT_GT(after[0].ref.generation, before[1].ref.generation) << "a page on disk may carry the old one";
  EXPECT_EQ(rig.talk().confirm(session_of(1), {"a"}, before).code(), StatusCode::kNotFound) << "it is not that page";
  EXPECT_EQ(rig.check(), "ok");
}

TEST(RedisMetadataTest, AServerThatLosesItsMemoryByARestartIsNotFound) {
  LARDER_NEEDS_REDIS();
  Rig rig;
  const auto before = rig.talk().store(session_of(1), {"a"});
  rig.server->kill();
  EXPECT_EQ(rig.find_code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.find_code(), StatusCode::kUnavailable);
  ASSERT_TRUE(rig.server->restart());
  EXPECT_EQ(rig.find_code(), StatusCode::kNotFound) << "the client has found its way back";
  rig.initialize();
  EXPECT_GT(rig.talk().store(session_of(2), {"a"})[0].ref.generation, before[0].ref.generation);
}

TEST(RedisMetadataTest, WithAnAppendOnlyFileEverythingIsThereAfterKill9) {
  LARDER_NEEDS_REDIS();
  Rig rig(8, {"--appendonly", "yes", "--appendfsync", "always"});
  EXPECT_EQ(rig.service->durability().value_or(RedisDurability::kUnknown), RedisDurability::kAlways);
  const auto stored = rig.talk().store(session_of(1), {"a", "b"});
  const auto reserved = rig.talk().reserve(session_of(2), {"c"});
  ASSERT_TRUE(rig.server->restart());
  EXPECT_EQ(rig.talk().find({"a"})[0], stored[0].ref) << "also without a failing call in between";
  EXPECT_EQ(rig.talk().reserve(session_of(2), {"c"})[0].ref, reserved[0].ref);
  EXPECT_TRUE(rig.talk().confirm(session_of(2), {"c"}, reserved, true).is_ok());
  ASSERT_TRUE(rig.server->restart());
  EXPECT_EQ(rig.talk().presence({"a", "b", "c"}), "111");
  // More than a second's worth of steps of one: it has jumped to the time.
  const auto after = rig.talk().reserve(session_of(3), {"d"});
  EXPECT_GT(after[0].ref.generation, reserved[0].ref.generation + 100) << "what may have been forgotten is left out";
  EXPECT_EQ(rig.check(), "ok");
}

TEST(RedisMetadataTest, DurabilityIsWhatTheServerSays) {
  LARDER_NEEDS_REDIS();
  Rig rig;
  const auto now = [&] { return open_redis(redis_test_options(*rig.server))->durability().value_or({}); };
  EXPECT_EQ(now(), RedisDurability::kNone);
  (void)rig.server->command({"CONFIG", "SET", "appendonly", "yes"});
  EXPECT_EQ(now(), RedisDurability::kEverySecond);
  (void)rig.server->command({"CONFIG", "SET", "appendfsync", "always"});
  EXPECT_EQ(now(), RedisDurability::kAlways);
  (void)rig.server->command({"CONFIG", "SET", "appendfsync", "no"});
  EXPECT_EQ(now(), RedisDurability::kNone);
  (void)rig.server->command({"ACL", "SETUSER", "default", "-config"});
  EXPECT_EQ(now(), RedisDurability::kUnknown);
}

TEST(RedisMetadataTest, AServerThatMayDropSingleKeysIsRefused) {
  LARDER_NEEDS_REDIS();
  Rig rig;
  (void)rig.server->command({"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"});
  EXPECT_TRUE(open_redis(redis_test_options(*rig.server))->stats().is_ok()) << "no limit, no eviction";
  (void)rig.server->command({"CONFIG", "SET", "maxmemory", "1gb"});
  const Status status = open_redis(redis_test_options(*rig.server))->stats().status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("noeviction"), std::string::npos) << "says how to mend it";
}

TEST(RedisMetadataTest, APartThatIsGoneMakesTheNamespaceNotFound) {
  LARDER_NEEDS_REDIS();
  for (const char* const part : {"m", "p", "r"}) {
    Rig rig;
    rig.talk().store(session_of(1), {"a"});
    (void)rig.talk().reserve(session_of(2), {"b"});
    (void)rig.server->command({"DEL", std::string("larder:1:0:kv:") + part});
    EXPECT_EQ(rig.reserve_code("b"), StatusCode::kNotFound) << part;
    EXPECT_EQ(rig.find_code(), StatusCode::kNotFound) << part;
    rig.initialize();
    rig.talk().store(session_of(3), {"a", "b"});
    EXPECT_EQ(rig.check(), "ok");
  }
}

TEST(RedisMetadataTest, AFullMemoryRefusesAndBreaksNothing) {
  LARDER_NEEDS_REDIS();
  Rig rig(4);
  rig.talk().store(session_of(1), {"a", "b", "c", "d"});
  (void)rig.server->command({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_EQ(rig.reserve_code("x"), StatusCode::kUnavailable);
  EXPECT_EQ(rig.talk().presence({"a", "b", "c", "d"}), "1111");
  EXPECT_EQ(rig.check(), "ok");
  (void)rig.server->command({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(rig.reserve_code("x"), StatusCode::kOk);
  EXPECT_EQ(rig.check(), "ok");
}

TEST(RedisMetadataTest, ForgottenScriptsAreSentAgain) {
  LARDER_NEEDS_REDIS();
  Rig rig;
  rig.talk().store(session_of(1), {"a"});
  (void)rig.server->command({"SCRIPT", "FLUSH"});
  EXPECT_EQ(rig.talk().presence({"a"}), "1");
}

TEST(RedisMetadataTest, PasswordsAndDatabases) {
  LARDER_NEEDS_REDIS();
  Rig rig(8);
  rig.talk().store(session_of(1), {"a"});
  RedisMetadataOptions options = redis_test_options(*rig.server);
  options.url += "/3";
  EXPECT_TRUE(open_redis(options)->stats()->empty()) << "another database shares nothing";
  options.url = redis_test_options(*rig.server).url + "/77";
  EXPECT_EQ(open_redis(options)->stats().status().code(), StatusCode::kUnavailable) << "no such database";
  options.url = redis_test_options(*rig.server).url;
  options.prefix = "other";
  EXPECT_TRUE(open_redis(options)->stats()->empty()) << "another prefix shares nothing";
  (void)rig.server->command({"CONFIG", "SET", "requirepass", "s@ cret"});
  const std::string place = "127.0.0.1:" + std::to_string(rig.server->port());
  for (const auto& [url, code] : {std::pair{"redis://:s%40%20cret@" + place, StatusCode::kOk},
                                  std::pair{"redis://:wrong@" + place, StatusCode::kUnavailable},
                                  std::pair{"redis://" + place, StatusCode::kUnavailable}}) {
    options.url = url;
    const Status status = open_redis(options)->stats().status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_EQ(status.message().find("cret"), std::string::npos) << "no password in messages";
  }
}

TEST(RedisMetadataTest, ABusyServerIsADeadlineAndRepeatingIsSafe) {
  LARDER_NEEDS_REDIS();
  Rig rig;
  RedisMetadataOptions options = redis_test_options(*rig.server);
  options.timeout = std::chrono::milliseconds(300);
  const auto hasty = open_redis(options);
  const std::vector<ReserveItems> wanted{{&kSpace, {{"a"}, {"b", "a"}}}};
  (void)rig.server->command({"CLIENT", "PAUSE", "60000", "WRITE"});
  EXPECT_EQ(hasty->reserve(session_of(1), wanted, kMaxTtl).status().code(), StatusCode::kDeadlineExceeded);
  (void)rig.server->command({"CLIENT", "UNPAUSE"});
  const auto first = rig.service->reserve(session_of(1), wanted, kMaxTtl);
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(outcomes(first->at(0)), "RR");
  EXPECT_EQ(rig.talk().stats().reserved, 2u) << "whether or not the first call was carried out";
}

TEST(RedisMetadataTest, LongRequestsAreCutAndAnsweredInOrder) {
  LARDER_NEEDS_REDIS();
  constexpr std::size_t kMany = 6000;
  Rig rig(2 * kMany);
  const MetadataNamespace other{1, "mamba"};
  ASSERT_TRUE(rig.service->initialize(other, 10).is_ok());
  const std::vector<std::string> names = redis_keys("k", kMany);
  std::vector<ReserveItems> wanted{{&other, {{"o"}}}, {&kSpace, {}}, {&other, {}}, {&other, {{"p"}}}};
  for (std::size_t i = 0; i < kMany; ++i)
    wanted[1].items.push_back({names[i], i == 0 ? std::string_view() : names[i - 1]});
  const auto reserved = rig.service->reserve(session_of(1), wanted, kMaxTtl);
  ASSERT_TRUE(reserved.is_ok()) << reserved.status().to_string();
  ASSERT_EQ(reserved->at(1).size(), kMany);
  EXPECT_EQ(reserved->at(2).size(), 0u);
  ConfirmRequest request{session_of(1), {}, {}, false};
  for (std::size_t i = 0; i < kMany; ++i) {
    if (i % 1500 == 0) request.groups.emplace_back();
    request.groups.back().push_back({&kSpace, names[i], reserved->at(1)[i].ref});
  }
  request.groups[2][7].key = "nobody's";
  request.release = {{&other, "o", reserved->at(0)[0].ref}, {&other, "p", reserved->at(3)[0].ref}};
  const auto confirmed = rig.service->confirm(request);
  ASSERT_TRUE(confirmed.is_ok());
  ASSERT_EQ(confirmed->size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(confirmed->at(i).is_ok(), i != 2) << i;
  EXPECT_EQ(Talker(*rig.service, other).stats().free, 10u);
  std::vector<MetadataKeys> keys{{&kSpace, {names.begin(), names.end()}}, {&other, {"o"}}};
  const auto found = rig.service->find(keys, kSecond);
  ASSERT_TRUE(found.is_ok());
  for (std::size_t i = 0; i < kMany; ++i) {
    const auto expected = i / 1500 == 2 ? std::nullopt : std::optional(reserved->at(1)[i].ref);
    ASSERT_EQ(found->at(0)[i], expected) << i;
  }
  EXPECT_EQ(rig.check(), "ok");
  // Clearing goes in pieces over all of them.
  EXPECT_EQ(rig.talk().clear("k1"), 1111u);
  EXPECT_EQ(rig.talk().clear(""), 4500u - 1111u);
  EXPECT_EQ(rig.check(), "ok");
}

TEST(RedisMetadataTest, WhatIsReservedWhileAClearGoesOnIsNotItsBusiness) {
  LARDER_NEEDS_REDIS();
  Rig rig;
  rig.talk().store(session_of(1), {"a", "b"});
  const auto piece = [&](const std::string& from, const std::string& bound) {
    const std::string& script = metadata::redis_script(metadata::RedisOperation::kClear).text;
    return rig.server->command({"EVAL", script, "1", "larder:1:0:kv", "", "0", "", "", from, "1", bound}).items;
  };
  const auto first = piece("0", "");
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[1].integer, 1);
  const auto fresh = rig.talk().store(session_of(2), {"a", "c"});
  for (const char* const page : {"1", "2", "3"}) (void)piece(page, std::to_string(first[3].integer));
  EXPECT_EQ(rig.talk().presence({"a", "b", "c"}), "101");
  EXPECT_EQ(rig.talk().find({"a"})[0], fresh[0].ref);
  EXPECT_EQ(rig.check(), "ok");
}

TEST(RedisMetadataTest, ABacklogOfWhatIsDueChangesNoAnswer) {
  LARDER_NEEDS_REDIS();
  constexpr std::size_t kMany = 600;  // more than a call settles
  Rig rig(kMany + 1);
  ManualClock clock;
  RedisMetadataOptions options = redis_test_options(*rig.server);
  options.test_clock = &clock;
  const auto service = open_redis(options);
  Talker kv(*service, kSpace);
  const std::vector<std::string> names = redis_keys("k", kMany);
  (void)kv.reserve(session_of(1), names, 10 * kSecond);
  const auto last = kv.reserve(session_of(1), {"last"}, 11 * kSecond);
  clock.advance(20 * kSecond);
  EXPECT_EQ(kv.confirm(session_of(1), {"last"}, last).code(), StatusCode::kNotFound);
  kv.release(session_of(1), {"last"}, last);
  EXPECT_EQ(kv.stats().expired, kMany + 1);
  EXPECT_EQ(kv.stats().quarantined, kMany + 1) << "a late release does not shorten its rest";
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"last"})), "F") << "not busy: it has expired";
  EXPECT_EQ(rig.check(), "ok");
  clock.advance(kMaxIoLifetime);
  EXPECT_EQ(outcomes(kv.reserve(session_of(3), names)), std::string(kMany, 'R'));
  EXPECT_EQ(kv.stats().free, 1u);
  EXPECT_EQ(rig.check(), "ok");
}

TEST(RedisMetadataTest, TheNumberOfNamespacesHasALimit) {
  LARDER_NEEDS_REDIS();
  Rig rig;
  RedisMetadataOptions options = redis_test_options(*rig.server);
  options.max_namespaces = 2;
  const auto service = open_redis(options);
  EXPECT_TRUE(service->initialize({1, "kv"}, 8).is_ok());
  EXPECT_EQ(service->initialize({2, "kv"}, 8).status().code(), StatusCode::kOverloaded);
  EXPECT_TRUE(service->initialize(kSpace, 8).is_ok()) << "those that are there stay";
}

// Two clients, each with fewer connections than threads, race for the same keys. owners_ says who may write a page;
// "the file" is one word per page, which a reader under a lease compares with what it was told.
class Race {
 public:
  static constexpr std::uint64_t kPages = 24, kKeys = 60;
  static constexpr int kThreads = 6, kRounds = 250;

  explicit Race(std::uint64_t seed) : seed_(seed), rig_(kPages) {
    RedisMetadataOptions options = redis_test_options(*rig_.server);
    options.connections = 2;
    options.test_clock = &clock_;
    for (auto& client : clients_) client = open_redis(options);
  }

  void run() {
    {
      ThreadPoolExecutor threads("clients", kThreads, kThreads);
      for (int i = 0; i < kThreads; ++i) {
        const Status posted = threads.post([this, i] { work(static_cast<std::uint64_t>(i)); });
        EXPECT_TRUE(posted.is_ok());
      }
      threads.wait_idle();
    }
    EXPECT_EQ(two_owners_.load(), 0) << "seed " << seed_;
    EXPECT_EQ(wrong_bytes_.load(), 0) << "a reader under a lease saw another key's bytes; seed " << seed_;
    EXPECT_EQ(errors_.load(), 0) << "seed " << seed_;
    EXPECT_GT(written_.load(), 100);
    EXPECT_GT(read_.load(), 100);
    EXPECT_GT(rig_.talk().stats().evicted, 0u);
    EXPECT_EQ(rig_.check(), "ok");
  }

 private:
  [[nodiscard]] static std::uint64_t content(std::uint64_t key, std::uint64_t generation) {
    return generation << 8 | key;
  }

  void work(std::uint64_t thread) {
    Rng rng(seed_ + thread);
    RedisMetadata& client = *clients_[thread % 2];
    for (int round = 0; round < kRounds; ++round) {
      if (rng.chance(1, 10)) {
        const std::unique_lock stop(time_);  // nobody reads or writes while time goes on
        clock_.advance(kSecond);
      }
      const std::shared_lock stand_still(time_);
      rng.chance(1, 2) ? write(rng, client, session_of(1 + thread, static_cast<std::uint64_t>(round)))
                       : read(rng, client);
    }
  }

  void write(Rng& rng, RedisMetadata& client, const MetadataSession& session) {
    const std::uint64_t key = rng.below(kKeys), next = rng.below(kKeys);
    if (key == next) return;
    const std::string first = "key" + std::to_string(key), second = "key" + std::to_string(next);
    const std::vector<ReserveItems> wanted{{&kSpace, {{first}, {second, first}}}};
    const auto reserved = client.reserve(session, wanted, kMaxTtl);
    if (!reserved.is_ok()) {
      ++errors_;
      return;
    }
    ConfirmRequest request{session, {{}}, {}, false};
    for (std::size_t i = 0; i < 2; ++i) {
      const Reserved& page = reserved->at(0)[i];
      if (page.outcome != ReserveOutcome::kReserved) continue;
      if (owners_[page.ref.page].exchange(page.ref.generation) != 0) ++two_owners_;
      files_[page.ref.page].store(content(i == 0 ? key : next, page.ref.generation));
      request.groups[0].push_back({&kSpace, wanted[0].items[i].key, page.ref});
    }
    for (const ConfirmItem& item : request.groups[0]) {  // once it is confirmed it may be anybody's
      if (owners_[item.ref.page].exchange(0) != item.ref.generation) ++two_owners_;
      ++written_;
    }
    if (rng.chance(1, 8)) std::swap(request.groups[0], request.release);
    const auto confirmed = client.confirm(request);
    if (!confirmed.is_ok() || !confirmed->at(0).is_ok()) ++errors_;
  }

  void read(Rng& rng, RedisMetadata& client) {
    const std::uint64_t key = rng.below(kKeys);
    const std::string name = "key" + std::to_string(key);
    const std::vector<MetadataKeys> wanted{{&kSpace, {name}}};
    const auto found = client.find(wanted, kSecond * (1 + rng.below(3)));
    if (!found.is_ok()) {
      ++errors_;
      return;
    }
    if (!found->at(0)[0]) return;
    ++read_;
    const PageRef page = *found->at(0)[0];
    const std::vector<ConfirmItem> dropped{{&kSpace, name, page}};
    if (rng.chance(1, 10) && !client.remove(dropped).is_ok()) ++errors_;  // its page rests until the lease ends
    for (int i = 0; i < 3; ++i) {
      if (files_[page.page].load() != content(key, page.generation)) ++wrong_bytes_;
      if (!client.stats().is_ok()) ++errors_;  // meanwhile others do things
    }
  }

  const std::uint64_t seed_;
  Rig rig_;
  ManualClock clock_;
  std::shared_mutex time_;  // held by those for whom time must stand still
  std::array<std::unique_ptr<RedisMetadata>, 2> clients_;
  std::array<std::atomic<std::uint64_t>, kPages> owners_{}, files_{};
  std::atomic<int> two_owners_{0}, wrong_bytes_{0}, errors_{0}, written_{0}, read_{0};
};

TEST(RedisMetadataTest, NoPageEverHasTwoOwners) {
  LARDER_NEEDS_REDIS();
  Race(metadata_test_seed()).run();
}

}  // namespace
}  // namespace larder::conformance
