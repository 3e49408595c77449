// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/copy_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"

namespace larder {

// Where the launcher sleeps until an event of the host fires, the stream is told to end, or the device is lost. It may
// be woken for an event of the past, so it looks again.
struct CopyStream::Waiter {
  void wake() LARDER_EXCLUDES(mutex) {
    const LockGuard guard(mutex);
    is_awake = true;
    changed.notify_all();
  }
  void wait() LARDER_EXCLUDES(mutex) {
    const LockGuard guard(mutex);
    while (!is_awake) changed.wait(mutex);
    is_awake = false;
  }

  RankedMutex mutex{LockRank::kTransfer};
  RankedCondition changed;
  bool is_awake LARDER_GUARDED_BY(mutex) = false;
};

void CudaHealth::saw(const Status& status) {
  if (status.code() != StatusCode::kUnavailable) return;
  std::vector<Waiting> waiting;
  {
    const LockGuard guard(mutex_);
    if (!loss_.is_ok()) return;
    loss_ = unavailable("the CUDA device is lost: " + status.message());
    is_lost_.store(true, std::memory_order_release);
    waiting.swap(waiting_);
  }
  for (const Waiting& w : waiting) {
    if (const auto kept = w.owner.lock()) w.then();
  }
}

void CudaHealth::when_lost(std::weak_ptr<void> owner, std::function<void()> then) {
  {
    const LockGuard guard(mutex_);
    if (loss_.is_ok()) {
      std::erase_if(waiting_, [](const Waiting& w) { return w.owner.expired(); });
      waiting_.push_back({std::move(owner), std::move(then)});
      return;
    }
  }
  then();
}

Status CudaHealth::status() const {
  if (!is_lost_.load(std::memory_order_acquire)) return Status::ok();
  const LockGuard guard(mutex_);
  return loss_;
}

Result<std::unique_ptr<CopyStream>> CopyStream::create(const CopyStreamParts& parts, std::size_t queue_limit) {
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<Memory> ring, parts.ring_memory->allocate(kRingPairs * sizeof(CopyPair)));
  LARDER_ASSIGN_OR_RETURN(CudaStream stream, parts.driver->create_stream());
  return std::unique_ptr<CopyStream>(new CopyStream(parts, queue_limit, stream, std::move(ring)));
}

CopyStream::CopyStream(const CopyStreamParts& parts, std::size_t queue_limit, CudaStream stream,
                       std::unique_ptr<Memory> ring)
    : parts_(parts),
      queue_limit_(queue_limit),
      stream_(stream),
      ring_(std::move(ring)),
      waiter_(std::make_shared<Waiter>()),
      plan_(*parts_.pinned, parts_.load_engines_from, parts_.store_engines_from) {
  // CUDA calls no host function any more then, so an event that one of them would fire never fires.
  parts_.health->when_lost(waiter_, [raw = waiter_.get()] { raw->wake(); });
  // Never refused: each has room for one task.
  (void)launcher_.post([this] { run_launcher(); });
  (void)reaper_.post([this] { run_reaper(); });
}

CopyStream::~CopyStream() {
  {
    const LockGuard guard(mutex_);
    is_ending_ = true;
  }
  to_launch_.notify_all();
  to_reap_.notify_all();
  launcher_.wait_idle();
  reaper_.wait_idle();
  (void)parts_.driver->destroy_stream(stream_);  // fails only when the device is lost, and its streams with it
}

Status CopyStream::enqueue(CopyDirection direction, StreamWork work) {
  if (work.steps == 0) return invalid_argument("stream: work without a step");
  LARDER_RETURN_IF_ERROR(parts_.health->status());
  auto entry = std::make_shared<Entry>(Entry{direction, std::move(work), false});
  {
    const LockGuard guard(mutex_);
    if (queue_.size() >= queue_limit_) {
      return overloaded("stream queue: " + std::to_string(queue_limit_) + " entries wait already");
    }
    queue_.push_back(std::move(entry));
  }
  to_launch_.notify_all();
  return Status::ok();
}

