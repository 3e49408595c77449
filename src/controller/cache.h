// SPDX-License-Identifier: Apache-2.0
// The cache: what an engine talks to.
//
// Purpose: match -> prefetch -> load-back -> (the engine computes) -> insert -> backup, for requests; attach, detach,
// flush, explain for operators. A state machine: calls and completions go in, transfers and storage operations go out.
// It does no I/O and copies no bytes itself.
//
// A request:
//      begin ──► kPrefetching ──► kReady ──start──► kLoading ──► kRunning ──finish / abort──► gone
//                (storage reads)           (reserve device slots, copy host -> device)
//                                      ▲                                        │
//                                      └───────────── retract ──────────────────┘
//   start() may answer kOverloaded: call it again after progress, which is a poll() that answered true, and each call
//   that lets something go (finish, abort, retract, restart, the end of a step): after that a poll() has nothing to
//   report, and may wait for ever.
//   start() reserves slots for the prompt and decode_headroom_tokens; prepare_step() adds more as they are needed. So
//   more requests run than the device could hold to their ends, and the engine retracts one when is_starved() says
//   that another cannot go on otherwise. If it never retracts the oldest, someone always ends.
//   While kRunning, each engine step is: prepare_step (slots for the tokens to come) -> engine -> complete_step (what
//   was computed is handed to the tree, so that others can share it while the request runs: whole pages of the prompt
//   at once, those of the output chunked_prefill_tokens at a time, and the state at its end with finish or abort).
//   Forks: fork() of a running request makes another at the same tokens (several answers to one prompt, beams). Whole
//   pages are shared through the tree, the rest and the working state are copied on the device.
//   Steps: an engine that runs ahead has several open, max_open_steps at most, each built on those before it, and runs
//   them in their order. What an open step may write or read stays as it is until the step is completed or cancelled,
//   whatever else is called: finish(), abort(), retract() and restart() void the open steps of the request and put what
//   these may touch aside until each has been ended. Not ending one costs its slots, and a place of max_requests.
//   Events: an engine that knows the tokens of a step before its kernels have ended (a chunk of a prompt) may end the
//   step at once, and give the event that fires when they have. Then copies of what they write, and copies into what
//   they may still touch, wait for it. What the engine computes on those slots it orders itself: events fire in the
//   order in which they are given, and a step runs after those that were ended before it was prepared.
//
// Threads: every method on the cache thread (the engine's scheduler thread). Workers post completions into a bounded
// inbox that poll() drains. Nothing here blocks except poll(wait > 0), and poll() of several ranks, for the others.
// Degradation (rule 5): an error of a tier becomes a miss and a counter; only the caller's own mistakes come back.
// Ranks: a copy that failed on one rank has failed on all, though only that one's gate says so at first. So what a
// request computes is the tree's once the ranks have agreed (in poll()) that what it resumed from has come on each; if
// it ends before, what it computed is not cached.
// One that has had no plan from the leader for rank_plan_limit (or the leader, when a follower is too far behind for as
// long), or whose group has failed, decides nothing any more. From then on rank_timeouts is 1; every call for a
// request but finish(), abort() and cancel_step(), which only let go, is kUnavailable (complete_step() ends its step
// all the same); and operations in flight never end: who waits for them waits until its own limit. There is no way
// back: end the process, and start all ranks anew.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/strong.h"
#include "controller/config.h"
#include "controller/miss.h"
#include "model/model_spec.h"
#include "pool/device_pools.h"
#include "pool/host_pools.h"
#include "pool/page_table.h"
#include "storage/backend.h"
#include "transfer/device_event.h"
#include "transfer/layer_gate.h"
#include "transfer/transfer.h"
#include "tree/tree.h"

