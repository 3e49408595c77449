// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <array>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/defect.h"
#include "base/ranked_mutex.h"
#include "storage/hf3fs/ring_worker.h"
#include "storage/hf3fs/slot_bytes.h"
#include "storage/hf3fs/waiting_line.h"
#include "storage/shared/arena_room.h"

namespace larder::hf3fs {
namespace {

// One wait for completions: a transfer that is submitted meanwhile waits no longer than this.
constexpr auto kOneWait = std::chrono::milliseconds(2);
constexpr auto kBetweenProbes = std::chrono::milliseconds(100);
constexpr std::size_t kReapedAtOnce = 64;
constexpr std::size_t kMostQueued = 4096;  // transfers that wait for their turn
// I/Os of one job, at most: their completions come together. One for reads, so that none waits for another before it is
// verified and copied out; more for writes, where only the answer is left to do.
constexpr int kReadsPerJob = 1, kWritesPerJob = 8;

timespec realtime_in(Nanos from_now) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t nanos = now.tv_nsec + from_now.count();
  now.tv_sec += nanos / 1'000'000'000;
  now.tv_nsec = nanos % 1'000'000'000;
  return now;
}

}  // namespace

class RingWorker::Loop {
 public:
  Loop(std::shared_ptr<UsrbioLibrary> library, const RingWorkerOptions& options, std::shared_ptr<MountWatch> watch)
      : library_(std::move(library)),
        options_(options),
        watch_(std::move(watch)),
        staging_(options.staging_bytes),
        slots_(options.entries),
        waiting_(options.client_timeout / 4) {
    for (unsigned i = options.entries; i > 0; --i) free_slots_.push_back(i - 1);
  }
  ~Loop();
  [[nodiscard]] Status open();
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  [[nodiscard]] Status submit(PageTransfer transfer) LARDER_EXCLUDES(mutex_);
  void stop() LARDER_EXCLUDES(mutex_);
  void join() {
    stop();
    if (thread_.joinable()) thread_.join();
  }

  std::atomic<std::uint64_t> in_flight{0}, abandoned{0}, late{0};

 private:
  enum class SlotState : std::uint8_t { kFree, kMoving, kAbandoned };
  struct Slot {
    SlotState state = SlotState::kFree;
    std::uint32_t generation = 0;
    std::size_t offset = 0;   // in staging
    std::uint64_t bytes = 0;  // in staging, and of the I/O
    TimePoint begun{};
    TimePoint deadline{};  // the first of its transfers'
    GatherWindow window;
    std::vector<WaitingTransfer> transfers;  // neighbours, one after another
  };

  [[nodiscard]] static const void* userdata_of(std::size_t slot, std::uint32_t generation) {
    return reinterpret_cast<const void*>((std::uint64_t{generation} << 16) | (slot + 1));
  }
  void run();
  [[nodiscard]] bool take_work() LARDER_EXCLUDES(mutex_);
  void begin_waiting();
  [[nodiscard]] bool begin(const std::vector<WaitingLine::Entry>& run);
  [[nodiscard]] Result<bool> prepare(const std::vector<WaitingLine::Entry>& run, Slot& slot, std::size_t number);
  [[nodiscard]] bool is_busy(const GatherWindow& window, TimePoint now) const;
  void reap();
  void complete(const Hf3fsCqe& cqe);
  void end_moved(Slot& slot, const Status& status, bool may_land_later);
  void expire_moving();
  void expire_waiting() LARDER_EXCLUDES(mutex_);
  void check_mount();
  void end_all(const Status& status);
  void end(PageTransfer& transfer, TransferEnd how);

  // constant after open()
  const std::shared_ptr<UsrbioLibrary> library_;
  const RingWorkerOptions options_;
  const std::shared_ptr<MountWatch> watch_;
  Clock& clock_ = real_clock();
  Hf3fsIov iov_{};
  Hf3fsIor ring_{};
  bool has_iov_ = false, has_ring_ = false;
  std::thread thread_;

  // the thread's
  share::ArenaRoom staging_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_slots_;
  WaitingLine waiting_;
  std::size_t in_ring_ = 0;
  bool is_unsent_ = false;
  TimePoint last_sign_{}, next_probe_{};

  RankedMutex mutex_{LockRank::kStorage};
  RankedCondition changed_;
  std::deque<WaitingTransfer> inbox_ LARDER_GUARDED_BY(mutex_);
  std::size_t queued_ LARDER_GUARDED_BY(mutex_) = 0;  // inbox and waiting
  bool is_asleep_ LARDER_GUARDED_BY(mutex_) = false;  // the thread, in changed_
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;
  bool has_ended_ LARDER_GUARDED_BY(mutex_) = false;
};

