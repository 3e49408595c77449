// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_clock.h"

#include <algorithm>

namespace larder::sim {

void SimClock::after(Nanos delay, Task event) {
  const TimePoint when = now_ + std::max(delay, Nanos{0});
  events_.emplace(std::pair(when, next_order_++), std::move(event));
}

bool SimClock::run_next() {
  if (events_.empty()) return false;
  auto node = events_.extract(events_.begin());
  now_ = std::max(now_, node.key().first);
  ++ran_;
  node.mapped()();
  return true;
}

void SimClock::advance(Nanos by) {
  const TimePoint end = now_ + by;
  while (!events_.empty() && events_.begin()->first.first <= end) run_next();
  now_ = std::max(now_, end);
}

std::size_t SimClock::run_all(std::size_t limit) {
  std::size_t ran = 0;
  while (ran < limit && run_next()) ++ran;
  return ran;
}

SimExecutor::SimExecutor(SimClock& clock, std::uint64_t seed, Nanos min_delay, Nanos max_delay, std::size_t queue_limit)
    : clock_(clock),
      rng_(seed),
      min_delay_(min_delay),
      max_delay_(std::max(min_delay, max_delay)),
      queue_limit_(queue_limit) {}

Status SimExecutor::post(Task task) {
  ++posts_;
  if (refuse_from_ > 0 && posts_ >= refuse_from_ && posts_ < refuse_until_) {
    ++refused_;
    return overloaded("simulated executor: refused");
  }
  if (waiting_ >= queue_limit_) return overloaded("simulated executor: task queue is full");
  const auto span = static_cast<std::uint64_t>((max_delay_ - min_delay_).count());
  const Nanos delay = min_delay_ + Nanos(static_cast<std::int64_t>(rng_.below(span + 1)));
  ++waiting_;
  clock_.after(delay, [this, task = std::move(task)]() mutable {
    --waiting_;
    if (run_task_catching(task)) ++failed_;
  });
  return Status::ok();
}

}  // namespace larder::sim