void CopyStream::begin_draining() {
  {
    const LockGuard guard(mutex_);
    is_draining_ = true;
  }
  waiter_->wake();
}

bool CopyStream::is_draining() {
  const LockGuard guard(mutex_);
  return is_draining_;
}

void CopyStream::wait_until_idle() {
  const LockGuard guard(mutex_);
  while (!queue_.empty() || is_launching_ || !in_flight_.empty() || is_reaping_) is_idle_.wait(mutex_);
}

void CopyStream::end_draining() {
  const LockGuard guard(mutex_);
  is_draining_ = false;
}

bool CopyStream::next_entry(std::shared_ptr<Entry>& entry) {
  entry.reset();  // before the stream can be seen idle
  const LockGuard guard(mutex_);
  is_launching_ = false;
  is_idle_.notify_all();
  while (queue_.empty() && !is_ending_) to_launch_.wait(mutex_);
  if (queue_.empty()) return false;
  entry = std::move(queue_.front());
  queue_.pop_front();
  is_launching_ = true;
  return true;
}

void CopyStream::run_launcher() noexcept {
  parts_.health->saw(parts_.driver->bind_thread());
  std::shared_ptr<Entry> entry;
  while (next_entry(entry)) {
    const Status may_begin = wait_for(entry->work.after, false);
    for (std::uint32_t step = 0; step < entry->work.steps; ++step) {
      // Asked for every step, whatever has failed: other streams go by what they are asked.
      Status ready = entry->work.step_after ? wait_for(entry->work.step_after(step), true) : Status::ok();
      launch_step(entry, step, may_begin.is_ok() ? std::move(ready) : may_begin);
    }
  }
}

// The steps of an entry that has begun are asked for, and those of other streams end also while the device drains.
Status CopyStream::wait_for(const std::shared_ptr<DeviceEvent>& event, bool has_begun) {
  if (event == nullptr || defect(Defect::kEventIgnored)) return Status::ok();
  const auto drained = [&] {
    return cancelled("the event that the copy waits for had not fired when the device was told to end");
  };
  if (const auto* on_device = dynamic_cast<const CudaEvent*>(event.get())) {
    if (!has_begun && is_draining() && !event->has_fired()) return drained();
    Status told = on_device->make_wait(stream_);
    parts_.health->saw(told);
    return told;
  }
  // The event keeps the waiter alive, and not the stream: it may never fire.
  event->when_fired([waiter = waiter_] { waiter->wake(); });
  for (; !event->has_fired(); waiter_->wait()) {
    LARDER_RETURN_IF_ERROR(parts_.health->status());
    if (is_draining()) return drained();
  }
  return Status::ok();
}

void CopyStream::launch_step(const std::shared_ptr<Entry>& entry, std::uint32_t step, Status status) {
  if (status.is_ok()) status = parts_.health->status();
  if (status.is_ok()) {
    try {
      ops_.clear();
      if (entry->work.make_ops) entry->work.make_ops(step, ops_);
      status = plan_.make(entry->direction, ops_);
      if (status.is_ok()) status = launch_copies(entry, step);
    } catch (...) {  // the only thing here that can throw
      status = overloaded("no memory for a list of copies");
    }
  }
  parts_.health->saw(status);
  add_launched({entry, step, true, nullptr, std::move(status), ring_used_});
}

Status CopyStream::launch_copies(const std::shared_ptr<Entry>& entry, std::uint32_t step) {
  if (!plan_.engine_copies().empty()) LARDER_RETURN_IF_ERROR(parts_.driver->copy(plan_.engine_copies(), stream_));
  return launch_kernel(entry, step);
}

