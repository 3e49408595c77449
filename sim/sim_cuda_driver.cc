// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_cuda_driver.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

namespace larder::sim {
namespace {

constexpr std::size_t kPageBytes = 4096;

void* handle(std::uint64_t n) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(n) << 4); }

std::uint64_t hash_of(const CopyPair* pairs, std::size_t count) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < count; ++i) {
    hash = (hash ^ reinterpret_cast<std::uintptr_t>(pairs[i].dst)) * 0x100000001b3;
    hash = (hash ^ reinterpret_cast<std::uintptr_t>(pairs[i].src)) * 0x100000001b3;
  }
  return hash;
}

std::size_t pair_count(const CopyLaunch& launch) {
  const CopyGroup& last = launch.groups[launch.group_count - 1];
  return std::size_t{last.first_pair} + last.pair_count;
}

// The entry of the map that has `at`, or end().
auto entry_with(const std::map<const std::byte*, std::size_t>& ranges, const std::byte* at) {
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return ranges.end();
  --next;
  return at < next->first + next->second ? next : ranges.end();
}

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// Does one of them write what another one reads or writes? The driver's result would be any.
bool depend_on_each_other(std::span<const CudaCopy> copies) {
  std::vector<std::pair<const std::byte*, std::size_t>> written;
  written.reserve(copies.size());
  for (const CudaCopy& copy : copies) written.emplace_back(copy.dst, copy.bytes);
  std::sort(written.begin(), written.end());
  for (std::size_t i = 1; i < written.size(); ++i) {
    if (overlap(written[i - 1].first, written[i - 1].second, written[i].first, written[i].second)) return true;
  }
  return std::any_of(copies.begin(), copies.end(), [&](const CudaCopy& copy) {
    // They are apart, so the first that ends behind the beginning of the source is the only one to look at.
    const auto next = std::partition_point(written.begin(), written.end(),
                                           [&](const auto& range) { return range.first + range.second <= copy.src; });
    return next != written.end() && next->first < copy.src + copy.bytes;
  });
}

Status refused(const std::string& what) { return internal_error("CUDA_ERROR_INVALID_VALUE: " + what); }

}  // namespace

SimCudaDriver::SimCudaDriver(const SimCudaOptions& options) : options_(options), rng_(options.seed) {
  facts_.name = "simulated GPU";
  facts_.processors = 4;
  facts_.bytes = options.memory_bytes;
  streams_[nullptr] = std::make_unique<Stream>();  // the default stream
  (void)gpu_.post([this] { run_gpu(); });          // never refused: there is room for one task
}

SimCudaDriver::~SimCudaDriver() {
  {
    const Lock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  gpu_.wait_idle();
  for (const auto& [memory, size] : allocations_) std::free(const_cast<std::byte*>(memory));
}

void SimCudaDriver::hold() {
  const Lock lock(mutex_);
  is_held_ = true;
}

void SimCudaDriver::hold(CudaStream stream) {
  {
    const Lock lock(mutex_);
    is_held_ = false;
    held_stream_ = stream;
  }
  changed_.notify_all();
}

void SimCudaDriver::go_on() {
  {
    const Lock lock(mutex_);
    is_held_ = false;
    held_stream_.reset();
  }
  changed_.notify_all();
}

void SimCudaDriver::begin_capture(CudaStream stream) {
  const Lock lock(mutex_);
  if (Stream* const found = find_stream(stream)) found->is_captured = true;
}

void SimCudaDriver::end_capture(CudaStream stream) {
  const Lock lock(mutex_);
  if (Stream* const found = find_stream(stream)) found->is_captured = false;
}

Result<bool> SimCudaDriver::is_capturing(CudaStream stream) {
  const Lock lock(mutex_);
  if (loss_) return *loss_;
  const Stream* const found = find_stream(stream);
  if (found == nullptr) return no_stream(stream);
  return found->is_captured;
}

void SimCudaDriver::fail_call(const std::string& call, std::uint64_t n, Status status) {
  const Lock lock(mutex_);
  faults_[call] = {n, std::move(status)};
}

void SimCudaDriver::lose_at(std::uint64_t n) {
  const Lock lock(mutex_);
  lose_in_ = n;
}

void SimCudaDriver::expect_violations() {
  const Lock lock(mutex_);
  are_violations_expected_ = true;
}

void SimCudaDriver::let_faults_sleep(bool are_asleep) {
  const Lock lock(mutex_);
  are_faults_asleep_ = are_asleep;
}

std::vector<std::string> SimCudaDriver::violations() const {
  const Lock lock(mutex_);
  return violations_;
}

std::uint64_t SimCudaDriver::operations() const {
  const Lock lock(mutex_);
  return operations_;
}

std::uint64_t SimCudaDriver::kernel_device_bytes() const {
  const Lock lock(mutex_);
  return kernel_device_bytes_;
}

std::size_t SimCudaDriver::allocated_bytes() const {
  const Lock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [memory, size] : allocations_) bytes += size;
  return bytes;
}

