// SPDX-License-Identifier: Apache-2.0
// The C++ API of the cache (controller/cache.h), with pools, copies, storage and an engine under it that knows what
// every byte must be (tests/cache/harness.h).
//
// Fed: the shape of a model, sizes, policies; then calls: begin a request with some history's tokens, move one by a
// chunk, abort, run background tasks, let time pass, flush, attach, detach and clear storage, change policies.
// Checked: every byte that a request resumes from is what its tokens, tenant and position say; the cache's invariants
// after every call; everyone who began gets to the end; after a flush no slot of any tier is taken or leased.
#include <memory>
#include <utility>

#include "base/log.h"
#include "fuzz/fuzz_input.h"
#include "tests/cache/harness.h"

namespace larder::fuzz {
namespace {

using test::Harness;
using test::HarnessOptions;

HarnessOptions read_options(FuzzInput& input) {
  HarnessOptions o;
  o.shape = static_cast<test::Shape>(input.below(5));
  o.layout = kAllHostLayouts[static_cast<std::size_t>(input.below(kAllHostLayouts.size()))];
  const auto slots = [&](std::uint64_t least, std::uint64_t more) {
    return static_cast<std::uint32_t>(least + input.below(more));
  };
  o.device = {slots(40, 40), slots(40, 20), slots(6, 10)};
  o.host_slots = slots(60, 100);
  o.storage = input.below(4) != 0;
  o.seed = input.number<std::uint8_t>();
  o.backend_options = {{"max_size", std::to_string(200'000 + 10'000 * input.below(100))}};
  o.config.write_policy = static_cast<WritePolicy>(input.below(3));
  o.config.prefetch_policy = static_cast<PrefetchPolicy>(input.below(3));
  o.config.prefetch_threshold = slots(4, 16);
  o.config.prefetch_timeout_base = std::chrono::milliseconds(50 + input.below(200));
  o.config.load_back_threshold = slots(0, 12);
  o.config.chunked_prefill_tokens = 16;
  o.config.checkpoint_grid = slots(0, 2) * 16;
  o.config.eviction_policy = static_cast<EvictionPolicy>(input.below(kEvictionPolicyCount));
  o.config.exclusive_tiers = input.below(3) == 0;
  o.config.max_operations = slots(8, 64);
  o.config.decode_headroom_tokens = slots(1, 12);
  return o;
}

class World {
 public:
  explicit World(FuzzInput& input) : harness_(read_options(input)), attached_(harness_.options.storage) {}

  void step(FuzzInput& input) {
    if (std::exchange(*is_cleared_, false)) harness_.cache->storage_cleared();
    const std::uint64_t call = input.below(16);
    if (call < 3 && jobs_.size() < 5) {
      begin(input);
    } else if (call < 9 && !jobs_.empty()) {
      move(input.below(jobs_.size()), 1 + input.below(16));
    } else if (call < 12) {
      (void)harness_.run_background(1 + input.below(8));
    } else if (call == 12) {
      harness_.clock.advance(std::chrono::milliseconds(input.below(256)));
    } else if (call == 13 && !jobs_.empty()) {
      const auto at = static_cast<std::ptrdiff_t>(input.below(jobs_.size()));
      harness_.cache->abort(jobs_[static_cast<std::size_t>(at)].id);
      jobs_.erase(jobs_.begin() + at);
    } else if (call == 14) {
      rare(input);
    } else {
      (void)harness_.cache->poll(Nanos::zero());
    }
    check();
  }
  void end() {
    finish_all();
    // What was computed is asked for again: from device and host, and once more from storage alone.
    for (const bool is_flushed : {false, true}) {
      if (is_flushed) (void)harness_.cache->flush();
      const std::size_t again = std::min<std::size_t>(history_.size(), 4);
      for (std::size_t i = 0; i < again; ++i) jobs_.push_back(harness_.begin(history_[i], 1, i % 2 ? "tenant" : ""));
      finish_all();
    }
    const std::string left = harness_.check_clean();
    if (!left.empty()) fuzz_check(false, left);
  }

