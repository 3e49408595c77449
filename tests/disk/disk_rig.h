// SPDX-License-Identifier: Apache-2.0
// Conversations on the whole engine, with the file backend on a disk that gives trouble, and what must hold meanwhile.
//
//   Script        several clients, several turns; what the model answers without any cache
//   SteppedEngine everything but the scheduler's thread: turn by turn on the test's thread; its insides can be checked
//   LiveEngine    the scheduler
//   converse()    runs a script turn by turn, with a flush between turns, so that each one begins in storage
//
// What must hold, whatever the disk does: no request fails, every token is that of the script, queues keep their
// bounds, nothing leaks (check_sound), and when the trouble is over storage serves again (expect_service).
// Threads: the test's. Header only: two test programs use it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/composition.h"
#include "engine/reference/reference_engine.h"
#include "engine/request_loop.h"
#include "engine/scheduler.h"
#include "storage/pipeline/storage_pipeline.h"
#include "tests/support/rest.h"
#include "tests/support/scheduler_client.h"

namespace larder::disk {

using Tokens = std::vector<TokenId>;

// Of simulated time: a minute of real time.
inline constexpr Nanos kLimit = std::chrono::minutes(10);
// Longer than any back-off, jitter included.
inline constexpr Nanos kBeyondBackOff = std::chrono::minutes(3);
inline constexpr std::uint64_t kFileQueueLimit = 64;
inline constexpr std::uint64_t kNewTokens = 6;

// Ten times as fast as real time, and it can jump: back-offs pass, and what waits for a deadline still waits for work.
class FastClock final : public Clock {
 public:
  FastClock() : start_(real_clock().now()) {}
  [[nodiscard]] TimePoint now() const override {
    return start_ + (real_clock().now() - start_) * 10 + Nanos(jumped_ns_.load(std::memory_order_acquire));
  }
  [[nodiscard]] std::int64_t wall_unix_seconds() const override { return real_clock().wall_unix_seconds(); }
  void jump(Nanos by) { jumped_ns_.fetch_add(by.count(), std::memory_order_acq_rel); }

