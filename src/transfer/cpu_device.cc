// SPDX-License-Identifier: Apache-2.0
// The CPU device: each stream is a serial queue on an executor, a copy is a memcpy.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "base/defect.h"
#include "base/ranked_mutex.h"
#include "transfer/device.h"

namespace larder {

namespace {

void copy(const CopyOp& op) {
  if (op.rows == 1) {
    std::memcpy(op.dst, op.src, op.width);
    return;
  }
  std::byte* dst = op.dst;
  const std::byte* src = op.src;
  for (std::size_t row = 0; row < op.rows; ++row) {
    std::memcpy(dst, src, op.width);
    dst += op.dst_pitch;
    src += op.src_pitch;
  }
}

// Shared by the device and the tasks in the executor: a task that the executor keeps longer than the device finds an
// idle stream and returns.
//
//   state    | enqueue            | task begins        | step ends               | event fires | synchronize
//   idle     | post; -> posted    | nothing            | –                       | –           | return
//   waiting  | append             | nothing            | –                       | -> posted   | -> running, run all
//   posted   | append             | run one; -> running| –                       | –           | -> running, run all
//   running  | append             | nothing            | empty: -> idle; else    | –           | wait
//            |                    |                    | post, -> posted         |             |
// waiting instead of posted: the first entry's event has not fired. A refused post inside "step ends" or "event fires"
// means: the same thread runs on.
class CpuStream : public std::enable_shared_from_this<CpuStream> {
 public:
  CpuStream(Executor& executor, std::size_t queue_limit) : executor_(executor), queue_limit_(queue_limit) {}

  Status enqueue(StreamWork work) LARDER_EXCLUDES(mutex_) {
    if (work.steps == 0) return invalid_argument("stream: work without a step");
    std::uint64_t ran_before = 0;
    std::shared_ptr<DeviceEvent> event;
    {
      const LockGuard guard(mutex_);
      if (queue_.size() >= queue_limit_) {
        return overloaded("stream queue: " + std::to_string(queue_limit_) + " entries wait already");
      }
      queue_.push_back(std::move(work));
      if (state_ != State::kIdle) return Status::ok();
      event = event_of_first();
      state_ = event ? State::kWaiting : State::kPosted;
      ran_before = steps_run_;
    }
    if (event) {
      watch(*event);
      return Status::ok();
    }
    Status posted = post();
    if (posted.is_ok()) return posted;
    StreamWork refused;  // dies without the lock
    {
      const LockGuard guard(mutex_);
      // An old task, left over from before a synchronize(), may have begun this work: then it is taken.
      if (state_ != State::kPosted || steps_run_ != ran_before) return Status::ok();
      refused = std::move(queue_.back());
      queue_.pop_back();
      state_ = State::kIdle;
    }
    return overloaded("the executor refused a copy task: " + posted.message());
  }

  void synchronize() LARDER_EXCLUDES(mutex_) {
    {
      const LockGuard guard(mutex_);
      while (state_ == State::kRunning) changed_.wait(mutex_);
      if (state_ == State::kIdle) return;
      state_ = State::kRunning;
    }
    while (run_front(/*keep_running=*/true) == State::kRunning) {}
  }

 private:
  enum class State : unsigned char { kIdle, kWaiting, kPosted, kRunning };

  // What the first entry waits for; null: it can begin.
  std::shared_ptr<DeviceEvent> event_of_first() const LARDER_REQUIRES(mutex_) {
    return waits(queue_.front()) ? queue_.front().after : nullptr;
  }
  static bool waits(const StreamWork& work) {
    return work.after != nullptr && !work.after->has_fired() && !defect(Defect::kEventIgnored);
  }

  // The event does not keep the stream alive: it may never fire.
  void watch(DeviceEvent& event) {
    event.when_fired([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->wake();
    });
  }

  void wake() LARDER_EXCLUDES(mutex_) {
    {
      const LockGuard guard(mutex_);
      if (state_ != State::kWaiting || event_of_first()) return;  // of an entry that synchronize() has ended
      state_ = State::kPosted;
    }
    if (!post().is_ok()) run_task();
  }

  Status post() {
    return executor_.post([self = shared_from_this()] { self->run_task(); });
  }

  void run_task() LARDER_EXCLUDES(mutex_) {
    {
      const LockGuard guard(mutex_);
      if (state_ != State::kPosted) return;
      state_ = State::kRunning;
    }
    while (run_front(/*keep_running=*/false) == State::kPosted) {
      if (post().is_ok()) return;
      const LockGuard guard(mutex_);
      if (state_ != State::kPosted) return;  // synchronize() took over meanwhile
      state_ = State::kRunning;
    }
  }

