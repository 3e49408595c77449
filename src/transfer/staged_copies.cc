// SPDX-License-Identifier: Apache-2.0
#include "transfer/staged_copies.h"

#include <algorithm>
#include <utility>

namespace larder {
namespace {

constexpr std::size_t kAlignment = 256;  // parts keep their place in it, so that the kernel moves wide words

}  // namespace

// One transfer under way.
struct StagedCopies::Run {
  const TransferRequest* request = nullptr;
  std::vector<Chunk> chunks;
  std::uint64_t first_chunk = 0;
  StagedEnds ends;
  bool is_refused = false;  // nothing will be filled for it; guarded by mutex_ of the StagedCopies

  // A step of either stream has ended. The last of all ends the transfer.
  void end_step(const Status& status) {
    Status ended;
    {
      const LockGuard guard(mutex);
      if (failure.is_ok()) failure = status;
      if (--steps_left > 0) return;
      ended = std::move(failure);
    }
    ends.done(std::move(ended));
  }
  [[nodiscard]] bool has_failed() {
    const LockGuard guard(mutex);
    return !failure.is_ok();
  }

  RankedMutex mutex{LockRank::kTransfer};
  Status failure LARDER_GUARDED_BY(mutex);
  std::size_t steps_left LARDER_GUARDED_BY(mutex) = 0;
};

Result<std::unique_ptr<StagedCopies>> StagedCopies::create(CopyDirection direction, Device& device,
                                                           const DevicePools& pools, const HostPools& host,
                                                           StreamId far, std::size_t max_in_flight) {
  // Buffers begin where parts keep their place in words of any width (cut_of_layers).
  Staging staging = device.staging();
  staging.buffer_bytes = staging.buffer_bytes / kAlignment * kAlignment;
  std::unique_ptr<StagedCopies> staged;
  if (staging.buffers == 0) return staged;
  staged.reset(new StagedCopies(direction, staging, device, pools, host, far));
  if (!staged->has_use()) return std::unique_ptr<StagedCopies>();
  // Without memory or a stream the straight way is slower, and works.
  Result<std::unique_ptr<Memory>> memory = device.memory().allocate(staging.buffers * staging.buffer_bytes);
  if (!memory.is_ok()) return std::unique_ptr<StagedCopies>();
  const Result<StreamId> near = device.create_stream(max_in_flight);
  if (!near.is_ok()) {
    if (near.status().code() == StatusCode::kOverloaded) return std::unique_ptr<StagedCopies>();
    return near.status();
  }
  staged->memory_ = std::move(memory).value();
  staged->near_ = *near;
  return staged;
}

StagedCopies::StagedCopies(CopyDirection direction, const Staging& staging, Device& device, const DevicePools& pools,
                           const HostPools& host, StreamId far)
    : direction_(direction),
      staging_(staging),
      device_(device),
      pools_(pools),
      host_(host),
      far_(far),
      buffers_(staging.buffers) {
  plan_whole_slots();
  if (is_load()) plan_layers();
}

void StagedCopies::plan_whole_slots() {
  const ModelSpec& model = pools_.model();
  whole_.layers = {0, model.layer_count()};
  const bool has_rows = host_.layout() == HostLayout::kPageFirst || host_.layout() == HostLayout::kPageHead;
  for (const ComponentKind c : kAllComponents) {
    const std::size_t i = index_of(c);
    if (host_.blocks_per_slot(c) == 0) continue;
    const std::size_t bytes = host_slot_bytes(model, c);
    whole_.slots[i] = {{{0, bytes, 0}}, host_.image_bytes(c)};
    has_whole_[i] = host_.block_bytes() >= least_bytes() && host_.image_bytes(c) <= staging_.buffer_bytes;
    for (const PoolSpec* pool : model.pools_of(c)) {
      for (const PlaneSpec& plane : pool->planes) {
        const std::size_t all = plane.layer_bytes() * pool->layers.size();
        slot_bytes_[i] += all;
        if (has_rows || plane.layer_bytes() < least_bytes()) small_bytes_[i] += all;
      }
    }
  }
}

void StagedCopies::plan_layers() {
  if (host_.layout() == HostLayout::kPageFirst || host_.layout() == HostLayout::kPageHead) return;
  if (host_.block_bytes() < least_bytes()) return;
  const std::uint32_t layers = pools_.model().layer_count();
  const std::uint32_t most_steps = device_.most_gated_steps();
  const std::uint32_t least = std::max(layers / most_steps + (layers % most_steps == 0 ? 0 : 1), 1U);
  const std::uint32_t most = std::max(layers / std::max(staging_.least_load_steps, 1U), least);
  for (std::uint32_t each = least; each <= most; ++each) {
    LayerSteps steps;
    for (std::uint32_t first = 0; first < layers; first += each) {
      steps.cuts.push_back(cut_of_layers({first, std::min(first + each, layers)}));
    }
    bool is_of_use = false;
    for (std::size_t c = 0; c < kComponentCount; ++c) {
      std::size_t parts = 0, largest = 0;
      for (const Cut& cut : steps.cuts) {
        parts += cut.slots[c].parts.size();
        largest = std::max(largest, cut.slots[c].bytes);
      }
      // Worth a copy on the average: state may have a small part beside large ones.
      steps.suits[c] = parts > 0 && slot_bytes_[c] >= parts * least_bytes() && largest <= staging_.buffer_bytes;
      is_of_use = is_of_use || steps.suits[c];
    }
    if (is_of_use) by_layers_.push_back(std::move(steps));
  }
}

StagedCopies::Cut StagedCopies::cut_of_layers(LayerRange layers) const {
  Cut cut{layers, {}};
  for (const PoolSpec& pool : pools_.model().pools) {
    const auto begin = std::lower_bound(pool.layers.begin(), pool.layers.end(), layers.first);
    const auto end = std::lower_bound(begin, pool.layers.end(), layers.end);
    const auto count = static_cast<std::size_t>(end - begin);
    if (count == 0) continue;
    SlotImage& image = cut.slots[index_of(pool.component)];
    const auto first = static_cast<std::size_t>(begin - pool.layers.begin());
    const auto add = [&](std::size_t plane, std::size_t bytes) {
      if (bytes == 0) return;
      const std::size_t in_slot = host_.page_offset(pool.name) + chunk_offset(pool, host_.layout(), plane, first, 0, 0);
      const std::size_t at = image.bytes + in_slot % kAlignment;
      image.parts.push_back({in_slot, bytes, at});
      image.bytes = (at + bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    if (host_.layout() == HostLayout::kLayerFirst) {
      add(0, count * pool.layer_bytes());
      continue;
    }
    for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
      add(plane, count * pool.planes[plane].layer_bytes());
    }
  }
  return cut;
}

bool StagedCopies::has_use() const {
  for (std::size_t c = 0; c < kComponentCount; ++c) {
    if (small_bytes_[c] == 0) continue;
    if (has_whole_[c]) return true;
    for (const LayerSteps& steps : by_layers_) {
      if (steps.suits[c]) return true;
    }
  }
  return false;
}

bool StagedCopies::goes_whole(const TransferRequest& request) const {
  if (is_load() && request.is_layerwise()) return false;
  for (std::size_t c = 0; c < kComponentCount; ++c) {
    if (!request.pairs[c].empty() && slot_bytes_[c] > 0 && !has_whole_[c]) return false;
  }
  return true;
}

const StagedCopies::LayerSteps* StagedCopies::steps_of(const TransferRequest& request) const {
  for (const LayerSteps& steps : by_layers_) {
    bool suits_all = true;
    for (std::size_t c = 0; c < kComponentCount; ++c) {
      if (!request.pairs[c].empty() && slot_bytes_[c] > 0) suits_all = suits_all && steps.suits[c];
    }
    if (suits_all) return &steps;
  }
  return nullptr;
}

bool StagedCopies::suits(const TransferRequest& request) const {
  if (!is_load() && request.gate) return false;
  std::size_t small = 0, all = 0;
  for (std::size_t c = 0; c < kComponentCount; ++c) {
    small += request.pairs[c].size() * small_bytes_[c];
    all += request.pairs[c].size() * slot_bytes_[c];
  }
  // Where most bytes are in parts that are large enough themselves, the way round is longer.
  const std::size_t least = request.is_layerwise() ? staging_.least_layerwise_bytes : staging_.least_bytes;
  if (all < std::max<std::size_t>(least, 1) || small < all - small) return false;
  return goes_whole(request) || steps_of(request) != nullptr;
}

std::vector<StagedCopies::Chunk> StagedCopies::cut(const TransferRequest& request) const {
  std::vector<Chunk> chunks;
  if (goes_whole(request)) {
    append_chunks(request, whole_, chunks);
    chunks.back().end = whole_.layers.end;
    return chunks;
  }
  const std::vector<Cut>& steps = steps_of(request)->cuts;
  chunks.reserve(steps.size() * static_cast<std::size_t>(
                                    std::count_if(request.pairs.begin(), request.pairs.end(),
                                                  [](const std::vector<SlotPair>& pairs) { return !pairs.empty(); })));
  for (const Cut& step : steps) {
    append_chunks(request, step, chunks);
    if (!chunks.empty()) chunks.back().end = step.layers.end;
  }
  return chunks;
}

void StagedCopies::append_chunks(const TransferRequest& request, const Cut& cut, std::vector<Chunk>& out) const {
  for (const ComponentKind c : kAllComponents) {
    const std::size_t pairs = request.pairs[index_of(c)].size();
    const std::size_t image = cut.slots[index_of(c)].bytes;
    if (pairs == 0 || image == 0) continue;
    const std::size_t most = staging_.buffer_bytes / image;
    for (std::size_t first = 0; first < pairs; first += most) {
      out.push_back({&cut, c, first, std::min(most, pairs - first), 0});
    }
  }
}

Status StagedCopies::enqueue(const TransferRequest& request, StagedEnds ends) {
  const auto run = std::make_shared<Run>();
  run->request = &request;
  run->chunks = cut(request);
  run->first_chunk = next_chunk_;
  run->ends = std::move(ends);
  const std::size_t count = run->chunks.size();
  {
    const LockGuard guard(run->mutex);
    run->steps_left = 2 * count;
  }
  // Both are made before one is given: there may be no memory.
  StreamWork fills = filling(run), empties = emptying(run);
  const auto give = [&](bool is_near, StreamWork work) {
    if (is_near) work.after = request.after;
    const CopyDirection direction = is_near ? CopyDirection::kDeviceToDevice : direction_;
    return device_.enqueue(is_near ? near_ : far_, direction, std::move(work));
  };
  // Who empties comes first: he waits for who fills, whatever becomes of that.
  LARDER_RETURN_IF_ERROR(give(is_load(), std::move(empties)));
  next_chunk_ += count;
  const Status refused = give(!is_load(), std::move(fills));
  if (refused.is_ok()) return Status::ok();
  for (std::size_t step = 0; step < count; ++step) run->end_step(refused);  // before the other goes on: it looks
  const LockGuard guard(mutex_);
  run->is_refused = true;
  changed_.notify_all();
  return Status::ok();
}

StreamWork StagedCopies::filling(const std::shared_ptr<Run>& run) {
  StreamWork work;
  work.steps = static_cast<std::uint32_t>(run->chunks.size());
  work.step_after = [this, run](std::uint32_t step) { return take_buffer(run->first_chunk + step); };
  work.make_ops = [this, run](std::uint32_t step, std::vector<CopyOp>& out) {
    if (run->has_failed()) return;
    is_load() ? append_far(*run, step, out) : append_near(*run, step, out);
  };
  work.launched = [this, run](std::uint32_t step, std::shared_ptr<DeviceEvent> event) {
    filled(run->first_chunk + step, std::move(event));
  };
  work.done = [this, run](std::uint32_t step, const Status& status) {
    run->end_step(status);  // before the other stream goes on: it looks whether this failed
    filled(run->first_chunk + step, nullptr);
  };
  return work;
}

StreamWork StagedCopies::emptying(const std::shared_ptr<Run>& run) {
  StreamWork work;
  work.steps = static_cast<std::uint32_t>(run->chunks.size());
  work.step_after = [this, run](std::uint32_t step) { return when_filled(*run, step); };
  work.make_ops = [this, run](std::uint32_t step, std::vector<CopyOp>& out) {
    if (run->has_failed()) return;
    is_load() ? append_near(*run, step, out) : append_far(*run, step, out);
  };
  work.launched = [this, run](std::uint32_t step, const std::shared_ptr<DeviceEvent>& event) {
    const std::uint32_t end = run->chunks[step].end;
    // Behind what failed nobody is told: the event would stand for bytes that never came.
    if (end > 0 && !run->has_failed()) run->ends.launched(end, event);
    emptied(run->first_chunk + step, event);
  };
  work.done = [this, run](std::uint32_t step, const Status& status) {
    emptied(run->first_chunk + step, nullptr);
    const std::uint32_t end = run->chunks[step].end;
    // Where the other stream failed this one copied nothing; `done` says it.
    if (!status.is_ok() || (end > 0 && !run->has_failed())) run->ends.arrived(end, status);
    run->end_step(status);
  };
  return work;
}

void StagedCopies::append_near(const Run& run, std::uint32_t step, std::vector<CopyOp>& out) const {
  const Chunk& chunk = run.chunks[step];
  const std::span pairs(run.request->pairs[index_of(chunk.component)]);
  append_image_copies(pools_, host_, chunk.component, pairs.subspan(chunk.first, chunk.count), direction_,
                      chunk.cut->layers, chunk.cut->slots[index_of(chunk.component)], memory_of(run.first_chunk + step),
                      out);
}

void StagedCopies::append_far(const Run& run, std::uint32_t step, std::vector<CopyOp>& out) const {
  const Chunk& chunk = run.chunks[step];
  const SlotImage& slot = chunk.cut->slots[index_of(chunk.component)];
  std::byte* image = memory_of(run.first_chunk + step);
  const std::size_t block_bytes = host_.block_bytes();
  for (std::size_t i = 0; i < chunk.count; ++i, image += slot.bytes) {
    const HostSlot host = run.request->pairs[index_of(chunk.component)][chunk.first + i].host;
    for (const SlotImage::Part& part : slot.parts) {
      for (std::size_t done = 0; done < part.size;) {
        const std::size_t at = part.slot_offset + done;
        const std::size_t size = std::min(block_bytes - at % block_bytes, part.size - done);
        std::byte* const on_host = host_.block(chunk.component, host, at / block_bytes) + at % block_bytes;
        std::byte* const on_device = image + part.image_offset + done;
        CopyOp op{on_device, on_host, size, 1, size, size};
        if (!is_load()) op = {on_host, on_device, size, 1, size, size};
        out.push_back(op);
        done += size;
      }
    }
  }
}

std::shared_ptr<DeviceEvent> StagedCopies::take_buffer(std::uint64_t chunk) {
  Buffer old;  // its events die without the lock
  const LockGuard guard(mutex_);
  Buffer& buffer = buffer_of(chunk);
  while (!buffer.is_emptied) changed_.wait(mutex_);
  old = std::exchange(buffer, Buffer{chunk, false, false, nullptr, nullptr});
  changed_.notify_all();
  return old.emptied;
}

std::shared_ptr<DeviceEvent> StagedCopies::when_filled(const Run& run, std::uint32_t step) {
  const std::uint64_t chunk = run.first_chunk + step;
  const LockGuard guard(mutex_);
  Buffer& buffer = buffer_of(chunk);
  while (!run.is_refused && (buffer.chunk != chunk || !buffer.is_filled)) changed_.wait(mutex_);
  return run.is_refused ? nullptr : buffer.filled;
}

void StagedCopies::filled(std::uint64_t chunk, std::shared_ptr<DeviceEvent> event) {
  std::shared_ptr<DeviceEvent> old;  // dies without the lock
  const LockGuard guard(mutex_);
  Buffer& buffer = buffer_of(chunk);
  if (buffer.chunk != chunk || buffer.is_filled) return;  // launched, and now done
  buffer.is_filled = true;
  old = std::exchange(buffer.filled, std::move(event));
  changed_.notify_all();
}

void StagedCopies::emptied(std::uint64_t chunk, std::shared_ptr<DeviceEvent> event) {
  std::shared_ptr<DeviceEvent> old;  // dies without the lock
  const LockGuard guard(mutex_);
  Buffer& buffer = buffer_of(chunk);
  if (buffer.chunk != chunk || buffer.is_emptied) return;
  buffer.is_emptied = true;
  old = std::exchange(buffer.emptied, std::move(event));
  changed_.notify_all();
}

}  // namespace larder
