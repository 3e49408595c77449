// Device to host by way of a buffer on the device.
//
//   gather stream:  pages of a chunk ─► buffer, in the order of host slots   (within the device, at its speed)
//   copy stream:    buffer ─► blocks of host slots, one contiguous copy each (over the link, by the copy engines)
//
// The link sees large contiguous copies whatever the layout and however small a page's part of a layer is, and the two
// streams work on different chunks at once. Loads cannot come this way: they bring whole pages, and an engine waits for
// whole layers.
//
// Threads: enqueue() from the cache thread; the rest on the streams' threads, which may wait here for each other, in
// chunk order. Limits: `buffers` chunks are between the streams.
#pragma once

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

class StagedStore {
 public:
  // Null: the device does not ask for it, the layout has no use for it, or there is no memory for its buffers. Makes a
  // stream for the gathers, of max_in_flight entries. Errors: of the stream. All outlive it.
  [[nodiscard]] static Result<std::unique_ptr<StagedStore>> create(Device& device, const DevicePools& pools,
                                                                   const HostPools& host, StreamId copy,
                                                                   std::size_t max_in_flight);
  StagedStore(const StagedStore&) = delete;
  StagedStore& operator=(const StagedStore&) = delete;

  // Is it the better way for these copies?
  [[nodiscard]] bool suits(const TransferRequest& request) const;

  // Precondition: suits(). On ok `done` is called once, when none of its copies runs any more; `request` stays until
  // then. On error it is not called.
  [[nodiscard]] Status enqueue(const TransferRequest& request, std::function<void(Status)> done);

 private:
  struct Chunk {
    ComponentKind component = ComponentKind::kFull;
    std::size_t first = 0;  // of the component's pairs
    std::size_t count = 0;
  };
  struct Store;
  // A buffer, and how far the streams are with the chunk in it.
  struct Buffer {
    std::uint64_t chunk = 0;                    // counted from 1 over all stores; 0: none yet
    bool is_gathered = true, is_copied = true;  // the stream is past it: launched, or failed
    std::shared_ptr<DeviceEvent> gathered, copied;
  };

  StagedStore(const StoreStaging& staging, Device& device, const DevicePools& pools, const HostPools& host,
              StreamId gather, StreamId copy, std::unique_ptr<Memory> memory);
  [[nodiscard]] std::vector<Chunk> cut(const TransferRequest& request) const;
  [[nodiscard]] StreamWork gather_work(const std::shared_ptr<Store>& store);
  [[nodiscard]] StreamWork copy_work(const std::shared_ptr<Store>& store);
  void append_gathers(const Store& store, std::uint32_t step, std::vector<CopyOp>& out) const;
  void append_copies(const Store& store, std::uint32_t step, std::vector<CopyOp>& out) const;

  [[nodiscard]] Buffer& buffer_of(std::uint64_t chunk) LARDER_REQUIRES(mutex_) {
    return buffers_[chunk % staging_.buffers];
  }
  [[nodiscard]] std::byte* memory_of(std::uint64_t chunk) const {
    return memory_->data() + chunk % staging_.buffers * staging_.chunk_bytes;
  }
  // Takes the buffer for a chunk; the event after which it may be written.
  [[nodiscard]] std::shared_ptr<DeviceEvent> take_buffer(std::uint64_t chunk) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::shared_ptr<DeviceEvent> when_gathered(const Store& store, std::uint32_t step)
      LARDER_EXCLUDES(mutex_);
  void gathered(std::uint64_t chunk, std::shared_ptr<DeviceEvent> event) LARDER_EXCLUDES(mutex_);
  void copied(std::uint64_t chunk, std::shared_ptr<DeviceEvent> event) LARDER_EXCLUDES(mutex_);

  // constant after creation
  const StoreStaging staging_;
  Device& device_;
  const DevicePools& pools_;
  const HostPools& host_;
  const StreamId gather_, copy_;
  const std::unique_ptr<Memory> memory_;
  std::array<bool, kComponentCount> suits_{};

  std::uint64_t next_chunk_ = 1;  // owned by the cache thread
  RankedMutex mutex_{LockRank::kTransfer};
  RankedCondition changed_;
  std::vector<Buffer> buffers_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder
