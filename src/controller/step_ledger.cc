// SPDX-License-Identifier: Apache-2.0
#include "controller/step_ledger.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace larder {

std::uint64_t StepLedger::next_from(std::uint64_t computed) const {
  for (auto step = open_.rbegin(); step != open_.rend(); ++step) {
    if (!step->is_void) return std::max(step->until, computed);
  }
  return computed;
}

bool StepLedger::has_counting() const {
  return std::any_of(open_.begin(), open_.end(), [](const OpenStep& s) { return !s.is_void; });
}

OpenStep& StepLedger::add(std::uint64_t from, std::uint64_t until, std::vector<GrantedState> states) {
  assert(!is_full() && from < until);
  open_.push_back({next_++, from, until, false, std::move(states)});
  return open_.back();
}

const OpenStep* StepLedger::find(std::uint64_t number) const {
  const auto at = std::find_if(open_.begin(), open_.end(), [&](const OpenStep& s) { return s.number == number; });
  return at == open_.end() ? nullptr : &*at;
}

bool StepLedger::is_first(std::uint64_t number) const {
  const auto first = std::find_if(open_.begin(), open_.end(), [](const OpenStep& s) { return !s.is_void; });
  return first != open_.end() && first->number == number;
}

OpenStep StepLedger::take(std::uint64_t number) {
  const auto at = std::find_if(open_.begin(), open_.end(), [&](const OpenStep& s) { return s.number == number; });
  assert(at != open_.end());
  OpenStep step = std::move(*at);
  open_.erase(at);
  return step;
}

void StepLedger::void_all() { void_after(0); }

void StepLedger::void_after(std::uint64_t number) {
  for (OpenStep& step : open_) step.is_void = step.is_void || step.number > number;
}

void StepLedger::keep(ComponentKind c, DeviceSlot slot) {
  limbo_.push_back({next_ - 1, c, slot, {}});
  if (in_limbo_ != nullptr) ++(*in_limbo_)[index_of(c)];
}

void StepLedger::keep(const LockHandle& lock) {
  limbo_.push_back({next_ - 1, ComponentKind::kFull, DeviceSlot{}, lock});
}

void StepLedger::release(const std::function<void(ComponentKind, DeviceSlot)>& free,
                         const std::function<void(LockHandle&)>& unlock) {
  const std::uint64_t oldest = open_.empty() ? std::numeric_limits<std::uint64_t>::max() : open_.front().number;
  std::size_t over = 0;
  for (; over < limbo_.size() && limbo_[over].fence < oldest; ++over) {
    Kept kept = limbo_[over];
    if (kept.slot.valid()) {
      if (in_limbo_ != nullptr) --(*in_limbo_)[index_of(kept.component)];
      free(kept.component, kept.slot);
    } else {
      unlock(kept.lock);
    }
  }
  limbo_.erase(limbo_.begin(), limbo_.begin() + static_cast<std::ptrdiff_t>(over));
}

ComponentCounts StepLedger::in_limbo() const {
  ComponentCounts counts{};
  for (const Kept& kept : limbo_) counts[index_of(kept.component)] += kept.slot.valid() ? 1 : 0;
  return counts;
}

ComponentCounts StepLedger::slots() const {
  ComponentCounts counts = in_limbo();
  for (const OpenStep& step : open_) {
    counts[index_of(ComponentKind::kMamba)] += static_cast<std::uint32_t>(step.states.size());
  }
  return counts;
}

}  // namespace larder