namespace larder {

class KvEventSink;  // controller/kv_events.h
class RankGroup;    // controller/rank_group.h

// What the cache works with; everything outlives it. host: none is a device-only cache; transfer: needed with
// a host or with recurrent layers (their checkpoints are copied on the device); takes max_operations at a time.
// The pools may be the next cache's where no operation was in flight at the end, and all events of steps had fired:
// then the destructor gives back all slots.
struct CacheParts {
  const ModelSpec* model = nullptr;
  DevicePools* device = nullptr;
  HostPools* host = nullptr;
  TransferEngine* transfer = nullptr;
  Clock* clock = nullptr;
  MetricsRegistry* metrics = nullptr;  // may be null
  RankGroup* ranks = nullptr;          // null: one rank
  NamespaceScope scope{};              // layout and rank; adapter and salt come with each request
  KvEventSink* events = nullptr;       // is told of pages that come to a tier or leave it, in poll(); may be null
};

struct BeginRequest {
  std::span<const TokenId> tokens;   // the prompt; copied
  std::uint64_t max_new_tokens = 0;  // the most that it may add
  std::string adapter{};             // LoRA id
  std::string salt{};                // tenant salt
  std::int32_t priority = 0;         // for eviction policy `priority`; `value` heeds it for models with recurrent state
  // Hint for policy `value` and such models: will there be a next turn, with this prompt and its answer at its
  // beginning? How far it is believed is learnt from how often such words came true; nullopt: nothing is said.
  std::optional<bool> will_return{};
};

enum class RequestPhase : std::uint8_t { kPrefetching, kReady, kLoading, kRunning };

// Where the reused tokens came from: up to where the device alone would have let it resume, what the host added to
// that, and what storage did. All in tokens; device + host + storage = cached.
struct CachedTokens {
  std::uint64_t prompt = 0;
  std::uint64_t device = 0, host = 0, storage = 0;
  [[nodiscard]] std::uint64_t cached() const { return device + host + storage; }
  StopReason reason = StopReason::kNone;  // why not more (rule 8)
  ComponentKind component = ComponentKind::kFull;
  Miss miss;          // how that came to be
  RequestId request;  // whom the misses of others name, if they made room for it
};

// A step that was granted, until complete_step() or cancel_step() ends it. A value: copies name the same step.
struct StepToken {
  RequestId request;
  std::uint64_t number = 0;  // 0: none; the steps of a request count up
  friend bool operator==(const StepToken&, const StepToken&) = default;
};

struct CheckpointSlot {
  std::uint64_t position = 0;  // tokens
  DeviceSlot slot;
};
struct StepGrant {
  StepToken token;
  std::uint64_t until = 0;  // tokens: how far it reaches, perhaps less far than was asked for
  // Valid until the next call for this request: launched steps have a copy. Who keeps a copy on the device uploads
  // pages->changed_since(version of its copy), and notes pages->version().
  const PageTable* pages = nullptr;
  std::vector<CheckpointSlot> checkpoints;  // the engine copies its working state there on the way
  std::shared_ptr<LayerGate> gate;          // load-back still arriving; may be null
};

// One tier's or component's share of an explanation.
struct ExplainLine {
  std::string component;                                              // "full", "swa", "mamba"
  std::string pool;                                                   // anchor or sidecar
  std::uint64_t device_pages = 0, host_pages = 0, storage_pages = 0;  // of the prompt's pages, wherever they are
  std::uint64_t restore_pages = 0;  // best restore point if this pool alone counted, over all tiers
};
struct Explanation {
  std::uint64_t prompt_tokens = 0, prompt_pages = 0;
  std::uint64_t device_restore_pages = 0, host_restore_pages = 0, storage_restore_pages = 0;  // joint, cumulative
  std::string device_reason, host_reason, storage_reason;  // one sentence each: why it stops there
  bool has_storage_answer = false;  // else storage_restore_pages is the host's, and storage_reason says why
  std::vector<ExplainLine> pools;
  Status storage_status;
};

// Pages; conservation: backed_up + prefetched == host_resident + host_evicted + host_flushed + host_lost.
struct CacheCounters {
  // backed_up counts from the moment the host slots are taken; host_resident includes copies under way.
  std::uint64_t backed_up = 0, host_resident = 0, host_evicted = 0, host_flushed = 0, host_lost = 0;
  std::uint64_t prefetched = 0, loaded_back = 0, stored = 0, store_failed = 0;
  std::uint64_t store_declined = 0;  // the storage's admission policy did not want them: no failure, not tried again
  std::uint64_t prefetch_late = 0, prefetch_partial = 0, prefetch_refused = 0, backup_no_room = 0, corrupt = 0;
  std::uint64_t prefetch_shared = 0;  // requests that waited for the read of another instead of one of their own
  std::uint64_t store_waits = 0;      // polls for which room was refused, so that storage could take what would go
  std::uint64_t retracted = 0;        // requests, by retract(); grown: pages that running requests took beyond start()
  std::uint64_t grown = 0;
  std::uint64_t most_poll_work = 0;   // units of work in one poll, so far: config.poll_budget and one piece at most
  std::uint64_t floors_broken = 0;    // slots of the device that requests took from below the floors of other tenants
  std::uint64_t rank_timeouts = 0;    // 1: this rank has lost the others ("Ranks" above)
  std::uint64_t internal_errors = 0;  // refused double frees and the like: any is a defect worth a report
};

class Cache {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Cache>> create(const CacheConfig& config, const CacheParts& parts);
  // Waits for copies in flight, 10 s at most, and not for storage, which goes on using the host pools. So an engine
  // ends in this order: detach_storage(), the cache, the TransferEngine; close() and end every backend, the detached
  // ones too; then host pools, device pools, device.
  virtual ~Cache() = default;

