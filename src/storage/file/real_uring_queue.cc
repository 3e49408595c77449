// SPDX-License-Identifier: Apache-2.0
// IoQueue on io_uring.
//
// Submitting threads fill the submission ring under a mutex and enter the kernel once per batch. One thread reaps
// completions, goes on with short transfers, starts what waits, and calls `done`. Entering the kernel hands work over
// and does not wait for the disk; a read that the page cache answers is copied there and then, under the mutex.
//
// The completion thread blocks at once and does not spin. At queue depth 1 a short spin gained nothing; one as long as
// the whole read gained something on an idle machine, for a whole core, and lost where the cores had other work.
//
// The ring has no COOP_TASKRUN, SINGLE_ISSUER or DEFER_TASKRUN: the kernel posts a completion from the thread that
// submitted. With those flags it would wait until that thread enters the kernel again, which a thread that computes may
// not do for long.
//
// A thread may end before what it submitted. The kernel then may give up its part (ECANCELED); the completion thread
// submits it again itself.
#include "storage/file/io_queue.h"

#if LARDER_HAVE_URING

#include <liburing.h>
#include <pthread.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/ranked_mutex.h"
#include "storage/file/io_cursor.h"

namespace larder::file_store {
namespace {

// The kernel reads Segments as iovecs.
static_assert(sizeof(Segment) == sizeof(iovec) && alignof(Segment) == alignof(iovec));
static_assert(offsetof(Segment, data) == offsetof(iovec, iov_base));
static_assert(offsetof(Segment, size) == offsetof(iovec, iov_len));

constexpr std::size_t kMaxDepth = 4096;
constexpr std::size_t kReapBatch = 64;
constexpr std::uint64_t kWakeTag = 0;                              // user_data of the NOP that ends the thread
constexpr std::size_t kMaxRegisteredBytes = std::size_t{1} << 30;  // per buffer: the kernel's limit
constexpr std::size_t kMaxRegisteredBuffers = 16384;               // as above
constexpr std::size_t kMaxTransferBytes = std::size_t{1} << 30;    // per request; it takes 2 GiB less a page
constexpr int kMaxSubmitStalls = 1000;

bool is_transient(int error) { return error == EINTR || error == EAGAIN || error == ECANCELED || error == EBUSY; }

// One operation of a caller. Belongs to: the submitting thread, then the list under the mutex, then the kernel, then
// the completion thread.
struct UringOperation {
  explicit UringOperation(IoOperation from) : operation(std::move(from)), cursor(operation) {}
  UringOperation(const UringOperation&) = delete;
  UringOperation& operator=(const UringOperation&) = delete;

  IoOperation operation;
  IoCursor cursor;
  Status status;
  UringOperation* next = nullptr;
  bool used_fixed = false;  // what the kernel has was prepared as READ_FIXED / WRITE_FIXED
  bool plain_only = false;  // a fixed transfer was refused once
};

// A list through UringOperation::next. Owns nothing by type; whoever holds the list owns the operations.
class OperationList {
 public:
  void push(UringOperation* operation) {
    operation->next = nullptr;
    *(first_ == nullptr ? &first_ : &last_->next) = operation;
    last_ = operation;
    ++size_;
  }
  UringOperation* pop() {
    UringOperation* const operation = first_;
    first_ = operation->next;
    --size_;
    return operation;
  }
  [[nodiscard]] bool empty() const { return first_ == nullptr; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  UringOperation* first_ = nullptr;
  UringOperation* last_ = nullptr;
  std::size_t size_ = 0;
};

struct RegisteredRegion {
  std::byte* data = nullptr;
  std::size_t size = 0;
  int index = 0;
};

// The kernel may map a new ring where one was that has ended on another thread. It orders the two, but nothing in this
// process does.
std::atomic<std::uint64_t> rings_ended{0};

// A ring that was set up and tried; closed at the end.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (!open_) return;
    // release: what any thread did in the ring's memory comes before the next ring in the same place (open()).
    rings_ended.fetch_add(1, std::memory_order_release);
    io_uring_queue_exit(&ring_);
  }
  [[nodiscard]] Status open(unsigned entries);
  [[nodiscard]] io_uring* get() { return &ring_; }

 private:
  [[nodiscard]] Status check_operations_supported();
  [[nodiscard]] Status try_nop();

