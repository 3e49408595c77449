// SPDX-License-Identifier: Apache-2.0
// Between device and host by way of buffers on the device.
//
//   store   pages ──gather──► buffer ──copy──► host slots       near stream, then far stream
//   load    host slots ──copy──► buffer ──scatter──► pages      far stream, then near stream
//
// Over the link (far) go large contiguous copies, which the copy engines do at its full rate in both directions at
// once, whatever the layout and however small a page's part of a layer is. Within the device (near) pages are gathered
// or scattered at its own speed. The two streams work on different buffers at once.
//
// A store, and a load whose engine does not wait layer by layer, move whole slots. A load that is waited for layer by
// layer moves the same few layers of all its slots, step after step: as many as it takes to be worth a copy. In layouts
// of rows (page_first, page_head) the layers of a page are not contiguous, and a few layers of very small pages are not
// worth a copy: such loads go straight.
//
// Threads: enqueue() from the cache thread; the rest on the streams' threads, which may wait here for each other, in
// chunk order. Limits: `buffers` chunks are between the streams.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "pool/device_pools.h"
#include "pool/host_pools.h"
#include "transfer/device.h"
#include "transfer/transfer.h"

namespace larder {

// Who hears of a staged transfer. On the streams' threads; `done` also inside enqueue().
struct StagedEnds {
  std::function<void(std::uint32_t end, std::shared_ptr<DeviceEvent>)> launched;  // all layers below `end`
  std::function<void(std::uint32_t end, Status)> arrived;  // ... have been copied; or not: then `end` says nothing
  std::function<void(Status)> done;                        // once, when none of its copies runs any more
};

class StagedCopies {
 public:
  // Of one direction. Null: the device does not ask for it, no component has a use for it, or there is no memory for
  // its buffers, or no stream left. Makes the near stream, of max_in_flight entries. Errors: of the stream. All outlive
  // it.
  [[nodiscard]] static Result<std::unique_ptr<StagedCopies>> create(CopyDirection direction, Device& device,
                                                                    const DevicePools& pools, const HostPools& host,
                                                                    StreamId far, std::size_t max_in_flight);
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  // Which it has made; who ends it destroys it first, with the far one.
  [[nodiscard]] StreamId near_stream() const { return near_; }
  // Can these copies, of this direction, go this way, and is it the better one?
  [[nodiscard]] bool suits(const TransferRequest& request) const;

  // Precondition: suits(). On ok `ends.done` is called once; `request` stays until then. On error nothing is called.
  // What request.after stands for is waited for by the near stream, which touches the pages.
  [[nodiscard]] Status enqueue(const TransferRequest& request, StagedEnds ends);

 private:
  // What a step of a transfer moves: the same bytes of each slot.
  struct Cut {
    LayerRange layers;
    std::array<SlotImage, kComponentCount> slots;
  };
  struct Chunk {
    const Cut* cut = nullptr;
    ComponentKind component = ComponentKind::kFull;
    std::size_t first = 0;  // of the component's pairs
    std::size_t count = 0;
    std::uint32_t end = 0;  // the layers below it are there with this chunk; 0: others are missing
  };
  struct Run;
  // A buffer, and how far the streams are with the chunk in it.
  struct Buffer {
    std::uint64_t chunk = 0;                   // counted from 1 over all transfers; 0: none yet
    bool is_filled = true, is_emptied = true;  // the stream is past it: launched, or failed
    std::shared_ptr<DeviceEvent> filled, emptied;
  };

  // Loads of so many layers a step.
  struct LayerSteps {
    std::vector<Cut> cuts;
    std::array<bool, kComponentCount> suits{};  // its slots, by themselves
  };

  StagedCopies(CopyDirection direction, const Staging& staging, Device& device, const DevicePools& pools,
               const HostPools& host, StreamId far);
  [[nodiscard]] bool is_load() const { return direction_ == CopyDirection::kHostToDevice; }
  [[nodiscard]] std::size_t least_bytes() const { return is_load() ? staging_.load_from : staging_.store_from; }
  void plan_whole_slots();
  void plan_layers();
  [[nodiscard]] Cut cut_of_layers(LayerRange layers) const;
  [[nodiscard]] bool has_use() const;
  [[nodiscard]] bool goes_whole(const TransferRequest& request) const;
  // By the fewest layers a step that suit all its components. Null: none do.
  [[nodiscard]] const LayerSteps* steps_of(const TransferRequest& request) const;
  [[nodiscard]] std::vector<Chunk> cut(const TransferRequest& request) const;
  void append_chunks(const TransferRequest& request, const Cut& cut, std::vector<Chunk>& out) const;
  // The stream that fills buffers, and the one that empties them.
  [[nodiscard]] StreamWork filling(const std::shared_ptr<Run>& run);
  [[nodiscard]] StreamWork emptying(const std::shared_ptr<Run>& run);
  void append_near(const Run& run, std::uint32_t step, std::vector<CopyOp>& out) const;
  void append_far(const Run& run, std::uint32_t step, std::vector<CopyOp>& out) const;

  [[nodiscard]] Buffer& buffer_of(std::uint64_t chunk) LARDER_REQUIRES(mutex_) {
    return buffers_[chunk % staging_.buffers];
  }
  [[nodiscard]] std::byte* memory_of(std::uint64_t chunk) const {
    return memory_->data() + chunk % staging_.buffers * staging_.buffer_bytes;
  }
  // Takes the buffer for a chunk; the event after which it may be written.
  [[nodiscard]] std::shared_ptr<DeviceEvent> take_buffer(std::uint64_t chunk) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::shared_ptr<DeviceEvent> when_filled(const Run& run, std::uint32_t step) LARDER_EXCLUDES(mutex_);
  void filled(std::uint64_t chunk, std::shared_ptr<DeviceEvent> event) LARDER_EXCLUDES(mutex_);
  void emptied(std::uint64_t chunk, std::shared_ptr<DeviceEvent> event) LARDER_EXCLUDES(mutex_);

  // constant after creation
  const CopyDirection direction_;
  const Staging staging_;
  Device& device_;
  const DevicePools& pools_;
  const HostPools& host_;
  const StreamId far_;
  StreamId near_ = 0;
  std::unique_ptr<Memory> memory_;
  Cut whole_{};
  std::array<bool, kComponentCount> has_whole_{};           // slots that fit a buffer, in blocks worth a copy
  std::array<std::size_t, kComponentCount> slot_bytes_{};   // 0: nothing of the component is copied
  std::array<std::size_t, kComponentCount> small_bytes_{};  // ... in parts that straight copies find small
  std::vector<LayerSteps> by_layers_;                       // fewer layers first

  std::uint64_t next_chunk_ = 1;  // owned by the cache thread
  RankedMutex mutex_{LockRank::kTransfer};
  RankedCondition changed_;
  std::vector<Buffer> buffers_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder
