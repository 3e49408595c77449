// SPDX-License-Identifier: Apache-2.0
// Operations in flight: their ids, completions and timers, and the order in which ranks apply what has ended.
//
//   add() ────────► a worker posts its completion ─┐
//   add_timer() ──► its time has come ─────────────┴─► collect() ─► agree() ─► next_ended() ─► erase()
//                                                      outcome      AND over    the owner
//                                                      as bits      ranks       applies it
//
// Ids count up alike on every rank, because every rank adds the same operations in the same order. Explanations are one
// rank's own: they have ids and places of their own, and never wait for other ranks.
//
// Events are taken one by one, as long as the poll's budget lasts (work_budget.h); the rest keeps its order.
//
// Threads: the cache thread, but for wake() and what completion_for() returns: any thread.
// Ranks: cache.h. A rank that has lost the others (parted()) reports and agrees on nothing any more.
// Cost: O(log n) each; collect() looks at what arrived and at the timers that are due, and at nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/bell.h"
#include "base/clock.h"
#include "base/inbox.h"
#include "base/status.h"
#include "base/strong.h"
#include "controller/op_places.h"
#include "controller/operation.h"
#include "controller/rank_group.h"
#include "controller/work_budget.h"

namespace larder {

class OpTable {
 public:
  struct Limits {
    std::size_t max_operations = 1024;
    std::size_t max_explains = 16;
    Nanos rank_plan_wait = std::chrono::milliseconds(2);
    Nanos rank_plan_limit = std::chrono::seconds(30);
    std::uint64_t poll_budget = 4096;  // units of work
  };
  // What an operation that ended here means to the other ranks. Called once for each, on the cache thread.
  using OutcomeOf = std::function<OutcomeBits(Op&)>;
  using Operations = std::map<std::uint64_t, Op>;  // ordered: ranks iterate alike

  // `ranks`: null for one rank; it and the clock outlive the table.
  OpTable(const Limits& limits, Clock& clock, RankGroup* ranks, OutcomeOf outcome_of);
  // Rung by what arrives and by wake(), silenced by collect(). Null: nobody waits elsewhere. Before the first
  // operation.
  void set_bell(std::shared_ptr<Bell> bell) { bell_ = std::move(bell); }

  // ---- operations
  // Precondition: places().has_room(kind).
  Op& add(OpKind kind);
  Op& add_timer(TimePoint due);
  void set_due(Op& timer, TimePoint due);
  [[nodiscard]] Op* find(OpId id);
  void erase(OpId id);
  // Its storage was detached and nobody waits for it: it holds its buffers, no more. True: it was not abandoned before.
  bool abandon(Op& op);
  [[nodiscard]] Operations& all() { return ops_; }
  [[nodiscard]] const Operations& all() const { return ops_; }

  // A storage was attached: operations of earlier ones are told from those of this one.
  void begin_attachment() { ++attachment_; }
  [[nodiscard]] bool is_of_this_attachment(const Op& op) const { return op.attachment == attachment_; }

  // ---- counts and places
  [[nodiscard]] bool empty() const { return ops_.empty(); }
  [[nodiscard]] bool has_timers_only() const { return ops_.size() == places_.open(OpKind::kTimer); }
  [[nodiscard]] const OpPlaces& places() const { return places_; }

  // ---- what ends
  // Where a worker posts the completion of `id`, from any thread, once. Copyable; may outlive the table.
  [[nodiscard]] std::function<void(Completion)> completion_for(OpId id);
  // Takes what has arrived and the timers that are due; waits up to `wait` for the first. True: something arrived.
  bool collect(Nanos wait);
  // When who waits for the bell has to collect() at the latest: at once (TimePoint::min()) for what the last poll has
  // left, else for the next timer. nullopt: for nothing.
  [[nodiscard]] std::optional<TimePoint> next_due() const;
  // The operation has ended here: a timer before its time, because it guards nothing any more. Every rank says so by
  // the same event.
  void end(Op& op);
  // Before this rank's next step: brings the outcomes that all ranks know. A follower waits for the leader's plan.
  void agree();
  // The next one in the order in which every rank applies them; the caller erases its operation when it was applied.
  // None: there is none, or the budget of this poll has no more for events.
  [[nodiscard]] std::optional<AgreedEvent> next_ended();
  // All of them, whatever they cost.
  [[nodiscard]] std::vector<AgreedEvent> take_ended();
  // Of this poll. agree() begins it.
  [[nodiscard]] WorkBudget& budget() { return budget_; }
  [[nodiscard]] const WorkBudget& budget() const { return budget_; }
  // Completions that still come while the table's owner shuts down, in no order; waits up to `wait` for the first.
  void drain(Nanos wait, const std::function<void(Completion&)>& each);
  void wake();
  // Not ok: this rank has lost the others, and says why.
  [[nodiscard]] const Status& parted() const { return parted_; }
  // A call has ended half-way, and nothing that the rooms know can be relied on: parted() is `why`, also with one rank,
  // and of what ends collect() takes the completions and no more.
  void break_off(Status why) noexcept;
  [[nodiscard]] bool is_broken() const { return is_broken_; }
  // Completions that will come, or have not been taken. Those of operations that were not submitted do not.
  [[nodiscard]] std::size_t owed() const { return inbox_.places_taken(); }

 private:
  struct Arrival {
    OpId op;
    Completion completion;
  };
  // Explanations' ids: apart from those that all ranks must give alike.
  static constexpr std::uint64_t kFirstExplainId = std::uint64_t{1} << 63;
  bool take_arrivals();
  void end_due_timers();
  void report_refused();
  void part(const Status& why);

  const Limits limits_;
  Clock& clock_;
  RankGroup* const ranks_;
  const OutcomeOf outcome_of_;

  Operations ops_;
  std::set<std::pair<TimePoint, std::uint64_t>> timers_;  // those that have not ended
  OpPlaces places_;
  std::uint64_t next_op_ = 1, next_explain_ = 1, step_ = 0;
  std::uint32_t attachment_ = 0;
  Status parted_;
  bool is_broken_ = false;
  std::deque<AgreedEvent> ended_;
  std::vector<AgreedEvent> agreed_;   // scratch
  std::vector<AgreedEvent> refused_;  // outcomes that the rank group had no room for: reported again, in order
  std::vector<Arrival> arrivals_;     // scratch
  WorkBudget budget_;
  std::shared_ptr<Bell> bell_;
  Inbox<Arrival> inbox_;
};

}  // namespace larder
