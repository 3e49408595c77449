// SPDX-License-Identifier: Apache-2.0
// The open steps of one request, and what was let go while they were open (rule 3).
//
//   prepare ──► add() ──► open ──► take() ──► ended          slots and locks let go meanwhile:
//                          │ void_all(), void_after()            keep() ──► limbo ──► release()
//                          ▼                                     after the last step that was open then
//                         void: its tokens do not count
//
// An engine that runs ahead has launched kernels whose outcomes nobody knows yet. They write into their request's slots
// and read what its table named, whatever became of the request since. So what a request lets go while steps are open
// is in limbo: neither its own nor free, until every step that was open then has ended. That costs a step nothing: no
// slot is leased for it, and only what is freed meanwhile is looked at.
//
// Threads: the cache thread. Ownership: kept slots are the ledger's until release() hands them out. Limits: `most`
// steps, 64 at most; in limbo, no more than a request had. Cost: O(open steps) each, release() O(1) while nothing is in
// limbo. Nothing is allocated for a step without snapshots.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/strong.h"
#include "model/model_spec.h"
#include "pool/device_pools.h"
#include "tree/tree.h"

namespace larder {

struct GrantedState {
  std::uint64_t position = 0;  // tokens
  DeviceSlot slot;
  bool is_tracked = false;  // a candidate for the end of the output, not of the plan
  CheckpointOrigin origin{};
};

struct OpenStep {
  std::uint64_t number = 0;           // steps of a request count up from 1
  std::uint64_t from = 0, until = 0;  // tokens
  bool is_void = false;               // an earlier one was cancelled, or the request let everything go
  std::vector<GrantedState> states;   // slots that nobody else has
};

class StepLedger {
 public:
  // in_limbo: slots in all ledgers' limbo; outlives this one. Null: nobody counts.
  explicit StepLedger(std::uint32_t most = 1, ComponentCounts* in_limbo = nullptr) : most_(most), in_limbo_(in_limbo) {}

  // ---- steps
  [[nodiscard]] bool is_full() const { return open_.size() >= most_; }
  [[nodiscard]] bool has_open() const { return !open_.empty(); }
  [[nodiscard]] bool has_counting() const;                                   // an open step that is not void
  [[nodiscard]] const std::vector<OpenStep>& open() const { return open_; }  // in the order of their numbers
  // Where the next step begins: behind the last open one that counts, or at `computed`.
  [[nodiscard]] std::uint64_t next_from(std::uint64_t computed) const;
  // Precondition: not full, from < until. The reference is good until the next call.
  OpenStep& add(std::uint64_t from, std::uint64_t until, std::vector<GrantedState> states);
  [[nodiscard]] const OpenStep* find(std::uint64_t number) const;
  // No open step before it counts.
  [[nodiscard]] bool is_first(std::uint64_t number) const;
  // It has ended. Its states are the caller's. Precondition: find(number).
  [[nodiscard]] OpenStep take(std::uint64_t number);
  void void_all();
  void void_after(std::uint64_t number);

  // ---- limbo; only while steps are open
  void keep(ComponentKind c, DeviceSlot slot);
  void keep(const LockHandle& lock);
  [[nodiscard]] bool has_limbo() const { return !limbo_.empty(); }
  // Hands out what no open step can touch any more, in the order in which it was kept.
  void release(const std::function<void(ComponentKind, DeviceSlot)>& free,
               const std::function<void(LockHandle&)>& unlock);
  [[nodiscard]] ComponentCounts in_limbo() const;  // O(slots in limbo)
  // In limbo, and of open steps.
  [[nodiscard]] ComponentCounts slots() const;

 private:
  struct Kept {
    std::uint64_t fence = 0;  // the last step that may touch it
    ComponentKind component = ComponentKind::kFull;
    DeviceSlot slot;  // invalid: it is a lock
    LockHandle lock;
  };
  std::uint32_t most_;
  ComponentCounts* in_limbo_;
  std::uint64_t next_ = 1;
  std::vector<OpenStep> open_;
  std::vector<Kept> limbo_;  // ascending fences
};

}  // namespace larder