Status CopyStream::launch_kernel(const std::shared_ptr<Entry>& entry, std::uint32_t step) {
  const std::uint32_t blocks = parts_.blocks[static_cast<std::size_t>(entry->direction)];
  CopyLaunch launch;
  while (plan_.pieces_left() > 0) {
    const std::span<CopyPair> room = ring_room(plan_.pieces_left());
    ring_used_ += plan_.next_launch(room, launch);
    LARDER_RETURN_IF_ERROR(parts_.driver->launch(launch, blocks, stream_));
    // A step of several launches: an event behind each lets the ring be freed in parts.
    if (plan_.pieces_left() > 0) add_launched({entry, step, false, nullptr, Status::ok(), ring_used_});
  }
  return Status::ok();
}

void CopyStream::add_launched(Launched launched) {
  if (parts_.health->status().is_ok()) {
    Result<std::shared_ptr<CudaEvent>> event = CudaEvent::record(parts_.events, stream_);
    if (event.is_ok()) {
      launched.event = std::move(event).value();
    } else if (launched.status.is_ok()) {
      parts_.health->saw(event.status());
      launched.status = event.status();
    }
  }
  // Before the reaper can see the step: who is told that it is launched is told so before it is done. Behind a step
  // that failed nobody is told: the event of a later one would stand for its bytes, too.
  Entry& entry = *launched.entry;
  entry.has_failed = entry.has_failed || !launched.status.is_ok();
  if (launched.ends_step && launched.event && !entry.has_failed && entry.work.launched) {
    entry.work.launched(launched.step, launched.event);
  }
  const LockGuard guard(mutex_);
  while (in_flight_.size() >= kMostInFlight) to_launch_.wait(mutex_);
  in_flight_.push_back(std::move(launched));
  to_reap_.notify_all();
}

std::span<CopyPair> CopyStream::ring_room(std::size_t want) {
  want = std::min(want, kRingPairs / 4);
  auto* const pairs = reinterpret_cast<CopyPair*>(ring_->data());
  const LockGuard guard(mutex_);
  for (;;) {
    std::size_t at = static_cast<std::size_t>(ring_used_ % kRingPairs);
    // The pairs of a launch are contiguous: what is left before the end is skipped when it is short.
    const std::size_t skipped = kRingPairs - at < want ? kRingPairs - at : 0;
    if (ring_used_ + skipped + want - ring_freed_ <= kRingPairs) {
      ring_used_ += skipped;
      at = static_cast<std::size_t>(ring_used_ % kRingPairs);
      return {pairs + at, want};
    }
    to_launch_.wait(mutex_);
  }
}

Status CopyStream::wait_until_over(const Launched& launched) {
  // Asked also when the device is said to be lost, which the driver then says at once: no copy of the step may run on.
  // Without an event (there was none to be had), or where the driver refuses to wait for it, the whole stream must be
  // idle.
  Status ended = launched.event ? launched.event->synchronize() : Status::ok();
  if (!launched.event || !ended.is_ok()) ended = parts_.driver->synchronize(stream_);
  parts_.health->saw(ended);
  const Status health = parts_.health->status();
  return health.is_ok() ? ended : health;
}

void CopyStream::run_reaper() noexcept {
  parts_.health->saw(parts_.driver->bind_thread());
  for (;;) {
    Launched next;
    {
      const LockGuard guard(mutex_);
      is_reaping_ = false;
      is_idle_.notify_all();
      while (in_flight_.empty() && !is_ending_) to_reap_.wait(mutex_);
      if (in_flight_.empty()) return;
      next = std::move(in_flight_.front());
      in_flight_.pop_front();
      is_reaping_ = true;
      to_launch_.notify_all();
    }
    Status ended = wait_until_over(next);
    if (next.status.is_ok()) next.status = std::move(ended);
    {
      const LockGuard guard(mutex_);
      ring_freed_ = next.ring_end;
    }
    to_launch_.notify_all();
    if (!next.ends_step || !next.entry->work.done) continue;
    try {
      next.entry->work.done(next.step, std::move(next.status));
    } catch (...) {  // callbacks shall not throw; one that does must not end the thread
      ++callbacks_thrown_;
    }
  }
}

}  // namespace larder
