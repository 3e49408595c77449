// SPDX-License-Identifier: Apache-2.0
// A request while it runs: its page table, its steps, its checkpoints, and what it hands to the tree (steps 4 and 5 of
// a prefix's life).
//
//   kIdle ──begin──► kRunning ──prepare / complete / cancel──► kRunning ──hand_over──► release ──► kIdle
//                        └──fails─► kFailed: nothing that it computes is kept ─────────────┘
//
//   tokens   0 .... committed .... computed .... until of open steps .... end of the table .... final
//            └ the tree's ┘└ its own ┘└ being written ┘└ reserved ┘└ as it grows ┘
//
// Knows the device and the tree, and nothing of host, storage or other requests: who makes room is StepRoom.
// Slots that it lets go while steps are open stay in limbo until they have ended (step_ledger.h).
//
// Threads: the cache thread. Ownership: uncommitted pages, window pages, the working state and checkpoints not yet
// given to the tree are the request's own; `slots()` counts them. Errors: those of Cache::prepare_step and friends;
// nothing throws. Ranks: decides from its calls and the agreed state of tree and pools alone. Cost: prepare and
// complete O(pages of the step), with a commit what RadixTree::extend costs; no allocation for a decode step that meets
// no page boundary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "controller/cache.h"
#include "controller/checkpoint_plan.h"
#include "controller/config.h"
#include "controller/step_ledger.h"
#include "pool/device_pools.h"
#include "pool/page_table.h"
#include "transfer/layer_gate.h"
#include "tree/tree.h"

namespace larder {

// A request that needs room on the device.
struct RoomSeeker {
  TenantId tenant{};              // whose it is
  std::uint32_t store_waits = 0;  // how often room was refused to it for the sake of storage, in all its life
  // Copies begun for it since it last got room; counted where tenants have limits, or a storage waits for them.
  std::uint32_t copy_waits = 0;
};

// Who makes room on the device for running requests, and takes back what they let go: in a cache, device_room.h.
class StepRoom {
 public:
  virtual ~StepRoom() = default;
  // Evicts until `count` slots are free. kOverloaded: not now. may_wait: also while victims get their host copies; else
  // those that have none are dropped.
  [[nodiscard]] virtual Status make_room(RoomSeeker& who, ComponentKind c, std::uint32_t count, bool may_wait) = 0;
  // After make_room() has refused: is something under way that will make some? Else only requests can.
  [[nodiscard]] virtual bool is_room_coming(ComponentKind c) = 0;
  virtual void give_back(ComponentKind c, DeviceSlot slot) = 0;
  // RadixTree::extend(); the slots of the request that the tree has no use for go to `keeper`, or back if that is null.
  [[nodiscard]] virtual Result<InsertResult> extend(LockHandle& held, const ExtendRequest& request,
                                                    StepLedger* keeper) = 0;
  // The tree has pages [from, end of node) of a request now.
  virtual void committed(NodeId node, std::uint64_t from) = 0;
};

// What running requests work with. All of it outlives them.
struct RunningParts {
  const ModelSpec& model;
  const CacheConfig& config;
  DevicePools& device;
  RadixTree& tree;
  CacheCounters& counters;
  StepRoom& room;
  ComponentCounts& in_limbo;      // slots that ended and running requests let go, and open steps may touch
  std::uint32_t chunk_pages = 1;  // of chunked_prefill_tokens
  bool has_ranks = false;         // what a gate says is one rank's alone
};

// What a request is about, whether it runs or not.
struct RequestText {
  NamespaceId space;
  std::int32_t priority = 0;
  TurnFacts turn;
  std::vector<TokenId> tokens;  // prompt, then what was computed beyond it
  std::uint64_t prompt = 0;     // tokens
  std::uint64_t given = 0;      // tokens that were there at the last start: the prompt, and what a retract left
  std::uint64_t max_new = 0;    // tokens

  // The last sampled token is never fed to the model, so its page need not exist.
  [[nodiscard]] std::uint64_t final_tokens() const { return max_new > 0 ? prompt + max_new - 1 : prompt; }
  // A prompt leaves one token to compute. A request that was retracted goes on after all that it has computed: its
  // engine knows the token that follows.
  [[nodiscard]] std::uint64_t reusable_tokens() const { return tokens.size() > prompt ? tokens.size() : prompt - 1; }
};

enum class RunState : std::uint8_t { kIdle, kRunning, kFailed };

class RunningRequest {
 public:
  explicit RunningRequest(const RunningParts& parts)
      : parts_(&parts), ledger_(parts.config.max_open_steps, &parts.in_limbo) {}

