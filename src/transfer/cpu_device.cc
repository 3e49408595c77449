// The CPU device: each stream is a serial queue on an executor, a copy is a memcpy.
#include <array>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "base/ranked_mutex.h"
#include "transfer/device.h"

namespace larder {

Status Device::enqueue(StreamId stream, CopyDirection direction, std::vector<CopyOp> ops) {
  std::vector<StreamStep> steps(1);
  steps[0].make_ops = [ops = std::move(ops)](std::vector<CopyOp>& out) {
    out.insert(out.end(), ops.begin(), ops.end());
  };
  return enqueue_steps(stream, direction, std::move(steps));
}

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
//   state    | enqueue            | task begins        | step ends                      | synchronize
//   idle     | post; -> posted    | nothing            | –                              | return
//   posted   | append             | run one; -> running| –                              | -> running, run all; -> idle
//   running  | append             | nothing            | empty: -> idle; else post      | wait
// A refused post inside "step ends" means: the same thread runs on.
class CpuStream : public std::enable_shared_from_this<CpuStream> {
 public:
  CpuStream(Executor& executor, std::size_t queue_limit) : executor_(executor), queue_limit_(queue_limit) {}

  Status enqueue(std::vector<StreamStep> steps) LARDER_EXCLUDES(mutex_) {
    const std::size_t count = steps.size();
    if (count == 0) return Status::ok();
    std::uint64_t ran_before = 0;
    {
      const LockGuard guard(mutex_);
      if (count > queue_limit_ || queue_.size() > queue_limit_ - count) {
        return overloaded("stream queue: " + std::to_string(queue_.size()) + " of " + std::to_string(queue_limit_) +
                          " steps wait, no room for " + std::to_string(count) + " more");
      }
      for (StreamStep& step : steps) queue_.push_back(std::move(step));
      if (state_ != State::kIdle) return Status::ok();
      state_ = State::kPosted;
      ran_before = steps_run_;
    }
    Status posted = post();
    if (posted.is_ok()) return posted;
    steps.clear();
    {
      const LockGuard guard(mutex_);
      // An old task, left over from before a synchronize(), may have begun this work: then it is taken.
      if (state_ != State::kPosted || steps_run_ != ran_before) return Status::ok();
      for (std::size_t i = 0; i < count; ++i) {  // moved out: they are destroyed without the lock
        steps.push_back(std::move(queue_.back()));
        queue_.pop_back();
      }
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
    while (run_front(/*keep_running=*/true)) {}
  }

 private:
  enum class State : unsigned char { kIdle, kPosted, kRunning };

  Status post() {
    return executor_.post([self = shared_from_this()] { self->run_task(); });
  }

  void run_task() LARDER_EXCLUDES(mutex_) {
    {
      const LockGuard guard(mutex_);
      if (state_ != State::kPosted) return;
      state_ = State::kRunning;
    }
    while (run_front(/*keep_running=*/false)) {
      if (post().is_ok()) return;
      const LockGuard guard(mutex_);
      if (state_ != State::kPosted) return;  // synchronize() took over meanwhile
      state_ = State::kRunning;
    }
  }

  // Runs the first step; the caller made the state kRunning. True if more wait; the state is then kRunning if
  // `keep_running`, else kPosted.
  bool run_front(bool keep_running) LARDER_EXCLUDES(mutex_) {
    {
      StreamStep step;  // dies before the stream can be seen idle
      {
        const LockGuard guard(mutex_);
        step = std::move(queue_.front());
        queue_.pop_front();
      }
      run(step);
    }
    bool has_more = false;
    {
      const LockGuard guard(mutex_);
      ++steps_run_;
      has_more = !queue_.empty();
      state_ = !has_more ? State::kIdle : keep_running ? State::kRunning : State::kPosted;
    }
    changed_.notify_all();
    return has_more;
  }

  void run(StreamStep& step) {
    Status status;
    ops_.clear();
    try {
      if (step.make_ops) step.make_ops(ops_);
      for (const CopyOp& op : ops_) copy(op);
    } catch (...) {  // no memory for the list: the only thing here that can throw
      status = overloaded("no memory for a list of copies");
    }
    try {
      if (step.done) step.done(std::move(status));
    } catch (...) {  // callbacks shall not throw; one that does must not leave the stream running for ever
      ++callbacks_thrown_;
    }
  }

  // constant after construction
  Executor& executor_;
  const std::size_t queue_limit_;

  RankedMutex mutex_{LockRank::kTransfer};
  RankedCondition changed_;  // a step ended
  std::deque<StreamStep> queue_ LARDER_GUARDED_BY(mutex_);
  State state_ LARDER_GUARDED_BY(mutex_) = State::kIdle;
  std::uint64_t steps_run_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t callbacks_thrown_ = 0;  // as ops_; for the debugger
  std::vector<CopyOp> ops_;             // owned by the thread that made the state kRunning; kept for its memory
};

class CpuDevice final : public Device {
 public:
  CpuDevice(Executor& executor, std::size_t queue_limit) : executor_(executor), queue_limit_(queue_limit) {}
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;
  ~CpuDevice() override { finish_all(); }

  std::string_view name() const override { return "cpu"; }
  MemorySource& memory() override { return host_memory_source(); }

  Result<StreamId> create_stream() override {
    if (stream_count_ == kMaxStreams)
      return overloaded("a device has at most " + std::to_string(kMaxStreams) + " streams");
    streams_[stream_count_] = std::make_shared<CpuStream>(executor_, queue_limit_);
    return static_cast<StreamId>(stream_count_++);
  }

  Status enqueue_steps(StreamId stream, CopyDirection, std::vector<StreamStep> steps) override {
    if (stream >= stream_count_) return invalid_argument("no stream " + std::to_string(stream));
    return streams_[stream]->enqueue(std::move(steps));
  }

  void synchronize() override { finish_all(); }

 private:
  void finish_all() {
    for (std::size_t i = 0; i < stream_count_; ++i) streams_[i]->synchronize();
  }

  Executor& executor_;
  const std::size_t queue_limit_;
  std::array<std::shared_ptr<CpuStream>, kMaxStreams> streams_;  // owned by the cache thread
  std::size_t stream_count_ = 0;                                 // owned by the cache thread
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(Executor& executor, std::size_t stream_queue_limit) {
  return std::make_unique<CpuDevice>(executor, stream_queue_limit);
}

}  // namespace larder