Status RingWorker::Loop::open() {
  LARDER_RETURN_IF_ERROR(library_->create_iov(iov_, options_.mount_point, options_.staging_bytes, 0, -1));
  has_iov_ = true;
  const bool reads = options_.direction == PageTransfer::Kind::kRead;
  RingOptions ring;
  ring.mount_point = options_.mount_point;
  ring.entries = static_cast<int>(options_.entries);
  ring.for_read = reads;
  ring.io_depth = -(reads ? kReadsPerJob : kWritesPerJob);  // negative: at most, not exactly
  ring.flags = reads ? kForbidReadHoles : 0;
  LARDER_RETURN_IF_ERROR(library_->create_ring(ring_, ring));
  has_ring_ = true;
  return Status::ok();
}

RingWorker::Loop::~Loop() {
  join();
  // Memory that an I/O may still use is left as it is.
  if (in_ring_ > 0 && !watch_->is_gone()) return;
  if (has_ring_) library_->destroy_ring(ring_);
  if (has_iov_) library_->destroy_iov(iov_);
}

Status RingWorker::Loop::submit(PageTransfer transfer) {
  if (transfer_bytes(transfer.envelope.payload_bytes) > options_.staging_bytes) {
    return invalid_argument("hf3fs: a page of " + std::to_string(transfer.envelope.payload_bytes) +
                            " bytes is larger than option 'staging_size' (" + std::to_string(options_.staging_bytes) +
                            ")");
  }
  WaitingTransfer entry{std::move(transfer), clock_.now() + options_.client_timeout};
  bool sleeps = false;
  {
    LockGuard guard(mutex_);
    if (is_stopping_ || has_ended_) return unavailable("hf3fs: the mount is down, or the backend is closed");
    if (queued_ >= kMostQueued) return overloaded("hf3fs: " + std::to_string(queued_) + " pages are waiting");
    ++queued_;
    in_flight.fetch_add(1, std::memory_order_relaxed);
    inbox_.push_back(std::move(entry));
    sleeps = is_asleep_;
  }
  if (sleeps) changed_.notify_one();
  return Status::ok();
}

void RingWorker::Loop::stop() {
  LockGuard guard(mutex_);
  is_stopping_ = true;
  changed_.notify_one();
}

void RingWorker::Loop::run() {
  last_sign_ = clock_.now();
  while (take_work()) {
    expire_moving();
    begin_waiting();
    if (in_ring_ > 0) reap();
    check_mount();
    if (watch_->is_dead()) break;
  }
  {
    LockGuard guard(mutex_);
    has_ended_ = true;
    for (WaitingTransfer& entry : inbox_) waiting_.push(std::move(entry));
    inbox_.clear();
  }
  end_all(unavailable("hf3fs: the mount is down"));
}

// Sleeps while there is nothing to do. False: it is over.
bool RingWorker::Loop::take_work() {
  LockGuard guard(mutex_);
  while (inbox_.empty() && waiting_.empty() && in_ring_ == 0 && !is_stopping_) {
    is_asleep_ = true;
    changed_.wait(mutex_);
    is_asleep_ = false;
  }
  for (WaitingTransfer& entry : inbox_) waiting_.push(std::move(entry));
  inbox_.clear();
  // Abandoned I/O alone keeps nobody: its memory is left behind.
  return !is_stopping_ || !waiting_.empty() || in_ring_ > abandoned.load(std::memory_order_relaxed);
}

// Only what is in time: a page whose transfer has ended may be another's.
void RingWorker::Loop::begin_waiting() {
  std::size_t begun = 0;
  const bool writes = options_.direction == PageTransfer::Kind::kWrite;
  const TimePoint now = clock_.now();
  const auto is_busy_write = [&](const GatherWindow& window) { return writes && is_busy(window, now); };
  for (expire_waiting(); !waiting_.empty() && !free_slots_.empty(); expire_waiting()) {
    const std::size_t before = waiting_.size();
    const std::vector<WaitingLine::Entry> run = waiting_.first(is_busy_write);
    // Where there is no room for all of them, there may be for one.
    if (run.empty() || (!begin(run) && (run.size() == 1 || !begin({run.front()})))) break;
    begun += before - waiting_.size();
  }
  if (begun > 0) {
    LockGuard guard(mutex_);
    queued_ -= begun;
  }
  if (is_unsent_ && library_->submit(ring_).is_ok()) is_unsent_ = false;
}

// Has the window an I/O under way? One that takes long keeps nobody.
bool RingWorker::Loop::is_busy(const GatherWindow& window, TimePoint now) const {
  if (in_ring_ == 0) return false;
  const TimePoint recent = now - options_.client_timeout / 8;
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.state == SlotState::kMoving && slot.begun > recent && slot.window == window;
  });
}

