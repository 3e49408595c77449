// SPDX-License-Identifier: Apache-2.0
#include "pool/device_pools.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace larder {
namespace {

constexpr std::size_t kArrayAlignment = 64;  // one cache line; also the widest vector register

// False on overflow.
bool add_array(std::size_t layers, std::size_t slots, std::size_t slot_stride, std::size_t& layer_stride,
               std::size_t& total) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(slots, slot_stride, &bytes)) return false;
  if (__builtin_add_overflow(bytes, kArrayAlignment - 1, &bytes)) return false;
  layer_stride = bytes / kArrayAlignment * kArrayAlignment;
  std::size_t all_layers = 0;
  if (__builtin_mul_overflow(layers, layer_stride, &all_layers)) return false;
  return !__builtin_add_overflow(total, all_layers, &total);
}

Status check_counts(const ModelSpec& model, const ComponentCounts& slots) {
  for (const ComponentKind c : kAllComponents) {
    const std::uint32_t count = slots[index_of(c)];
    if (count > 0 && !model.has(c)) {
      return invalid_argument("model " + model.id + " has no component " + std::string(component_name(c)) +
                              ": its device slots must be 0, not " + std::to_string(count));
    }
    if (count == DeviceSlot::kNone) return invalid_argument("too many device slots: at most 2^32 - 2 per component");
  }
  return Status::ok();
}

Status check_reserved(const ComponentCounts& slots, const ReservedSlots& reserved) {
  for (const ComponentKind c : kAllComponents) {
    for (const DeviceSlot slot : reserved[index_of(c)]) {
      if (slot.v < slots[index_of(c)]) continue;
      return invalid_argument("reserved slot " + std::to_string(slot.v) + " of " + std::string(component_name(c)) +
                              ": there are " + std::to_string(slots[index_of(c)]) + " slots");
    }
  }
  return Status::ok();
}

// ---- lent memory

std::string describe(const LentPlane& lent) {
  return "lent memory: pool " + std::string(pool_name(lent.pool)) + ", layer " + std::to_string(lent.layer_index) +
         " of the pool, plane " + std::to_string(lent.plane);
}

Status check_lent(const LentPlane& lent, const PoolSpec* pool) {
  const auto wrong = [&](const std::string& what) { return invalid_argument(describe(lent) + what); };
  if (pool == nullptr) return wrong(": the model has no such pool");
  if (lent.layer_index >= pool->layers.size() || lent.plane >= pool->planes.size()) {
    return wrong(": the pool has " + std::to_string(pool->layers.size()) + " layers of " +
                 std::to_string(pool->planes.size()) + " planes");
  }
  const PlaneSpec& shape = pool->planes[lent.plane];
  const std::size_t element = dtype_bytes(shape.dtype);
  if (lent.base == nullptr) return wrong(" has no address");
  if (lent.slot_stride < shape.layer_bytes()) {
    return wrong(": slots are " + std::to_string(lent.slot_stride) + " bytes apart, and a page has " +
                 std::to_string(shape.layer_bytes()));
  }
  if (reinterpret_cast<std::uintptr_t>(lent.base) % element != 0 || lent.slot_stride % element != 0) {
    return wrong(": its address and its stride must be multiples of an element, " + std::to_string(element) + " bytes");
  }
  return Status::ok();
}

// A plane of which there are slots: pages of page_bytes at begin + k * stride, k < count; the last one ends at `end`.
struct LentArray {
  const LentPlane* lent;
  std::uintptr_t begin, end;
  std::size_t page_bytes;
  std::uint32_t count;
};

// Two arrays of one stride, b not before a, that interleave. A page of b touches page k of a if the distance between
// their beginnings is less than the page that comes first; b is ahead of page k = distance / stride by the rest.
bool pages_overlap(const LentArray& a, const LentArray& b) {
  const std::size_t stride = a.lent->slot_stride, distance = b.begin - a.begin;
  const std::size_t rest = distance % stride;
  const std::size_t k = distance / stride;
  return rest < a.page_bytes || (rest + b.page_bytes > stride && k + 1 < a.count);
}