std::size_t SimCudaDriver::registered_bytes() const {
  const Lock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [memory, size] : registrations_) bytes += size;
  return bytes;
}

std::size_t SimCudaDriver::streams() const {
  const Lock lock(mutex_);
  return streams_.size() - 1;  // the default stream is always there
}

CudaStream SimCudaDriver::last_copied_on() const {
  const Lock lock(mutex_);
  return last_copied_on_;
}

std::size_t SimCudaDriver::events() const {
  const Lock lock(mutex_);
  return events_.size();
}

Status SimCudaDriver::begin(const char* call) {
  if (loss_) return *loss_;
  const auto fault = faults_.find(call);
  if (are_faults_asleep_ || fault == faults_.end() || --fault->second.first > 0) return Status::ok();
  Status status = std::move(fault->second.second);
  faults_.erase(fault);
  if (status.code() == StatusCode::kUnavailable) lose(status.message());
  return status;
}

Status SimCudaDriver::bind_thread() {
  const Lock lock(mutex_);
  bound_.insert(std::this_thread::get_id());
  return Status::ok();
}

Result<std::byte*> SimCudaDriver::allocate(std::size_t bytes) {
  const Lock lock(mutex_);
  LARDER_RETURN_IF_ERROR(begin("allocate"));
  if (bytes == 0) return refused("allocate");
  std::size_t used = 0;
  for (const auto& [memory, size] : allocations_) used += size;
  if (bytes > options_.memory_bytes - std::min(used, options_.memory_bytes)) {
    return overloaded("CUDA_ERROR_OUT_OF_MEMORY");
  }
  // Exactly as long as asked for: what lies behind is found.
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  if (memory == nullptr) return overloaded("CUDA_ERROR_OUT_OF_MEMORY");
  std::memset(memory, 0xA5, bytes);
  allocations_[memory] = bytes;
  return memory;
}

Status SimCudaDriver::free(std::byte* memory) {
  Lock lock(mutex_);
  wait_if_lost(lock);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) {
    violate("free of device memory that is not allocated");
    return refused("free");
  }
  wait_until_free(found->first, found->second, lock);
  allocations_.erase(memory);
  std::free(memory);
  return loss_ ? *loss_ : Status::ok();
}

std::size_t SimCudaDriver::free_bytes() {
  const std::size_t used = allocated_bytes();
  return options_.memory_bytes - std::min(used, options_.memory_bytes);
}

Status SimCudaDriver::register_host(std::byte* memory, std::size_t bytes) {
  const Lock lock(mutex_);
  LARDER_RETURN_IF_ERROR(begin("register_host"));
  if (bytes == 0 || reinterpret_cast<std::uintptr_t>(memory) % kPageBytes != 0) {
    violate("registration of host memory that does not begin on a page");
    return refused("register_host");
  }
  const auto next = registrations_.lower_bound(memory);
  const bool meets_next = next != registrations_.end() && next->first < memory + bytes;
  if (meets_next || entry_with(registrations_, memory) != registrations_.end()) {
    violate("registration of host memory that is registered already");
    return overloaded("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
  }
  registrations_[memory] = bytes;
  return Status::ok();
}

Status SimCudaDriver::unregister_host(std::byte* memory) {
  Lock lock(mutex_);
  wait_if_lost(lock);
  const auto found = registrations_.find(memory);
  if (found == registrations_.end()) {
    violate("end of a registration that does not exist");
    return refused("unregister_host");
  }
  wait_until_free(found->first, found->second, lock);
  registrations_.erase(memory);
  return loss_ ? *loss_ : Status::ok();
}

Result<CudaStream> SimCudaDriver::create_stream() {
  const Lock lock(mutex_);
  LARDER_RETURN_IF_ERROR(begin("create_stream"));
  void* const stream = handle(next_handle_++);
  streams_[stream] = std::make_unique<Stream>();
  return static_cast<CudaStream>(stream);
}

Status SimCudaDriver::destroy_stream(CudaStream stream) {
  const Lock lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end() || stream == nullptr) {
    violate("end of a stream that does not exist");
    return no_stream(stream);
  }
  if (!found->second->queue.empty() || found->second->is_running) violate("end of a stream that still has work");
  if (!found->second->is_running) {
    streams_.erase(found);
    destroyed_streams_.insert(stream);
  }
  return loss_ ? *loss_ : Status::ok();
}