  io_uring ring_{};
  bool open_ = false;
};

Status unsupported_uring(std::string_view what, int error) {
  return unsupported(status_from_errno(error, "io_uring", what).message());
}

Status Ring::open(unsigned entries) {
  io_uring_params params{};
  const int result = io_uring_queue_init_params(entries, &ring_, &params);
  if (result < 0) return unsupported_uring("setup", -result);
  open_ = true;
  (void)rings_ended.load(std::memory_order_acquire);
  // Without NODROP a completion could be lost.
  if ((params.features & IORING_FEAT_NODROP) == 0) return unsupported("io_uring: the kernel is too old");
  LARDER_RETURN_IF_ERROR(check_operations_supported());
  return try_nop();
}

Status Ring::check_operations_supported() {
  io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
  if (probe == nullptr) return unsupported("io_uring: the kernel is too old for a probe");
  const int needed[] = {IORING_OP_NOP,    IORING_OP_READ,       IORING_OP_WRITE,       IORING_OP_READV,
                        IORING_OP_WRITEV, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_FSYNC};
  const bool all =
      std::all_of(std::begin(needed), std::end(needed), [&](int op) { return io_uring_opcode_supported(probe, op); });
  io_uring_free_probe(probe);
  return all ? Status::ok() : unsupported("io_uring: the kernel lacks an operation");
}

Status Ring::try_nop() {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
  if (entry == nullptr) return unsupported("io_uring: no submission entry");
  io_uring_prep_nop(entry);
  const int submitted = io_uring_submit_and_wait(&ring_, 1);
  if (submitted < 0) return unsupported_uring("first submission", -submitted);
  io_uring_cqe* completion = nullptr;
  const int result = io_uring_wait_cqe(&ring_, &completion);
  if (result < 0) return unsupported_uring("first completion", -result);
  const int answer = completion->res;
  io_uring_cqe_seen(&ring_, completion);
  return answer < 0 ? unsupported_uring("first operation", -answer) : Status::ok();
}

class UringQueue final : public IoQueue {
 public:
  explicit UringQueue(std::size_t depth) : depth_(depth) {}
  ~UringQueue() override;
  [[nodiscard]] Status open();

  [[nodiscard]] Status submit(std::vector<IoOperation> operations) override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status register_memory(std::span<const Segment> regions) override LARDER_EXCLUDES(mutex_);

 private:
  struct Completion {
    UringOperation* operation = nullptr;
    int result = 0;
  };

  // Puts `resumed` (they have their slots) and, while slots are free, what waits into the ring and enters the kernel.
  // What the kernel does not take comes out in `refused`, with its status.
  void start(OperationList& resumed, OperationList& refused) LARDER_REQUIRES(mutex_);
  void enter_kernel(OperationList& refused) LARDER_REQUIRES(mutex_);
  // Removes what the kernel did not take; how many. It reads the ring's tail only when entered, which needs the mutex.
  std::size_t take_back_entries() LARDER_REQUIRES(mutex_);
  void prepare(UringOperation& op, io_uring_sqe* entry) LARDER_REQUIRES(mutex_);
  void prepare_transfer(UringOperation& op, io_uring_sqe* entry) LARDER_REQUIRES(mutex_);
  [[nodiscard]] const RegisteredRegion* region_of(const Segment& buffer) const LARDER_REQUIRES(mutex_);
  void wake_thread() LARDER_EXCLUDES(mutex_);

  // The completion thread.
  void run_completions();
  void wait_for_completion();
  // True: `op` goes on. False: it has ended, and its status is set.
  [[nodiscard]] static bool judge(UringOperation& op, int result);
  [[nodiscard]] static bool judge_error(UringOperation& op, int error);
  // False: the ring has nothing new. The wake-up is no completion.
  [[nodiscard]] bool reap(std::array<Completion, kReapBatch>& into, std::size_t& count);
  void settle(std::span<const Completion> completions) LARDER_EXCLUDES(mutex_);
  // Any thread, without the lock: calls `done` of each.
  void finish(OperationList& ended);

  const std::size_t depth_;
  Ring ring_;  // submission side: guarded by mutex_; completion side: owned by the completion thread