// False: no room now, and all of the run still waits. A run that cannot begin at all ends.
bool RingWorker::Loop::begin(const std::vector<WaitingLine::Entry>& run) {
  const std::size_t number = free_slots_.back();
  Slot& slot = slots_[number];
  const Result<bool> has_room = prepare(run, slot, number);
  if (has_room.is_ok() && !*has_room) return false;
  for (const WaitingLine::Entry entry : run) {
    slot.transfers.push_back(waiting_.take(entry));
    slot.deadline = slot.transfers.size() == 1 ? slot.transfers.back().deadline
                                               : std::min(slot.deadline, slot.transfers.back().deadline);
  }
  if (!has_room.is_ok()) {
    for (WaitingTransfer& entry : slot.transfers) end(entry.transfer, {has_room.status(), false});
    slot.transfers.clear();
    return true;
  }
  free_slots_.pop_back();
  slot.state = SlotState::kMoving;
  slot.window = window_of(slot.transfers.front().transfer);
  slot.begun = clock_.now();
  if (in_ring_++ == 0) last_sign_ = slot.begun;
  is_unsent_ = true;
  return true;
}

// Fills staging memory and gives the I/O to the ring. False: no room in one of them.
Result<bool> RingWorker::Loop::prepare(const std::vector<WaitingLine::Entry>& run, Slot& slot, std::size_t number) {
  const PageTransfer& first = run.front()->transfer;
  const std::uint64_t bytes = run.back()->end() - first.address.offset;
  const std::optional<std::uint64_t> offset = staging_.take(bytes);
  if (!offset) return false;
  const bool reads = options_.direction == PageTransfer::Kind::kRead;
  std::byte* const memory = reinterpret_cast<std::byte*>(iov_.base) + *offset;
  for (const WaitingLine::Entry entry : run) {
    if (!reads)
      fill_slot(entry->transfer, memory + (entry->transfer.address.offset - first.address.offset), entry->bytes());
  }
  ++slot.generation;
  slot.offset = *offset;
  slot.bytes = bytes;
  PreparedIo io;
  io.read = reads;
  io.data = memory;
  io.fd = static_cast<const UsrbioFiles*>(first.files.get())->descriptor(options_.direction, first.address.file);
  io.offset = first.address.offset;
  io.length = bytes;
  io.userdata = userdata_of(number, slot.generation);
  const Result<int> prepared = library_->prep(ring_, iov_, io);
  if (prepared.is_ok()) return true;
  staging_.give_back(*offset, bytes);
  if (prepared.status().code() == StatusCode::kOverloaded) return false;  // completions that are not reaped yet
  return prepared.status();
}

void RingWorker::Loop::reap() {
  std::array<Hf3fsCqe, kReapedAtOnce> cqes;
  const Result<std::size_t> got = library_->wait(ring_, cqes, 1, realtime_in(kOneWait));
  if (!got.is_ok()) {
    watch_->set_dead();
    return;
  }
  if (*got > 0) last_sign_ = clock_.now();
  for (std::size_t i = 0; i < *got; ++i) complete(cqes[i]);
}

void RingWorker::Loop::complete(const Hf3fsCqe& cqe) {
  const auto tag = reinterpret_cast<std::uint64_t>(cqe.userdata);
  const std::size_t number = static_cast<std::size_t>(tag & 0xffff) - 1;
  if (number >= slots_.size()) return;
  Slot& slot = slots_[number];
  if (slot.state == SlotState::kFree || slot.generation != static_cast<std::uint32_t>(tag >> 16)) return;
  if (slot.state == SlotState::kMoving) {
    const Result<std::uint64_t> moved = completion_result(cqe.result);
    Status status = moved.status();
    if (status.is_ok() && *moved != slot.bytes) {
      const std::string counts = std::to_string(*moved) + " of " + std::to_string(slot.bytes) + " bytes";
      status = options_.direction == PageTransfer::Kind::kRead ? not_found("hf3fs: the file ends there: " + counts)
                                                               : unavailable("hf3fs: a short write: " + counts);
    }
    end_moved(slot, status, options_.direction == PageTransfer::Kind::kWrite && leaves_open(cqe.result));
  } else {
    abandoned.fetch_sub(1, std::memory_order_relaxed);
    late.fetch_add(1, std::memory_order_relaxed);
  }
  staging_.give_back(slot.offset, slot.bytes);
  slot.state = SlotState::kFree;
  slot.transfers.clear();
  free_slots_.push_back(number);
  --in_ring_;
}