Status SimCudaDriver::synchronize(CudaStream stream) {
  Lock lock(mutex_);
  Stream* const found = find_stream(stream);
  if (found == nullptr) return no_stream(stream);
  if (found->is_captured) violate("a thread waits for a stream that is being captured");
  changed_.wait(lock, [&] { return loss_ || (found->queue.empty() && !found->is_running); });
  wait_if_lost(lock);
  return loss_ ? *loss_ : Status::ok();
}

Result<CudaEventHandle> SimCudaDriver::create_event() {
  const Lock lock(mutex_);
  LARDER_RETURN_IF_ERROR(begin("create_event"));
  void* const event = handle(next_handle_++);
  events_[event] = {};
  return static_cast<CudaEventHandle>(event);
}

Status SimCudaDriver::destroy_event(CudaEventHandle event) {
  const Lock lock(mutex_);
  if (events_.erase(event) == 0) violate("end of an event that does not exist");
  return loss_ ? *loss_ : Status::ok();
}

Status SimCudaDriver::record(CudaEventHandle event, CudaStream stream) {
  Operation operation;
  operation.kind = Kind::kRecord;
  const Lock lock(mutex_);
  LARDER_RETURN_IF_ERROR(begin("record"));
  const auto found = events_.find(event);
  if (found == events_.end()) {
    violate("record of an event that does not exist");
    return refused("record");
  }
  operation.ticket = next_ticket_++;
  const std::uint64_t ticket = operation.ticket;
  LARDER_RETURN_IF_ERROR(give(stream, std::move(operation)));
  found->second.ticket = ticket;
  open_tickets_.insert(ticket);
  changed_.notify_all();
  return Status::ok();
}

Status SimCudaDriver::wait(CudaStream stream, CudaEventHandle event) {
  Operation operation;
  operation.kind = Kind::kWait;
  const Lock lock(mutex_);
  LARDER_RETURN_IF_ERROR(begin("wait"));
  const auto found = events_.find(event);
  if (found == events_.end() || found->second.ticket == 0) {
    violate("a stream waits for an event that was never recorded, so it would not wait");
    return refused("wait");
  }
  operation.ticket = found->second.ticket;
  LARDER_RETURN_IF_ERROR(give(stream, std::move(operation)));
  changed_.notify_all();
  return Status::ok();
}

Result<bool> SimCudaDriver::has_completed(CudaEventHandle event) {
  const Lock lock(mutex_);
  if (loss_) return *loss_;
  const auto found = events_.find(event);
  if (found == events_.end() || found->second.ticket == 0) {
    violate("a question about an event that was never recorded");
    return refused("has_completed");
  }
  return open_tickets_.count(found->second.ticket) == 0;
}

Status SimCudaDriver::synchronize_event(CudaEventHandle event) {
  Lock lock(mutex_);
  const Status failed = begin("synchronize_event");
  wait_if_lost(lock);
  LARDER_RETURN_IF_ERROR(failed);
  const auto found = events_.find(event);
  if (found == events_.end() || found->second.ticket == 0) {
    violate("a thread waits for an event that was never recorded");
    return refused("synchronize_event");
  }
  const std::uint64_t ticket = found->second.ticket;
  changed_.wait(lock, [&] { return loss_ || open_tickets_.count(ticket) == 0; });
  wait_if_lost(lock);
  return loss_ ? *loss_ : Status::ok();
}

SimCudaDriver::Place SimCudaDriver::place_of(const std::byte* at, std::size_t bytes) const {
  for (const auto& [ranges, place] :
       {std::pair{&allocations_, Place::kDevice}, std::pair{&registrations_, Place::kPinned}}) {
    const auto found = entry_with(*ranges, at);
    if (found != ranges->end()) return at + bytes <= found->first + found->second ? place : Place::kCut;
    const auto next = ranges->upper_bound(at);
    if (next != ranges->end() && next->first < at + bytes) return Place::kCut;
  }
  return Place::kNowhere;
}