  // kInvalidArgument: empty prompt, longer than the device pool can ever hold. kOverloaded: max_requests are there, or
  // max_namespaces have a request, an open step or an operation in flight (or the 4096 oldest idle ones); try again
  // after progress. A namespace that has none is closed to make room, and what is cached of it on device and host is
  // dropped.
  [[nodiscard]] virtual Result<RequestId> begin(const BeginRequest& request) = 0;
  // Would begin() now ask storage for it? If not, the request waits for no storage, unless what it could use goes
  // before it starts. For who begins only so many that wait. Cost: a match of the prompt.
  [[nodiscard]] virtual bool would_fetch(const BeginRequest& request) const = 0;
  [[nodiscard]] virtual RequestPhase phase(RequestId id) const = 0;
  // Decides the restore point, locks it, reserves slots for the prompt and a headroom, starts the load-back.
  // On ok: cached tokens; the phase is kLoading or kRunning. kOverloaded: not now, nothing is held; try after progress.
  // After retract() the prompt is all tokens that were computed, and the answer is that of the last start before a step
  // was completed: what is found later is the request's own. What an earlier one brought counts where it came from.
  [[nodiscard]] virtual Result<CachedTokens> start(RequestId id) = 0;
  // After a kOverloaded start(): it waits for storage, or for its turn, a place or host room to read there, and not for
  // room on the device.
  [[nodiscard]] virtual bool waits_for_storage(RequestId id) const = 0;
  // Tokens whose pages and state are in place: where the engine begins.
  [[nodiscard]] virtual std::uint64_t computed_tokens(RequestId id) const = 0;
  // Slots and snapshot places for tokens up to `until` (a position), from where the last open step ends. Grants less
  // near the end of the request (prompt + max_new_tokens - 1, in whole pages) and where the device has room for a part.
  // kOverloaded: skip this request in this step; it keeps what it has. Or max_open_steps are open.
  [[nodiscard]] virtual Result<StepGrant> prepare_step(RequestId id, std::uint64_t until) = 0;
  // The engine has processed `tokens` (all from position 0 on): at least one more than before, at most up to `until`;
  // fewer if drafts were rejected or the step ended early. Whole pages go to the tree (see above). Ends the step.
  // Fewer tokens than were granted (drafts that were rejected): the steps after it are void, as with cancel_step().
  // In the order of the steps: kInvalidArgument if an earlier one is open, or the tokens do not fit, or differ from
  // the prompt, or from what retract() and restart() keep; it stays open.
  // kConflict: the step was void, it has ended and counts for nothing. kNotFound: it has ended, or never was.
  // over: fires when the kernels of the step have ended ("Events" above); null: they have. The step's gate need not
  // have finished; until a poll() finds that it has, nothing of the request is cached, by finish() and retract()
  // neither. An event that never fires keeps copies from ending for ever; kernels that fail after this have spoilt what
  // others may share: end the process.
  [[nodiscard]] virtual Status complete_step(StepToken step, std::span<const TokenId> tokens,
                                             std::shared_ptr<DeviceEvent> over = nullptr) = 0;
  // Ends a step that counts for nothing. It touches nothing any more (it was never launched, or has run), or nothing
  // once `over` has fired. The open steps after it become void: they were built on it. Not so if it was void already:
  // those that count were prepared later, and built on something else. Void steps stay open: each is to be ended, too,
  // by this call or complete_step(). In any order, also of a request that is over. kNotFound: as above.
  [[nodiscard]] virtual Status cancel_step(StepToken step, std::shared_ptr<DeviceEvent> over = nullptr) = 0;
  // The last prepare_step() was kOverloaded because running requests fill the device: nothing that is under way makes
  // room. Retract another request, or wait until one ends.
  [[nodiscard]] virtual bool is_starved(RequestId id) const = 0;
  // Lets the device slots of a started request go; it keeps its tokens. What complete_step() told of stays cached as
  // with finish(), and the phase is that after begin(): start() resumes it at the best restore point of all its tokens,
  // as far as they are still cached. Beyond the prompt the engine knows the token that follows those computed, and
  // feeds it next.
  [[nodiscard]] virtual Status retract(RequestId id) = 0;
  // Another request at the same tokens, with the same prompt, limits and tenant, which goes its own way from here; its
  // answer to start() is that of one that found nothing. It is kLoading until its own copies of what the tree does not
  // share are there: the page that is not full, uncommitted ones, the working state. Until then prepare_step() of the
  // other is kOverloaded. A copy that failed is told at the gate of the fork's first step, as a failed load-back.
  // kOverloaded: as start() and begin(), or the request is still being loaded; nothing is held. kInvalidArgument: it
  // does not run, its load-back has failed, or it has a step open that counts. kUnsupported: a cache without a transfer
  // engine.
  [[nodiscard]] virtual Result<RequestId> fork(RequestId id) = 0;
  // The load-back failed: gives everything back and restarts from what is on the device (phase kReady).
  // kInvalidArgument: the request has not started, or was retracted.
  [[nodiscard]] virtual Status restart(RequestId id) = 0;
  // The request is over; its pages up to the last whole one and its last state stay cached.
  virtual void finish(RequestId id) = 0;
  // The same, in any phase: nothing that the request waits for is wanted any more. What complete_step() told of stays
  // cached as with finish(); what a step that did not complete has written goes, once that step is ended.
  virtual void abort(RequestId id) = 0;

