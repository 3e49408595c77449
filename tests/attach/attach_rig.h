// SPDX-License-Identifier: Apache-2.0
// A scheduler whose storage comes and goes, clients that hold conversations meanwhile, and what they must be told.
//
// Truth: the same conversations with a scheduler that has no cache (same model, same seeds). Any token that differs is
// a failure, and so is any request that ends otherwise than well.
//
// Threads: the test's own is the operator's; each client has one; updates come on the scheduler's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/ranked_mutex.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "engine/composition.h"
#include "tests/support/scheduler_client.h"

namespace larder::attach {

inline constexpr Nanos kPatience = std::chrono::seconds(60);  // whatever takes longer hangs

// LARDER_TEST_SEED, or a fixed one.
[[nodiscard]] std::uint64_t test_seed();

// Small pools, so that storage has work: they hold a part of what the clients talk about.
[[nodiscard]] Options attach_options(const std::string& model);

using support::Answer;

// One request, from submit to its last update. Fails with kDeadlineExceeded instead of hanging the test.
// at_end (may be null) runs on the scheduler's thread, with the last update.
[[nodiscard]] Result<Answer> ask(Scheduler& scheduler, const GenerateRequest& request,
                                 const std::function<void()>& at_end = nullptr);

// A conversation: each prompt is the one before it, its answer, and a new question.
struct Turn {
  GenerateRequest request;
  std::vector<TokenId> answer;
};
using Conversation = std::vector<Turn>;

struct Truth {
  std::vector<Conversation> conversations;
  std::vector<Turn> probes;  // prompts that no client uses
};
// Runs everything without a cache. Two tenants; greedy and sampled ones.
[[nodiscard]] Result<Truth> make_truth(const std::string& model, std::uint64_t seed);

// A scheduler and its parts: its cache can be asked on its own thread. Begins without storage.
class Stage {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Stage>> create(const Options& options, const MoreBackends& more);
  [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }
  // Tree, pools and counters agree: asked between two steps of the scheduler.
  [[nodiscard]] Status check_invariants();
  // Nothing runs, nothing is in flight, and once flushed no slot of device and host is taken. Nobody may submit
  // meanwhile.
  [[nodiscard]] Status check_empty();

 private:
  Stage() = default;
  MetricsRegistry metrics_;
  Composition* parts_ = nullptr;  // the scheduler's
  std::unique_ptr<Scheduler> scheduler_;
};

// Clients that talk until stop(), each in random conversations.
class Crowd {
 public:
  Crowd(Scheduler& scheduler, const Truth& truth, std::size_t clients, std::uint64_t seed);
  ~Crowd();

  // Waits for so many more answers than there are. False: something failed, or it took too long.
  [[nodiscard]] bool wait_answers(std::uint64_t more) LARDER_EXCLUDES(mutex_);
  // After true no request is under way until resume().
  [[nodiscard]] bool pause() LARDER_EXCLUDES(mutex_);
  void resume() LARDER_EXCLUDES(mutex_);
  void stop() LARDER_EXCLUDES(mutex_);

  [[nodiscard]] std::string failure() const LARDER_EXCLUDES(mutex_);  // the first one; empty: none
  struct Totals {
    std::uint64_t answers = 0, prompt = 0, device = 0, host = 0, storage = 0;  // tokens
  };
  [[nodiscard]] Totals totals() const LARDER_EXCLUDES(mutex_);

 private:
  void talk(std::size_t client, Rng rng) LARDER_EXCLUDES(mutex_);
  // False: end.
  [[nodiscard]] bool may_ask() LARDER_EXCLUDES(mutex_);
  void note(std::size_t client, std::size_t conversation, std::size_t turn, const Result<Answer>& got)
      LARDER_EXCLUDES(mutex_);

  Scheduler& scheduler_;
  const Truth& truth_;
  mutable RankedMutex mutex_{LockRank::kServer};
  RankedCondition changed_;
  Totals totals_ LARDER_GUARDED_BY(mutex_);
  std::string failure_ LARDER_GUARDED_BY(mutex_);
  std::size_t asking_ LARDER_GUARDED_BY(mutex_) = 0;
  bool is_paused_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ThreadPoolExecutor> threads_;  // last: ends first
};

// What is wrong with an answer; empty: nothing.
[[nodiscard]] std::string compare(const Turn& turn, const Result<Answer>& got);

}  // namespace larder::attach
