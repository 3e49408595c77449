// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_step_engine.h"

#include <algorithm>
#include <utility>

#include "fakes/hf3fs/fake_world.h"

namespace larder::hf3fs {

void StepEngine::seed(std::uint64_t seed) {
  const FakeGuard guard(mutex_);
  rng_ = Rng(seed);
}

bool StepEngine::can_run(const FakeJob& job) const {
  const bool executed = job.left.load(std::memory_order_acquire) == 0;
  if (job.hold == HoldPoint::kBefore || (executed && job.hold == HoldPoint::kAfter)) return false;
  return job.due_ms <= world_.now_ms();
}

void StepEngine::add_job_events(std::vector<Event>& events) const {
  for (const JobPtr& job : jobs_) {
    if (can_run(*job)) events.push_back({nullptr, job, job->left.load(std::memory_order_acquire) == 0});
  }
}

void StepEngine::add_scan_events(std::vector<Event>& events) const {
  if (!world_.alive()) return;
  const bool d1 = world_.config().d1_partial_batch_stays;
  for (auto& ring : world_.rings()) {
    if (ring->settings.mode != FakeMode::kSim || !world_.serves(ring->settings.daemon_life)) continue;
    if (ring->has_jobs(world_.now_ms(), d1)) events.push_back({std::move(ring), nullptr, false});
  }
}

void StepEngine::execute_one(const JobPtr& job) {
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < job->slots.size(); ++i) {
    if (!job->ring->io(job->slots[i]).executed) waiting.push_back(i);
  }
  const std::size_t index = waiting[world_.config().shuffle ? static_cast<std::size_t>(rng_.below(waiting.size())) : 0];
  execute_io(world_, *job, index);
  job->left.fetch_sub(1, std::memory_order_acq_rel);
  death_due_ = world_.note_executed() || death_due_;
}

void StepEngine::perform(const Event& event) {
  if (event.scan != nullptr) {
    for (JobPtr& job : world_.take_jobs(event.scan)) jobs_.push_back(std::move(job));
  } else if (event.finish) {
    finish_job(world_, *event.job);
    std::erase(jobs_, event.job);
  } else {
    execute_one(event.job);
  }
}

void StepEngine::drain() {
  while (!death_due_) {
    std::vector<Event> events;
    add_job_events(events);
    if (events.empty()) return;
    const bool any = world_.config().shuffle;
    perform(events[any ? static_cast<std::size_t>(rng_.below(events.size())) : 0]);
  }
}

void StepEngine::run(std::vector<JobPtr> jobs) {
  {
    const FakeGuard guard(mutex_);
    for (JobPtr& job : jobs) jobs_.push_back(std::move(job));
    drain();
  }
  die_if_due();
}

void StepEngine::run_due() {
  if (world_.config().mode != FakeMode::kSync) return;
  {
    const FakeGuard guard(mutex_);
    drain();
  }
  die_if_due();
}

std::optional<std::uint64_t> StepEngine::next_due_ms() const {
  std::optional<std::uint64_t> due;
  const auto take = [&due](std::uint64_t when) { due = due ? std::min(*due, when) : when; };
  for (const JobPtr& job : jobs_) {
    if (job->hold != HoldPoint::kBefore && job->due_ms > world_.now_ms()) take(job->due_ms);
  }
  for (const auto& ring : world_.rings()) {
    if (ring->settings.mode != FakeMode::kSim || !world_.serves(ring->settings.daemon_life)) continue;
    const auto when = ring->next_timeout_ms(world_.config().d1_partial_batch_stays);
    if (when && *when > world_.now_ms()) take(*when);
  }
  return due;
}

std::uint64_t StepEngine::step(std::uint64_t limit) {
  std::uint64_t steps = 0;
  bool possible = true;
  while (possible && steps < limit) {
    std::optional<std::uint64_t> forward;
    {
      const FakeGuard guard(mutex_);
      std::vector<Event> events;
      add_scan_events(events);
      add_job_events(events);
      if (!events.empty()) {
        perform(events[static_cast<std::size_t>(rng_.below(events.size()))]);
      } else {
        forward = next_due_ms();
        possible = forward.has_value();
      }
    }
    if (forward) world_.advance(*forward - world_.now_ms());
    die_if_due();
    if (possible) ++steps;
  }
  return steps;
}

std::uint64_t StepEngine::release() {
  std::uint64_t released = 0;
  {
    const FakeGuard guard(mutex_);
    for (const JobPtr& job : jobs_) {
      const bool stopped = job->hold == HoldPoint::kBefore ||
                           (job->hold == HoldPoint::kAfter && job->left.load(std::memory_order_acquire) == 0);
      if (!stopped) continue;
      job->hold = HoldPoint::kNone;
      ++released;
    }
  }
  run_due();
  return released;
}

void StepEngine::drop_all(bool tear) {
  const FakeGuard guard(mutex_);
  if (tear) {
    for (const JobPtr& job : jobs_) {
      for (std::size_t i = 0; i < job->slots.size(); ++i) tear_io(world_, *job, i);
    }
  }
  jobs_.clear();
  death_due_ = false;
}

void StepEngine::die_if_due() {
  bool dies = false;
  {
    const FakeGuard guard(mutex_);
    dies = death_due_;
  }
  if (dies) world_.set_daemon(false);
}

}  // namespace larder::hf3fs
