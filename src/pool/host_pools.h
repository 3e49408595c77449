// SPDX-License-Identifier: Apache-2.0
// Host tier (L2): one byte budget, cut into equal blocks, shared by every pool of the model.
//
// A slot of a component is ceil(slot_bytes / block_bytes) blocks, *not necessarily adjacent*. So there is no static
// split between KV and state, no external fragmentation, and nothing to compact: a block freed by any pool serves any
// other at once. (On real traces a static split costs up to 13 points of hit rate.) block_bytes is chosen per model so
// that rounding wastes least; docs/ARCHITECTURE.md has the arithmetic.
//
// Picture, inside a slot: [pool 0 page][pool 1 page]..., pools in storage order, each page in `layout`
// (model/pool_spec.h) and each page start aligned to page_alignment (4096 when the page is at least that, else 64).
// A byte range of a page is therefore a short list of segments, one per block it touches.
//
// Markers. Slots of a component without bytes (kv of a model of recurrent layers alone) take no blocks, so the budget
// does not bound them: what they cost is bookkeeping, here and in the tree, of about 64 bytes and 4 per token. They are
// as many as have a sixteenth of the budget of that (1 GiB and pages of 16 tokens: half a million, 8 million tokens),
// but at least 65,536 (which is 1.3 MiB of tables) and at most 16.8 million. Like blocks, they serve whoever comes.
//
// Threads: bookkeeping confined to the cache thread. segments() and range lookups of a *leased* slot are pure reads of
// memory that does not change while the lease lasts: workers may call them. Slot tables never reallocate.
// Lifetime: outlives every transfer and storage operation. Memory is pre-faulted, huge pages where to be had.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "model/model_spec.h"
#include "pool/device_pools.h"
#include "pool/memory.h"
#include "pool/slot_table.h"

namespace larder {

struct Segment {
  std::byte* data = nullptr;
  std::size_t size = 0;
};

// Room on the host, in its two currencies. A slot is of one of them: blocks, or a marker.
struct HostSpace {
  std::uint64_t blocks = 0;
  std::uint64_t markers = 0;

  [[nodiscard]] bool is_none() const { return blocks == 0 && markers == 0; }
  [[nodiscard]] bool fits_in(const HostSpace& room) const { return blocks <= room.blocks && markers <= room.markers; }
  HostSpace& operator+=(const HostSpace& more) {
    blocks += more.blocks;
    markers += more.markers;
    return *this;
  }
  HostSpace& operator-=(const HostSpace& less) {  // precondition: less.fits_in(*this)
    blocks -= less.blocks;
    markers -= less.markers;
    return *this;
  }
  friend HostSpace operator+(HostSpace a, const HostSpace& b) { return a += b; }
  friend bool operator==(const HostSpace&, const HostSpace&) = default;
};

// Bytes of one host slot of a component: its pools' pages, each start aligned as above. 0: all its pools are logical.
[[nodiscard]] std::size_t host_slot_bytes(const ModelSpec& model, ComponentKind c);

// The block size for slots of these sizes (0: no such component, or a logical one). Pure.
//   granule G   4096 if the smallest slot has at least 4096 bytes (direct I/O), else 64
//   candidates  the smallest slot cut into k = 1..64 equal parts, each rounded up to G
//   cost        sum over components of ceil(slot / block) * (block + 256) / slot
// The cheapest candidate wins, the largest of equals. 256 bytes stand for what one more block costs wherever it goes:
// an entry in the tables, a segment in each copy, a vector in each I/O. They keep blocks large unless cutting smaller
// saves real memory. Returns 0 if all slots have 0 bytes.
[[nodiscard]] std::size_t choose_block_bytes(const std::array<std::size_t, kComponentCount>& slot_bytes);

class HostPools {
 public:
  // Errors: kInvalidArgument (budget smaller than one slot of some component: says the least that works), kOverloaded:
  // `memory` has no room for the budget, or none beside it for the tables (which are large where a slot is small).
  [[nodiscard]] static Result<std::unique_ptr<HostPools>> create(const ModelSpec& model, HostLayout layout,
                                                                 std::size_t budget_bytes, MemorySource& memory);

  [[nodiscard]] const ModelSpec& model() const { return model_; }
  [[nodiscard]] HostLayout layout() const { return layout_; }
  [[nodiscard]] std::size_t block_bytes() const { return block_bytes_; }
  // All of it: what a device or a storage backend may register once.
  [[nodiscard]] Segment memory() const;
  [[nodiscard]] std::uint32_t blocks_per_slot(ComponentKind c) const { return per_slot_[index_of(c)]; }
  // What `count` slots of one component take; of several.
  [[nodiscard]] HostSpace space_of(ComponentKind c, std::uint64_t count) const;
  [[nodiscard]] HostSpace space_of(const ComponentCounts& counts) const;

  [[nodiscard]] std::optional<HostSlot> allocate(ComponentKind c);
  // All or nothing over components; on false nothing was taken.
  [[nodiscard]] bool reserve(const ComponentCounts& counts, std::array<std::vector<HostSlot>, kComponentCount>& out);
  // What is missing for `counts` right now: what the caller must evict. None: reserve() would succeed. 2^64 - 1 blocks:
  // it will never fit.
  [[nodiscard]] HostSpace shortage(const ComponentCounts& counts) const;
  [[nodiscard]] Status free(ComponentKind c, HostSlot slot);
  [[nodiscard]] const SlotTable& slots(ComponentKind c) const { return tables_[index_of(c)]; }
  [[nodiscard]] Generation generation(ComponentKind c, HostSlot slot) const;
  [[nodiscard]] Result<Generation> add_lease(ComponentKind c, HostSlot slot) {
    return tables_[index_of(c)].add_lease(slot.v);
  }
  [[nodiscard]] Status drop_lease(ComponentKind c, HostSlot slot, Generation generation) {
    return settle(c, slot, tables_[index_of(c)].drop_lease(slot.v, generation));
  }
  // Those of operations that have ended, which may be stale: SlotTable counts them.
  void drop_leases(std::span<const LeasedSlot> leases);

  // Bytes [offset, offset + size) of `pool`'s page in the slot, in order, appended to `out`: at most one segment per
  // block touched (adjacent blocks are joined). Cost O(blocks touched).
  // Precondition of these three: the slot is given out, the range is inside the page (assert only: hot path).
  void append_segments(PoolName pool, HostSlot slot, std::size_t offset, std::size_t size,
                       std::vector<Segment>& out) const;
  // The whole page: pool.page_bytes() in `layout` order.
  void append_page(PoolName pool, HostSlot slot, std::vector<Segment>& out) const;
  // The contiguous bytes that start at `offset`: at least to the end of that block, joined with adjacent blocks, at
  // most `want` > 0.
  [[nodiscard]] Segment segment_at(PoolName pool, HostSlot slot, std::size_t offset, std::size_t want) const;

  // A slot's bytes in one piece: its blocks one behind the other. Pool pages lie at page_offset() in it.
  [[nodiscard]] std::size_t image_bytes(ComponentKind c) const { return per_slot_[index_of(c)] * block_bytes_; }
  [[nodiscard]] std::size_t page_offset(PoolName pool) const { return places_[static_cast<std::size_t>(pool)].offset; }
  // The number-th block of a slot. Threads as segment_at().
  [[nodiscard]] std::byte* block(ComponentKind c, HostSlot slot, std::size_t number) const {
    return memory_->data() + blocks_[index_of(c)][slot.v * std::size_t{per_slot_[index_of(c)]} + number] * block_bytes_;
  }
  // The same bytes of the page of any slot, where each page has them in one block: for loops over slots.
  struct PagePart {
    std::byte* base = nullptr;              // of block 0, and the offset inside the block
    const std::uint32_t* blocks = nullptr;  // of slot 0
    std::size_t blocks_per_slot = 0;
    std::size_t block_bytes = 0;
    [[nodiscard]] std::byte* at(HostSlot slot) const {
      return base + std::size_t{blocks[slot.v * blocks_per_slot]} * block_bytes;
    }
  };
  // Bytes [offset, offset + size) of `pool`'s pages; nullopt: they leave their block. Threads as segment_at().
  [[nodiscard]] std::optional<PagePart> part_in_one_block(PoolName pool, std::size_t offset, std::size_t size) const;

  [[nodiscard]] std::uint64_t total_blocks() const { return total_blocks_; }
  [[nodiscard]] std::uint64_t free_blocks() const { return free_blocks_.size(); }
  [[nodiscard]] HostSpace total() const { return {total_blocks_, total_markers_}; }
  [[nodiscard]] HostSpace available() const { return {free_blocks_.size(), free_markers_}; }
  [[nodiscard]] std::uint64_t used_bytes(ComponentKind c) const;  // whole blocks of live and quarantined slots
  [[nodiscard]] SlotTable::Counts counts(ComponentKind c) const;
  // Every block is free or in exactly one slot, and so is every marker. O(blocks + markers).
  [[nodiscard]] Status check_invariants() const;

 private:
  // Where a pool's page lies inside the slot of its component.
  struct PagePlace {
    ComponentKind component = ComponentKind::kFull;
    std::size_t offset = 0;  // bytes
    std::size_t size = 0;
  };
  HostPools(const ModelSpec& model, HostLayout layout, std::size_t block_bytes, std::uint64_t blocks);
  HostSlot take(ComponentKind c);  // precondition: enough free blocks, or a free marker
  void return_space(ComponentKind c, std::uint32_t slot);
  [[nodiscard]] Status settle(ComponentKind c, HostSlot slot, const Result<bool>& is_free_now) {
    if (!is_free_now) return is_free_now.status();
    if (*is_free_now) return_space(c, slot.v);
    return Status::ok();
  }

  ModelSpec model_;
  HostLayout layout_;
  std::size_t block_bytes_;
  std::uint64_t total_blocks_;
  std::uint64_t total_markers_ = 0, free_markers_ = 0;  // 0: every component has bytes
  std::array<std::uint32_t, kComponentCount> per_slot_{};
  std::array<PagePlace, kPoolNameCount> places_{};
  std::vector<SlotTable> tables_;                                   // one per component
  std::array<std::vector<std::uint32_t>, kComponentCount> blocks_;  // [component][slot * per_slot + i]
  std::vector<std::uint32_t> free_blocks_;                          // stack
  std::unique_ptr<Memory> memory_;
};

}  // namespace larder
