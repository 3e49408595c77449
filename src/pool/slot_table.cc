// SPDX-License-Identifier: Apache-2.0
#include "pool/slot_table.h"

#include <cassert>
#include <string>

#include "base/defect.h"

namespace larder {
namespace {

Status refused(const char* what, std::uint32_t slot) {
  return internal_error(std::string(what) + ": slot " + std::to_string(slot));
}

}  // namespace

SlotTable::SlotTable(std::uint32_t slots, std::span<const std::uint32_t> reserved) : slots_(slots) {
  for (const std::uint32_t slot : reserved) {
    assert(slot < slots);
    reserved_ += slots_[slot].state == State::kReserved ? 0 : 1;
    slots_[slot].state = State::kReserved;
  }
  free_.reserve(capacity());
  // Lowest index on top: a fresh pool hands out ascending, hence adjacent, slots, and their copies merge.
  for (std::uint32_t i = slots; i > 0; --i) {
    if (slots_[i - 1].state == State::kFree) free_.push_back(i - 1);
  }
  counts_.free = capacity();
}

std::optional<std::uint32_t> SlotTable::allocate() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  Entry& entry = slots_[slot];
  entry.state = State::kLive;
  // 0 stays reserved for "never given out", so a zeroed lease never matches.
  if (++entry.generation == 0) entry.generation = 1;
  --counts_.free;
  ++counts_.live;
  return slot;
}

Result<bool> SlotTable::free(std::uint32_t slot) {
  if (!is_live(slot)) {
    ++refusals_.double_frees;
    return refused("free of a slot that is not live", slot);
  }
  Entry& entry = slots_[slot];
  --counts_.live;
  if (entry.leases > 0 && !defect(Defect::kSlotFreedUnderCopy)) {
    entry.state = State::kQuarantined;
    ++counts_.quarantined;
    return false;
  }
  put_back(slot);
  return true;
}

Status SlotTable::refuse_lease(std::uint32_t slot) {
  if (is_live(slot)) return overloaded("slot " + std::to_string(slot) + " has the most leases a slot can have");
  ++refusals_.illegal_leases;
  return refused("lease of a slot that is not live", slot);
}

Status SlotTable::refuse_drop(std::uint32_t slot, Generation generation) {
  if (slot < slots_.size() && slots_[slot].generation != generation) {
    ++refusals_.stale_leases;
    return conflict("lease of slot " + std::to_string(slot) + " names generation " + std::to_string(generation) +
                    ", the slot is at " + std::to_string(slots_[slot].generation));
  }
  ++refusals_.illegal_leases;
  return refused(
      slot < slots_.size() ? "drop of a lease that is not held" : "drop of a lease on a slot that does not exist",
      slot);
}

void SlotTable::put_back(std::uint32_t slot) {
  slots_[slot].state = State::kFree;
  free_.push_back(slot);  // capacity was reserved at construction
  ++counts_.free;
}

bool SlotTable::is_free(std::uint32_t slot) const {
  return slot >= slots_.size() || slots_[slot].state == State::kFree;
}

Status SlotTable::check_invariants() const {
  Counts seen;
  std::uint32_t reserved = 0;
  for (const Entry& entry : slots_) {
    switch (entry.state) {
      case State::kFree: ++seen.free; break;
      case State::kLive: ++seen.live; break;
      case State::kQuarantined: ++seen.quarantined; break;
      case State::kReserved: ++reserved; break;
    }
    seen.leases += entry.leases;
    if (entry.state == State::kFree && entry.leases != 0) return internal_error("a free slot is leased");
    if (entry.state == State::kReserved && entry.leases != 0) return internal_error("a reserved slot is leased");
    if (entry.state == State::kQuarantined && entry.leases == 0) return internal_error("quarantine without a lease");
  }
  if (reserved != reserved_) return internal_error("reserved slots are not what they were");
  if (!(seen == counts_)) return internal_error("slot counts differ from the slots");
  if (free_.size() != counts_.free) return internal_error("the free stack differs from the free count");
  std::vector<bool> on_stack(slots_.size(), false);
  for (const std::uint32_t slot : free_) {
    if (slot >= slots_.size() || slots_[slot].state != State::kFree)
      return internal_error("free stack holds a used slot");
    if (on_stack[slot]) return internal_error("a slot is twice on the free stack");
    on_stack[slot] = true;
  }
  return Status::ok();
}

}  // namespace larder
