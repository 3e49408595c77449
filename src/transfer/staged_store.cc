#include "transfer/staged_store.h"

#include <algorithm>
#include <utility>

namespace larder {

// One transfer under way.
struct StagedStore::Store {
  const TransferRequest* request = nullptr;
  std::vector<Chunk> chunks;
  std::uint64_t first_chunk = 0;
  std::function<void(Status)> done;
  bool is_refused = false;  // its gathers will not come; guarded by mutex_ of the StagedStore

  // A step of either stream has ended. The last of all ends the store.
  void end_step(const Status& status) {
    {
      const LockGuard guard(mutex);
      if (failure.is_ok()) failure = status;
      if (--steps_left > 0) return;
    }
    done(std::move(failure));
  }
  [[nodiscard]] bool has_failed() {
    const LockGuard guard(mutex);
    return !failure.is_ok();
  }

  RankedMutex mutex{LockRank::kTransfer};
  Status failure LARDER_GUARDED_BY(mutex);
  std::size_t steps_left LARDER_GUARDED_BY(mutex) = 0;
};

Result<std::unique_ptr<StagedStore>> StagedStore::create(Device& device, const DevicePools& pools,
                                                         const HostPools& host, StreamId copy,
                                                         std::size_t max_in_flight) {
  const StoreStaging staging = device.store_staging();
  std::array<bool, kComponentCount> suits{};
  bool has_use = false;
  for (const ComponentKind c : kAllComponents) {
    if (staging.buffers == 0 || host.blocks_per_slot(c) == 0) continue;
    if (host.block_bytes() < staging.least_bytes || host.image_bytes(c) > staging.chunk_bytes) continue;
    // Where the parts of a layer are large enough themselves, the way round is longer.
    bool has_small = host.layout() == HostLayout::kPageFirst || host.layout() == HostLayout::kPageHead;
    for (const PoolSpec* pool : pools.model().pools_of(c)) {
      for (const PlaneSpec& plane : pool->planes) has_small = has_small || plane.layer_bytes() < staging.least_bytes;
    }
    suits[index_of(c)] = has_small;
    has_use = has_use || has_small;
  }
  if (!has_use) return std::unique_ptr<StagedStore>();
  Result<std::unique_ptr<Memory>> memory = device.memory().allocate(staging.buffers * staging.chunk_bytes);
  if (!memory.is_ok()) return std::unique_ptr<StagedStore>();  // the straight way is slower, and works
  const Result<StreamId> gather = device.create_stream(max_in_flight);
  if (!gather.is_ok()) return gather.status();
  std::unique_ptr<StagedStore> store(
      new StagedStore(staging, device, pools, host, *gather, copy, std::move(memory).value()));
  store->suits_ = suits;
  return store;
}

StagedStore::StagedStore(const StoreStaging& staging, Device& device, const DevicePools& pools, const HostPools& host,
                         StreamId gather, StreamId copy, std::unique_ptr<Memory> memory)
    : staging_(staging),
      device_(device),
      pools_(pools),
      host_(host),
      gather_(gather),
      copy_(copy),
      memory_(std::move(memory)),
      buffers_(staging.buffers) {}

bool StagedStore::suits(const TransferRequest& request) const {
  if (request.direction != CopyDirection::kDeviceToHost || request.gate) return false;
  bool has_pairs = false;
  for (const ComponentKind c : kAllComponents) {
    if (request.pairs[index_of(c)].empty()) continue;
    if (!suits_[index_of(c)]) return false;
    has_pairs = true;
  }
  return has_pairs;
}

std::vector<StagedStore::Chunk> StagedStore::cut(const TransferRequest& request) const {
  std::vector<Chunk> chunks;
  for (const ComponentKind c : kAllComponents) {
    const std::size_t pairs = request.pairs[index_of(c)].size();
    if (pairs == 0) continue;
    const std::size_t most = staging_.chunk_bytes / host_.image_bytes(c);
    for (std::size_t first = 0; first < pairs; first += most)
      chunks.push_back({c, first, std::min(most, pairs - first)});
  }
  return chunks;
}

Status StagedStore::enqueue(const TransferRequest& request, std::function<void(Status)> done) {
  const auto store = std::make_shared<Store>();
  store->request = &request;
  store->chunks = cut(request);
  store->first_chunk = next_chunk_;
  store->done = std::move(done);
  const std::size_t count = store->chunks.size();
  {
    const LockGuard guard(store->mutex);
    store->steps_left = 2 * count;
  }
  // The copies first: they wait for the gathers, whatever becomes of these.
  LARDER_RETURN_IF_ERROR(device_.enqueue(copy_, CopyDirection::kDeviceToHost, copy_work(store)));
  next_chunk_ += count;
  const Status refused = device_.enqueue(gather_, CopyDirection::kDeviceToDevice, gather_work(store));
  if (refused.is_ok()) return Status::ok();
  {
    const LockGuard guard(mutex_);
    store->is_refused = true;
    changed_.notify_all();
  }
  for (std::size_t step = 0; step < count; ++step) store->end_step(refused);
  return Status::ok();
}

StreamWork StagedStore::gather_work(const std::shared_ptr<Store>& store) {
  StreamWork work;
  work.steps = static_cast<std::uint32_t>(store->chunks.size());
  work.after = store->request->after;
  work.step_after = [this, store](std::uint32_t step) { return take_buffer(store->first_chunk + step); };
  work.make_ops = [this, store](std::uint32_t step, std::vector<CopyOp>& out) { append_gathers(*store, step, out); };
  work.launched = [this, store](std::uint32_t step, std::shared_ptr<DeviceEvent> event) {
    gathered(store->first_chunk + step, std::move(event));
  };
  work.done = [this, store](std::uint32_t step, const Status& status) {
    store->end_step(status);  // before the copies go on: they look whether it failed
    gathered(store->first_chunk + step, nullptr);
  };
  return work;
}

StreamWork StagedStore::copy_work(const std::shared_ptr<Store>& store) {
  StreamWork work;
  work.steps = static_cast<std::uint32_t>(store->chunks.size());
  work.step_after = [this, store](std::uint32_t step) { return when_gathered(*store, step); };
  work.make_ops = [this, store](std::uint32_t step, std::vector<CopyOp>& out) {
    if (!store->has_failed()) append_copies(*store, step, out);
  };
  work.launched = [this, store](std::uint32_t step, std::shared_ptr<DeviceEvent> event) {
    copied(store->first_chunk + step, std::move(event));
  };
  work.done = [this, store](std::uint32_t step, const Status& status) {
    copied(store->first_chunk + step, nullptr);
    store->end_step(status);
  };
  return work;
}

void StagedStore::append_gathers(const Store& store, std::uint32_t step, std::vector<CopyOp>& out) const {
  const Chunk& chunk = store.chunks[step];
  const std::span pairs(store.request->pairs[index_of(chunk.component)]);
  append_image_copies(pools_, host_, chunk.component, pairs.subspan(chunk.first, chunk.count),
                      memory_of(store.first_chunk + step), out);
}

void StagedStore::append_copies(const Store& store, std::uint32_t step, std::vector<CopyOp>& out) const {
  const Chunk& chunk = store.chunks[step];
  const std::byte* image = memory_of(store.first_chunk + step);
  const std::size_t slot_bytes = host_slot_bytes(pools_.model(), chunk.component);
  const std::size_t block_bytes = host_.block_bytes();
  for (std::size_t i = 0; i < chunk.count; ++i, image += host_.image_bytes(chunk.component)) {
    const HostSlot slot = store.request->pairs[index_of(chunk.component)][chunk.first + i].host;
    for (std::size_t at = 0; at < slot_bytes; at += block_bytes) {
      const std::size_t size = std::min(block_bytes, slot_bytes - at);
      out.push_back({host_.block(chunk.component, slot, at / block_bytes), image + at, size, 1, size, size});
    }
  }
}

std::shared_ptr<DeviceEvent> StagedStore::take_buffer(std::uint64_t chunk) {
  Buffer old;  // its events die without the lock
  const LockGuard guard(mutex_);
  Buffer& buffer = buffer_of(chunk);
  while (!buffer.is_copied) changed_.wait(mutex_);
  old = std::exchange(buffer, Buffer{chunk, false, false, nullptr, nullptr});
  changed_.notify_all();
  return old.copied;
}

std::shared_ptr<DeviceEvent> StagedStore::when_gathered(const Store& store, std::uint32_t step) {
  const std::uint64_t chunk = store.first_chunk + step;
  const LockGuard guard(mutex_);
  Buffer& buffer = buffer_of(chunk);
  while (!store.is_refused && (buffer.chunk != chunk || !buffer.is_gathered)) changed_.wait(mutex_);
  return store.is_refused ? nullptr : buffer.gathered;
}

void StagedStore::gathered(std::uint64_t chunk, std::shared_ptr<DeviceEvent> event) {
  std::shared_ptr<DeviceEvent> old;  // dies without the lock
  const LockGuard guard(mutex_);
  Buffer& buffer = buffer_of(chunk);
  if (buffer.chunk != chunk || buffer.is_gathered) return;  // launched, and now done
  buffer.is_gathered = true;
  old = std::exchange(buffer.gathered, std::move(event));
  changed_.notify_all();
}

void StagedStore::copied(std::uint64_t chunk, std::shared_ptr<DeviceEvent> event) {
  std::shared_ptr<DeviceEvent> old;  // dies without the lock
  const LockGuard guard(mutex_);
  Buffer& buffer = buffer_of(chunk);
  if (buffer.chunk != chunk || buffer.is_copied) return;
  buffer.is_copied = true;
  old = std::exchange(buffer.copied, std::move(event));
  changed_.notify_all();
}

}  // namespace larder
