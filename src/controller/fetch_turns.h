// SPDX-License-Identifier: Apache-2.0
// Fetches that go on by themselves in a later poll, in the order of their turns: with work that did not fit into a
// poll's budget; with host room that storage is to make; and with batches of which none could begin, as there were too
// many operations.
//
// Threads: the cache thread. Ranks: by the budget and by agreed counts of operations alone. Cost: O(1) each.
#pragma once

#include <deque>
#include <functional>

#include "controller/fetch.h"
#include "controller/op_table.h"

namespace larder {

class FetchTurns {
 public:
  using FetchOf = std::function<Fetch*(OpId)>;  // null: it is over

  explicit FetchTurns(OpTable& ops) : ops_(ops) {}  // outlives this

  [[nodiscard]] bool empty() const { return steps_.empty() && later_.empty() && placeless_.empty(); }
  // It has work left. Also between polls: the next one must not wait.
  void step_later(Fetch& f);
  // It looks once in each poll; what it waits for comes with the end of an operation.
  void step_in_next_poll(Fetch& f);
  // Once per poll, before next().
  void begin_poll();
  // It goes on when a read finds a place: that comes with the end of an operation, so no poll need hurry for it.
  void wait_for_place(Fetch& f);
  // Whose turn it is; null: nobody's, or the budget has nothing left.
  [[nodiscard]] Fetch* next(const FetchOf& fetch_of);

 private:
  [[nodiscard]] bool has_place() const { return !placeless_.empty() && ops_.places().has_room(OpKind::kRead); }

  OpTable& ops_;
  std::deque<OpId> steps_, placeless_;
  std::deque<OpId> later_;  // of the next poll
};

}  // namespace larder
