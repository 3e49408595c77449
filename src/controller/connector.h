// SPDX-License-Identifier: Apache-2.0
// The connector: what an engine talks to that keeps the books of its device memory itself (llama.cpp with its slots,
// engines with a block manager of their own). Host and storage tier are the same as behind controller/cache.h.
//
// Purpose: tokens -> restore points -> pages, copied to and from addresses of the engine.
//
//   lookup ──► pending ──► ready: points ──load──► copying ──► the engine computes ──save──► copying ──► on the host
//              (storage       │                                                                            │
//               is read)      └── a lease keeps what the points need on the host, until release()       storage
//
//   Restore points are joint (docs/ARCHITECTURE.md): at each, all pages of full before it, the whole window and the
//   state at it are there. Counts are pages; a point `p` means: resume at token p * page_size.
//   The engine's memory is touched between load() or save() and the end of that transfer, and at no other time (rule
//   3). save() makes nothing visible before all of its bytes are there (rule 2). What is there already is not copied
//   again.
//
// Threads: every method on one thread, the engine's scheduler thread; copies run on the executor's threads, callbacks
// included. Nothing blocks but poll(wait > 0), the destructor, and, without an executor, load() and save() while they
// copy (about 10 GiB/s).
// Degradation (rule 5): an error of a tier becomes a miss and a counter; only the caller's own mistakes come back.
// Without memory (std::bad_alloc): a call may end half-way. It is kInternal then, and so is each one after it
// (has_failed()): no page is saved, loaded, found or stored any more. Transfers under way end, their results say so.
// Limits: max_lookups, max_transfers, what leases keep (lease_share) and what saves under way hold (save_share) of the
// host. Beyond: kOverloaded.
// Ranks: as in cache.h, if every rank makes the same calls in the same order. A transfer that fails on one rank has
// failed on all.
// Cost: points() O(pages of the prompt), and for each point that is kept O(nodes on its path); load and save O(pages x
// pools + segments); poll O(what ended).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bell.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/strong.h"
#include "controller/cache.h"
#include "controller/config.h"
#include "controller/page_places.h"
#include "model/model_spec.h"
#include "pool/host_pools.h"
#include "storage/backend.h"

namespace larder {

using LookupId = Strong<struct LookupTag, std::uint64_t>;
using TransferId = Strong<struct TransferTag, std::uint64_t>;  // of a load or a save

struct ConnectorConfig {
  // Of it count: eviction_policy, eviction_order, prefetch_*, max_operations, max_namespaces, backup_retries,
  // backup_retry_delay, store_*, storage_durable, rank_*. The rest is about a device whose books Larder keeps.
  CacheConfig tiers{};
  std::uint32_t max_lookups = 1024;    // not released
  std::uint32_t max_transfers = 1024;  // whose result was not taken
  std::uint32_t max_points = 16;       // of a lookup, the longest: each that has a window or a state costs a lock
  double lease_share = 0.5;            // of the host's blocks: what all leases keep; one alone may be larger
  double save_share = 0.25;            // of the host's blocks: what saves under way hold; one alone may be larger
};
// kInvalidArgument names the field and its range.
[[nodiscard]] Status validate_config(const ConnectorConfig& config);

// What the connector works with; everything outlives it.
struct ConnectorParts {
  const ModelSpec* model = nullptr;
  HostPools* host = nullptr;
  Clock* clock = nullptr;
  Executor* executor = nullptr;  // runs the copies, and every task that it takes; null: copies run inside the call
  MetricsRegistry* metrics = nullptr;  // may be null
  RankGroup* ranks = nullptr;          // null: one rank
  NamespaceScope scope{};              // layout and rank; adapter and salt come with each call
  KvEventSink* events = nullptr;       // is told of pages that come to the host or leave it, in poll(); may be null
  // Rung when a poll() has something to apply, and by wake(): for who waits elsewhere (until_due()). May be null; null
  // with `ranks`.
  std::shared_ptr<Bell> bell = nullptr;
};

// What the engine has of a prompt in its own memory, from page 0 on.
struct EngineHas {
  std::uint64_t pages = 0;         // of full, in all pools of it
  std::uint64_t window_pages = 0;  // of the window, the last ones before `pages`
};

struct LookupRequest {
  std::span<const TokenId> tokens{};  // the prompt; copied. Its last token is always computed
  EngineHas has{};
  std::string adapter{};     // LoRA id
  std::string salt{};        // tenant salt
  bool asks_storage = true;  // false: what is on the host, at once
};

// A restore point, and what a load up to it brings.
struct LoadPoint {
  std::uint64_t pages = 0;        // the engine resumes here
  std::uint64_t full_from = 0;    // full of [full_from, pages)
  std::uint64_t window_from = 0;  // the window's pages [window_from, pages)
  bool has_state = false;         // and the state at `pages`
  std::uint64_t bytes = 0;        // of all of that
};

struct LookupResult {
  std::vector<LoadPoint> points;          // ascending, not before has.pages; empty: nothing to load
  std::uint64_t from_storage = 0;         // pages of the last point that the host alone would not have allowed
  std::uint64_t known_pages = 0;          // of full on the host, from 0 on: how far others went this way
  StopReason reason = StopReason::kNone;  // why the last is not longer (rule 8)
  ComponentKind component = ComponentKind::kFull;
  Miss miss;  // how that came to be
};

struct LoadRequest {
  LookupId lookup;
  std::uint64_t pages = 0;  // one of its points; where full alone makes a point, any from has.pages to the last
  // Exactly what LoadPoint says, for each pool with bytes. Spans are read during the call, memory until the transfer
  // has ended.
  std::span<const PagePlace> places{};
  PageWriter writer{};  // or else: called with each page, pool by pool, pages ascending
};
struct LoadResult {
  Status status;  // not ok: some of the destinations have been written, in no order, and nothing may be used
  std::uint64_t pages = 0;
  std::uint64_t bytes = 0;
};

// Pages [from, to) of full, the last `window_pages` before `to` of the window, and the states at `states`.
struct SaveRequest {
  std::span<const TokenId> tokens{};  // from the start of the prompt; at least `to` pages. Copied
  std::string adapter{};
  std::string salt{};
  std::uint64_t from = 0, to = 0;  // pages; what is before `from` must be on the host already
  std::uint64_t window_pages = 0;
  std::span<const std::uint64_t> states{};  // restore points, ascending, in (0, to]
  std::span<const PagePlace> places{};      // exactly these pages of each pool with bytes; as in LoadRequest
  PageReader reader{};                      // or else: asked for each page that is copied
  // True: if what would have to go is what storage lacks and is taking, kOverloaded, for a bounded number of polls.
  // False: it goes.
  bool may_wait = false;
};

enum class SaveStop : std::uint8_t {
  kNone,           // all of it is on the host
  kNoRoom,         // the host has room for a part only: up to its largest restore point that fits, or nothing
  kParentMissing,  // the host lacks a page before `from` (it was evicted): save from there
  kCopyFailed,     // the reader, the executor or another rank failed: nothing was kept
};
[[nodiscard]] std::string_view save_stop_name(SaveStop stop);  // "no_room"

struct SaveResult {
  Status status;  // of the copy
  SaveStop stop = SaveStop::kNone;
  std::uint64_t kept = 0;        // pages: of what was given, all up to here is on the host now
  std::uint64_t path_pages = 0;  // kParentMissing: the host has the path up to here; a save from here would be taken
  // Of full, of the window, states: copied, and there before.
  std::uint64_t new_pages = 0, known_pages = 0;
  std::uint64_t new_window = 0, known_window = 0;
  std::uint64_t new_states = 0, known_states = 0;
  std::uint64_t bytes = 0;  // copied
};

enum class ConnectorEventKind : std::uint8_t {
  kLookup = 1,    // waits for nothing any more: points() has an answer
  kTransfer = 2,  // has ended: its result can be taken
};
struct ConnectorEvent {
  ConnectorEventKind kind = ConnectorEventKind::kLookup;
  std::uint64_t id = 0;  // of LookupId or TransferId
  friend bool operator==(const ConnectorEvent&, const ConnectorEvent&) = default;
};

class Connector {
 public:
  // kInvalidArgument: a part is missing, or a limit is out of its range.
  [[nodiscard]] static Result<std::unique_ptr<Connector>> create(const ConnectorConfig& config,
                                                                 const ConnectorParts& parts);
  // Copies that have not begun never run. Waits for those that run, and not for storage, which goes on using the host
  // pools: detach_storage(), the connector, then close() and end every backend, then the host pools.
  virtual ~Connector() = default;

