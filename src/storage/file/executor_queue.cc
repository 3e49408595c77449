// SPDX-License-Identifier: Apache-2.0
// IoQueue on an Executor.
//
// Each operation has a task, and normally runs in it. An executor may refuse a task in the middle of a batch, or
// destroy one unrun; so the operations of a batch lie in a table that all its tasks share, and each task, before it
// ends, sees to it that at least as many tasks as operations are still to come. Whoever takes an operation out of the
// table runs it, and nobody else can: `done` runs exactly once.
//
// The destructor runs what nobody has taken yet itself, so that it waits only for operations that are running.
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "base/ranked_mutex.h"
#include "storage/file/io_cursor.h"
#include "storage/file/io_queue.h"

namespace larder::file_store {
namespace {

// One call of the file, for reading or writing. Spans of File and Segments differ only in type.
Result<std::size_t> transfer(IoOperation& operation, const IoCursor& cursor) {
  const std::span<const Segment> buffers = cursor.next_buffers();
  if (operation.kind == IoOperation::Kind::kRead) {
    std::vector<std::span<std::byte>> into;
    into.reserve(buffers.size());
    for (const Segment& buffer : buffers) into.emplace_back(buffer.data, buffer.size);
    return operation.file->readv_at(into, cursor.offset());
  }
  std::vector<std::span<const std::byte>> from;
  from.reserve(buffers.size());
  for (const Segment& buffer : buffers) from.emplace_back(buffer.data, buffer.size);
  return operation.file->writev_at(from, cursor.offset());
}

// The operations of one submit(). All fields belong to the mutex of the queue's State.
struct IoBatch {
  std::uint64_t number = 0;                    // set when the executor took its first task
  std::map<std::size_t, IoOperation> waiting;  // by place in the batch: those that nobody has taken
  // Tasks taken by the executor and not begun. May run one short (never over) while submit() posts.
  std::ptrdiff_t pending_tasks = 0;
};

// Outlives the queue: a task that comes late finds it and has nothing to do.
class State {
 public:
  // Counts `count` operations in, if there is room and the queue lives.
  [[nodiscard]] Status enter(std::size_t count) LARDER_EXCLUDES(mutex_);
  // The executor refused the whole batch.
  void leave(std::size_t count) LARDER_EXCLUDES(mutex_) { count_out(count); }
  // A task of `batch` is in the executor. False: no operation is left that needs another one.
  bool posted(const std::shared_ptr<IoBatch>& batch) LARDER_EXCLUDES(mutex_);
  // A task begins: runs operation `index`, and what has no task of its own.
  void run_task(IoBatch& batch, std::size_t index) LARDER_EXCLUDES(mutex_);
  // A task was destroyed unrun: so end the operations that it would have run.
  void drop_task(IoBatch& batch, std::size_t index) LARDER_EXCLUDES(mutex_);
  // Refuses new batches, runs what waits, and returns when every `done` has run.
  void close() LARDER_EXCLUDES(mutex_);

 private:
  // Operation `index` if it waits, else the first one if more wait than tasks are to come. Nothing: the task may end.
  [[nodiscard]] std::optional<IoOperation> take(IoBatch& batch, std::optional<std::size_t> index)
      LARDER_EXCLUDES(mutex_);
  [[nodiscard]] IoOperation extract(IoBatch& batch, std::map<std::size_t, IoOperation>::iterator place)
      LARDER_REQUIRES(mutex_);
  void count_out(std::size_t count) LARDER_EXCLUDES(mutex_);
  void run(IoOperation operation) LARDER_EXCLUDES(mutex_);