 private:
  const TimePoint start_;
  std::atomic<std::int64_t> jumped_ns_{0};  // workers read it
};

inline std::uint64_t test_seed() {
  const char* text = std::getenv("LARDER_TEST_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}

using support::random_tokens;

inline Options small_options() {
  Options options = support::tiny_options("gdn-tiny");
  options.max_total_tokens = 4096;
  options.max_mamba_cache_size = 24;
  options.max_running_requests = 4;
  return options;
}

// `extra`: further keys of the file backend, each beginning with a comma.
inline Options file_options(const std::string& directory, const std::string& extra) {
  Options options = small_options();
  options.hicache_storage_backend = "file";
  options.hicache_storage_prefetch_policy = "wait_complete";
  options.hicache_storage_backend_extra_config = R"({"prefetch_threshold": 64, "queue_limit": )" +
                                                 std::to_string(kFileQueueLimit) + R"(, "directory": ")" + directory +
                                                 "\"" + extra + "}";
  return options;
}

// Collects a request's updates.
struct Answer {
  Tokens tokens;
  GenerateUpdate last;
  bool is_over = false;
};

class Engine {
 public:
  virtual ~Engine() = default;
  // All at once; an answer for each.
  [[nodiscard]] virtual std::vector<Answer> run(const std::vector<GenerateRequest>& requests) = 0;
  // Waits until nothing is in flight, backups and their retries included, and drops what device and host have.
  [[nodiscard]] virtual Status flush() = 0;
  [[nodiscard]] virtual SchedulerStats stats() = 0;
  // Everything that can be checked when nothing runs.
  virtual void check_sound() = 0;

  // What is taken by the storage and not done: it has a bound. The most that was seen.
  std::uint64_t most_queued = 0;
  // Called once, when the next requests are under way.
  std::function<void()> on_submitted;

 protected:
  void begin_trouble() {
    if (on_submitted) std::exchange(on_submitted, nullptr)();
  }
  void look_at(const BackendStats& stats) {
    most_queued = std::max(most_queued, stats.queued);
    // The file backend's queue, and that of a pipeline in front of it.
    EXPECT_LE(stats.queued, kFileQueueLimit + PipelineOptions().queue_limit);
  }
};

inline void expect_conservation(const CacheCounters& c) {
  EXPECT_EQ(c.backed_up + c.prefetched, c.host_resident + c.host_evicted + c.host_flushed + c.host_lost);
  EXPECT_EQ(c.internal_errors, 0u);
}

// A backend's own work (sealing a segment, making room) may go on for a moment when nobody waits for it any more.
inline void expect_nothing_queued(const std::function<std::uint64_t()>& queued) {
  const TimePoint give_up = real_clock().now() + kLimit / 10;
  while (queued() > 0 && real_clock().now() < give_up) rest();
  EXPECT_EQ(queued(), 0u) << "operations leaked";
}

// The scheduler's parts without its thread.
class SteppedEngine final : public Engine {
 public:
  [[nodiscard]] static Result<std::unique_ptr<SteppedEngine>> create(const Options& options, FileSystem& files,
                                                                     Clock& clock) {
    auto out = std::unique_ptr<SteppedEngine>(new SteppedEngine());
    Result<std::unique_ptr<Composition>> parts = Composition::create(options, files, clock, out->metrics_);
    if (!parts.is_ok()) return parts.status();
    out->parts_ = std::move(parts).value();
    Composition& p = *out->parts_;
    Result<std::unique_ptr<ReferenceEngine>> engine = ReferenceEngine::create(p.model, *p.device_pools, 1);
    if (!engine.is_ok()) return engine.status();
    out->engine_ = std::move(engine).value();
    out->loop_ = std::make_unique<RequestLoop>(
        LoopLimits{options.max_running_requests, options.chunked_prefill_size, options.seed},
        LoopParts{p.cache.get(), out->engine_.get(), &p.model, &clock, nullptr});
    return out;
  }
  ~SteppedEngine() override {
    if (loop_) loop_->abort_all(cancelled("the test is over"));
  }

  [[nodiscard]] std::vector<Answer> run(const std::vector<GenerateRequest>& requests) override {
    std::vector<Answer> answers(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      auto sequence = std::make_unique<Sequence>();
      sequence->ticket = ++tickets_;
      sequence->tokens = requests[i].tokens;
      sequence->prompt = sequence->tokens.size();
      sequence->request = requests[i];
      sequence->update = [answer = &answers[i]](const GenerateUpdate& u) {
        answer->tokens.insert(answer->tokens.end(), u.new_tokens.begin(), u.new_tokens.end());
        answer->last = u;
        answer->is_over = u.finish != FinishReason::kRunning;
      };
      loop_->add(std::move(sequence));
    }
    step();
    begin_trouble();
    const TimePoint give_up = real_clock().now() + kLimit / 10;
    while (loop_->running() + loop_->waiting() > 0 && real_clock().now() < give_up) step();
    if (loop_->running() + loop_->waiting() > 0) loop_->abort_all(deadline_exceeded("the request never ended"));
    return answers;
  }

  [[nodiscard]] Status flush() override {
    const TimePoint give_up = real_clock().now() + kLimit / 10;
    while (parts_->cache->operations_in_flight() > 0) {
      if (real_clock().now() > give_up) return deadline_exceeded("operations never ended");
      step();
    }
    (void)parts_->cache->flush();
    return Status::ok();
  }

  [[nodiscard]] SchedulerStats stats() override {
    SchedulerStats out;
    out.cache = parts_->cache->counters();
    if (parts_->storage) out.storage = parts_->storage->stats();
    return out;
  }

  void check_sound() override {
    ASSERT_TRUE(flush());
    const Status cache = parts_->cache->check_invariants();
    EXPECT_TRUE(cache) << cache.to_string();
    const Status host = parts_->host_pools->check_invariants();
    EXPECT_TRUE(host) << host.to_string();
    EXPECT_TRUE(parts_->cache->idle());
    expect_conservation(parts_->cache->counters());
    EXPECT_EQ(parts_->host_pools->free_blocks(), parts_->host_pools->total_blocks()) << "host slots leaked";
    for (const ComponentKind c : kAllComponents) {
      if (!parts_->model.has(c)) continue;
      EXPECT_EQ(parts_->device_pools->free_slots(c), parts_->device_pools->slots(c).capacity())
          << "device slots leaked: " << component_name(c);
    }
    if (parts_->storage) {
      expect_nothing_queued([&] { return parts_->storage->stats().queued; });
    }
  }

 private:
  SteppedEngine() = default;
  void step() {
    if (!loop_->turn()) (void)parts_->cache->poll(std::chrono::milliseconds(1));
    if (parts_->storage) look_at(parts_->storage->stats());
  }

  MetricsRegistry metrics_;
  std::unique_ptr<Composition> parts_;
  std::unique_ptr<ReferenceEngine> engine_;
  std::unique_ptr<RequestLoop> loop_;
  std::uint64_t tickets_ = 0;
};

class LiveEngine final : public Engine {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LiveEngine>> create(const Options& options, FileSystem& files,
                                                                  Clock& clock) {
    auto out = std::unique_ptr<LiveEngine>(new LiveEngine());
    Result<std::unique_ptr<Scheduler>> made = Scheduler::create(options, files, clock, out->metrics_);
    if (!made.is_ok()) return made.status();
    out->scheduler_ = std::move(made).value();
    return out;
  }

  [[nodiscard]] std::vector<Answer> run(const std::vector<GenerateRequest>& requests) override {
    struct State {  // shared: a request that hangs may end after the test
      Answer answer;
      std::promise<void> done;
    };
    std::vector<std::shared_ptr<State>> states;
    for (const GenerateRequest& request : requests) {
      auto state = states.emplace_back(std::make_shared<State>());
      const Result<Scheduler::Ticket> ticket = scheduler_->submit(request, [state](const GenerateUpdate& u) {
        state->answer.tokens.insert(state->answer.tokens.end(), u.new_tokens.begin(), u.new_tokens.end());
        state->answer.last = u;
        state->answer.is_over = u.finish != FinishReason::kRunning;
        if (state->answer.is_over) state->done.set_value();
      });
      if (ticket.is_ok()) continue;
      state->answer.last.status = ticket.status();
      state->done.set_value();
    }
    begin_trouble();
    const TimePoint give_up = real_clock().now() + kLimit / 10;
    std::vector<Answer> answers;
    for (const std::shared_ptr<State>& state : states) {
      std::future<void> done = state->done.get_future();
      while (done.wait_for(std::chrono::milliseconds(2)) != std::future_status::ready) {
        const SchedulerStats now = scheduler_->stats();
        if (now.storage) look_at(*now.storage);
        if (real_clock().now() > give_up) break;
      }
      answers.push_back(done.wait_for(Nanos(0)) == std::future_status::ready ? state->answer : Answer{});
    }
    return answers;
  }

  [[nodiscard]] Status flush() override { return scheduler_->flush(kLimit); }
  [[nodiscard]] SchedulerStats stats() override { return scheduler_->stats(); }

  void check_sound() override {
    ASSERT_TRUE(flush());
    const SchedulerStats now = stats();
    expect_conservation(now.cache);
    EXPECT_EQ(now.running + now.queued, 0u);
    EXPECT_EQ(now.cache.host_resident, 0u);
    for (const TierUsage& usage : now.tiers) {
      if (usage.tier == "storage") continue;
      EXPECT_EQ(usage.slots, 0u) << usage.tier << " " << usage.component << " leaked";
    }
    if (now.storage) {
      expect_nothing_queued([&] { return stats().storage->queued; });
    }
  }

  [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }

 private:
  LiveEngine() = default;
  MetricsRegistry metrics_;
  std::unique_ptr<Scheduler> scheduler_;
};

// What clients ask, and what the model answers without a cache. A turn's prompt is the conversation so far.
struct Script {
  struct Turn {
    std::vector<GenerateRequest> requests;
    std::vector<Tokens> answers;
  };
  std::vector<Turn> turns;

  // The same script again costs nothing. Conversations of different `seed` share no prefix.
  static const Script& of(std::uint64_t seed, std::size_t clients, std::size_t turns) {
    static std::map<std::array<std::uint64_t, 3>, Script> known;  // tests are on one thread
    auto [at, is_new] = known.try_emplace({seed, clients, turns});
    if (is_new) at->second = make(seed, clients, turns);
    return at->second;
  }

 private:
  static Script make(std::uint64_t seed, std::size_t clients, std::size_t turns) {
    Options options = small_options();
    options.disable_radix_cache = true;
    auto truth = SteppedEngine::create(options, real_file_system(), real_clock());
    Script out;
    if (!truth.is_ok()) {
      ADD_FAILURE() << truth.status().to_string();
      return out;
    }
    std::vector<Tokens> histories(clients);
    for (std::size_t turn = 0; turn < turns; ++turn) {
      Turn& now = out.turns.emplace_back();
      for (std::size_t client = 0; client < clients; ++client) {
        Rng rng(seed * 1'000'003 + client * 1'009 + turn);
        const Tokens question = random_tokens(rng, turn == 0 ? 200 + 30 * client : 130);
        histories[client].insert(histories[client].end(), question.begin(), question.end());
        GenerateRequest& request = now.requests.emplace_back();
        request.tokens = histories[client];
        request.max_new_tokens = kNewTokens;
        request.ignore_eos = true;
        request.temperature = 0.8;
        request.seed = seed + client;
      }
      for (const Answer& answer : (*truth)->run(now.requests)) {
        EXPECT_TRUE(answer.last.status) << answer.last.status.to_string();
        Tokens& history = histories[now.answers.size()];
        history.insert(history.end(), answer.tokens.begin(), answer.tokens.end());
        now.answers.push_back(answer.tokens);
      }
    }
    return out;
  }
};

// Tokens that came from storage, all requests together.
inline std::uint64_t run_turn(Engine& engine, const Script::Turn& turn, const std::string& where) {
  const std::vector<Answer> answers = engine.run(turn.requests);
  std::uint64_t from_storage = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    EXPECT_TRUE(answers[i].is_over) << where << ": request " << i << " never ended";
    EXPECT_TRUE(answers[i].last.status) << where << ": request " << i << ": " << answers[i].last.status.to_string();
    EXPECT_EQ(answers[i].tokens, turn.answers[i]) << where << ": request " << i;
    from_storage += answers[i].last.cached.storage;
  }
  return from_storage;
}

// `before_turn` makes the trouble. Tokens that came from storage.
inline std::uint64_t converse(Engine& engine, const Script& script, const std::string& where,
                              const std::function<void(std::size_t turn)>& before_turn = nullptr) {
  std::uint64_t from_storage = 0;
  for (std::size_t turn = 0; turn < script.turns.size(); ++turn) {
    if (before_turn) before_turn(turn);
    from_storage += run_turn(engine, script.turns[turn], where + ", turn " + std::to_string(turn));
    const Status flushed = engine.flush();
    EXPECT_TRUE(flushed) << where << ": " << flushed.to_string();
  }
  return from_storage;
}

// The cause of the trouble is gone, and so is every back-off: what is asked now is stored, and comes from there. A
// probe or two may be needed before everything passes.
inline void expect_service(Engine& engine, FastClock& clock, const std::string& where) {
  constexpr std::uint64_t kRounds = 4;
  std::string seen;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    clock.jump(kBeyondBackOff);
    const Script& probe = Script::of(900 + round, 2, 1);
    const std::uint64_t stored = engine.stats().cache.stored;
    (void)converse(engine, probe, where + ", service");
    const std::uint64_t from_storage = converse(engine, probe, where + ", service again");
    seen += " round " + std::to_string(round) + ": " + std::to_string(engine.stats().cache.stored - stored) +
            " pages stored, " + std::to_string(from_storage) + " tokens read;";
    if (engine.stats().cache.stored > stored && from_storage > 0) return;
  }
  ADD_FAILURE() << where << ": storage does not serve again:" << seen;
}

}  // namespace larder::disk
