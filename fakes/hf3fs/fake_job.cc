// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_job.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fakes/hf3fs/fake_world.h"

namespace larder::hf3fs {
namespace {

// Two reads of one batch into the same bytes fail the whole batch.
bool has_overlap(FakeJob& job) {
  std::vector<std::pair<const std::uint8_t*, std::uint64_t>> ranges;
  for (const int slot : job.slots) {
    const FakeIo& io = job.ring->io(slot);
    if (io.read) ranges.emplace_back(io.data, io.length);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].first + ranges[i - 1].second > ranges[i].first) return true;
  }
  return false;
}

// A fault by chance, if the configuration has any.
std::optional<FaultEffect> fault_by_chance(const FakeConfig& config, FakeRing& ring, const FakeIo& io) {
  if (config.error_permille == 0 && config.short_permille == 0) return std::nullopt;
  FaultEffect effect;
  if (ring.draw(1000) < config.error_permille) {
    effect.error = config.error;
    effect.has_chunks = effect.random_chunks = !io.read;
    return effect;
  }
  if (ring.draw(1000) >= config.short_permille) return std::nullopt;
  effect.short_bytes = ring.draw(io.length);
  return effect;
}

void apply_to_job(const FaultEffect& effect, std::uint64_t now_ms, FakeJob& job) {
  job.due_ms = std::max(job.due_ms, effect.delay_ms == 0 ? 0 : now_ms + effect.delay_ms);
  if (effect.hold != HoldPoint::kNone && job.hold != HoldPoint::kBefore) job.hold = effect.hold;
  job.drop = job.drop || effect.drop;
}

void delay_by_chance(const FakeConfig& config, std::uint64_t now_ms, FakeJob& job) {
  if (config.latency_us_most > 0) {
    const std::uint64_t range = config.latency_us_most - config.latency_us_least + 1;
    const std::uint64_t latency_us = config.latency_us_least + job.ring->draw(range);
    job.due_ms = std::max(job.due_ms, now_ms + (latency_us + 999) / 1000);
  }
  if (config.stall_permille > 0 && job.ring->draw(1000) < config.stall_permille) {
    job.due_ms = std::max(job.due_ms, now_ms + config.stall_ms);
    job.error = config.stall_error;
  }
}

ChunkFilter filter_of(const FaultEffect& effect, FakeRing& ring) {
  if (!effect.has_chunks) return nullptr;
  if (effect.random_chunks) return [&ring](std::uint64_t) { return ring.draw(2) == 0; };
  return [chunks = effect.chunks](std::uint64_t chunk) {
    return std::find(chunks.begin(), chunks.end(), chunk) != chunks.end();
  };
}

// 0, or what is wrong with the memory. `outside`: within D8 nobody looks, and no byte moves.
int check_memory(World& world, const FakeRing& ring, const FakeIo& io, bool check_bounds, bool& outside) {
  std::shared_ptr<FakeIov> iov = io.iov;
  if (iov == nullptr) {
    iov = world.iovs.find_by_id(io.iov_id, world.iov_request(ring.settings.mount, 0, 0));
  }
  if (iov == nullptr || iov->daemon_life != world.daemon_life()) return -EINVAL;
  outside = io.iov_offset > iov->size || io.length > iov->size - io.iov_offset;
  if (outside && check_bounds) return -EINVAL;
  if (iov->crosses_block(io.iov_offset, io.length)) return -EINVAL;
  return iov->block_failed(io.iov_offset) ? -EACCES : 0;
}

std::int64_t run_read(World& world, FakeRing& ring, FakeIo& io, const std::optional<FaultEffect>& effect) {
  std::uint64_t length = io.length;
  if (effect && effect->short_bytes) length = std::min(length, *effect->short_bytes);
  const bool forbid = (ring.settings.flags & kForbidReadHoles) != 0;
  const std::int64_t moved = io.fd->file->read(io.data, io.offset, length, forbid);
  if (moved > 0) count(world.counters.bytes_read, static_cast<std::uint64_t>(moved));
  return moved;
}

std::int64_t run_write(World& world, FakeRing& ring, FakeIo& io, const std::optional<FaultEffect>& effect) {
  const FakeConfig& config = world.config();
  if (config.read_only) return -EROFS;
  std::uint64_t length = io.length;
  if (effect && effect->short_bytes) length = std::min(length, *effect->short_bytes);
  if (effect && effect->lands_late) {
    world.keep_late({io.fd->file, io.offset, {io.data, io.data + io.length}});
    return -effect->error;
  }
  const ChunkFilter filter = effect ? filter_of(*effect, ring) : nullptr;
  const std::int64_t moved = io.fd->file->write(io.data, io.offset, length, filter, config.capacity_bytes);
  if (moved <= 0) return moved;
  io.fd->file->note_written(io.offset + static_cast<std::uint64_t>(moved), world.now_ms());
  count(world.counters.bytes_written, static_cast<std::uint64_t>(moved));
  return moved;
}