  mutable RankedMutex mutex_{LockRank::kStorage};
  RankedCondition changed_;  // an operation ended, or a batch came
  std::map<std::uint64_t, std::shared_ptr<IoBatch>> batches_ LARDER_GUARDED_BY(mutex_);  // those with something waiting
  std::uint64_t last_batch_ LARDER_GUARDED_BY(mutex_) = 0;
  std::size_t in_flight_ LARDER_GUARDED_BY(mutex_) = 0;
  bool closed_ LARDER_GUARDED_BY(mutex_) = false;
};

Status State::enter(std::size_t count) {
  LockGuard guard(mutex_);
  if (closed_) return cancelled("I/O queue is shutting down");
  if (count > kMaxQueuedOperations - in_flight_) return overloaded("I/O queue: too many operations in flight");
  in_flight_ += count;
  return Status::ok();
}

bool State::posted(const std::shared_ptr<IoBatch>& batch) {
  LockGuard guard(mutex_);
  ++batch->pending_tasks;
  if (batch->waiting.empty()) return false;
  if (batch->number == 0) {
    batch->number = ++last_batch_;
    batches_.emplace(batch->number, batch);
    changed_.notify_all();  // close() may be waiting
  }
  return true;
}

IoOperation State::extract(IoBatch& batch, std::map<std::size_t, IoOperation>::iterator place) {
  IoOperation operation = std::move(place->second);
  batch.waiting.erase(place);
  if (batch.waiting.empty()) batches_.erase(batch.number);
  return operation;
}

std::optional<IoOperation> State::take(IoBatch& batch, std::optional<std::size_t> index) {
  LockGuard guard(mutex_);
  auto found = index ? batch.waiting.find(*index) : batch.waiting.end();
  const bool too_few_tasks = static_cast<std::ptrdiff_t>(batch.waiting.size()) > batch.pending_tasks;
  if (found == batch.waiting.end() && too_few_tasks) found = batch.waiting.begin();
  if (found == batch.waiting.end()) return std::nullopt;
  return extract(batch, found);
}

void State::count_out(std::size_t count) {
  LockGuard guard(mutex_);
  in_flight_ -= count;
  changed_.notify_all();
}

void State::run(IoOperation operation) {
  const Status status = run_operation(operation);
  finish_operation(std::move(operation), status);
  count_out(1);
}

void State::run_task(IoBatch& batch, std::size_t index) {
  {
    LockGuard guard(mutex_);
    --batch.pending_tasks;
  }
  for (std::optional<std::size_t> own = index;; own.reset()) {
    std::optional<IoOperation> operation = take(batch, own);
    if (!operation) return;
    run(std::move(*operation));
  }
}

void State::drop_task(IoBatch& batch, std::size_t index) {
  {
    LockGuard guard(mutex_);
    --batch.pending_tasks;
  }
  for (std::optional<std::size_t> own = index;; own.reset()) {
    std::optional<IoOperation> operation = take(batch, own);
    if (!operation) return;
    finish_operation(std::move(*operation), cancelled("I/O queue: the executor dropped the operation"));
    count_out(1);
  }
}

void State::close() {
  for (;;) {
    std::optional<IoOperation> operation;
    {
      LockGuard guard(mutex_);
      closed_ = true;
      while (batches_.empty() && in_flight_ > 0) changed_.wait(mutex_);
      if (!batches_.empty()) {
        const std::shared_ptr<IoBatch> oldest = batches_.begin()->second;
        operation = extract(*oldest, oldest->waiting.begin());
      }
    }
    if (!operation) return;
    run(std::move(*operation));
  }
}

// What the executor's task holds: knows at its end whether it ran.
class TaskTicket {
 public:
  TaskTicket(std::shared_ptr<State> state, std::shared_ptr<IoBatch> batch, std::size_t index)
      : state_(std::move(state)), batch_(std::move(batch)), index_(index) {}
  TaskTicket(const TaskTicket&) = delete;
  TaskTicket& operator=(const TaskTicket&) = delete;
  ~TaskTicket() {
    if (!settled_) state_->drop_task(*batch_, index_);
  }
  void run() {
    settled_ = true;
    state_->run_task(*batch_, index_);
  }
  // The executor refused the task.
  void disarm() { settled_ = true; }

 private:
  const std::shared_ptr<State> state_;
  const std::shared_ptr<IoBatch> batch_;
  const std::size_t index_;
  bool settled_ = false;  // owned by the executor's task; by submit() if that was refused
};

class ExecutorQueue final : public IoQueue {
 public:
  explicit ExecutorQueue(Executor& executor) : executor_(executor) {}
  ~ExecutorQueue() override { state_->close(); }

  [[nodiscard]] Status submit(std::vector<IoOperation> operations) override;
  Status register_memory(std::span<const Segment> /*regions*/) override {
    return unsupported("registered memory needs io_uring");
  }

 private:
  Executor& executor_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

Status ExecutorQueue::submit(std::vector<IoOperation> operations) {
  LARDER_RETURN_IF_ERROR(check_operations(operations, false));
  const std::size_t count = operations.size();
  if (count == 0) return Status::ok();
  LARDER_RETURN_IF_ERROR(state_->enter(count));
  const auto batch = std::make_shared<IoBatch>();
  for (std::size_t i = 0; i < count; ++i) batch->waiting.emplace(i, std::move(operations[i]));
  for (std::size_t i = 0; i < count; ++i) {
    const auto ticket = std::make_shared<TaskTicket>(state_, batch, i);  // kept until the post is counted
    const Status status = executor_.post([ticket] { ticket->run(); });
    if (!status.is_ok()) {
      ticket->disarm();
      if (i > 0) break;  // the tasks before this one run the rest
      state_->leave(count);
      return status;
    }
    if (!state_->posted(batch)) break;
  }
  return Status::ok();
}

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t bytes)
    : size_((bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment) {
  if (size_ < bytes) throw std::bad_alloc();
  if (size_ > 0) data_ = static_cast<std::byte*>(::operator new (size_, std::align_val_t{kDirectAlignment}));
}

AlignedBuffer::~AlignedBuffer() { ::operator delete (data_, std::align_val_t{kDirectAlignment}); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  AlignedBuffer old(std::move(*this));
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Status run_operation(IoOperation& operation) {
  if (operation.kind == IoOperation::Kind::kSyncData) return operation.file->sync_data();
  IoCursor cursor(operation);
  Status status;
  while (cursor.left() > 0) {
    LARDER_ASSIGN_OR_RETURN(const std::size_t moved, transfer(operation, cursor));
    if (!cursor.take(moved, status)) return status;
  }
  return Status::ok();
}

std::unique_ptr<IoQueue> create_executor_queue(Executor& executor) { return std::make_unique<ExecutorQueue>(executor); }

}  // namespace larder::file_store
