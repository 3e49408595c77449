// SPDX-License-Identifier: Apache-2.0
// The second law of policies (DESIGN.md 8): slower storage never delays a request beyond what its policy says, whether
// storage is slow, hangs, refuses or fails, and whether the request fetches for itself or joins what another fetches.
//
// In simulated time: copies take none, the engine takes none, so what passes between begin() and start() is waiting.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "tests/cache/harness.h"
#include "tests/cache/paced_backend.h"
#include "tests/support/brief.h"

namespace larder::test {
namespace {

using std::chrono::milliseconds;

constexpr Nanos kTick = milliseconds(5);
// A timer that is due within a tick is seen at its end, and so is what begins after it.
constexpr Nanos kSlack = 2 * kTick;
constexpr std::size_t kMostStored = 440;  // of a stored prompt
constexpr std::array kShapes = {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll, Shape::kFullSidecar};
constexpr std::array kPrefetches = {PrefetchPolicy::kBestEffort, PrefetchPolicy::kWaitComplete,
                                    PrefetchPolicy::kTimeout};
constexpr std::array kWrites = {WritePolicy::kWriteThrough, WritePolicy::kWriteThroughSelective,
                                WritePolicy::kWriteBack};

class SlowStorageRun {
 public:
  SlowStorageRun(std::uint64_t seed, bool is_device_tight)
      : rng_(seed * 7919 + 3), is_device_tight_(is_device_tight), options_(draw(seed)) {
    h_.emplace(options_);
    paced_->clock = &h_->clock;
    for (int i = 0; i < 5; ++i) {
      std::vector<TokenId> prompt = i > 1 && rng_.chance(1, 2) ? some_prompt() : std::vector<TokenId>{};
      for (std::uint64_t n = rng_.between(20, 200); n > 0; --n) prompt.push_back(static_cast<TokenId>(rng_.below(60)));
      prompt.resize(std::min(prompt.size(), kMostStored));
      prompts_.push_back(prompt);
      (void)h_->run(prompt, 1 + rng_.below(6));
      h_->settle();
    }
    (void)h_->cache->flush();
    paced_->bytes_per_second = std::array{0.0, 300.0, 3e3, 3e4, 3e5, 3e6}[rng_.below(6)];
    paced_->refuse_percent = std::array{0u, 0u, 30u}[rng_.below(3)];
    paced_->fail_percent = std::array{0u, 0u, 20u}[rng_.below(3)];
  }

  // What was broken first; "": nothing.
  std::string run() {
    const std::size_t most = is_device_tight_ ? 1 : 5;
    for (int begun = 0; (begun < 20 || !turns_.empty()) && broken_.empty() && h_->failure.empty();) {
      if (begun < 20 && turns_.size() < most && (is_device_tight_ || rng_.chance(1, 8))) ++begun, begin();
      if (rng_.chance(1, 20)) (void)h_->cache->flush();
      move();
      h_->clock.advance(kTick);
    }
    paced_->bytes_per_second = PacedBackend::kInstant;
    paced_->refuse_percent = paced_->fail_percent = 0;
    (void)paced_->work();
    for (Turn& turn : turns_) h_->cache->abort(turn.job.id);
    h_->settle();
    const std::string unclean = h_->check_clean();
    return broken_.empty() ? unclean : broken_;
  }
  std::uint64_t waited = 0, joined = 0, fetched = 0;  // ticks; requests; tokens

 private:
  struct Turn {
    Harness::Job job;
    TimePoint begun;
    Nanos limit{0};
  };

  HarnessOptions draw(std::uint64_t seed) {
    HarnessOptions o = eager_options(kShapes[rng_.below(kShapes.size())]);
    o.config.prefetch_policy = kPrefetches[rng_.below(kPrefetches.size())];
    o.config.write_policy = kWrites[rng_.below(kWrites.size())];
    o.config.prefetch_timeout_base = milliseconds(rng_.between(0, 300));
    o.config.prefetch_timeout_per_ki_token = milliseconds(rng_.between(0, 1000));
    o.config.prefetch_timeout_max = milliseconds(rng_.between(300, 500));
    o.config.prefetch_wait_limit = milliseconds(rng_.between(100, 2000));
    o.config.prefetch_batch_bytes = rng_.chance(1, 2) ? 1 : 256;
    o.config.prefetch_capacity = rng_.chance(1, 2) ? 0.25 : 1;
    o.config.prefetch_threshold = 4 * static_cast<std::uint32_t>(rng_.between(1, 4));
    o.config.checkpoint_grid = rng_.chance(1, 2) ? 0 : 16;
    o.config.store_batch_nodes = rng_.chance(1, 2) ? 1 : 64;
    o.device = is_device_tight_ ? ComponentCounts{130, 130, 24} : ComponentCounts{700, 700, 100};
    o.host_slots = rng_.between(60, 400);
    o.wrap_backend = [this, seed](std::unique_ptr<StorageBackend> inner) {
      auto paced = std::make_unique<PacedBackend>(std::move(inner), seed);
      paced_ = paced.get();
      return paced;
    };
    return o;
  }

