// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/ranked_mutex.h"
#include "storage/hf3fs/mount_watch.h"

namespace larder::hf3fs {

struct MountWatch::State {
  explicit State(std::shared_ptr<UsrbioLibrary> loaded) : library(std::move(loaded)) {}

  const std::shared_ptr<UsrbioLibrary> library;
  std::atomic<bool> is_dead{false}, is_gone{false};
  std::atomic<bool> is_hanging{false};  // given_up > done; changes under `mutex`
  std::atomic<bool> has_ended{false};   // the thread has done all that it does; changes under `mutex`
  RankedMutex mutex{LockRank::kStorage};
  RankedCondition changed, ended;                                    // `ended`: a task, or the thread
  std::deque<std::function<void()>> tasks LARDER_GUARDED_BY(mutex);  // bounded by who waits for them
  std::uint64_t taken LARDER_GUARDED_BY(mutex) = 0, done LARDER_GUARDED_BY(mutex) = 0;  // tasks
  std::uint64_t given_up LARDER_GUARDED_BY(mutex) = 0;  // the number of the last one that nobody waits for any more
  int descriptor LARDER_GUARDED_BY(mutex) = -1;
  bool is_asked LARDER_GUARDED_BY(mutex) = false;
  bool is_ending LARDER_GUARDED_BY(mutex) = false;
  std::function<void()> last LARDER_GUARDED_BY(mutex);

  // What the thread does next; empty: it is time to end.
  [[nodiscard]] std::function<void()> wait() LARDER_EXCLUDES(mutex) {
    LockGuard guard(mutex);
    while (tasks.empty() && !is_asked && !is_ending) changed.wait(mutex);
    if (is_ending) return {};
    if (!tasks.empty()) {
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      return task;
    }
    is_asked = false;
    return [this, asked = descriptor] {
      if (library->is_hf3fs(asked)) return;
      is_gone.store(true, std::memory_order_release);
      is_dead.store(true, std::memory_order_release);
    };
  }
};

struct MountWatch::Runner {
  std::thread thread;
};

// Threads that waited for the mount when their watch ended.
class MountWatch::LeftThreads {
 public:
  // Never destroyed: a thread that hangs until the process ends is never joined.
  static LeftThreads& get() {
    static auto* const all = new LeftThreads();  // NOLINT
    return *all;
  }
  void leave(std::shared_ptr<State> state, std::thread thread) LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    left_.push_back({std::move(state), std::move(thread)});
  }
  void join_ended() LARDER_EXCLUDES(mutex_) {
    std::vector<Left> back;
    {
      LockGuard guard(mutex_);
      for (auto at = left_.begin(); at != left_.end();) {
        if (!at->state->has_ended) {
          ++at;
          continue;
        }
        back.push_back(std::move(*at));
        at = left_.erase(at);
      }
    }
    for (Left& thread : back) thread.thread.join();
  }

 private:
  struct Left {
    std::shared_ptr<State> state;
    std::thread thread;
  };
  RankedMutex mutex_{LockRank::kStorage};
  std::vector<Left> left_ LARDER_GUARDED_BY(mutex_);  // one per session that ended on a stopped mount
};

void MountWatch::work(State& state) {
  for (auto next = state.wait(); next; next = state.wait()) next();
  std::function<void()> last;
  std::deque<std::function<void()>> dropped;  // nobody waits for them any more
  {
    LockGuard guard(state.mutex);
    last.swap(state.last);
    dropped.swap(state.tasks);
  }
  if (last) last();
  last = nullptr;
  dropped.clear();
  LockGuard guard(state.mutex);
  state.has_ended = true;
  state.ended.notify_all();
}

MountWatch::MountWatch(std::shared_ptr<UsrbioLibrary> library)
    : state_(std::make_shared<State>(std::move(library))), runner_(std::make_unique<Runner>()) {
  runner_->thread = std::thread([state = state_] { work(*state); });
}

MountWatch::~MountWatch() { (void)end(nullptr, Nanos(0)); }

void MountWatch::set_descriptor(int descriptor) {
  LockGuard guard(state_->mutex);
  state_->descriptor = descriptor;
}

void MountWatch::ask() {
  LockGuard guard(state_->mutex);
  if (state_->descriptor < 0 || state_->is_asked) return;
  state_->is_asked = true;
  state_->changed.notify_one();
}

bool MountWatch::is_dead() const { return state_->is_dead.load(std::memory_order_acquire); }
bool MountWatch::is_gone() const { return state_->is_gone.load(std::memory_order_acquire); }
void MountWatch::set_dead() { state_->is_dead.store(true, std::memory_order_release); }

bool MountWatch::is_hanging() const { return state_->is_hanging.load(std::memory_order_acquire); }

bool MountWatch::run(std::function<void()> task, Nanos limit) {
  State& state = *state_;
  // The task does not outlive its turn: what it keeps may be the last of a session.
  auto counted = [&state, task = std::move(task)]() mutable {
    task();
    task = nullptr;
    LockGuard guard(state.mutex);
    state.is_hanging = state.given_up > ++state.done;
    state.ended.notify_all();
  };
  LockGuard guard(state.mutex);
  if (state.is_hanging) return false;
  const std::uint64_t number = ++state.taken;
  state.tasks.emplace_back(std::move(counted));
  state.changed.notify_one();
  const TimePoint until = real_clock().now() + limit;
  while (state.done < number && real_clock().now() < until) {
    (void)state.ended.wait_for(state.mutex, until - real_clock().now());
  }
  if (state.done >= number) return true;
  state.given_up = std::max(state.given_up, number);
  state.is_hanging = true;
  return false;
}

bool MountWatch::end(std::function<void()> last, Nanos limit) {
  if (!runner_) return true;
  const std::unique_ptr<Runner> runner = std::move(runner_);
  bool has_ended = false;
  {
    LockGuard guard(state_->mutex);
    state_->last = std::move(last);
    state_->is_ending = true;
    state_->changed.notify_one();
    const TimePoint until = real_clock().now() + limit;
    while (!state_->has_ended && real_clock().now() < until) {
      (void)state_->ended.wait_for(state_->mutex, until - real_clock().now());
    }
    has_ended = state_->has_ended;
  }
  if (has_ended) {
    runner->thread.join();
  } else {
    LeftThreads::get().leave(state_, std::move(runner->thread));
  }
  LeftThreads::get().join_ended();
  return has_ended;
}

}  // namespace larder::hf3fs
