// SPDX-License-Identifier: Apache-2.0
// The life of a slot: generations, leases, quarantine (rule 3).
//
// State machine of one slot (test data in slot_table_test.cc):
//   state        | allocate | lease      | release lease        | free
//   free         | live     | illegal    | illegal              | illegal
//   live         | –        | leases+1   | leases-1             | leases==0 ? free : quarantined
//   quarantined  | –        | illegal    | last one: free       | illegal
// A slot that an operation may still read or write (a lease) is never handed out again, also after time-out, cancel,
// abort, flush and shutdown. A lease names the generation it was taken at; a stale one is refused and counted.
// A reserved slot has none of these states: it is somebody else's for ever, and every call for it is illegal.
//
// Threads: confined to the cache thread. Cost: O(1) each, no allocation after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "model/pool_spec.h"

namespace larder {

struct LeasedSlot {
  ComponentKind component;
  std::uint32_t slot;
  Generation generation;
};

class SlotTable {
 public:
  static constexpr std::size_t kBytesPerSlot = 12;  // an entry, and a place on the free stack
  struct Counts {
    std::uint32_t free = 0, live = 0, quarantined = 0, leases = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  // Refused calls since construction. Each one is a bug of the caller, except stale leases after a late completion.
  struct Refusals {
    std::uint64_t double_frees = 0, stale_leases = 0, illegal_leases = 0;
    friend bool operator==(const Refusals&, const Refusals&) = default;
  };
  static constexpr std::uint32_t kMaxLeasesPerSlot = 65'535;

  // slots < 2^32 - 1: the last index means "no slot". reserved: slots that are never handed out; ascending or not, also
  // twice. Precondition: each is below `slots`.
  explicit SlotTable(std::uint32_t slots, std::span<const std::uint32_t> reserved = {});

  // Most recently freed first (warm lines). nullopt: full.
  [[nodiscard]] std::optional<std::uint32_t> allocate();
  // kInternal on a double free (counted, refused). Returns true if the slot is free now, false if it is quarantined.
  [[nodiscard]] Result<bool> free(std::uint32_t slot);
  // 0 for a slot that was never given out or does not exist.
  [[nodiscard]] Generation generation(std::uint32_t slot) const {
    return slot < slots_.size() ? slots_[slot].generation : 0;
  }
  // The generation that the lease names. kInternal: the slot is not live. kOverloaded: kMaxLeasesPerSlot reached.
  // Nothing changes on an error.
  [[nodiscard]] Result<Generation> add_lease(std::uint32_t slot) {
    if (!is_live(slot) || slots_[slot].leases >= kMaxLeasesPerSlot) return refuse_lease(slot);
    ++slots_[slot].leases;
    ++counts_.leases;
    return slots_[slot].generation;
  }
  // Returns true if this freed a quarantined slot. kConflict: stale generation. kInternal: no lease is held. Nothing
  // changes on an error.
  [[nodiscard]] Result<bool> drop_lease(std::uint32_t slot, Generation generation) {
    if (!holds(slot, generation)) return refuse_drop(slot, generation);
    Entry& entry = slots_[slot];
    --entry.leases;
    --counts_.leases;
    if (entry.state != State::kQuarantined || entry.leases > 0) return false;
    --counts_.quarantined;
    put_back(slot);
    return true;
  }

  // Of a slot whose turn is kPrefetchAhead slots later. Slots of a long prompt lie anywhere in the table, and the
  // entries come from memory side by side instead of one after the other.
  static constexpr std::size_t kPrefetchAhead = 16;
  void prefetch(std::uint32_t slot) const {
    if (slot < slots_.size()) __builtin_prefetch(&slots_[slot], 1);
  }

  [[nodiscard]] bool is_live(std::uint32_t slot) const {
    return slot < slots_.size() && slots_[slot].state == State::kLive;
  }
  [[nodiscard]] bool is_free(std::uint32_t slot) const;  // true also for a slot that does not exist
  // Indices are below it.
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(slots_.size()); }
  // Slots that can be handed out: all but the reserved ones.
  [[nodiscard]] std::uint32_t capacity() const { return size() - reserved_; }
  [[nodiscard]] Counts counts() const { return counts_; }
  [[nodiscard]] Refusals refusals() const { return refusals_; }
  [[nodiscard]] Status check_invariants() const;  // O(capacity)

 private:
  enum class State : std::uint8_t { kFree, kLive, kQuarantined, kReserved };
  struct Entry {
    Generation generation = 0;
    std::uint16_t leases = 0;
    State state = State::kFree;
  };
  static_assert(sizeof(Entry) == 8);
  [[nodiscard]] bool holds(std::uint32_t slot, Generation generation) const {
    return slot < slots_.size() && slots_[slot].generation == generation && slots_[slot].leases > 0;
  }
  [[nodiscard]] Status refuse_lease(std::uint32_t slot);
  [[nodiscard]] Status refuse_drop(std::uint32_t slot, Generation generation);
  void put_back(std::uint32_t slot);

  std::vector<Entry> slots_;         // owned by the cache thread
  std::vector<std::uint32_t> free_;  // stack
  std::uint32_t reserved_ = 0;
  Counts counts_;
  Refusals refusals_;
};

// drop(lease) for each; entries of those to come are prefetched. tables: one for each component.
template <class Drop>
void drop_each(std::span<const SlotTable> tables, std::span<const LeasedSlot> leases, Drop&& drop) {
  for (std::size_t i = 0; i < leases.size(); ++i) {
    if (i + SlotTable::kPrefetchAhead < leases.size()) {
      const LeasedSlot& later = leases[i + SlotTable::kPrefetchAhead];
      tables[index_of(later.component)].prefetch(later.slot);
    }
    drop(leases[i]);
  }
}

}  // namespace larder