  RankedMutex mutex_{LockRank::kStorage};
  OperationList waiting_ LARDER_GUARDED_BY(mutex_);
  std::vector<UringOperation*> staged_ LARDER_GUARDED_BY(mutex_);    // in the ring, not yet given to the kernel
  std::vector<RegisteredRegion> regions_ LARDER_GUARDED_BY(mutex_);  // sorted by address
  bool has_buffer_table_ LARDER_GUARDED_BY(mutex_) = false;          // the kernel's, to be filled
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;

  // Operations between submit() and the end of `done`. Grows under the mutex only.
  std::atomic<std::size_t> in_flight_{0};
  // Operations in the kernel. The completion thread lowers it without the mutex and then looks at waiting_count_;
  // start() sets waiting_count_ and then looks at slots_: so one of them sees the other (sequentially consistent).
  // It also carries what a submitter wrote into an operation to the completion thread.
  std::atomic<std::size_t> slots_{0};
  std::atomic<std::size_t> waiting_count_{0};  // size of waiting_ after the last start()
  std::atomic<bool> ending_{false};            // the completion thread ends when nothing is in flight

  std::thread thread_;  // started by open(), joined by the destructor
};

Status UringQueue::open() {
  // One entry more for the NOP that wakes the thread.
  LARDER_RETURN_IF_ERROR(ring_.open(static_cast<unsigned>(std::bit_ceil(depth_ + 1))));
  {
    LockGuard guard(mutex_);
    staged_.reserve(depth_);
  }
  try {
    thread_ = std::thread([this] { run_completions(); });
  } catch (const std::system_error& error) {
    return unsupported(std::string("io_uring: no completion thread: ") + error.what());
  }
  return Status::ok();
}

UringQueue::~UringQueue() {
  if (!thread_.joinable()) return;
  {
    LockGuard guard(mutex_);
    stopping_ = true;
  }
  ending_.store(true);
  wake_thread();
  thread_.join();
}

void UringQueue::wake_thread() {
  for (;;) {
    {
      LockGuard guard(mutex_);
      io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());  // there: the ring is empty between two locks
      if (entry == nullptr) return;
      io_uring_prep_nop(entry);
      io_uring_sqe_set_data64(entry, kWakeTag);
      io_uring_submit(ring_.get());
      if (take_back_entries() == 0) return;
    }
    std::this_thread::yield();  // the kernel is short of memory
  }
}

std::size_t UringQueue::take_back_entries() {
  io_uring* const ring = ring_.get();
  const std::size_t left = io_uring_sq_ready(ring);
  if (left == 0) return 0;
  const unsigned head = *ring->sq.khead;
  ring->sq.sqe_head = ring->sq.sqe_tail = head;
  io_uring_smp_store_release(ring->sq.ktail, head);
  return left;
}

Status UringQueue::submit(std::vector<IoOperation> operations) {
  LARDER_RETURN_IF_ERROR(check_operations(operations, true));
  if (operations.empty()) return Status::ok();
  OperationList mine;
  for (IoOperation& operation : operations) mine.push(new UringOperation(std::move(operation)));
  OperationList refused;
  Status status;
  {
    LockGuard guard(mutex_);
    if (stopping_) {
      status = cancelled("I/O queue is shutting down");
    } else if (mine.size() > kMaxQueuedOperations - in_flight_.load(std::memory_order_relaxed)) {
      status = overloaded("I/O queue: too many operations in flight");
    } else {
      in_flight_.fetch_add(mine.size(), std::memory_order_relaxed);
      while (!mine.empty()) waiting_.push(mine.pop());
      OperationList none;
      start(none, refused);
    }
  }
  while (!mine.empty()) delete mine.pop();
  finish(refused);
  return status;
}

void UringQueue::start(OperationList& resumed, OperationList& refused) {
  do {
    while (!resumed.empty() || (!waiting_.empty() && slots_.load() < depth_)) {
      io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
      if (entry == nullptr) break;  // not reached: the ring has more entries than there are slots
      const bool has_slot = !resumed.empty();
      UringOperation* const op = has_slot ? resumed.pop() : waiting_.pop();
      prepare(*op, entry);
      staged_.push_back(op);
      if (!has_slot) slots_.fetch_add(1);
    }
    enter_kernel(refused);
    waiting_count_.store(waiting_.size());
  } while (!waiting_.empty() && slots_.load() < depth_);
}

