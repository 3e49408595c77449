// SPDX-License-Identifier: Apache-2.0
#include "controller/fetch_turns.h"

#include <utility>

namespace larder {

void FetchTurns::step_later(Fetch& f) {
  if (!std::exchange(f.steps, true)) steps_.push_back(f.id);
  ops_.budget().fall_short();
}

void FetchTurns::step_in_next_poll(Fetch& f) {
  if (!std::exchange(f.steps, true)) later_.push_back(f.id);
}

void FetchTurns::begin_poll() {
  steps_.insert(steps_.end(), later_.begin(), later_.end());
  later_.clear();
}

void FetchTurns::wait_for_place(Fetch& f) {
  if (!std::exchange(f.waits_for_place, true)) placeless_.push_back(f.id);
}

Fetch* FetchTurns::next(const FetchOf& fetch_of) {
  while (ops_.budget().has_left()) {
    const bool is_placed = has_place();
    std::deque<OpId>& from = is_placed ? placeless_ : steps_;
    if (from.empty()) return nullptr;
    Fetch* const f = fetch_of(from.front());
    from.pop_front();
    if (f == nullptr) continue;
    (is_placed ? f->waits_for_place : f->steps) = false;
    ops_.budget().spend(1);
    return f;
  }
  if (!steps_.empty() || has_place()) ops_.budget().fall_short();
  return nullptr;
}

}  // namespace larder