std::int64_t run_io(World& world, FakeJob& job, FakeIo& io, const IoPlan& plan) {
  if (job.error != 0) return -job.error;
  if (!world.serves(io.fd->daemon_life)) return -EBADF;
  bool outside = false;
  const int memory = check_memory(world, *job.ring, io, plan.check_bounds, outside);
  if (memory != 0) return memory;
  if (outside) {
    count(world.counters.out_of_bounds);
    return static_cast<std::int64_t>(io.length);
  }
  const std::optional<FaultEffect>& effect = plan.effect;
  const int error = effect ? effect->error : 0;
  if (effect && error != 0 && (io.read || !(effect->has_chunks || effect->lands_late))) return -error;
  const std::int64_t moved = io.read ? run_read(world, *job.ring, io, effect) : run_write(world, *job.ring, io, effect);
  return error != 0 ? -error : moved;
}

bool is_all_poison(const FakeIo& io) {
  return std::all_of(io.data, io.data + io.length, [](std::uint8_t byte) { return byte == kPoisonByte; });
}

// Before bytes move: has the client left the buffer alone since prep?
void check_before(World& world, const FakeIo& io) {
  const FakeConfig& config = world.config();
  if (!config.check_ownership || io.iov == nullptr) return;
  const bool touched =
      io.read ? config.poison == PoisonMode::kPrep && !is_all_poison(io) : io.digest != digest_of(io.data, io.length);
  if (touched) count(world.counters.touched_buffers);
}

}  // namespace

std::uint64_t digest_of(const std::uint8_t* data, std::uint64_t length) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ull ^ length;
  std::uint64_t word = 0;
  for (; length >= 8; length -= 8, data += 8) {
    std::memcpy(&word, data, 8);
    hash = (hash ^ word) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  word = 0;
  std::memcpy(&word, data, length);
  return (hash ^ word) * 0x100000001b3ull;
}

void plan_job(World& world, FakeJob& job) {
  const FakeConfig& config = world.config();
  const std::uint64_t now_ms = world.now_ms();
  delay_by_chance(config, now_ms, job);
  const IovId* run = nullptr;
  for (const int slot : job.slots) {
    const FakeIo& io = job.ring->io(slot);
    IoPlan plan;
    plan.effect = world.next_fault(io.read);
    if (!plan.effect) plan.effect = fault_by_chance(config, *job.ring, io);
    if (plan.effect) {
      count(world.counters.faults);
      apply_to_job(*plan.effect, now_ms, job);
    }
    plan.check_bounds = !config.d8_bounds_of_first_only || run == nullptr || *run != io.iov_id;
    run = &io.iov_id;
    if (!io.submitted) count(world.counters.started_unsubmitted);
    job.plans.push_back(std::move(plan));
  }
  if (config.check_overlap && has_overlap(job)) job.error = EINVAL;
  job.left.store(job.slots.size(), std::memory_order_release);
  count(world.counters.jobs);
  auto& largest = world.counters.largest_job;
  std::uint64_t known = largest.load(std::memory_order_relaxed);
  while (known < job.slots.size() && !largest.compare_exchange_weak(known, job.slots.size())) {}
}

void execute_io(World& world, FakeJob& job, std::size_t index) {
  FakeIo& io = job.ring->io(job.slots[index]);
  check_before(world, io);
  io.result = run_io(world, job, io, job.plans[index]);
  io.executed = true;
  const FakeConfig& config = world.config();
  if (io.read && config.poison != PoisonMode::kOff && job.error == 0) {
    const auto delivered = static_cast<std::uint64_t>(std::max<std::int64_t>(io.result, 0));
    const std::uint64_t missing = io.iov == nullptr ? 0 : io.length - std::min(delivered, io.length);
    std::memset(io.data + io.length - missing, kPoisonByte, missing);
  }
  if (config.check_ownership && io.iov != nullptr && io.read) io.digest = digest_of(io.data, io.length);
  count(world.counters.executed);
  world.trace(TraceEvent::kExecute, job.ring->settings.trace_number, static_cast<std::uint64_t>(job.slots[index]),
              static_cast<std::uint64_t>(io.result));
}

void finish_job(World& world, FakeJob& job) {
  if (job.drop || !world.serves(job.ring->settings.daemon_life) || job.ring->closed()) {
    count(world.counters.dropped_completions, job.slots.size());
    return;
  }
  if (world.config().shuffle) job.ring->shuffle(job.slots);
  for (const int slot : job.slots) {
    FakeIo& io = job.ring->io(slot);
    if (io.iov != nullptr) {
      const bool checked = world.config().check_ownership;
      if (checked && digest_of(io.data, io.length) != io.digest) count(world.counters.touched_buffers);
      io.iov->in_flight.fetch_sub(1, std::memory_order_acq_rel);
    }
    world.trace(TraceEvent::kPost, job.ring->settings.trace_number, static_cast<std::uint64_t>(slot), 0);
  }
  count(world.counters.completed, job.slots.size());
  job.ring->post(job.slots);
}

void tear_io(World& world, FakeJob& job, std::size_t index) {
  FakeIo& io = job.ring->io(job.slots[index]);
  if (io.read || io.executed || job.error != 0) return;
  bool outside = false;
  if (check_memory(world, *job.ring, io, true, outside) != 0) return;
  const ChunkFilter coin = [&job](std::uint64_t) { return job.ring->draw(2) == 0; };
  (void)io.fd->file->write(io.data, io.offset, io.length, coin, world.config().capacity_bytes);
}

}  // namespace larder::hf3fs
