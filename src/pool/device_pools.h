// Device tier (L1): the pages that the engine computes on.
//
// Layout on the device is layer first, as attention kernels want it: for each (pool, layer, plane) one array
// [slots][rows][heads][head_dim]. A component's slot index is valid in all of its pools.
//
// Threads: bookkeeping is confined to the cache thread; the bytes of a slot belong to whoever holds it (the engine for
// the pages of a running request, a transfer between submit and completion).
// Lifetime: outlives transfers and the engine. Limits: slots per component fixed at creation.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "model/model_spec.h"
#include "pool/memory.h"
#include "pool/slot_table.h"

namespace larder {

// How many slots of each component; index with index_of(component).
using ComponentCounts = std::array<std::uint32_t, kComponentCount>;

class DevicePools {
 public:
  // memory: for the pages. host: has room for the slot tables (12 bytes per slot), which are made last.
  // Slots of components that the model lacks must be 0. Errors: kInvalidArgument, kOverloaded (memory of either).
  [[nodiscard]] static Result<std::unique_ptr<DevicePools>> create(const ModelSpec& model, ComponentCounts slots,
                                                                   MemorySource& memory,
                                                                   MemorySource& host = host_memory_source());

  [[nodiscard]] const ModelSpec& model() const { return model_; }

  // Base of one page's plane in one layer: [rows][heads][head_dim], contiguous. layer_index counts pool.layers.
  // Precondition: the model has the pool, indices in range (checked by assert only: hot path).
  [[nodiscard]] std::byte* page(PoolName pool, std::size_t layer_index, std::size_t plane, DeviceSlot slot) const;

  // One slot, or nullopt when the component is full (the caller evicts).
  [[nodiscard]] std::optional<DeviceSlot> allocate(ComponentKind c);
  // All or nothing over components (rule 2): on false nothing was taken. `out[c]` gets counts[c] slots appended.
  [[nodiscard]] bool reserve(const ComponentCounts& counts, std::array<std::vector<DeviceSlot>, kComponentCount>& out);
  // A leased slot goes to quarantine. kInternal: double free.
  [[nodiscard]] Status free(ComponentKind c, DeviceSlot slot);
  [[nodiscard]] Generation generation(ComponentKind c, DeviceSlot slot) const;
  [[nodiscard]] Status add_lease(ComponentKind c, DeviceSlot slot);
  [[nodiscard]] Status drop_lease(ComponentKind c, DeviceSlot slot, Generation generation);

  [[nodiscard]] std::uint32_t free_slots(ComponentKind c) const;
  [[nodiscard]] const SlotTable& slots(ComponentKind c) const { return tables_[index_of(c)]; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  explicit DevicePools(const ModelSpec& model) : model_(model) {}
  [[nodiscard]] Status make_tables(const ComponentCounts& slots, MemorySource& host);
  struct PlaneArray {
    std::byte* base = nullptr;     // of layer 0
    std::size_t layer_stride = 0;  // bytes
    std::size_t slot_stride = 0;   // bytes
  };
  ModelSpec model_;
  std::vector<SlotTable> tables_;                               // one per component
  std::array<std::vector<PlaneArray>, kPoolNameCount> planes_;  // [pool][plane]
  std::unique_ptr<Memory> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace larder
