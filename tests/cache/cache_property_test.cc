// SPDX-License-Identifier: Apache-2.0
// Random requests, tenants, copies, storage operations, aborts, flushes, attach and detach, in random order, against
// the only model that matters: every restored byte is what the tokens say, every slot is accounted for, everyone
// finishes.
//
// A case is a list of operations, each a number from which everything it does follows, so a failing case can be shrunk
// by leaving operations out. LARDER_PROPERTY_OPS sets their number per configuration; a failure prints the seed and the
// shrunk list in words.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

struct Variant {
  Shape shape;
  WritePolicy write;
  PrefetchPolicy prefetch;
  std::uint64_t seed;
};

std::string describe(const Variant& c) {
  return shape_name(c.shape) + "_" + std::string(write_policy_name(c.write)) + "_" +
         std::string(prefetch_policy_name(c.prefetch)) + "_seed" + std::to_string(c.seed);
}

// What the random walks reached, over all cases: a path that nobody took was not tested.
struct Reached {
  std::uint64_t operations = 0, started = 0, finished = 0, starved = 0, device = 0, host = 0, storage = 0;
  CacheCounters cache;
};
Reached& reached() {
  static Reached all;
  return all;
}

class World {
 public:
  explicit World(const Variant& c) : rng_(c.seed), harness_(options_for(c, rng_)) {
    if (!harness_.backend || c.seed % 2 == 0) return;
    harness_.backend->write_group = [](const PageGroup& group) {
      return group.items.back().key.bytes[0] % 8 == 0 ? unsupported("not worth keeping") : Status::ok();
    };
  }

  // One operation; empty while all is well.
  std::string step(std::uint64_t operation) {
    rng_ = Rng(operation);
    const std::uint64_t pick = rng_.below(100);
    last_ = "poll";
    if (pick < 12 && jobs_.size() < 6) {
      begin();
    } else if (pick < 60 && !jobs_.empty()) {
      move_job(rng_.below(jobs_.size()));
    } else if (pick < 85) {
      const std::size_t tasks = 1 + rng_.below(6);
      last_ = "run " + std::to_string(tasks) + " background tasks, poll";
      (void)harness_.run_background(tasks);
    } else if (pick < 90) {
      const std::uint64_t ms = rng_.below(400);
      last_ = "clock + " + std::to_string(ms) + " ms";
      harness_.clock.advance(std::chrono::milliseconds(ms));
    } else if (pick < 92 && !jobs_.empty()) {
      drop(rng_.below(jobs_.size()));
    } else if (pick == 92) {
      last_ = "flush";
      (void)harness_.cache->flush();
    } else if (pick == 93 && rng_.below(4) == 0) {
      last_ = attached_ ? "detach storage" : "attach storage";
      toggle_storage();
    } else if (pick == 95 && !jobs_.empty()) {
      const std::size_t i = rng_.below(jobs_.size());
      last_ = "retract request " + std::to_string(jobs_[i].id.v);
      if (jobs_[i].started) harness_.retract(jobs_[i]);
    } else if (pick == 94 && rng_.below(4) == 0) {
      last_ = "set policies";
      harness_.cache->set_policies(static_cast<PrefetchPolicy>(rng_.below(3)), static_cast<WritePolicy>(rng_.below(3)));
    } else {
      (void)harness_.cache->poll(Nanos::zero());
    }
    if (!harness_.failure.empty()) return harness_.failure;
    if (++steps_ % 16 == 0) {
      const Status s = harness_.cache->check_invariants();
      if (!s.is_ok()) return s.to_string();
    }
    return "";
  }

  [[nodiscard]] const std::string& last() const { return last_; }