void UringQueue::enter_kernel(OperationList& refused) {
  io_uring* const ring = ring_.get();
  int error = EAGAIN;
  for (int stalls = 0; io_uring_sq_ready(ring) > 0 && stalls < kMaxSubmitStalls; ++stalls) {
    const int result = io_uring_submit(ring);
    if (result >= 0) continue;
    error = -result;
    if (!is_transient(error)) break;
    std::this_thread::yield();
  }
  const std::size_t left = take_back_entries();
  for (std::size_t i = staged_.size() - left; i < staged_.size(); ++i) {
    UringOperation* const op = staged_[i];
    op->status = status_from_errno(error, "submit to io_uring for", op->operation.file->path());
    refused.push(op);
  }
  slots_.fetch_sub(left);
  staged_.clear();
}

void UringQueue::prepare(UringOperation& op, io_uring_sqe* entry) {
  op.used_fixed = false;
  if (op.operation.kind == IoOperation::Kind::kSyncData) {
    io_uring_prep_fsync(entry, op.operation.file->native_handle(), IORING_FSYNC_DATASYNC);
  } else if (op.cursor.left() == 0) {
    io_uring_prep_nop(entry);
  } else {
    prepare_transfer(op, entry);
  }
  io_uring_sqe_set_data(entry, &op);
}

void UringQueue::prepare_transfer(UringOperation& op, io_uring_sqe* entry) {
  const bool is_read = op.operation.kind == IoOperation::Kind::kRead;
  const int fd = op.operation.file->native_handle();
  const std::uint64_t offset = op.cursor.offset();
  const std::span<const Segment> buffers = op.cursor.next_buffers();
  if (buffers.size() > 1) {
    const auto* const vectors = reinterpret_cast<const iovec*>(buffers.data());
    const auto count = static_cast<unsigned>(buffers.size());
    (is_read ? io_uring_prep_readv : io_uring_prep_writev)(entry, fd, vectors, count, offset);
    return;
  }
  const Segment& buffer = buffers.front();
  const auto bytes = static_cast<unsigned>(std::min(buffer.size, kMaxTransferBytes));
  const RegisteredRegion* const region = op.plain_only ? nullptr : region_of(buffer);
  if (region == nullptr) {
    io_uring_prep_rw(is_read ? IORING_OP_READ : IORING_OP_WRITE, entry, fd, buffer.data, bytes, offset);
    return;
  }
  op.used_fixed = true;
  io_uring_prep_rw(is_read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED, entry, fd, buffer.data, bytes, offset);
  entry->buf_index = static_cast<std::uint16_t>(region->index);
}

const RegisteredRegion* UringQueue::region_of(const Segment& buffer) const {
  auto after = std::upper_bound(regions_.begin(), regions_.end(), buffer.data,
                                [](const std::byte* data, const RegisteredRegion& r) { return data < r.data; });
  if (after == regions_.begin()) return nullptr;
  const RegisteredRegion& region = *--after;
  const auto from = static_cast<std::size_t>(buffer.data - region.data);
  return from <= region.size && buffer.size <= region.size - from ? &region : nullptr;
}

// The kernel's table is made empty and filled as memory comes: an engine's pools may exist only after the store.
Status UringQueue::register_memory(std::span<const Segment> regions) {
  LockGuard guard(mutex_);
  std::vector<RegisteredRegion> cut;
  std::vector<iovec> vectors;
  for (Segment rest : regions) {
    while (rest.size > 0) {
      const std::size_t part = std::min(rest.size, kMaxRegisteredBytes);
      cut.push_back({rest.data, part, static_cast<int>(regions_.size() + vectors.size())});
      vectors.push_back({rest.data, part});
      rest = {rest.data + part, rest.size - part};
    }
  }
  if (vectors.empty()) return Status::ok();
  if (regions_.size() + vectors.size() > kMaxRegisteredBuffers) {
    return overloaded("io_uring takes " + std::to_string(kMaxRegisteredBuffers) + " registered pieces of memory of " +
                      "at most 1 GiB");
  }
  const auto refused = [](const char* what, int error) {
    return overloaded(std::string("io_uring cannot ") + what + ": " + std::generic_category().message(error) +
                      " (the limit of locked memory, ulimit -l, or an older kernel)");
  };
  if (!has_buffer_table_) {
    const int answer = io_uring_register_buffers_sparse(ring_.get(), kMaxRegisteredBuffers);
    if (answer != 0) return refused("make a table of registered memory", -answer);
    has_buffer_table_ = true;
  }
  const int updated =
      io_uring_register_buffers_update_tag(ring_.get(), static_cast<unsigned>(regions_.size()), vectors.data(), nullptr,
                                           static_cast<unsigned>(vectors.size()));
  if (updated != static_cast<int>(vectors.size())) return refused("register memory", updated < 0 ? -updated : ENOMEM);
  regions_.insert(regions_.end(), cut.begin(), cut.end());
  std::sort(regions_.begin(), regions_.end(), [](const auto& a, const auto& b) { return a.data < b.data; });
  return Status::ok();
}