  // ---- its life
  // table: [0, committed) are the tree's and locked by set_lock(), the rest is the request's own from now on.
  void begin(RequestText& text, PageTable table, std::uint64_t committed, std::vector<PlannedCheckpoint> plan);
  // Runs on from the tokens of `from`, which runs and has no step open that counts. table: as from.fork_table(), each
  // slot that was missing there filled with one of its own, into which the bytes are copied meanwhile.
  void begin_fork(RequestText& text, const RunningRequest& from, PageTable table);
  // The table of a fork, as long as it needs: pages that are the tree's; the rest of it is invalid. O(pages).
  [[nodiscard]] PageTable fork_table(std::uint64_t pages) const;
  void set_lock(const LockHandle& lock) { lock_ = lock; }
  // Of the copies of what it resumes from, which have yet to end. Nothing that it computes is the tree's before it is
  // known that they have on every rank: steps may be completed before.
  void set_gate(std::shared_ptr<LayerGate> gate) {
    gate_ = std::move(gate);
    is_agreed_ = false;
  }
  // They have; or not, and why: then what was to be loaded is not there, and the engine learns of it at the gate.
  void loaded(const Status& outcome);
  // Gives the tree what is left of whole pages, and the last state. Only what is computed right. It may go on.
  void hand_over(const RequestText& text);
  // Lets everything go; open steps are void. leaks: a deliberate defect.
  void release(bool leaks);
  // After release(): the open steps and what is in limbo, for whoever outlives the request.
  [[nodiscard]] StepLedger take_ledger() { return std::move(ledger_); }

  // ---- steps: see Cache
  [[nodiscard]] Result<StepGrant> prepare(const RequestText& text, std::uint64_t until);  // token.request is not set
  [[nodiscard]] Status complete(RequestText& text, std::uint64_t number, std::span<const TokenId> tokens);
  [[nodiscard]] Status cancel(std::uint64_t number);

  [[nodiscard]] RunState state() const { return state_; }
  [[nodiscard]] bool is_starved() const { return is_starved_; }         // after prepare()
  [[nodiscard]] std::uint64_t committed() const { return committed_; }  // pages
  [[nodiscard]] std::uint64_t computed() const { return computed_; }    // tokens
  [[nodiscard]] const PageTable& table() const { return table_; }
  [[nodiscard]] const LockHandle& lock() const { return lock_; }
  [[nodiscard]] const StepLedger& ledger() const { return ledger_; }
  // Device slots that are the request's own or in its limbo.
  [[nodiscard]] ComponentCounts slots() const;
  RoomSeeker& seeker() { return seeker_; }

 private:
  [[nodiscard]] std::uint32_t page_size() const { return parts_->model.page_size; }
  void take_table(PageTable table);
  // Pages of full for tokens up to `until`, which is within the request.
  [[nodiscard]] Status grow(const RequestText& text, std::uint64_t until);
  [[nodiscard]] Status grant_window(std::uint64_t until);
  using States = std::vector<GrantedState>;
  [[nodiscard]] Status grant_states(const RequestText& text, std::uint64_t from, std::uint64_t until, States& out);
  [[nodiscard]] Status grant_planned(std::uint64_t from, std::uint64_t until, bool weak, States& out);
  void grant_tracked(const RequestText& text, std::uint64_t from, std::uint64_t until, States& out);
  [[nodiscard]] Result<DeviceSlot> state_slot(bool weak, bool may_wait);
  [[nodiscard]] bool has_promised_state(const States& granted) const;
  void look_at_gate();
  void collect_states(OpenStep step);
  void end_void(OpenStep step);
  void commit_due(const RequestText& text);
  // Gives whole pages [committed, pages) and taken checkpoints to the tree. kConflict: a copy is under way; later.
  [[nodiscard]] Status commit(const RequestText& text, std::uint64_t pages, bool is_last);
  void refresh_table(NodeId node, std::uint64_t from, std::uint64_t to);
  void drop_window();
  void let_go(ComponentKind c, DeviceSlot slot);  // to limbo, if a step is open
  void release_limbo();

  const RunningParts* parts_;
  StepLedger ledger_;
  RunState state_ = RunState::kIdle;
  bool is_starved_ = false;  // the last prepare() found the device full of what requests hold
  PageTable table_;
  std::uint64_t table_version_ = 0;      // of the last table that was let go
  LockHandle lock_;                      // device, at `committed_`
  std::uint64_t committed_ = 0;          // pages that are the tree's; entries of the table beyond are its own
  std::uint64_t computed_ = 0;           // tokens
  std::vector<PlannedCheckpoint> plan_;  // ascending; front: the next one
  std::vector<Checkpoint> taken_;        // computed, not yet given to the tree
  Checkpoint tracked_;                   // beyond the plan: the last page boundary that a completed step has reached
  std::shared_ptr<LayerGate> gate_;
  bool is_agreed_ = true;       // what the gate was of is there, on every rank
  std::uint64_t held_for_ = 0;  // page: the last checkpoint for which a step was refused
  RoomSeeker seeker_;
};

}  // namespace larder
