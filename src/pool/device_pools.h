// SPDX-License-Identifier: Apache-2.0
// Device tier (L1): the pages that the engine computes on.
//
// For each (pool, layer, plane) there is one array over slots; a page of it is [rows][heads][head_dim], contiguous. A
// component's slot index is valid in all of its pools. Two ways to come by the memory:
//
//   own    one region of a MemorySource, layer first, as attention kernels want it: [pool][plane][layer][slot]
//   lent   the engine's: it says for each (pool, layer, plane) where slot 0 is and how far apart slots are. Both
//            a tensor for each layer, as in SGLang    [layer][plane] -> [slot]          stride = page
//            blocks that hold more than one plane     [layer] -> [slot][plane]          stride = all planes of a page
//            blocks that hold all layers, as in vLLM  [slot][layer][plane]              stride = a whole block
//          and any mixture fit. Larder reads and writes pages of slots that it gave out, and no byte between them.
//
// Reserved slots are never handed out: engines let CUDA graphs pad into slot 0.
//
// Threads: bookkeeping is confined to the cache thread; the bytes of a slot belong to whoever holds it (the engine for
// the pages of a running request, a transfer between submit and completion).
// Lifetime: outlives transfers and the engine; lent memory outlives the pools and stays the engine's. Limits: slots per
// component fixed at creation.
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

// One plane of one layer in the engine's memory: the page of slot s begins at base + s * slot_stride.
struct LentPlane {
  PoolName pool = PoolName::kKv;
  std::size_t layer_index = 0;  // counts pool.layers
  std::size_t plane = 0;        // counts pool.planes
  std::byte* base = nullptr;    // of slot 0; on the device that copies. A multiple of the size of an element
  std::size_t slot_stride = 0;  // bytes, at least PlaneSpec::layer_bytes(), a multiple of the size of an element
};

// Slots that are the engine's own, by component: never handed out, and never touched.
using ReservedSlots = std::array<std::vector<DeviceSlot>, kComponentCount>;

class DevicePools {
 public:
  // memory: for the pages. host: has room for the slot tables (12 bytes per slot), which are made last.
  // Slots of components that the model lacks must be 0. Reserved slots count as slots.
  // Errors: kInvalidArgument, kOverloaded (memory of either).
  [[nodiscard]] static Result<std::unique_ptr<DevicePools>> create(const ModelSpec& model, ComponentCounts slots,
                                                                   MemorySource& memory,
                                                                   MemorySource& host = host_memory_source(),
                                                                   const ReservedSlots& reserved = {});
  // On memory that the engine lends: `planes` has each plane of each layer of each pool once, in any order, but for
  // pools of components with 0 slots, which may be left out. kInvalidArgument, which names pool, layer and plane: one
  // that is missing, there twice or unknown; a base or stride that breaks the rules above; pages of two planes that
  // overlap; planes that interleave with different strides, which nobody lays out on purpose.
  // Cost: O(planes * log(planes)), and O(1) more for each two that interleave.
  [[nodiscard]] static Result<std::unique_ptr<DevicePools>> create(const ModelSpec& model, ComponentCounts slots,
                                                                   std::span<const LentPlane> planes,
                                                                   const ReservedSlots& reserved = {},
                                                                   MemorySource& host = host_memory_source());

  [[nodiscard]] const ModelSpec& model() const { return model_; }

  // Base of one page's plane in one layer: [rows][heads][head_dim], contiguous. layer_index counts pool.layers.
  // Precondition: the model has the pool, indices in range (checked by assert only: hot path).
  [[nodiscard]] std::byte* page(PoolName pool, std::size_t layer_index, std::size_t plane, DeviceSlot slot) const;

  // The pages of one plane in one layer, of all slots: page() for loops over slots.
  struct PlanePages {
    std::byte* base = nullptr;    // of slot 0
    std::size_t slot_stride = 0;  // bytes
    [[nodiscard]] std::byte* at(DeviceSlot slot) const { return base + slot.v * slot_stride; }
  };
  [[nodiscard]] PlanePages pages_of(PoolName pool, std::size_t layer_index, std::size_t plane) const;

  // One slot, or nullopt when the component is full (the caller evicts).
  [[nodiscard]] std::optional<DeviceSlot> allocate(ComponentKind c);
  // All or nothing over components (rule 2): on false nothing was taken. `out[c]` gets counts[c] slots appended.
  [[nodiscard]] bool reserve(const ComponentCounts& counts, std::array<std::vector<DeviceSlot>, kComponentCount>& out);
  // A leased slot goes to quarantine. kInternal: double free.
  [[nodiscard]] Status free(ComponentKind c, DeviceSlot slot);
  [[nodiscard]] Generation generation(ComponentKind c, DeviceSlot slot) const;
  [[nodiscard]] Result<Generation> add_lease(ComponentKind c, DeviceSlot slot) {
    return tables_[index_of(c)].add_lease(slot.v);
  }
  [[nodiscard]] Status drop_lease(ComponentKind c, DeviceSlot slot, Generation generation) {
    const auto dropped = tables_[index_of(c)].drop_lease(slot.v, generation);
    return dropped ? Status::ok() : dropped.status();  // a status that is ok would be copied, for each page
  }
  // Those of operations that have ended, which may be stale: SlotTable counts them.
  void drop_leases(std::span<const LeasedSlot> leases);

  [[nodiscard]] std::uint32_t free_slots(ComponentKind c) const;
  [[nodiscard]] const SlotTable& slots(ComponentKind c) const { return tables_[index_of(c)]; }
  // Of all pages; own memory has a little more, for alignment.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  explicit DevicePools(const ModelSpec& model) : model_(model) {}
  [[nodiscard]] Status make_tables(const ComponentCounts& slots, const ReservedSlots& reserved, MemorySource& host);
  [[nodiscard]] Status take_lent(const ComponentCounts& slots, std::span<const LentPlane> planes);
  struct PoolArrays {
    std::size_t planes = 0;
    std::vector<PlanePages> arrays;  // [layer][plane]
  };
  ModelSpec model_;
  std::vector<SlotTable> tables_;                  // one per component
  std::array<PoolArrays, kPoolNameCount> arrays_;  // [pool]
  std::unique_ptr<Memory> memory_;                 // null: lent, or none is needed
  std::size_t bytes_ = 0;
};

}  // namespace larder
