// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_thread_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fakes/hf3fs/fake_world.h"

namespace larder::hf3fs {
namespace {

constexpr std::size_t kPickAmong = 8;  // ready jobs, when jobs are permuted
constexpr std::size_t kWriters = 16;   // a chunk takes one write after another: more threads would only wait for it

}  // namespace

void ThreadEngine::start(std::uint32_t workers, std::uint64_t seed) {
  const FakeGuard guard(mutex_);
  if (!workers_.empty()) return;
  stopping_ = false;
  rng_ = Rng(seed);
  for (std::uint32_t i = 0; i < workers; ++i) workers_.emplace_back([this] { run_worker(); });
}

void ThreadEngine::place(JobPtr job) {
  if (job->hold == HoldPoint::kBefore) {
    held_.push_back(std::move(job));
  } else if (job->due_ms > world_.now_ms()) {
    const std::uint64_t due_ms = job->due_ms;
    later_.insert(Later{due_ms, order_++, std::move(job), nullptr});
  } else {
    add_ready(std::move(job));
  }
}

void ThreadEngine::push(std::vector<JobPtr> jobs) {
  std::size_t tasks = 0;  // each wakes a worker: all of them would wake for nothing
  {
    const FakeGuard guard(mutex_);
    for (JobPtr& job : jobs) {
      tasks += job->slots.size();
      place(std::move(job));
    }
    tasks = std::min(tasks, workers_.size());
  }
  for (; tasks > 0; --tasks) changed_.notify_one();
}

void ThreadEngine::scan_later(std::shared_ptr<FakeRing> ring, std::uint64_t due_ms) {
  const FakeGuard guard(mutex_);
  later_.insert(Later{due_ms, order_++, nullptr, std::move(ring)});
  changed_.notify_one();
}

void ThreadEngine::hold(JobPtr job) {
  const FakeGuard guard(mutex_);
  held_.push_back(std::move(job));
}

std::uint64_t ThreadEngine::release() {
  std::vector<JobPtr> go, done;
  {
    const FakeGuard guard(mutex_);
    go.swap(held_);
  }
  for (JobPtr& job : go) {
    job->hold = HoldPoint::kNone;
    if (job->left.load(std::memory_order_acquire) == 0) {
      finish_job(world_, *job);
    } else {
      done.push_back(job);
    }
  }
  push(std::move(done));
  return go.size();
}

void ThreadEngine::wake() {
  const FakeGuard guard(mutex_);
  changed_.notify_all();
}

void ThreadEngine::drop_all() {
  const FakeGuard guard(mutex_);
  reads_.clear();
  writes_.clear();
  later_.clear();
  held_.clear();
  if (running_ == 0) idle_.notify_all();
}

void ThreadEngine::wait_idle() {
  const FakeGuard guard(mutex_);
  while (running_ != 0 || has_ready()) idle_.wait(mutex_);
}

void ThreadEngine::stop() {
  std::vector<std::thread> workers;
  {
    const FakeGuard guard(mutex_);
    stopping_ = true;
    workers.swap(workers_);
    changed_.notify_all();
  }
  for (std::thread& worker : workers) worker.join();
  drop_all();
}

std::vector<std::shared_ptr<FakeRing>> ThreadEngine::take_due() {
  std::vector<std::shared_ptr<FakeRing>> rings;
  if (later_.empty()) return rings;
  const std::uint64_t now_ms = world_.now_ms();
  while (!later_.empty() && later_.begin()->due_ms <= now_ms) {
    Later item = std::move(later_.extract(later_.begin()).value());
    if (item.job != nullptr) {
      add_ready(std::move(item.job));
    } else {
      rings.push_back(std::move(item.ring));
    }
  }
  return rings;
}

std::deque<JobPtr>* ThreadEngine::next_queue() {
  const bool may_write = !writes_.empty() && writing_ < kWriters;
  is_reads_turn_ = !is_reads_turn_;
  if (!reads_.empty() && (is_reads_turn_ || !may_write)) return &reads_;
  return may_write ? &writes_ : nullptr;
}

void ThreadEngine::run_next_io(std::deque<JobPtr>& queue) {
  std::size_t pick = 0;
  if (world_.config().shuffle && queue.size() > 1) {
    pick = static_cast<std::size_t>(rng_.below(std::min(queue.size(), kPickAmong)));
  }
  const JobPtr job = queue[pick];
  const std::size_t index = job->next++;
  if (job->next == job->slots.size()) queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(pick));
  const std::size_t writes = &queue == &writes_ ? 1 : 0;
  writing_ += writes;
  ++running_;
  mutex_.unlock();
  execute_io(world_, *job, index);
  const bool dies = world_.note_executed();
  if (job->left.fetch_sub(1, std::memory_order_acq_rel) == 1 && !dies) {
    if (job->hold == HoldPoint::kAfter) {
      hold(job);
    } else {
      finish_job(world_, *job);
    }
  }
  if (dies) world_.set_daemon(false);
  mutex_.lock();
  writing_ -= writes;
  if (--running_ == 0 && !has_ready()) idle_.notify_all();
}

void ThreadEngine::work_once() {
  const std::vector<std::shared_ptr<FakeRing>> rings = take_due();
  if (!rings.empty()) {
    ++running_;
    mutex_.unlock();
    for (const auto& ring : rings) {
      ring->scan_came();
      world_.scan(ring);
    }
    mutex_.lock();
    if (--running_ == 0 && !has_ready()) idle_.notify_all();
  } else if (std::deque<JobPtr>* const queue = next_queue(); queue != nullptr) {
    run_next_io(*queue);
  } else if (later_.empty()) {
    changed_.wait(mutex_);
  } else {
    const std::uint64_t now_ms = world_.now_ms();
    const std::uint64_t due_ms = later_.begin()->due_ms;
    const std::chrono::milliseconds left(due_ms > now_ms ? due_ms - now_ms : 0);
    (void)changed_.wait_until(mutex_, std::chrono::steady_clock::now() + left);
  }
}

void ThreadEngine::run_worker() {
  const FakeGuard guard(mutex_);
  while (!stopping_) work_once();
}

}  // namespace larder::hf3fs