bool SimCudaDriver::reaches(const std::byte* at, std::size_t bytes) const {
  while (bytes > 0) {
    std::size_t size = 0;
    for (const auto* ranges : {&allocations_, &registrations_}) {
      const auto found = entry_with(*ranges, at);
      if (found != ranges->end()) size = std::min(bytes, static_cast<std::size_t>(found->first + found->second - at));
    }
    if (size == 0) return false;
    at += size;
    bytes -= size;
  }
  return true;
}

Status SimCudaDriver::check_copy(const CudaCopy& copy) const {
  if (copy.bytes == 0) return refused("a copy of no bytes, which a batch does not take");
  const Place dst = place_of(copy.dst, copy.bytes), src = place_of(copy.src, copy.bytes);
  if (dst == Place::kCut || src == Place::kCut) return refused("a copy leaves its allocation or registration");
  if (dst != Place::kDevice && src != Place::kDevice) return refused("a copy that has no side on the device");
  return Status::ok();
}

SimCudaDriver::Stream* SimCudaDriver::find_stream(CudaStream stream) {
  const auto found = streams_.find(stream);
  if (found != streams_.end()) return found->second.get();
  violate("work for a stream that does not exist");
  return nullptr;
}

Status SimCudaDriver::no_stream(CudaStream stream) const {
  if (destroyed_streams_.count(stream) == 0) return refused("no such stream");
  return unavailable("CUDA_ERROR_CONTEXT_IS_DESTROYED: the stream was destroyed");
}

Status SimCudaDriver::give(CudaStream stream, Operation operation) {
  Stream* const found = find_stream(stream);
  if (found == nullptr) return no_stream(stream);
  if (found->is_captured) {
    violate("work for a stream that is being captured");
    return internal_error("CUDA_ERROR_STREAM_CAPTURE_ISOLATION");
  }
  found->queue.push_back(std::move(operation));
  return Status::ok();
}

Status SimCudaDriver::copy(std::span<const CudaCopy> copies, CudaStream stream) {
  Operation operation;
  operation.copies.assign(copies.begin(), copies.end());
  const Lock lock(mutex_);
  Status failed = begin("copy");
  if (loss_) return failed;
  if (copies.empty()) return refused("a batch without copies");
  if (copies.size() > 1 && stream == nullptr) return refused("a batch for the default stream");
  for (const CudaCopy& copy : copies) LARDER_RETURN_IF_ERROR(check_copy(copy));
  if (depend_on_each_other(copies)) violate("copies of a batch that depend on each other");
  if (!failed.is_ok()) operation.copies.resize(rng_.below(copies.size()));  // batches before the one that fails run
  if (!operation.copies.empty()) LARDER_RETURN_IF_ERROR(give(stream, std::move(operation)));
  last_copied_on_ = stream;
  changed_.notify_all();
  return failed;
}

Status SimCudaDriver::launch(const CopyLaunch& launch, std::uint32_t blocks, CudaStream stream) {
  Operation operation;
  operation.kind = Kind::kLaunch;
  operation.launch = launch;
  const Lock lock(mutex_);
  LARDER_RETURN_IF_ERROR(begin("launch"));
  if (bound_.count(std::this_thread::get_id()) == 0) violate("a launch from a thread that is not bound");
  if (blocks == 0 || launch.group_count == 0 || launch.group_count > kMaxCopyGroups || launch.tile_count == 0) {
    violate("a launch of nothing, or of too many groups");
    return refused("launch");
  }
  std::uint32_t tiles = 0, pairs = 0;
  for (std::uint32_t i = 0; i < launch.group_count; ++i) {
    const CopyGroup& g = launch.groups[i];
    if (g.first_tile != tiles || g.first_pair != pairs || g.pair_count == 0) violate("groups that do not follow");
    tiles += g.pair_count * g.tiles_per_pair;
    pairs += g.pair_count;
  }
  if (tiles != launch.tile_count) violate("a launch whose tiles are not those of its groups");
  const auto* const list = reinterpret_cast<const std::byte*>(launch.pairs);
  if (!reaches(list, pairs * sizeof(CopyPair))) violate("a list that the device cannot read");
  operation.pairs_hash = hash_of(launch.pairs, pairs);
  LARDER_RETURN_IF_ERROR(give(stream, std::move(operation)));
  changed_.notify_all();
  return Status::ok();
}

