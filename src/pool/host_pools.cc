// SPDX-License-Identifier: Apache-2.0
#include "pool/host_pools.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <new>
#include <string>

namespace larder {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kDirectIoBytes = 4096;
constexpr std::size_t kBlockCostBytes = 256;
constexpr std::size_t kMaxCuts = 64;
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kMaxBlocks = HostSlot::kNone - 1;  // block and slot numbers are 32 bits wide
// host_pools.h derives these.
constexpr std::size_t kListBytesPerBlock = 4;  // of a list of blocks
constexpr std::uint64_t kMarkerShare = 16;
constexpr std::uint64_t kMarkerBytes = 64, kTokenBytes = 4;
constexpr std::uint64_t kLeastMarkers = std::uint64_t{1} << 16, kMostMarkers = std::uint64_t{1} << 24;

constexpr std::size_t align_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }
constexpr std::size_t granule(std::size_t bytes) { return bytes >= kDirectIoBytes ? kDirectIoBytes : kLineBytes; }
constexpr std::size_t blocks_for(std::size_t bytes, std::size_t block) { return (bytes + block - 1) / block; }

// Offset of `pool`'s page when `used` bytes of the slot lie before it. A logical page takes no room.
std::size_t page_start(const PoolSpec& pool, std::size_t used) {
  const std::size_t bytes = pool.page_bytes();
  return bytes == 0 ? used : align_up(used, granule(bytes));
}

std::uint64_t markers_for(std::uint64_t budget_bytes, std::uint32_t page_size) {
  const std::uint64_t count = budget_bytes / kMarkerShare / (kMarkerBytes + kTokenBytes * page_size);
  return std::clamp(count, kLeastMarkers, kMostMarkers);
}

// What HostPools allocates beside its region, as its constructor does.
std::size_t table_bytes(const ModelSpec& model, const std::array<std::size_t, kComponentCount>& slot_bytes,
                        std::size_t block, std::uint64_t blocks) {
  std::uint64_t bytes = blocks * kListBytesPerBlock;  // the free ones
  for (const ComponentKind c : kAllComponents) {
    if (!model.has(c)) continue;
    const std::uint64_t per_slot = blocks_for(slot_bytes[index_of(c)], block);
    const std::uint64_t slots = per_slot == 0 ? markers_for(blocks * block, model.page_size) : blocks / per_slot;
    bytes += slots * (SlotTable::kBytesPerSlot + per_slot * kListBytesPerBlock);
  }
  return static_cast<std::size_t>(bytes);
}

double block_cost(const std::array<std::size_t, kComponentCount>& slot_bytes, std::size_t block) {
  double cost = 0;
  for (const std::size_t slot : slot_bytes) {
    if (slot == 0) continue;
    cost += static_cast<double>(blocks_for(slot, block)) * static_cast<double>(block + kBlockCostBytes) /
            static_cast<double>(slot);
  }
  return cost;
}

}  // namespace

std::size_t host_slot_bytes(const ModelSpec& model, ComponentKind c) {
  std::size_t used = 0;
  for (const PoolSpec& pool : model.pools) {
    if (pool.component == c) used = page_start(pool, used) + pool.page_bytes();
  }
  return used;
}

std::size_t choose_block_bytes(const std::array<std::size_t, kComponentCount>& slot_bytes) {
  std::size_t smallest = 0;
  for (const std::size_t slot : slot_bytes) {
    if (slot > 0 && (smallest == 0 || slot < smallest)) smallest = slot;
  }
  if (smallest == 0) return 0;
  const std::size_t unit = granule(smallest);
  std::size_t best = 0;
  double best_cost = 0;
  for (std::size_t cuts = 1; cuts <= kMaxCuts; ++cuts) {
    const std::size_t block = align_up(blocks_for(smallest, cuts), unit);
    const double cost = block_cost(slot_bytes, block);
    if (best == 0 || cost < best_cost) {
      best = block;
      best_cost = cost;
    }
  }
  return best;
}

HostPools::HostPools(const ModelSpec& model, HostLayout layout, std::size_t block_bytes, std::uint64_t blocks)
    : model_(model), layout_(layout), block_bytes_(block_bytes), total_blocks_(blocks) {
  std::array<std::size_t, kComponentCount> used{};
  for (const PoolSpec& pool : model_.pools) {
    std::size_t& end = used[index_of(pool.component)];
    const std::size_t start = page_start(pool, end);
    places_[static_cast<std::size_t>(pool.name)] = {pool.component, start, pool.page_bytes()};
    end = start + pool.page_bytes();
  }
  tables_.reserve(kComponentCount);
  for (const ComponentKind c : kAllComponents) {
    const std::size_t i = index_of(c);
    const std::uint64_t per_slot = blocks_for(used[i], block_bytes);
    per_slot_[i] = static_cast<std::uint32_t>(per_slot);  // <= blocks, checked by create()
    if (model_.has(c) && per_slot == 0) total_markers_ = markers_for(blocks * block_bytes, model_.page_size);
    const std::uint64_t capacity = !model_.has(c) ? 0 : per_slot == 0 ? total_markers_ : blocks / per_slot;
    tables_.emplace_back(static_cast<std::uint32_t>(capacity));
    blocks_[i].resize(static_cast<std::size_t>(capacity * per_slot));
  }
  free_markers_ = total_markers_;
  free_blocks_.reserve(static_cast<std::size_t>(blocks));
  // Lowest on top: a fresh tier hands out adjacent blocks, and their segments join.
  for (std::uint64_t b = blocks; b > 0; --b) free_blocks_.push_back(static_cast<std::uint32_t>(b - 1));
}