void UringQueue::run_completions() {
  pthread_setname_np(pthread_self(), "larder-uring");
  std::array<Completion, kReapBatch> completions;
  while (!ending_.load() || in_flight_.load() > 0) {
    std::size_t count = 0;
    if (!reap(completions, count)) {
      wait_for_completion();
    } else if (count > 0) {  // else it was the wake-up: the loop looks whether to end
      settle(std::span(completions).first(count));
    }
  }
}

void UringQueue::wait_for_completion() {
  io_uring_cqe* completion = nullptr;
  // An error (EINTR) brings us back here.
  if (io_uring_wait_cqe(ring_.get(), &completion) < 0) std::this_thread::yield();
}

bool UringQueue::reap(std::array<Completion, kReapBatch>& into, std::size_t& count) {
  std::array<io_uring_cqe*, kReapBatch> entries;
  const unsigned found = io_uring_peek_batch_cqe(ring_.get(), entries.data(), kReapBatch);
  count = 0;
  for (unsigned i = 0; i < found; ++i) {
    if (io_uring_cqe_get_data64(entries[i]) == kWakeTag) continue;
    into[count++] = {static_cast<UringOperation*>(io_uring_cqe_get_data(entries[i])), entries[i]->res};
  }
  io_uring_cq_advance(ring_.get(), found);
  return found > 0;
}

bool UringQueue::judge(UringOperation& op, int result) {
  if (result < 0) return judge_error(op, -result);
  if (op.operation.kind == IoOperation::Kind::kSyncData || op.cursor.left() == 0) return false;
  return op.cursor.take(static_cast<std::size_t>(result), op.status);
}

bool UringQueue::judge_error(UringOperation& op, int error) {
  if (op.used_fixed && (error == EINVAL || error == EOPNOTSUPP)) {
    op.plain_only = true;
    return true;
  }
  if (is_transient(error) && op.cursor.may_stall()) return true;
  const std::string& path = op.operation.file->path();
  switch (op.operation.kind) {
    case IoOperation::Kind::kRead: op.status = status_from_errno(error, "read", path); break;
    case IoOperation::Kind::kWrite: op.status = status_from_errno(error, "write", path); break;
    case IoOperation::Kind::kSyncData: op.status = status_from_errno(error, "fdatasync", path); break;
  }
  return false;
}

void UringQueue::settle(std::span<const Completion> completions) {
  (void)slots_.load();  // what the submitters wrote is ours now
  OperationList ended;
  OperationList resumed;
  for (const Completion& completion : completions) {
    const bool goes_on = judge(*completion.operation, completion.result);
    (goes_on ? resumed : ended).push(completion.operation);
  }
  slots_.fetch_sub(ended.size());
  if (!resumed.empty() || waiting_count_.load() > 0) {
    LockGuard guard(mutex_);
    start(resumed, ended);
  }
  finish(ended);
}

void UringQueue::finish(OperationList& ended) {
  while (!ended.empty()) {
    const std::unique_ptr<UringOperation> op(ended.pop());
    finish_operation(std::move(op->operation), op->status);
    in_flight_.fetch_sub(1);
  }
}

}  // namespace

Result<std::unique_ptr<IoQueue>> create_uring_queue(std::size_t depth) {
  auto queue = std::make_unique<UringQueue>(std::clamp(depth, std::size_t{1}, kMaxDepth));
  LARDER_RETURN_IF_ERROR(queue->open());
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace larder::file_store

#else

namespace larder::file_store {

Result<std::unique_ptr<IoQueue>> create_uring_queue(std::size_t /*depth*/) {
  return unsupported("io_uring: not built in");
}

}  // namespace larder::file_store

#endif