SimCudaDriver::Stream* SimCudaDriver::pick() {
  if (is_held_) return nullptr;
  std::vector<Stream*> ready;
  for (const auto& [name, stream] : streams_) {
    if (stream->queue.empty() || stream->is_running || name == held_stream_) continue;
    const Operation& first = stream->queue.front();
    if (first.kind == Kind::kWait && open_tickets_.count(first.ticket) != 0) continue;
    ready.push_back(stream.get());
  }
  return ready.empty() ? nullptr : ready[rng_.below(ready.size())];
}

void SimCudaDriver::lose(const std::string& why) {
  if (loss_) return;
  loss_ = unavailable("CUDA_ERROR_ILLEGAL_ADDRESS: " + why);
  for (const auto& [name, stream] : streams_) stream->queue.clear();
  changed_.notify_all();
}

void SimCudaDriver::wait_if_lost(Lock& lock) {
  changed_.wait(lock, [&] { return !loss_ || !is_busy_; });
}

bool SimCudaDriver::is_in_use(const std::byte* memory, std::size_t bytes) const {
  return std::any_of(running_.begin(), running_.end(), [&](const CudaCopy& copy) {
    return overlap(memory, bytes, copy.dst, copy.bytes) || overlap(memory, bytes, copy.src, copy.bytes);
  });
}

void SimCudaDriver::wait_until_free(const std::byte* memory, std::size_t bytes, Lock& lock) {
  if (!is_in_use(memory, bytes)) return;
  if (!loss_) violate("the end of memory that a copy is using");
  changed_.wait(lock, [&] { return !is_in_use(memory, bytes); });
}

void SimCudaDriver::run_gpu() {
  Lock lock(mutex_);
  for (;;) {
    Stream* stream = nullptr;
    changed_.wait(lock, [&] { return is_ending_ || (stream = pick()) != nullptr; });
    if (stream == nullptr) return;
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->is_running = is_busy_ = true;
    ++operations_;
    if (!are_faults_asleep_ && lose_in_ > 0 && --lose_in_ == 0) lose("by order of the test");
    if (!loss_) run(operation, lock);
    stream->is_running = is_busy_ = false;
    changed_.notify_all();
  }
}

void SimCudaDriver::run(const Operation& operation, Lock& lock) {
  switch (operation.kind) {
    case Kind::kRecord: open_tickets_.erase(operation.ticket); return;
    case Kind::kWait: return;
    case Kind::kLaunch: running_ = rows_of(operation); break;
    case Kind::kCopy: running_ = operation.copies; break;
  }
  for (const CudaCopy& copy : running_) {
    if (operation.kind == Kind::kLaunch || loss_ || check_copy(copy).is_ok()) continue;
    violate("memory of a copy was freed or unregistered before it ran");
    lose("a copy");
  }
  if (!loss_) {
    rng_.shuffle(std::span(running_));
    lock.unlock();  // the bytes move while other threads call
    for (const CudaCopy& copy : running_) std::memcpy(copy.dst, copy.src, copy.bytes);
    lock.lock();
  }
  running_.clear();
}

std::vector<CudaCopy> SimCudaDriver::rows_of(const Operation& operation) {
  std::vector<CudaCopy> rows;
  const CopyLaunch& launch = operation.launch;
  if (!reaches(reinterpret_cast<const std::byte*>(launch.pairs), pair_count(launch) * sizeof(CopyPair)) ||
      hash_of(launch.pairs, pair_count(launch)) != operation.pairs_hash) {
    violate("the list of a launch changed before it ran");
    lose("a list");
    return rows;
  }
  const auto is_pinned = [&](const std::byte* at) { return entry_with(registrations_, at) != registrations_.end(); };
  for_each_row(launch, [&](std::byte* dst, const std::byte* src, std::size_t bytes, const CopyGroup& g) {
    if (loss_) return;
    const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(dst) | reinterpret_cast<std::uintptr_t>(src) | bytes;
    if (g.vector > 16 || !std::has_single_bit(g.vector) || bits % g.vector != 0) {
      violate("a misaligned access");
      lose("misaligned");
    } else if (!reaches(dst, bytes) || !reaches(src, bytes)) {
      violate("a launch touches memory that the device does not reach");
      lose("a launch");
    }
    if (!is_pinned(dst) && !is_pinned(src)) kernel_device_bytes_ += bytes;
    rows.push_back({dst, src, bytes});
  });
  if (!loss_ && depend_on_each_other(rows)) violate("pieces of a launch that depend on each other");
  return rows;
}

}  // namespace larder::sim