 private:
  void finish_all() {
    for (int rounds = 0; !jobs_.empty(); ++rounds) {
      fuzz_check(rounds < 100'000, "requests never finish");
      for (std::size_t i = jobs_.size(); i-- > 0;) move(i, 16);
      (void)harness_.run_background(50);
      harness_.clock.advance(std::chrono::milliseconds(20));
      check_failure();
    }
    harness_.settle();
    check_failure();
  }
  void begin(FuzzInput& input) {
    std::vector<TokenId> prompt;
    if (!history_.empty() && input.below(4) != 0) {
      prompt = history_[static_cast<std::size_t>(input.below(history_.size()))];
      prompt.resize(static_cast<std::size_t>(input.below(prompt.size() + 1)));
    }
    for (std::uint64_t left = 1 + input.below(50), bits = input.number<std::uint32_t>(); left > 0; --left) {
      prompt.push_back(static_cast<TokenId>(bits >> (left % 32) & 1));
    }
    if (prompt.size() > 100) prompt.resize(100);
    jobs_.push_back(harness_.begin(prompt, input.below(20), input.below(5) == 0 ? "tenant" : ""));
  }
  void move(std::size_t i, std::uint64_t chunk) {
    Harness::Job& job = jobs_[i];
    if (!harness_.advance(job, chunk) && harness_.cache->is_starved(job.id)) relieve(i);
    if (!harness_.done(job)) return;
    if (history_.size() < 16) history_.push_back(job.tokens);
    harness_.finish(job);
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Running requests fill the device: the youngest makes room.
  void relieve(std::size_t i) {
    for (std::size_t k = jobs_.size(); --k > i;) {
      if (jobs_[k].started) return harness_.retract(jobs_[k]);
    }
  }
  // A step that is open while its request is aborted or retracted, or that is cancelled first.
  void leave_step(FuzzInput& input) {
    if (jobs_.empty()) return;
    const auto at = static_cast<std::size_t>(input.below(jobs_.size()));
    Harness::Job& job = jobs_[at];
    if (!job.started) return;
    (void)harness_.advance(job, 1 + input.below(16), {.leave = 0, .completes = false});
    const std::uint64_t how = input.below(3);
    if (how == 0) harness_.cancel_open(job);
    if (how == 1) harness_.cache->abort(job.id);
    if (how == 2 && job.started) harness_.retract(job);
    (void)harness_.run_background(input.below(8));
    harness_.cancel_open(job);
    if (how == 1) jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void rare(FuzzInput& input) {
    switch (input.below(6)) {
      case 0: (void)harness_.cache->flush(); return;
      case 1:
        harness_.cache->set_policies(static_cast<PrefetchPolicy>(input.below(3)),
                                     static_cast<WritePolicy>(input.below(3)));
        return;
      case 3: return leave_step(input);
      case 4: {
        Harness::Job* const job = jobs_.empty() ? nullptr : &jobs_[static_cast<std::size_t>(input.below(jobs_.size()))];
        if (job != nullptr && job->started) harness_.retract(*job);
        return;
      }
      case 5: return clear();
      default: break;
    }
    if (!harness_.backend) return;
    if (attached_) {
      harness_.cache->detach_storage();
    } else {
      const Status status = harness_.cache->attach_storage(*harness_.backend);
      fuzz_check(status.is_ok(), "storage is not attached: " + status.to_string());
    }
    attached_ = !attached_;
  }
  // The cache hears of it in a later step, as from an operator.
  void clear() {
    if (!harness_.backend) return;
    const auto ended = [is_cleared = is_cleared_](const Status& status) { *is_cleared = status.is_ok(); };
    (void)harness_.backend->submit_clear(nullptr, ended);
  }
  void check_failure() {
    if (!harness_.failure.empty()) fuzz_check(false, harness_.failure);
  }
  void check() {
    check_failure();
    const Status status = harness_.cache->check_invariants();
    if (!status.is_ok()) fuzz_check(false, status.to_string());
  }

  Harness harness_;
  bool attached_;
  const std::shared_ptr<bool> is_cleared_ = std::make_shared<bool>(false);
  std::vector<Harness::Job> jobs_;
  std::vector<std::vector<TokenId>> history_;
};

void run(FuzzInput input) {
  set_log_level(LogLevel::kOff);
  World world(input);
  for (int i = 0; i < 150 && !input.empty(); ++i) world.step(input);
  world.end();
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
