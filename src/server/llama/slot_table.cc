// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace larder::llama {
namespace {

constexpr std::uint32_t kOtherChoice = 2, kMostOtherChoices = 16;  // eight in a row, or more than every third
constexpr Nanos kSlotLook = std::chrono::milliseconds(100);
// Cells that llama-server uses for a while and nobody counts: drafts, a masked cell of each restored slot, tokens of
// which no event has told yet.
constexpr std::uint64_t kSpareTokens = 64;

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
  Slot& first = table.slots_[slots_.front()];
  if (first.is_doubted) contents_.doubt();
  for (const std::uint32_t one : slots_) {
    Slot& slot = table.slots_[one];
    slot.is_busy = slot.is_doubted = false;
    slot.growth = 0;
    slot.tokens = std::max(slot.tokens, first.tokens);  // further answers are made in copies of the first slot
    slot.contents.disown();
  }
  first.contents = std::move(contents_);
  table.changed_.notify_all();
}

void SlotTable::Hold::note_size(std::uint64_t tokens, std::uint64_t growth) {
  LockGuard guard(table_->mutex_);
  Slot& slot = table_->slots_[slots_.front()];
  const bool is_more = tokens > slot.tokens;
  slot.tokens = tokens;
  slot.growth = growth;
  if (is_more && table_->is_too_much(table_->all_tokens(false))) table_->doubt_but(slots_.front());
}

void SlotTable::Hold::note_possible_size(std::uint64_t tokens) {
  LockGuard guard(table_->mutex_);
  Slot& slot = table_->slots_[slots_.front()];
  slot.tokens = std::max(slot.tokens, tokens);
}

void SlotTable::Hold::doubt_others() {
  LockGuard guard(table_->mutex_);
  if (table_->habits_.shared_context > 0) table_->doubt_but(slots_.front());
}

void SlotTable::Hold::trust() {
  LockGuard guard(table_->mutex_);
  table_->slots_[slots_.front()].is_doubted = false;
}

SlotTable::SlotTable(std::uint32_t slots, std::uint32_t max_waiting, Clock& clock)
    : max_waiting_(max_waiting), clock_(clock), slots_(slots) {}

Result<SlotTable::Hold> SlotTable::acquire(const Wish& wish) {
  LockGuard guard(mutex_);
  LARDER_RETURN_IF_ERROR(wait_for_turn(wish));
  return take(wish);
}

Result<std::vector<SlotTable::Hold>> SlotTable::acquire_all(Wish wish) {
  wish.count = size();
  LockGuard guard(mutex_);
  LARDER_RETURN_IF_ERROR(wait_for_turn(wish));
  std::vector<Hold> holds;
  for (std::uint32_t slot = 0; slot < size(); ++slot) {
    Hold& hold = holds.emplace_back();
    take_one(slot, hold);
    slots_[slot].used = ++uses_;
    hold.contents_ = std::move(slots_[slot].contents);
    hold.contents_.begin(wish.owner);
  }
  return holds;
}

Status SlotTable::wait_for_turn(const Wish& wish) {
  if (wish.count == 0 || wish.count > size()) {
    return invalid_argument(fmt::format("{} slots are wanted, and there are {}", wish.count, size()));
  }
  const TimePoint end = clock_.now() + wish.limit;
  if (queue_.size() >= max_waiting_) {
    return overloaded(fmt::format("{} requests wait for one of {} slots, which is the limit", queue_.size(), size()));
  }
  const auto me = queue_.insert(queue_.end(), &wish);
  Status status;
  while (queue_.front() != &wish || free_slots() < wish.count) {
    if (wish.is_gone && wish.is_gone()) status = cancelled("the client has left while it waited for a slot");
    if (status.is_ok() && clock_.now() >= end) status = deadline_exceeded("no slot of llama-server became free");
    if (!status.is_ok()) break;
    changed_.wait_for(mutex_, kSlotLook);
  }
  queue_.erase(me);
  changed_.notify_all();  // the next one has its turn
  return status;
}

SlotTable::Hold SlotTable::take(const Wish& wish) {
  Hold hold;
  for (std::uint32_t i = 0; i < wish.count; ++i) {
    const std::uint32_t slot = choose(wish);
    take_one(slot, hold);
    slots_[slot].used = ++uses_;
  }
  hold.contents_ = std::move(slots_[hold.slot()].contents);
  hold.contents_.begin(wish.owner);
  // What others may have grown to, unseen.
  const bool grows = std::ranges::any_of(slots_, [](const Slot& one) { return one.growth > 0; });
  if (grows && is_too_much(all_tokens(true))) hold.contents_.doubt();
  return hold;
}

bool SlotTable::is_too_much(std::uint64_t tokens) const {
  return habits_.shared_context > 0 && tokens + kSpareTokens > habits_.shared_context;
}

std::uint64_t SlotTable::tokens_of(const Slot& slot) const { return std::min(slot.tokens, habits_.shared_context); }

std::uint64_t SlotTable::all_tokens(bool with_growth) const {
  std::uint64_t sum = 0;
  for (const Slot& slot : slots_) {
    sum += tokens_of(slot) + (with_growth ? std::min(slot.growth, habits_.shared_context) : 0);
  }
  return sum;
}

void SlotTable::doubt_but(std::uint32_t slot) {
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (i == slot) continue;
    slots_[i].is_busy ? static_cast<void>(slots_[i].is_doubted = true) : slots_[i].contents.doubt();
  }
}

std::vector<SlotTable::Hold> SlotTable::take_crowding(const Hold& mine, std::uint64_t tokens) {
  LockGuard guard(mutex_);
  std::vector<Hold> holds;
  // What is in its own slot goes, or is a part of them.
  std::uint64_t all = all_tokens(false) - tokens_of(slots_[mine.slot()]) + tokens;
  const auto goes_before = [](const Slot& a, const Slot& b) {
    return std::tuple(!a.contents.is_unknown(), a.used) < std::tuple(!b.contents.is_unknown(), b.used);
  };
  while (is_too_much(all)) {
    const Slot* victim = nullptr;
    for (const Slot& slot : slots_) {
      if (slot.is_busy || slot.tokens == 0) continue;
      if (victim == nullptr || goes_before(slot, *victim)) victim = &slot;
    }
    if (victim == nullptr) break;
    all -= tokens_of(*victim);
    const auto slot = static_cast<std::uint32_t>(victim - slots_.data());
    take_one(slot, holds.emplace_back());
    holds.back().contents_ = std::move(slots_[slot].contents);
  }
  return holds;
}

void SlotTable::take_one(std::uint32_t slot, Hold& hold) {
  hold.table_ = this;
  hold.epoch_ = epoch_;
  slots_[slot].is_busy = true;
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

void SlotTable::forget_all(std::uint64_t most) {
  LockGuard guard(mutex_);
  ++epoch_;
  for (Slot& slot : slots_) {
    slot.contents.disown();
    slot.tokens = std::max(slot.tokens, most);
  }
}

void SlotTable::forget_free(std::uint64_t most) {
  LockGuard guard(mutex_);
  for (Slot& slot : slots_) {
    if (slot.is_busy) continue;
    slot.contents.disown();
    slot.tokens = std::max(slot.tokens, most);
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

void SlotTable::note_salt() {
  LockGuard guard(mutex_);
  has_salts_ = true;
}

bool SlotTable::has_salts() const {
  LockGuard guard(mutex_);
  return has_salts_;
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
