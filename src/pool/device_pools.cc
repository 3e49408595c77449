#include "pool/device_pools.h"

#include <cassert>
#include <limits>
#include <new>
#include <string>

namespace larder {
namespace {

constexpr std::size_t kArrayAlignment = 64;     // one cache line; also the widest vector register
constexpr std::size_t kTableBytesPerSlot = 12;  // of a SlotTable: an entry, and a place on the free stack

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

}  // namespace

Result<std::unique_ptr<DevicePools>> DevicePools::create(const ModelSpec& model, ComponentCounts slots,
                                                         MemorySource& memory, MemorySource& host) {
  LARDER_RETURN_IF_ERROR(check_counts(model, slots));
  std::unique_ptr<DevicePools> pools(new DevicePools(model));
  std::array<std::vector<std::size_t>, kPoolNameCount> offsets;
  std::size_t total = 0;
  for (const PoolSpec& pool : pools->model_.pools) {
    auto& arrays = pools->planes_[static_cast<std::size_t>(pool.name)];
    for (const PlaneSpec& plane : pool.planes) {
      offsets[static_cast<std::size_t>(pool.name)].push_back(total);
      PlaneArray array;
      array.slot_stride = plane.layer_bytes();
      const std::size_t count = slots[index_of(pool.component)];
      if (!add_array(pool.layers.size(), count, array.slot_stride, array.layer_stride, total)) {
        return invalid_argument("device pool " + std::string(pool_name(pool.name)) +
                                " does not fit in an address space");
      }
      arrays.push_back(array);
    }
  }
  pools->bytes_ = total;
  if (total > 0) {  // else: logical pools only, or no slots
    auto region = memory.allocate(total);
    if (!region) return region.status();
    pools->memory_ = std::move(region).value();
    for (std::size_t p = 0; p < kPoolNameCount; ++p) {
      for (std::size_t i = 0; i < offsets[p].size(); ++i)
        pools->planes_[p][i].base = pools->memory_->data() + offsets[p][i];
    }
  }
  LARDER_RETURN_IF_ERROR(pools->make_tables(slots, host));
  return pools;
}

// The host is asked for the tables' memory first, and gets it back at once: what it has not got is refused there, while
// a vector that is too large is granted, and the process killed when it is filled.
Status DevicePools::make_tables(const ComponentCounts& slots, MemorySource& host) {
  std::size_t bytes = 0;
  for (const std::uint32_t count : slots) bytes += count * kTableBytesPerSlot;
  if (bytes > 0) {
    const auto room = host.allocate(bytes);
    if (!room) return Status(room.status().code(), "tables of device slots: " + room.status().message());
  }
  try {
    tables_.reserve(kComponentCount);
    for (const std::uint32_t count : slots) tables_.emplace_back(count);
  } catch (const std::bad_alloc&) {
    return overloaded("tables of device slots: no " + std::to_string(bytes >> 20) + " MiB of memory in one piece");
  }
  return Status::ok();
}

std::byte* DevicePools::page(PoolName pool, std::size_t layer_index, std::size_t plane, DeviceSlot slot) const {
  const auto& arrays = planes_[static_cast<std::size_t>(pool)];
  assert(plane < arrays.size() && arrays[plane].base != nullptr);
  assert(layer_index < model_.find_pool(pool)->layers.size());
  assert(slot.v < tables_[index_of(model_.find_pool(pool)->component)].capacity());
  const PlaneArray& array = arrays[plane];
  return array.base + layer_index * array.layer_stride + slot.v * array.slot_stride;
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

Status DevicePools::add_lease(ComponentKind c, DeviceSlot slot) { return tables_[index_of(c)].add_lease(slot.v); }

Status DevicePools::drop_lease(ComponentKind c, DeviceSlot slot, Generation generation) {
  return tables_[index_of(c)].drop_lease(slot.v, generation).status();
}

std::uint32_t DevicePools::free_slots(ComponentKind c) const { return tables_[index_of(c)].counts().free; }

}  // namespace larder