  std::vector<TokenId> some_prompt() { return prompts_[rng_.below(prompts_.size())]; }

  // A prompt that storage has, or a head of one, or one that goes on differently.
  void begin() {
    std::vector<TokenId> prompt = some_prompt();
    if (rng_.chance(1, 3)) prompt.resize(rng_.between(1, prompt.size()));
    for (std::uint64_t n = rng_.chance(1, 3) ? rng_.below(30) : 0; n > 0; --n) prompt.push_back(61);
    Turn turn;
    turn.begun = h_->clock.now();
    switch (options_.config.prefetch_policy) {
      case PrefetchPolicy::kBestEffort: break;
      case PrefetchPolicy::kWaitComplete: turn.limit = options_.config.prefetch_wait_limit; break;
      case PrefetchPolicy::kTimeout: turn.limit = prefetch_deadline(options_.config, prompt.size()); break;
    }
    turn.job = h_->begin(std::move(prompt), 1 + rng_.below(4));
    turns_.push_back(std::move(turn));
  }

  // Until nobody gets any further without time. A poll for which room was refused, so that storage could take what
  // would go, is counted, and a request has only so many.
  void move() {
    constexpr int kMostPolls = 2000;
    int polls = 0;
    for (int idle = 0; idle < 3 && h_->failure.empty(); ++polls) {
      if (polls == kMostPolls && broken_.empty()) broken_ = "requests go on for ever without time: " + h_->refusal;
      if (polls == kMostPolls) return;
      const std::uint64_t store_waits = h_->cache->counters().store_waits;
      bool any = paced_->work();
      for (std::size_t i = turns_.size(); i-- > 0;) {
        Turn& turn = turns_[i];
        const bool was_started = turn.job.started;
        if (h_->done(turn.job)) {
          h_->finish(turn.job);
          turns_.erase(turns_.begin() + static_cast<std::ptrdiff_t>(i));
          any = true;
          continue;
        }
        any = h_->advance(turn.job, 16) || any;
        if (turn.job.started && !was_started) started(turn);
      }
      any = h_->run_background(1000) || any || h_->cache->counters().store_waits != store_waits;
      idle = any ? 0 : idle + 1;
    }
    for (const Turn& turn : turns_) expect_in_time(turn);
  }
  void started(const Turn& turn) {
    waited += static_cast<std::uint64_t>((h_->clock.now() - turn.begun) / kTick);
    fetched += turn.job.cached.storage;
    joined = h_->cache->counters().prefetch_shared;
  }
  // One that has started goes on at once, too: storage that takes what leaves the device delays nobody.
  void expect_in_time(const Turn& turn) {
    const Nanos waits = h_->clock.now() - turn.begun;
    if (!broken_.empty() || waits <= turn.limit + kSlack) return;
    const auto ms = [](Nanos n) { return std::to_string(std::chrono::duration_cast<milliseconds>(n).count()) + " ms"; };
    broken_ = "a request of " + std::to_string(turn.job.prompt.size()) + " tokens has waited " + ms(waits) + " of " +
              ms(turn.limit) + (turn.job.started ? " since it began, and runs: " : ", and has not started: ") +
              h_->refusal + "; " + shape_name(options_.shape) + ", " +
              std::string(prefetch_policy_name(options_.config.prefetch_policy)) + ", " +
              std::string(write_policy_name(options_.config.write_policy)) + ", " +
              std::to_string(paced_->bytes_per_second) + " bytes/s";
  }

  Rng rng_;
  const bool is_device_tight_;
  PacedBackend* paced_ = nullptr;
  HarnessOptions options_;
  std::optional<Harness> h_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<Turn> turns_;
  std::string broken_;
};

void run_seeds(bool is_device_tight) {
  const char* const given = std::getenv("LARDER_TEST_SEED");
  const std::uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const std::uint64_t last = given != nullptr ? first : (support::is_brief() ? 100 : 400);
  std::uint64_t waited = 0, joined = 0, fetched = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    SlowStorageRun run(seed, is_device_tight);
    ASSERT_EQ(run.run(), "") << "LARDER_TEST_SEED=" << seed;
    waited += run.waited, joined += run.joined, fetched += run.fetched;
  }
  if (given != nullptr) return;
  EXPECT_GT(waited, 1000u) << "storage was waited for";
  EXPECT_GT(fetched, 1000u) << "and gave something";
  if (!is_device_tight) {
    EXPECT_GT(joined, 100u);
  }
}

TEST(SlowStorage, DelaysNoStartBeyondThePolicy) { run_seeds(false); }
TEST(SlowStorage, DelaysNoRequestOnAFullDevice) { run_seeds(true); }

}  // namespace
}  // namespace larder::test
