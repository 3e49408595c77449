// SPDX-License-Identifier: Apache-2.0
// The engine of a replay: takes the requests of a trace through the cache, several at once, on a simulated clock.
//
//   arrives ──► waits its turn ──► begin ─► start ──► its prompt is computed ──► its answer ──► finish
//               (requests at once)                    (one prompt after another)
//
// Threads: confined. Lifetime: cache, clock and trace outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "bench/replay.h"
#include "controller/cache.h"
#include "sim/sim_clock.h"

namespace larder {

class ReplayEngine {
 public:
  ReplayEngine(const ReplayOptions& options, const ReplayTrace& trace, Cache& cache, sim::SimClock& clock,
               ReplayResult& result);
  // To the end of the trace, and until the cache is idle.
  [[nodiscard]] Status run();

 private:
  enum class Stage : std::uint8_t { kBegun, kPrompt, kAnswer };
  struct Live {
    std::size_t index = 0;  // of the trace
    RequestId id;
    std::vector<TokenId> tokens;
    std::uint64_t computed = 0;
    Stage stage = Stage::kBegun;
  };
  using LivePtr = std::shared_ptr<Live>;

  void arrive(std::size_t index);
  void admit();
  void start_ready();
  [[nodiscard]] bool start(const LivePtr& live);
  // What the request says: whether it has a next turn.
  [[nodiscard]] bool hint(std::size_t index) const;
  // Computes up to `until` in steps; false: not all of it now.
  [[nodiscard]] bool compute(Live& live, std::uint64_t until);
  void go_on(const LivePtr& live);
  void end(const LivePtr& live);
  void poll();
  void later(LivePtr live);
  void fail(const Status& status) {
    if (status_.is_ok()) status_ = status;
  }
  // What a call for a request costs is added to its line.
  template <class Call>
  void timed(const Live& live, Call call);

  const ReplayOptions& options_;
  const ReplayTrace& trace_;
  Cache& cache_;
  sim::SimClock& clock_;
  ReplayResult& result_;
  Status status_;
  std::deque<std::size_t> waiting_;  // arrived, not begun
  std::vector<LivePtr> live_;        // begun, the oldest first
  TimePoint engine_free_at_{};       // when the prompts that are to be computed are
  bool will_retry_ = false;
};

}  // namespace larder