  // Everyone gets to the end: nothing starves once the background runs.
  std::string drain() {
    for (int rounds = 0; !jobs_.empty(); ++rounds) {
      if (rounds > 100'000) return "requests never finish: " + std::to_string(jobs_.size()) + " left";
      for (std::size_t i = jobs_.size(); i-- > 0;) move_job(i);
      (void)harness_.run_background(50);
      harness_.clock.advance(std::chrono::milliseconds(20));
      if (!harness_.failure.empty()) return harness_.failure;
    }
    harness_.settle();
    if (!harness_.failure.empty()) return harness_.failure;
    count();
    return harness_.check_clean();
  }

 private:
  void count() {
    const CacheCounters c = harness_.cache->counters();
    CacheCounters& all = reached().cache;
    all.backed_up += c.backed_up;
    all.host_evicted += c.host_evicted;
    all.prefetched += c.prefetched;
    all.loaded_back += c.loaded_back;
    all.stored += c.stored;
    all.prefetch_late += c.prefetch_late;
    all.prefetch_refused += c.prefetch_refused;
    all.backup_no_room += c.backup_no_room;
    all.store_failed += c.store_failed;
    all.store_declined += c.store_declined;
    all.store_waits += c.store_waits;
    all.prefetch_shared += c.prefetch_shared;
    all.prefetch_partial += c.prefetch_partial;
    all.retracted += c.retracted;
    all.grown += c.grown;
  }

  static HarnessOptions options_for(const Variant& c, Rng& rng) {
    HarnessOptions o;
    o.shape = c.shape;
    o.layout = kAllHostLayouts[rng.below(4)];
    o.device = {static_cast<std::uint32_t>(40 + rng.below(40)), static_cast<std::uint32_t>(40 + rng.below(20)),
                static_cast<std::uint32_t>(6 + rng.below(10))};
    o.host_slots = 60 + rng.below(200);
    o.seed = c.seed;
    o.backend_options = {{"max_size", std::to_string(200'000 + rng.below(2'000'000))}};
    o.config.write_policy = c.write;
    o.config.exclusive_tiers = c.seed % 4 == 1;
    o.config.prefetch_policy = c.prefetch;
    o.config.prefetch_threshold = static_cast<std::uint32_t>(4 + rng.below(16));
    o.config.prefetch_timeout_base = std::chrono::milliseconds(50 + rng.below(500));
    o.config.load_back_threshold = static_cast<std::uint32_t>(rng.below(12));
    o.config.chunked_prefill_tokens = 16;
    o.config.decode_headroom_tokens = static_cast<std::uint32_t>(1 + rng.below(12));
    o.config.checkpoint_grid = static_cast<std::uint32_t>(rng.below(2) * 16);
    o.config.eviction_policy = static_cast<EvictionPolicy>(rng.below(kEvictionPolicyCount));
    o.config.max_operations = static_cast<std::uint32_t>(8 + rng.below(64));
    if (c.seed % 3 == 0) o.config.poll_budget = static_cast<std::uint32_t>(8 + c.seed % 57);
    if (c.seed % 2 == 0) o.config.tenant_limits = limits_for(c.seed);
    return o;
  }

  // Floors of up to the whole of both tiers, small ceilings, and tenants without a rule.
  static TenantLimits limits_for(std::uint64_t seed) {
    TenantLimits limits;
    const auto add = [&](const std::string& salt, double floor, double host_floor, double ceiling) {
      TenantRule rule;
      rule.name = salt.empty() ? "none" : salt;
      rule.salt = salt;
      rule.bounds[0] = {TierShare{.share = floor}, TierShare{.share = ceiling}};
      rule.bounds[1] = {TierShare{.share = host_floor}, {}};
      limits.tenants.push_back(rule);
    };
    const double floor = 0.25 * static_cast<double>(seed / 2 % 5);
    add("tenant", floor, 1 - floor, 1);
    if (seed / 2 % 3 == 0) add("", 0, 0, 0.2);
    if (seed / 2 % 3 == 1) limits.others[0].ceiling = limits.others[1].ceiling = TierShare{.share = 0.3};
    return limits;
  }

  void begin() {
    std::vector<TokenId> prompt;
    if (!history_.empty() && rng_.below(4) != 0) {
      prompt = history_[rng_.below(history_.size())];
      prompt.resize(rng_.below(prompt.size() + 1));
    }
    const std::size_t more = 1 + rng_.below(30);
    for (std::size_t i = 0; i < more; ++i) prompt.push_back(static_cast<TokenId>(rng_.below(3)));
    if (prompt.size() > 100) prompt.resize(100);
    const std::string salt = rng_.below(5) == 0 ? "tenant" : "";
    jobs_.push_back(harness_.begin(prompt, rng_.below(20), salt));
    last_ = "begin request " + std::to_string(jobs_.back().id.v) + ": " + std::to_string(prompt.size()) + " tokens" +
            (salt.empty() ? "" : " of a tenant");
  }

  void move_job(std::size_t i) {
    Harness::Job& job = jobs_[i];
    const bool before = job.started;
    last_ = "move request " + std::to_string(job.id.v);
    if (!harness_.advance(job, 1 + rng_.below(16)) && job.started) relieve(i);
    if (job.started && !before) {
      ++reached().started;
      reached().device += job.cached.device;
      reached().host += job.cached.host;
      reached().storage += job.cached.storage;
      check_told(job);
    }
    if (!harness_.done(job)) return;
    ++reached().finished;
    if (history_.size() < 40) {
      history_.push_back(job.tokens);
    } else {
      history_[rng_.below(history_.size())] = job.tokens;
    }
    harness_.finish(job);
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // What an answer says is of this model and this prompt.
  void check_told(const Harness::Job& job) {
    const CachedTokens& told = job.cached;
    const Miss& miss = told.miss;
    const bool is_of_model = miss.reason == MissReason::kNone || harness_.model.has(miss.component);
    const bool names_part = miss.reason != MissReason::kNoCheckpoint || miss.component != ComponentKind::kFull;
    const std::uint64_t most = job.prompt.size();
    const bool is_of_prompt = std::max({told.device, told.host, told.storage, told.cached()}) <= most;
    if (is_of_model && names_part && is_of_prompt) return;
    harness_.failure = "request " + std::to_string(job.id.v) + " is told of " + std::to_string(told.device) + ", " +
                       std::to_string(told.host) + " and " + std::to_string(told.storage) + " tokens, and '" +
                       miss_sentence(miss) + "'";
  }

  // What fills the device are running requests: a younger one makes room.
  void relieve(std::size_t i) {
    if (!harness_.cache->is_starved(jobs_[i].id)) return;
    for (std::size_t k = jobs_.size(); --k > i;) {
      if (!jobs_[k].started) continue;
      ++reached().starved;
      return harness_.retract(jobs_[k]);
    }
  }

  void drop(std::size_t i) {
    last_ = "abort request " + std::to_string(jobs_[i].id.v);
    harness_.cache->abort(jobs_[i].id);
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void toggle_storage() {
    if (attached_) {
      harness_.cache->detach_storage();
    } else if (!harness_.cache->attach_storage(*harness_.backend).is_ok()) {
      harness_.failure = "attach";
    }
    attached_ = !attached_;
  }

  Rng rng_;
  Harness harness_;
  std::vector<Harness::Job> jobs_;
  std::vector<std::vector<TokenId>> history_;
  bool attached_ = true;
  std::size_t steps_ = 0;
  std::string last_;  // the operation in words
};

struct Outcome {
  std::string failure;   // empty: all held
  std::size_t took = 0;  // operations until it failed
  std::string story;     // the operations in words, when asked for
};

Outcome run_operations(const Variant& c, const std::vector<std::uint64_t>& operations, bool tell) {
  World world(c);
  Outcome out;
  for (; out.took < operations.size(); ++out.took) {
    ++reached().operations;
    out.failure = world.step(operations[out.took]);
    if (tell) out.story += "  " + world.last() + "\n";
    if (!out.failure.empty()) return out;
  }
  out.failure = world.drain();
  return out;
}

// Leaves out runs of operations while it still fails; bounded, so that a failing test ends.
std::vector<std::uint64_t> shrink(const Variant& c, std::vector<std::uint64_t> operations) {
  int tries = 400;
  for (std::size_t run = operations.size() / 2; run > 0 && tries > 0; run /= 2) {
    for (std::size_t at = 0; at + run <= operations.size() && tries > 0; --tries) {
      std::vector<std::uint64_t> fewer = operations;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(at),
                  fewer.begin() + static_cast<std::ptrdiff_t>(at + run));
      const Outcome outcome = run_operations(c, fewer, false);
      if (outcome.failure.empty()) {
        at += run;
        continue;
      }
      fewer.resize(std::min(fewer.size(), outcome.took + 1));
      operations = std::move(fewer);
    }
  }
  return operations;
}

// Empty, or the failure with its shrunk story.
std::string run_case(const Variant& c, std::size_t count) {
  Rng rng(c.seed * 7919);
  std::vector<std::uint64_t> operations(count);
  for (std::uint64_t& o : operations) o = rng.next_u64();
  const Outcome outcome = run_operations(c, operations, false);
  if (outcome.failure.empty()) return "";
  operations.resize(std::min(count, outcome.took + 1));
  operations = shrink(c, std::move(operations));
  const Outcome shrunk = run_operations(c, operations, true);
  return outcome.failure + "\nshrunk to " + std::to_string(operations.size()) + " operations (" + shrunk.failure +
         "):\n" + shrunk.story;
}

std::size_t ops_per_case() {
  const char* env = std::getenv("LARDER_PROPERTY_OPS");
  return env ? std::strtoull(env, nullptr, 10) : 12'000;  // 90 cases: more than a million
}

class CacheProperty : public ::testing::TestWithParam<Variant> {};

// Named so that it runs after the seeds when the whole suite runs in one process.
class CachePropertyZReached : public ::testing::Test {};

TEST_P(CacheProperty, EveryByteIsRightAndEverySlotIsKept) {
  EXPECT_EQ(run_case(GetParam(), ops_per_case()), "") << "replay: " << describe(GetParam());
}

std::vector<Variant> cases() {
  std::vector<Variant> all;
  std::uint64_t seed = 1;
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll, Shape::kFullSidecar}) {
    for (const WritePolicy w :
         {WritePolicy::kWriteThrough, WritePolicy::kWriteThroughSelective, WritePolicy::kWriteBack}) {
      for (const PrefetchPolicy p :
           {PrefetchPolicy::kBestEffort, PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
        for (int i = 0; i < 2; ++i) all.push_back({shape, w, p, seed++});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheProperty, ::testing::ValuesIn(cases()),
                         [](const auto& param_info) { return describe(param_info.param); });

TEST_F(CachePropertyZReached, EveryRoadWasTaken) {
  for (const Variant& c : cases()) {
    if (c.seed % 2 == 0) {
      EXPECT_EQ(run_case(c, 4'000), "") << describe(c);
    }
  }
  const Reached& r = reached();
  const CacheCounters& c = r.cache;
  std::printf(
      "operations %llu, started %llu, finished %llu, tokens hit: device %llu host %llu storage %llu\n"
      "pages: backed up %llu, evicted %llu, prefetched %llu, loaded back %llu, stored %llu; prefetches late %llu, "
      "refused %llu, partial %llu; backups without room %llu; requests starved %llu, retracted %llu, grown by %llu\n",
      static_cast<unsigned long long>(r.operations), static_cast<unsigned long long>(r.started),
      static_cast<unsigned long long>(r.finished), static_cast<unsigned long long>(r.device),
      static_cast<unsigned long long>(r.host), static_cast<unsigned long long>(r.storage),
      static_cast<unsigned long long>(c.backed_up), static_cast<unsigned long long>(c.host_evicted),
      static_cast<unsigned long long>(c.prefetched), static_cast<unsigned long long>(c.loaded_back),
      static_cast<unsigned long long>(c.stored), static_cast<unsigned long long>(c.prefetch_late),
      static_cast<unsigned long long>(c.prefetch_refused), static_cast<unsigned long long>(c.prefetch_partial),
      static_cast<unsigned long long>(c.backup_no_room), static_cast<unsigned long long>(r.starved),
      static_cast<unsigned long long>(c.retracted), static_cast<unsigned long long>(c.grown));
  for (const std::uint64_t reached_count :
       {r.started, r.finished, r.device, r.host, r.storage, c.backed_up, c.host_evicted, c.prefetched, c.loaded_back,
        c.stored, c.prefetch_late, c.prefetch_refused, c.backup_no_room, c.store_waits, c.prefetch_shared, c.retracted,
        c.grown}) {
    EXPECT_GT(reached_count, 0u);
  }
}

}  // namespace
}  // namespace larder::test