Status check_apart(std::vector<LentArray>& arrays) {
  std::sort(arrays.begin(), arrays.end(), [](const LentArray& a, const LentArray& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    for (std::size_t k = i + 1; k < arrays.size() && arrays[k].begin < arrays[i].end; ++k) {
      const std::string other = "pool " + std::string(pool_name(arrays[i].lent->pool)) + ", layer " +
                                std::to_string(arrays[i].lent->layer_index) + ", plane " +
                                std::to_string(arrays[i].lent->plane);
      if (arrays[i].lent->slot_stride != arrays[k].lent->slot_stride) {
        return invalid_argument(describe(*arrays[k].lent) + " interleaves with " + other +
                                ", which has another stride");
      }
      if (pages_overlap(arrays[i], arrays[k])) {
        return invalid_argument(describe(*arrays[k].lent) + " overlaps " + other);
      }
    }
  }
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<DevicePools>> DevicePools::create(const ModelSpec& model, ComponentCounts slots,
                                                         MemorySource& memory, MemorySource& host,
                                                         const ReservedSlots& reserved) {
  LARDER_RETURN_IF_ERROR(check_counts(model, slots));
  LARDER_RETURN_IF_ERROR(check_reserved(slots, reserved));
  std::unique_ptr<DevicePools> pools(new DevicePools(model));
  std::size_t total = 0;
  std::vector<std::pair<PlanePages*, std::size_t>> offsets;
  for (const PoolSpec& pool : pools->model_.pools) {
    PoolArrays& at = pools->arrays_[static_cast<std::size_t>(pool.name)];
    at.planes = pool.planes.size();
    at.arrays.resize(pool.layers.size() * at.planes);
    for (std::size_t plane = 0; plane < at.planes; ++plane) {
      const std::size_t page_bytes = pool.planes[plane].layer_bytes();
      const std::size_t first = total;
      std::size_t layer_stride = 0;
      if (!add_array(pool.layers.size(), slots[index_of(pool.component)], page_bytes, layer_stride, total)) {
        return invalid_argument("device pool " + std::string(pool.label()) + " does not fit in an address space");
      }
      for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
        PlanePages& array = at.arrays[layer * at.planes + plane];
        array.slot_stride = page_bytes;
        offsets.emplace_back(&array, first + layer * layer_stride);
      }
    }
  }
  pools->bytes_ = total;
  if (total > 0) {  // else: logical pools only, or no slots
    auto region = memory.allocate(total);
    if (!region) return region.status();
    pools->memory_ = std::move(region).value();
    for (const auto& [array, offset] : offsets) array->base = pools->memory_->data() + offset;
  }
  LARDER_RETURN_IF_ERROR(pools->make_tables(slots, reserved, host));
  return pools;
}

Result<std::unique_ptr<DevicePools>> DevicePools::create(const ModelSpec& model, ComponentCounts slots,
                                                         std::span<const LentPlane> planes,
                                                         const ReservedSlots& reserved, MemorySource& host) {
  LARDER_RETURN_IF_ERROR(check_counts(model, slots));
  LARDER_RETURN_IF_ERROR(check_reserved(slots, reserved));
  std::unique_ptr<DevicePools> pools(new DevicePools(model));
  LARDER_RETURN_IF_ERROR(pools->take_lent(slots, planes));
  LARDER_RETURN_IF_ERROR(pools->make_tables(slots, reserved, host));
  return pools;
}

Status DevicePools::take_lent(const ComponentCounts& slots, std::span<const LentPlane> planes) {
  for (const PoolSpec& pool : model_.pools) {
    PoolArrays& at = arrays_[static_cast<std::size_t>(pool.name)];
    at.planes = pool.planes.size();
    at.arrays.resize(pool.layers.size() * at.planes);
  }
  std::vector<LentArray> taken;
  taken.reserve(planes.size());
  for (const LentPlane& lent : planes) {
    const PoolSpec* const pool = model_.find_pool(lent.pool);
    LARDER_RETURN_IF_ERROR(check_lent(lent, pool));
    PoolArrays& at = arrays_[static_cast<std::size_t>(lent.pool)];
    PlanePages& array = at.arrays[lent.layer_index * at.planes + lent.plane];
    if (array.base != nullptr) return invalid_argument(describe(lent) + " is there twice");
    array = {lent.base, lent.slot_stride};
    const std::size_t page_bytes = pool->planes[lent.plane].layer_bytes();
    const std::uint32_t count = slots[index_of(pool->component)];
    if (count == 0 || page_bytes == 0) continue;
    LentArray region{&lent, reinterpret_cast<std::uintptr_t>(lent.base), 0, page_bytes, count};
    std::uintptr_t length = 0;
    if (__builtin_mul_overflow(lent.slot_stride, std::uintptr_t{count - 1}, &length) ||
        __builtin_add_overflow(length, page_bytes, &length) ||
        __builtin_add_overflow(region.begin, length, &region.end)) {
      return invalid_argument(describe(lent) + " does not fit in an address space");
    }
    bytes_ += page_bytes * count;
    taken.push_back(region);
  }
  for (const PoolSpec& pool : model_.pools) {
    const PoolArrays& at = arrays_[static_cast<std::size_t>(pool.name)];
    for (std::size_t i = 0; i < at.arrays.size() && slots[index_of(pool.component)] > 0; ++i) {
      if (at.arrays[i].base != nullptr) continue;
      return invalid_argument(describe({pool.name, i / at.planes, i % at.planes, nullptr, 0}) + " is missing");
    }
  }
  return check_apart(taken);
}

// The host is asked for the tables' memory first, and gets it back at once: what it has not got is refused there, while
// a vector that is too large is granted, and the process killed when it is filled.
Status DevicePools::make_tables(const ComponentCounts& slots, const ReservedSlots& reserved, MemorySource& host) {
  std::size_t bytes = 0;
  for (const std::uint32_t count : slots) bytes += count * SlotTable::kBytesPerSlot;
  if (bytes > 0) {
    const auto room = host.allocate(bytes);
    if (!room) return Status(room.status().code(), "tables of device slots: " + room.status().message());
  }
  try {
    tables_.reserve(kComponentCount);
    for (std::size_t c = 0; c < kComponentCount; ++c) {
      std::vector<std::uint32_t> kept;
      for (const DeviceSlot slot : reserved[c]) kept.push_back(slot.v);
      tables_.emplace_back(slots[c], kept);
    }
  } catch (const std::bad_alloc&) {
    return overloaded("tables of device slots: no " + std::to_string(bytes >> 20) + " MiB of memory in one piece");
  }
  return Status::ok();
}

DevicePools::PlanePages DevicePools::pages_of(PoolName pool, std::size_t layer_index, std::size_t plane) const {
  const PoolArrays& at = arrays_[static_cast<std::size_t>(pool)];
  assert(plane < at.planes && layer_index * at.planes + plane < at.arrays.size());
  assert(at.arrays[layer_index * at.planes + plane].base != nullptr);
  return at.arrays[layer_index * at.planes + plane];
}

std::byte* DevicePools::page(PoolName pool, std::size_t layer_index, std::size_t plane, DeviceSlot slot) const {
  assert(slot.v < tables_[index_of(model_.find_pool(pool)->component)].size());
  return pages_of(pool, layer_index, plane).at(slot);
}

std::optional<DeviceSlot> DevicePools::allocate(ComponentKind c) {
  const auto slot = tables_[index_of(c)].allocate();
  if (!slot) return std::nullopt;
  return DeviceSlot(*slot);
}

bool DevicePools::reserve(const ComponentCounts& counts, std::array<std::vector<DeviceSlot>, kComponentCount>& out) {
  for (std::size_t c = 0; c < kComponentCount; ++c) {
    if (counts[c] > tables_[c].counts().free) return false;
  }
  for (std::size_t c = 0; c < kComponentCount; ++c) {
    for (std::uint32_t i = 0; i < counts[c]; ++i) {
      const auto slot = tables_[c].allocate();
      assert(slot);
      out[c].push_back(DeviceSlot(*slot));
    }
  }
  return true;
}

Status DevicePools::free(ComponentKind c, DeviceSlot slot) { return tables_[index_of(c)].free(slot.v).status(); }

Generation DevicePools::generation(ComponentKind c, DeviceSlot slot) const {
  return tables_[index_of(c)].generation(slot.v);
}

void DevicePools::drop_leases(std::span<const LeasedSlot> leases) {
  drop_each(tables_, leases,
            [&](const LeasedSlot& l) { (void)drop_lease(l.component, DeviceSlot(l.slot), l.generation); });
}

std::uint32_t DevicePools::free_slots(ComponentKind c) const { return tables_[index_of(c)].counts().free; }

}  // namespace larder