// `status` is the I/O's; `may_land_later`: what it does to the file may come yet. Neighbours that failed together are
// tried once more, each alone: one hole between them, or one chunk that is not to be had, is not the fault of the
// others. Not what may land later: a second try that succeeds would not end that.
void RingWorker::Loop::end_moved(Slot& slot, const Status& status, bool may_land_later) {
  const bool is_shared_failure = !status.is_ok() && slot.transfers.size() > 1;
  if (is_shared_failure && !may_land_later && !defect(Defect::kGatherFailureIgnored)) {
    for (WaitingTransfer& entry : slot.transfers) entry.goes_alone = true;
    {
      LockGuard guard(mutex_);
      queued_ += slot.transfers.size();
    }
    waiting_.put_back(std::move(slot.transfers));
    return;
  }
  std::byte* memory = reinterpret_cast<std::byte*>(iov_.base) + slot.offset;
  for (WaitingTransfer& entry : slot.transfers) {
    Status own = defect(Defect::kGatherFailureIgnored) ? Status::ok() : status;
    if (own.is_ok() && options_.direction == PageTransfer::Kind::kRead) own = take_out(entry.transfer, memory);
    memory += entry.bytes();
    end(entry.transfer, {std::move(own), may_land_later});
  }
}

void RingWorker::Loop::expire_moving() {
  if (in_ring_ == 0) return;
  const TimePoint now = clock_.now();
  for (Slot& slot : slots_) {
    if (slot.state != SlotState::kMoving || slot.deadline > now) continue;
    slot.state = SlotState::kAbandoned;
    abandoned.fetch_add(1, std::memory_order_relaxed);
    if (defect(Defect::kStagingReused)) staging_.give_back(slot.offset, slot.bytes);
    const bool writes = options_.direction == PageTransfer::Kind::kWrite;
    for (WaitingTransfer& entry : slot.transfers) {
      end(entry.transfer, {deadline_exceeded("hf3fs: no completion in time"), writes});
    }
    slot.transfers.clear();
  }
}

void RingWorker::Loop::expire_waiting() {
  if (waiting_.empty()) return;
  const TimePoint now = clock_.now();
  for (WaitingTransfer expired; waiting_.take_expired(now, expired);) {
    end(expired.transfer, {deadline_exceeded("hf3fs: no room in the ring in time"), false});
    LockGuard guard(mutex_);
    --queued_;
  }
}

void RingWorker::Loop::check_mount() {
  if (in_ring_ == 0) return;
  const TimePoint now = clock_.now();
  if (now - last_sign_ < kBetweenProbes || now < next_probe_) return;
  next_probe_ = now + kBetweenProbes;
  now - last_sign_ > options_.dead_after ? watch_->set_dead() : watch_->ask();
}

void RingWorker::Loop::end_all(const Status& status) {
  for (Slot& slot : slots_) {
    if (slot.state != SlotState::kMoving) continue;
    slot.state = SlotState::kAbandoned;
    abandoned.fetch_add(1, std::memory_order_relaxed);
    for (WaitingTransfer& entry : slot.transfers) {
      end(entry.transfer, {status, options_.direction == PageTransfer::Kind::kWrite});
    }
    slot.transfers.clear();
  }
  for (WaitingTransfer last; waiting_.take_expired(TimePoint::max(), last);) {
    end(last.transfer, {status, false});
  }
}

void RingWorker::Loop::end(PageTransfer& transfer, TransferEnd how) {
  const std::function<void(TransferEnd)> done = std::move(transfer.done);
  transfer.done = nullptr;
  transfer.files = nullptr;
  transfer.payload = {};
  in_flight.fetch_sub(1, std::memory_order_relaxed);
  done(std::move(how));
}

Result<std::unique_ptr<RingWorker>> RingWorker::create(std::shared_ptr<UsrbioLibrary> library,
                                                       const RingWorkerOptions& options,
                                                       std::shared_ptr<MountWatch> watch) {
  if (options.entries == 0 || options.entries > 4096) return invalid_argument("hf3fs: option 'entries': 1 to 4096");
  auto loop = std::make_unique<Loop>(std::move(library), options, std::move(watch));
  LARDER_RETURN_IF_ERROR(loop->open());
  loop->start();
  return std::unique_ptr<RingWorker>(new RingWorker(std::move(loop)));
}

RingWorker::RingWorker(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
RingWorker::~RingWorker() = default;
Status RingWorker::submit(PageTransfer transfer) { return loop_->submit(std::move(transfer)); }
void RingWorker::stop() { loop_->stop(); }
void RingWorker::join() { loop_->join(); }
std::uint64_t RingWorker::in_flight() const { return loop_->in_flight.load(std::memory_order_relaxed); }
std::uint64_t RingWorker::abandoned() const { return loop_->abandoned.load(std::memory_order_relaxed); }
std::uint64_t RingWorker::late() const { return loop_->late.load(std::memory_order_relaxed); }

}  // namespace larder::hf3fs