  // ---- lookups
  // kInvalidArgument: no tokens, or has.pages beyond them. kOverloaded: max_lookups are open, or all namespaces in use.
  [[nodiscard]] virtual Result<LookupId> lookup(const LookupRequest& request) = 0;
  // The restore points; from the first ok on what they need stays on the host, until release(). kOverloaded: storage is
  // still being read, or leases hold their share of the host; ask again after a poll. kNotFound: no such lookup.
  [[nodiscard]] virtual Result<LookupResult> points(LookupId id) = 0;
  // Loads of it that are under way go on. Unknown ids are ignored.
  virtual void release(LookupId id) = 0;

  // ---- transfers. A result is given once; then the id is forgotten. kOverloaded: under way; kNotFound: no such one;
  // kUnavailable: this rank has lost the others, and its own copy has ended: the engine's memory is free again.
  // kNotFound: no such lookup. kInvalidArgument: not one of its points, or the places do not fit. kOverloaded:
  // max_transfers, or operations, are open. Not ok: nothing was begun.
  [[nodiscard]] virtual Result<TransferId> load(const LoadRequest& request) = 0;
  [[nodiscard]] virtual Result<LoadResult> load_result(TransferId id) = 0;
  // kInvalidArgument: fewer tokens than pages, a state beyond them, places that do not fit. kOverloaded: as with
  // load(); or saves under way hold their share of the host; or pages before `from` are on their way in an earlier
  // save; or may_wait. Not ok: nothing was begun.
  [[nodiscard]] virtual Result<TransferId> save(const SaveRequest& request) = 0;
  [[nodiscard]] virtual Result<SaveResult> save_result(TransferId id) = 0;

  // ---- time
  // Applies what ended, retries what is due. Waits up to `wait` for the first; not at all if there is an answer that
  // neither a poll nor take_events() has told of. True: something changed, or there is such an answer, or more to do
  // than tiers.poll_budget allows. O(lookups and transfers that are open) beside what it applies.
  virtual bool poll(Nanos wait) = 0;
  // For who waits for the bell, and not in poll(): after so long a poll is due though nothing has rung. 0: at once,
  // because of an answer that came with a call, or of work that the last poll has left. nullopt: only the bell says so.
  // O(lookups and transfers that are open).
  [[nodiscard]] virtual std::optional<Nanos> until_due() = 0;
  // Ends a wait in poll() from another thread.
  virtual void wake() = 0;
  // Writes those of whom there is an answer, and returns how many: lookups, then loads, then saves, by their ids; as
  // many as `out` has room for, the others next time. Each is named once; a lookup again if points() has been
  // kOverloaded since, once it need not wait any more. Not those that were released or whose result was taken. So an
  // engine asks for what is there, and not for all that it waits for. O(lookups and transfers that are open).
  [[nodiscard]] virtual std::size_t take_events(std::span<ConnectorEvent> out) = 0;
  // No lookup open, and nothing in flight. (What storage could not take may be tried again later.)
  [[nodiscard]] virtual bool idle() const = 0;
  [[nodiscard]] virtual std::size_t operations_in_flight() const = 0;
  // A call found no memory. operations_in_flight() has all then that still uses host memory or the engine's; when it is
  // 0 after a poll, end the connector, and make another. What it kept on the host is lost, and the pools with it.
  [[nodiscard]] virtual bool has_failed() const = 0;

  // ---- operators; as in cache.h, but for flush()
  // No lookup finds any more what is on the host now, or comes there from what is under way: transfers, and what is
  // read from storage or written there. It goes when nobody uses its adapter and salt from before, or for room; what
  // has a lease is still loaded. Lookups without points wait for no storage. What waited to be written is not written.
  // Returns pages of full that could be found.
  virtual std::uint64_t flush() = 0;
  [[nodiscard]] virtual Status attach_storage(StorageBackend& backend) = 0;
  virtual void detach_storage() = 0;
  [[nodiscard]] virtual bool storage_idle() const = 0;
  virtual void storage_cleared() = 0;
  // backed_up: pages that were saved; loaded_back: pages that were loaded.
  [[nodiscard]] virtual CacheCounters counters() const = 0;
  // Host blocks that leases keep; a page that several share counts for each.
  [[nodiscard]] virtual std::uint64_t leased_blocks() const = 0;
  [[nodiscard]] virtual const RadixTree& tree() const = 0;
  // Tree and pools agree: every slot is in the tree, in a transfer, in an operation, or free. O(everything).
  [[nodiscard]] virtual Status check_invariants() const = 0;
};

}  // namespace larder
