// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace larder::llama {
namespace {

constexpr std::uint32_t kOtherChoice = 2, kMostOtherChoices = 16;  // eight in a row, or more than every third
constexpr Nanos kLook = std::chrono::milliseconds(100);

}  // namespace

SlotTable::Hold& SlotTable::Hold::operator=(Hold&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  table_ = std::exchange(other.table_, nullptr);
  slots_ = std::move(other.slots_);
  contents_ = std::move(other.contents_);
  epoch_ = other.epoch_;
  return *this;
}

void SlotTable::Hold::give_back() {
  if (table_ == nullptr) return;
  SlotTable& table = *std::exchange(table_, nullptr);
  LockGuard guard(table.mutex_);
  if (epoch_ != table.epoch_) contents_.disown();
  for (const std::uint32_t slot : slots_) {
    table.slots_[slot].is_busy = false;
    table.slots_[slot].contents.disown();
  }
  table.slots_[slots_.front()].contents = std::move(contents_);
  table.changed_.notify_all();
}

SlotTable::SlotTable(std::uint32_t slots, std::uint32_t max_waiting, Clock& clock)
    : max_waiting_(max_waiting), clock_(clock), slots_(slots) {}

Result<SlotTable::Hold> SlotTable::acquire(const Wish& wish) {
  if (wish.count == 0 || wish.count > size()) {
    return invalid_argument(fmt::format("{} slots are wanted, and there are {}", wish.count, size()));
  }
  const TimePoint end = clock_.now() + wish.limit;
  LockGuard guard(mutex_);
  if (queue_.size() >= max_waiting_) {
    return overloaded(fmt::format("{} requests wait for one of {} slots, which is the limit", queue_.size(), size()));
  }
  const auto me = queue_.insert(queue_.end(), &wish);
  Status status;
  while (queue_.front() != &wish || free_slots() < wish.count) {
    if (wish.is_gone && wish.is_gone()) status = cancelled("the client has left while it waited for a slot");
    if (status.is_ok() && clock_.now() >= end) status = deadline_exceeded("no slot of llama-server became free");
    if (!status.is_ok()) break;
    changed_.wait_for(mutex_, kLook);
  }
  queue_.erase(me);
  changed_.notify_all();  // the next one has its turn
  if (!status.is_ok()) return status;
  return take(wish);
}

SlotTable::Hold SlotTable::take(const Wish& wish) {
  Hold hold;
  for (std::uint32_t i = 0; i < wish.count; ++i) take_one(choose(wish), hold);
  hold.contents_ = std::move(slots_[hold.slot()].contents);
  hold.contents_.begin(wish.owner);
  return hold;
}

void SlotTable::take_one(std::uint32_t slot, Hold& hold) {
  hold.table_ = this;
  hold.epoch_ = epoch_;
  slots_[slot].is_busy = true;
  slots_[slot].used = ++uses_;
  hold.slots_.push_back(slot);
}

std::vector<SlotTable::Hold> SlotTable::take_free(bool of_composed) {
  LockGuard guard(mutex_);
  std::vector<Hold> holds;
  for (std::uint32_t slot = 0; slot < size(); ++slot) {
    if (slots_[slot].is_busy || (of_composed && slots_[slot].contents.composed() == 0)) continue;
    take_one(slot, holds.emplace_back());
    holds.back().contents_ = std::move(slots_[slot].contents);
  }
  return holds;
}

// What a slot holds can be had again from the host, so a short common beginning is no reason to take it away from
// whoever comes back for the rest.
std::uint32_t SlotTable::choose(const Wish& wish) const {
  const Slot *best = nullptr, *oldest = nullptr;
  std::uint64_t most = 0;
  for (const Slot& slot : slots_) {
    if (slot.is_busy) continue;
    if (oldest == nullptr || slot.used < oldest->used) oldest = &slot;
    const std::uint64_t use = wish.by_likeness                      ? slot.contents.common(wish.prompt)
                              : slot.contents.owner() == wish.owner ? slot.contents.reusable(wish.prompt, habits_)
                                                                    : 0;
    if (use > most && (wish.by_likeness || use >= slot.contents.size() / 2)) {
      most = use;
      best = &slot;
    }
  }
  return static_cast<std::uint32_t>((best != nullptr ? best : oldest) - slots_.data());
}

std::uint32_t SlotTable::free_slots() const {
  return static_cast<std::uint32_t>(std::ranges::count(slots_, false, &Slot::is_busy));
}

void SlotTable::forget_all() {
  LockGuard guard(mutex_);
  ++epoch_;
  for (Slot& slot : slots_) slot.contents.disown();
}

void SlotTable::forget_free() {
  LockGuard guard(mutex_);
  for (Slot& slot : slots_) {
    if (!slot.is_busy) slot.contents.disown();
  }
}

void SlotTable::note_choice(bool is_ours) {
  LockGuard guard(mutex_);
  other_choices_ = is_ours ? other_choices_ - std::min(other_choices_, 1u) : other_choices_ + kOtherChoice;
}

bool SlotTable::chooses_by_likeness() const {
  LockGuard guard(mutex_);
  return other_choices_ < kMostOtherChoices;
}

void SlotTable::set_habits(const EngineHabits& habits) {
  LockGuard guard(mutex_);
  habits_ = habits;
}

EngineHabits SlotTable::habits() const {
  LockGuard guard(mutex_);
  return habits_;
}

SlotHit SlotTable::best(std::span<const TokenId> prompt, const std::string& owner) const {
  LockGuard guard(mutex_);
  SlotHit best;
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (slots_[i].is_busy || slots_[i].contents.owner() != owner) continue;
    const std::uint64_t held = slots_[i].contents.reusable(prompt, habits_);
    if (held > best.tokens) best = {i, held};
  }
  return best;
}

SlotTable::Use SlotTable::use() const {
  LockGuard guard(mutex_);
  return {size() - free_slots(), static_cast<std::uint32_t>(queue_.size())};
}

}  // namespace larder::llama