Segment HostPools::memory() const { return {memory_->data(), memory_->size()}; }

Result<std::unique_ptr<HostPools>> HostPools::create(const ModelSpec& model, HostLayout layout,
                                                     std::size_t budget_bytes, MemorySource& memory) {
  std::array<std::size_t, kComponentCount> slot_bytes{};
  for (const ComponentKind c : kAllComponents) slot_bytes[index_of(c)] = host_slot_bytes(model, c);
  const std::size_t block = choose_block_bytes(slot_bytes);
  if (block == 0)
    return invalid_argument("model " + model.id + " stores no bytes: there is nothing to keep on the host");
  const std::size_t largest = *std::max_element(slot_bytes.begin(), slot_bytes.end());
  const std::uint64_t least = blocks_for(largest, block);
  const std::uint64_t blocks = std::min<std::uint64_t>(budget_bytes / block, kMaxBlocks);
  if (blocks < least) {
    return invalid_argument("host budget of " + std::to_string(budget_bytes) +
                            " bytes is smaller than one slot of model " + model.id + ": give at least " +
                            std::to_string(least * block) + " bytes");
  }
  auto region = memory.allocate(static_cast<std::size_t>(blocks) * block);
  if (!region) return region.status();
  // Asked for, and given back at once: what the machine has not got is refused here, while a vector that is too large
  // is granted, and the process killed when it is filled.
  const std::size_t tables = table_bytes(model, slot_bytes, block, blocks);
  if (const auto room = memory.allocate(tables); !room) {
    return Status(room.status().code(), "tables of host slots: " + room.status().message());
  }
  try {
    std::unique_ptr<HostPools> pools(new HostPools(model, layout, block, blocks));
    pools->memory_ = std::move(region).value();
    return pools;
  } catch (const std::bad_alloc&) {
    return overloaded("tables of host slots: no " + std::to_string(tables >> 20) + " MiB of memory in one piece");
  }
}

HostSlot HostPools::take(ComponentKind c) {
  const std::size_t i = index_of(c);
  const auto slot = tables_[i].allocate();
  assert(slot);
  if (per_slot_[i] == 0) --free_markers_;
  const std::size_t first = std::size_t{*slot} * per_slot_[i];
  for (std::size_t b = 0; b < per_slot_[i]; ++b) {
    blocks_[i][first + b] = free_blocks_.back();
    free_blocks_.pop_back();
  }
  return HostSlot(*slot);
}

std::optional<HostSlot> HostPools::allocate(ComponentKind c) {
  ComponentCounts one{};
  one[index_of(c)] = 1;
  return shortage(one).is_none() ? std::optional<HostSlot>(take(c)) : std::nullopt;
}

HostSpace HostPools::space_of(ComponentKind c, std::uint64_t count) const {
  const std::uint64_t per_slot = per_slot_[index_of(c)];
  return per_slot == 0 ? HostSpace{0, count} : HostSpace{count * per_slot, 0};
}

HostSpace HostPools::space_of(const ComponentCounts& counts) const {
  HostSpace space;
  for (const ComponentKind c : kAllComponents) space += space_of(c, counts[index_of(c)]);
  return space;
}

HostSpace HostPools::shortage(const ComponentCounts& counts) const {
  for (std::size_t i = 0; i < kComponentCount; ++i) {
    if (counts[i] > tables_[i].capacity()) return {kNever, 0};
  }
  const HostSpace needed = space_of(counts), free = available();  // no sum overflows, by the capacities
  if (!needed.fits_in(total())) return {kNever, 0};
  return {needed.blocks - std::min(needed.blocks, free.blocks),
          needed.markers - std::min(needed.markers, free.markers)};
}

bool HostPools::reserve(const ComponentCounts& counts, std::array<std::vector<HostSlot>, kComponentCount>& out) {
  // Enough free blocks and markers imply enough free slots: a table has one for all that there are.
  if (!shortage(counts).is_none()) return false;
  for (const ComponentKind c : kAllComponents) {
    for (std::uint32_t n = 0; n < counts[index_of(c)]; ++n) out[index_of(c)].push_back(take(c));
  }
  return true;
}