  // Applies completions that arrived, retries what is due. Waits up to `wait` for the first. True: something changed,
  // or there is more to do than config.poll_budget allows: poll again soon, it will not wait.
  virtual bool poll(Nanos wait) = 0;
  // Ends a wait in poll() from another thread.
  virtual void wake() = 0;
  // Nothing in flight, no request begun and no step open. (What storage could not take may be tried again later.)
  [[nodiscard]] virtual bool idle() const = 0;
  // Copies and storage operations in flight (backups included). Not those of a storage that was detached, once nobody
  // waits for them: they have their buffers, and may hang for ever.
  [[nodiscard]] virtual std::size_t operations_in_flight() const = 0;

  // Drops device and host content that no request holds. Storage is untouched. Returns pages of full dropped, one that
  // was in both tiers twice.
  virtual std::uint64_t flush() = 0;
  // The backend must outlive the detach. Prefixes cached before get their keys completed and are backed up.
  // kConflict: one is attached.
  [[nodiscard]] virtual Status attach_storage(StorageBackend& backend) = 0;
  // No new operations; those in flight finish as usual (poll until storage_idle()). Requests that wait for one wait a
  // second more at most, and another backend may be attached at once, whatever hangs in this one. In the same step on
  // every rank.
  virtual void detach_storage() = 0;
  // No operation of the backend that was attached last is in flight. Those of earlier ones: ask them (close()).
  [[nodiscard]] virtual bool storage_idle() const = 0;
  // Somebody emptied the storage: nothing counts as stored any more, and what the host has is stored again. Call it
  // once the clear is done, in the same step on every rank.
  virtual void storage_cleared() = 0;
  // From now on; waits and writes under way end as they began. In the same step on every rank. Copies that write_back
  // did not make are made when their pages are used again or evicted.
  virtual void set_policies(PrefetchPolicy prefetch, WritePolicy write) = 0;

  // Explains what `tokens` would hit now. `done` runs inside a later poll() (or at once without storage), or in
  // detach_storage() or the destructor with kCancelled as storage_status; in these two it must not call the cache. An
  // empty `done`: nothing is done.
  virtual void explain(const BeginRequest& request, std::function<void(Explanation)> done) = 0;

  [[nodiscard]] virtual const RadixTree& tree() const = 0;
  [[nodiscard]] virtual CacheCounters counters() const = 0;
  // Tree and pools agree: every slot is in the tree, in a request, in an operation, or free. O(everything).
  [[nodiscard]] virtual Status check_invariants() const = 0;
};

}  // namespace larder
