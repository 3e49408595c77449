// SPDX-License-Identifier: Apache-2.0
#include "tests/cache/rank_life.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "controller/kv_events.h"
#include "sim/faulty_backend.h"

namespace larder::test {
namespace {

// One rank's events are enough, so one rank has somebody who takes them.
class Nobody final : public KvEventSink {
 public:
  Wish wish() override { return Wish::kChanges; }
  void take(std::vector<KvEvent> /*events*/) override {}
  bool wants_all_components() const override { return false; }
};

HarnessOptions options_of_life(RankGroup& group, const RankLifeOptions& life, std::uint64_t seed) {
  HarnessOptions o;
  o.shape = life.shape;
  if (life.hard) {
    o.config.max_operations = 8;
    const std::uint64_t fault_seed = seed * 91 + group.rank();
    o.wrap_backend = [fault_seed](std::unique_ptr<StorageBackend> inner) {
      const sim::FaultPlan plan{.refuse_percent = 5, .hang_percent = 0, .fail_percent = 15, .partial_percent = 5};
      return std::make_unique<sim::FaultyBackend>(std::move(inner), fault_seed, plan);
    };
  }
  o.ranks = &group;
  static Nobody nobody;
  if (group.rank() == 0) o.events = &nobody;
  o.config.poll_budget = life.poll_budget;
  o.seed = seed * 77 + group.rank();
  o.device = {48, 48, 10};
  o.host_slots = 120;
  o.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
  o.config.prefetch_threshold = 4;
  o.config.chunked_prefill_tokens = 16;
  if (life.directory.empty()) {
    // A rank that lost pages the others have: its storage is smaller than theirs.
    o.backend_options = {{"max_size", std::to_string(100'000 + 150'000 * group.rank())}};
  } else {
    o.backend = "file";
    o.backend_options = {{"directory", life.directory}, {"fsync", "off"}, {"io_uring", "off"}};
  }
  return o;
}

}  // namespace

RankLife::RankLife(RankGroup& group, const RankLifeOptions& options, std::uint64_t seed)
    : rank_(group.rank()),
      hard_(options.hard),
      script_(seed),
      dice_(seed * 1000 + group.rank()),
      harness_(options_of_life(group, options, seed)) {}

void RankLife::step(int i) {
  if (jobs_.size() < 4 && script_.below(3) == 0) begin();
  harness_.clock.advance(std::chrono::milliseconds(dice_.below(40)));
  (void)harness_.run_background(dice_.below(8));  // one poll per step on every rank
  if (hard_ && script_.below(41) == 0) toggle_storage();
  if (hard_ && rank_ == 0 && dice_.below(5) == 0) explain();
  move_all(i);
  log_slots();
  if (script_.below(97) == 0) log_ << "flush " << harness_.cache->flush() << "\n";
}

void RankLife::drain_step(int i) {
  harness_.clock.advance(std::chrono::milliseconds(50));
  (void)harness_.run_background(64);
  move_all(i);
}

std::string RankLife::end() {
  std::ostringstream words;
  words << "left " << jobs_.size() << ", operations " << harness_.cache->operations_in_flight();
  if (!harness_.failure.empty()) words << " FAILURE " << harness_.failure;
  const Status s = harness_.cache->check_invariants();
  if (!s.is_ok()) words << " INVARIANT " << s.to_string();
  if (harness_.cache->counters().rank_timeouts > 0) words << " TIMEOUTS";
  return words.str();
}

std::string RankLife::take_log() { return std::exchange(log_, {}).str(); }

// Decisions are alike by luck for a while when what they rest on is not.
void RankLife::log_slots() {
  for (const ComponentKind c : kAllComponents) {
    const SlotTable::Counts slots = harness_.device->slots(c).counts();
    log_ << ' ' << slots.free << '/' << slots.live << '/' << slots.quarantined;
    for (const Tier t : {Tier::kDevice, Tier::kHost}) {
      const TierCounts& counts = harness_.cache->tree().counts(c, t);
      log_ << ' ' << counts.resident << '/' << counts.locked << '/' << counts.pending;
    }
  }
  const CacheCounters c = harness_.cache->counters();
  log_ << " nodes " << harness_.cache->tree().node_count() << " waits " << c.store_waits << " shared "
       << c.prefetch_shared << " stored " << c.stored << '\n';
}

void RankLife::toggle_storage() {
  if (is_attached_) {
    harness_.cache->detach_storage();
  } else if (!harness_.cache->attach_storage(*harness_.backend).is_ok()) {
    harness_.failure = "attach";
  }
  is_attached_ = !is_attached_;
}

void RankLife::explain() {
  const std::vector<TokenId> prompt(20, 1);
  BeginRequest request;
  request.tokens = prompt;
  request.salt = "tenant " + std::to_string(dice_.below(3));
  harness_.cache->explain(request, [](Explanation) {});
}

void RankLife::begin() {
  std::vector<TokenId> prompt;
  if (!history_.empty() && script_.below(3) != 0) {
    prompt = history_[script_.below(history_.size())];
    prompt.resize(script_.below(prompt.size() + 1));
  }
  const std::size_t more = 1 + script_.below(30);
  for (std::size_t k = 0; k < more; ++k) prompt.push_back(static_cast<TokenId>(script_.below(3)));
  if (prompt.size() > 90) prompt.resize(90);
  jobs_.push_back(harness_.begin(prompt, script_.below(12)));
}

void RankLife::move_all(int step) {
  for (std::size_t k = 0; k < jobs_.size();) {
    Harness::Job& job = jobs_[k];
    const bool was_started = job.started;
    const bool moved = harness_.advance(job, 16);
    log_ << step << ":" << job.id.v << (moved ? "+" : "-" + harness_.refusal);
    if (job.started && !was_started) {
      log_ << " hit " << job.cached.device << "/" << job.cached.host << "/" << job.cached.storage;
      found_.device += job.cached.device;
      found_.host += job.cached.host;
      found_.storage += job.cached.storage;
    }
    log_ << "\n";
    if (harness_.done(job)) {
      history_.push_back(job.tokens);
      harness_.finish(job);
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(k));
    } else {
      ++k;
    }
  }
}

}  // namespace larder::test