void HostPools::return_space(ComponentKind c, std::uint32_t slot) {
  const std::size_t i = index_of(c);
  if (per_slot_[i] == 0) ++free_markers_;
  const std::size_t first = std::size_t{slot} * per_slot_[i];
  // Last block first, so that the next slot gets them in their old order.
  for (std::size_t b = per_slot_[i]; b > 0; --b) free_blocks_.push_back(blocks_[i][first + b - 1]);
}

Status HostPools::free(ComponentKind c, HostSlot slot) { return settle(c, slot, tables_[index_of(c)].free(slot.v)); }

Generation HostPools::generation(ComponentKind c, HostSlot slot) const {
  return tables_[index_of(c)].generation(slot.v);
}

void HostPools::drop_leases(std::span<const LeasedSlot> leases) {
  drop_each(tables_, leases,
            [&](const LeasedSlot& l) { (void)drop_lease(l.component, HostSlot(l.slot), l.generation); });
}

Segment HostPools::segment_at(PoolName pool, HostSlot slot, std::size_t offset, std::size_t want) const {
  const PagePlace& place = places_[static_cast<std::size_t>(pool)];
  const std::size_t i = index_of(place.component);
  assert(want > 0 && offset < place.size && want <= place.size - offset);
  assert(slot.v < tables_[i].capacity());
  const std::size_t at = place.offset + offset;
  const std::size_t block = at / block_bytes_;
  const std::size_t inside = at - block * block_bytes_;
  const std::uint32_t* numbers = blocks_[i].data() + std::size_t{slot.v} * per_slot_[i] + block;
  std::size_t size = block_bytes_ - inside;
  for (std::size_t n = 0; size < want && numbers[n] + 1 == numbers[n + 1]; ++n) size += block_bytes_;
  return {memory_->data() + std::size_t{numbers[0]} * block_bytes_ + inside, std::min(size, want)};
}

std::optional<HostPools::PagePart> HostPools::part_in_one_block(PoolName pool, std::size_t offset,
                                                                std::size_t size) const {
  const PagePlace& place = places_[static_cast<std::size_t>(pool)];
  const std::size_t i = index_of(place.component);
  assert(offset + size <= place.size);
  const std::size_t block = (place.offset + offset) / block_bytes_;
  const std::size_t inside = place.offset + offset - block * block_bytes_;
  if (size > block_bytes_ - inside) return std::nullopt;
  return PagePart{memory_->data() + inside, blocks_[i].data() + block, per_slot_[i], block_bytes_};
}

void HostPools::append_segments(PoolName pool, HostSlot slot, std::size_t offset, std::size_t size,
                                std::vector<Segment>& out) const {
  while (size > 0) {
    const Segment segment = segment_at(pool, slot, offset, size);
    out.push_back(segment);
    offset += segment.size;
    size -= segment.size;
  }
}

void HostPools::append_page(PoolName pool, HostSlot slot, std::vector<Segment>& out) const {
  append_segments(pool, slot, 0, places_[static_cast<std::size_t>(pool)].size, out);
}

std::uint64_t HostPools::used_bytes(ComponentKind c) const {
  const SlotTable::Counts slots = counts(c);
  return (std::uint64_t{slots.live} + slots.quarantined) * per_slot_[index_of(c)] * block_bytes_;
}

SlotTable::Counts HostPools::counts(ComponentKind c) const { return tables_[index_of(c)].counts(); }

Status HostPools::check_invariants() const {
  std::vector<bool> seen(static_cast<std::size_t>(total_blocks_), false);
  const auto mark = [&](std::uint32_t block) {
    if (block >= total_blocks_ || seen[block]) return false;
    seen[block] = true;
    return true;
  };
  for (const std::uint32_t block : free_blocks_) {
    if (!mark(block)) return internal_error("block " + std::to_string(block) + " is twice on the free stack");
  }
  std::uint64_t markers = free_markers_;
  for (std::size_t i = 0; i < kComponentCount; ++i) {
    LARDER_RETURN_IF_ERROR(tables_[i].check_invariants());
    if (per_slot_[i] == 0) markers += tables_[i].counts().live + tables_[i].counts().quarantined;
    for (std::uint32_t slot = 0; slot < tables_[i].capacity(); ++slot) {
      if (tables_[i].is_free(slot)) continue;
      for (std::size_t b = 0; b < per_slot_[i]; ++b) {
        const std::uint32_t block = blocks_[i][std::size_t{slot} * per_slot_[i] + b];
        if (!mark(block)) return internal_error("block " + std::to_string(block) + " is free and used, or used twice");
      }
    }
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end())
    return internal_error("a block is neither free nor used");
  if (markers != total_markers_) return internal_error("markers are not conserved");
  return Status::ok();
}

}  // namespace larder
