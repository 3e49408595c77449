// SPDX-License-Identifier: Apache-2.0
#include "server/llama/completion_front.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "base/ranked_mutex.h"

namespace larder::llama {
namespace {

// Its last save is never done with.
class HangingFront final : public CompletionFront {
 public:
  HangingFront() { EXPECT_TRUE(listen({}, "test", 1, metrics_).is_ok()); }
  ~HangingFront() override { end_requests(); }
  [[nodiscard]] std::string summary() const override { return {}; }

 private:
  void carry(const HttpRequest&, const Exchange&) override {}
  void wait_saved() override {
    LockGuard guard(mutex_);
    for (;;) saved_.wait(mutex_);
  }
  CachedTokens totals() const override { return {}; }
  std::string model_name() const override { return {}; }
  nlohmann::ordered_json slots_json() override { return {}; }
  HttpResponse explain(const HttpRequest&) override { return {}; }

  MetricsRegistry metrics_;
  RankedMutex mutex_{LockRank::kServer};
  RankedCondition saved_;
};

// Its disk has never answered a write: it leaves that at its end.
class LeavingStore final : public PrefixStore {
 public:
  ~LeavingStore() override { tell_left("a write has not ended"); }
  Result<Found> find(std::span<const TokenId>, const std::string&, bool) override { return Found(); }
  Result<std::optional<StoredPrefix>> stored(std::span<const TokenId>, const std::string&) override {
    return std::optional<StoredPrefix>();
  }
  Result<std::shared_ptr<ByteBuffers::Buffer>> load(const Found&, std::span<const TokenId>) override {
    return unavailable("it hangs");
  }
  Result<SaveResult> save(const std::shared_ptr<const SavedSlot>&, std::uint64_t, const std::string&) override {
    return unavailable("it hangs");
  }
  Status drain(Nanos) override { return deadline_exceeded("it hangs"); }
  void flush() override {}
  PrefixStoreCounters counters() override { return {}; }
  ByteBuffers& buffers() override { return buffers_; }

 protected:
  void release(LookupId) override {}

 private:
  ByteBuffers buffers_{1, 1};
};

class LeavingFront final : public CompletionFront {
 public:
  LeavingFront() {
    store_ = std::make_unique<LeavingStore>();
    EXPECT_TRUE(listen({}, "test", 1, metrics_).is_ok());
  }
  ~LeavingFront() override { end_requests(); }
  [[nodiscard]] std::string summary() const override { return {}; }

 private:
  void carry(const HttpRequest&, const Exchange&) override {}
  void wait_saved() override {}
  CachedTokens totals() const override { return {}; }
  std::string model_name() const override { return {}; }
  nlohmann::ordered_json slots_json() override { return {}; }
  HttpResponse explain(const HttpRequest&) override { return {}; }

  MetricsRegistry metrics_;
};

void close_one_that_hangs() {
  const auto leave = [](const std::string& what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::_Exit(3);
  };
  (void)close_front(std::make_unique<HangingFront>(), {Nanos{0}, std::chrono::milliseconds(1)}, leave);
}

TEST(CompletionFrontDeathTest, AStoreThatHangsIsLeftBehind) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(close_one_that_hangs(), ::testing::ExitedWithCode(3), "the store has not closed within 0 s");
}

// Within the limits: its process ends otherwise as one whose store has closed.
TEST(CompletionFront, AWriteThatItsStoreHasLeftIsTold) {
  std::string left;
  const auto leave = [&left](const std::string& what) { left = what; };
  const CloseLimits limits{Nanos{0}, std::chrono::hours(1)};
  EXPECT_EQ(close_front(std::make_unique<LeavingFront>(), limits, leave).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(left, "a write has not ended");
}

}  // namespace
}  // namespace larder::llama