  // Runs the next step; the caller made the state kRunning. The state that follows: kRunning instead of kPosted and
  // kWaiting if `keep_running`.
  State run_front(bool keep_running) LARDER_EXCLUDES(mutex_) {
    if (!current_) {
      const LockGuard guard(mutex_);
      current_ = std::move(queue_.front());
      queue_.pop_front();
      next_step_ = 0;
      is_dropped_ = waits(*current_);
    }
    run(*current_, next_step_++);
    if (next_step_ == current_->steps) current_.reset();  // dies before the stream can be seen idle
    State next = State::kIdle;
    std::shared_ptr<DeviceEvent> event;
    {
      const LockGuard guard(mutex_);
      ++steps_run_;
      if (current_ || !queue_.empty()) {
        next = keep_running ? State::kRunning : State::kPosted;
        if (!current_ && !keep_running) event = event_of_first();
        if (event) next = State::kWaiting;
      }
      state_ = next;
    }
    changed_.notify_all();
    if (event) watch(*event);
    return next;
  }

  void run(StreamWork& work, std::uint32_t step) {
    Status status;
    ops_.clear();
    try {
      if (is_dropped_) {
        status = cancelled("the event that the copy waits for had not fired when the device was told to end");
      } else if (work.make_ops) {
        work.make_ops(step, ops_);
      }
      for (const CopyOp& op : ops_) copy(op);
    } catch (...) {  // no memory for the list: the only thing here that can throw
      status = overloaded("no memory for a list of copies");
    }
    try {
      if (work.done) work.done(step, std::move(status));
    } catch (...) {  // callbacks shall not throw; one that does must not leave the stream running for ever
      ++callbacks_thrown_;
    }
  }

  // constant after construction
  Executor& executor_;
  const std::size_t queue_limit_;

  RankedMutex mutex_{LockRank::kTransfer};
  RankedCondition changed_;                                 // a step ended
  std::deque<StreamWork> queue_ LARDER_GUARDED_BY(mutex_);  // behind current_
  State state_ LARDER_GUARDED_BY(mutex_) = State::kIdle;
  std::uint64_t steps_run_ LARDER_GUARDED_BY(mutex_) = 0;
  // Owned by the thread that made the state kRunning.
  std::optional<StreamWork> current_;   // the entry whose turn it is
  std::uint32_t next_step_ = 0;         // of it
  bool is_dropped_ = false;             // it is not copied: its event has not fired
  std::uint64_t callbacks_thrown_ = 0;  // for the debugger
  std::vector<CopyOp> ops_;             // kept for its memory
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(Executor& executor) : executor_(executor) {}
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;
  ~CpuDevice() override { finish_all(); }

  std::string_view name() const override { return "cpu"; }
  MemorySource& memory() override { return host_memory_source(); }

  Result<StreamId> create_stream(std::size_t queue_limit) override {
    if (queue_limit == 0) return invalid_argument("a stream needs room for at least one entry");
    const auto free = std::find(streams_.begin(), streams_.end(), nullptr);
    if (free == streams_.end()) return overloaded("a device has at most " + std::to_string(kMaxStreams) + " streams");
    *free = std::make_shared<CpuStream>(executor_, queue_limit);
    return static_cast<StreamId>(free - streams_.begin());
  }
  void destroy_streams(std::span<const StreamId> streams) override {
    for (const StreamId stream : streams) {
      if (!has(stream)) continue;
      streams_[stream]->synchronize();
      streams_[stream].reset();
    }
  }

  Status enqueue(StreamId stream, CopyDirection, StreamWork work) override {
    if (!has(stream)) return invalid_argument("no stream " + std::to_string(stream));
    return streams_[stream]->enqueue(std::move(work));
  }

  void synchronize() override { finish_all(); }

 private:
  [[nodiscard]] bool has(StreamId stream) const { return stream < kMaxStreams && streams_[stream] != nullptr; }
  void finish_all() {
    for (const auto& stream : streams_) {
      if (stream) stream->synchronize();
    }
  }

  Executor& executor_;
  std::array<std::shared_ptr<CpuStream>, kMaxStreams> streams_;  // owned by the cache thread; null: a free place
};

}  // namespace

Status Device::copy_now(std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, bytes);
  return Status::ok();
}

std::unique_ptr<Device> make_cpu_device(Executor& executor) { return std::make_unique<CpuDevice>(executor); }

}  // namespace larder
