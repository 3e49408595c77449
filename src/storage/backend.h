// SPDX-License-Identifier: Apache-2.0
// The storage port (L3): what every backend must do, and nothing about how.
//
// Contract
//  - submit_*() never blocks and does no I/O, unless the request says that its caller waits. On ok, `done` runs exactly
//  once, on any thread, also after cancel, close
//    and failure. On error (kOverloaded: the bounded queue is full; kUnavailable: closed or sick) nothing was taken and
//    `done` is dropped unrun. `done` may run on the calling thread before submit_*() returns (an exists that is only an
//    index lookup does): call no submit_*() with a lock held that `done` takes. Do not call close() from `done`.
//  - From submit to `done` the segments belong to the backend (rule 3), whatever the caller's deadline says.
//  - One status per item. A miss is kNotFound; bytes that fail verification are kCorrupt, counted, and the page is
//    dropped by the backend. No exception crosses this port; no callback is made under a lock.
//  - A PageGroup commits atomically: after a crash all of its items are there, or none (atomic_groups capability);
//    a reader never sees an item of a group before its anchor. Writing a page that is there already is ok and cheap.
//  - read() returns only bytes verified as verify_page() does.
//  - A store is bound to nothing: pages of many models, layouts and tenants live side by side and never meet, because
//    the key chain is seeded with the namespace digest and the envelope is checked.
//
// Threads: all methods from any thread. Every backend passes tests/conformance.
#pragma once

#include <atomic>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/strong.h"
#include "key/page_key.h"
#include "model/model_spec.h"
#include "model/restore_point.h"
#include "pool/host_pools.h"
#include "storage/envelope.h"

namespace larder {

// The identity under which a rank's pages are stored: one per (model, layout, rank, adapter, tenant).
// Threads: a value; shared by operations once it is filled.
class StoreScope {
 public:
  Digest256 namespace_digest;
  // Where ranks share a store, `rank` of `ranks` writes its share of the replicated pools: is_writer().
  std::uint32_t rank = 0, ranks = 1;

  // Any number below kPoolNumberCount. is_replicated: the pool's pages are the same on all tensor-parallel ranks.
  void set_pool(PoolName pool, const Digest256& fingerprint, bool is_replicated = false) {
    const auto number = static_cast<std::size_t>(pool);
    assert(number < kPoolNumberCount);
    if (pools_.size() <= number) pools_.resize(number + 1);
    pools_[number] = {fingerprint, is_replicated};
  }
  // All zero: the model has no such pool.
  [[nodiscard]] const Digest256& fingerprint(PoolName pool) const {
    static constexpr Digest256 kNone{};
    const auto number = static_cast<std::size_t>(pool);
    return number < pools_.size() ? pools_[number].fingerprint : kNone;
  }
  [[nodiscard]] bool is_replicated(PoolName pool) const {
    const auto number = static_cast<std::size_t>(pool);
    return number < pools_.size() && pools_[number].is_replicated;
  }
  // Numbers from here on have no pool. For those who list all pools of a scope.
  [[nodiscard]] std::size_t pool_limit() const { return pools_.size(); }
  // True for exactly one rank for each page of a replicated pool, and for every rank for pages of its own.
  [[nodiscard]] bool is_writer(PoolName pool, const PageKey& key) const {
    return !is_replicated(pool) || ranks <= 1 || key.prefix64() % ranks == rank;
  }

 private:
  struct Pool {
    Digest256 fingerprint;
    bool is_replicated = false;
  };
  std::vector<Pool> pools_;  // by number
};
[[nodiscard]] StoreScope make_store_scope(const ModelSpec& model, const NamespaceScope& scope);
// Sum of the pieces' sizes.
[[nodiscard]] std::size_t payload_bytes(std::span<const Segment> payload);

// Who waits for an operation. A queue serves the first that waits before the next kind.
enum class Urgency : std::uint8_t { kWaiting, kSpeculative, kBackground };
inline constexpr std::size_t kUrgencyCount = 3;

// What an operation is worth to its caller while it waits for its turn. A backend may ignore it; the pipeline in front
// of it (storage/pipeline) does not. It never ends an operation that has reached the device.
struct OperationTerms {
  Urgency urgency = Urgency::kWaiting;
  TimePoint deadline = TimePoint::max();            // not begun by then: kDeadlineExceeded
  std::shared_ptr<const std::atomic<bool>> cancel;  // true and not begun: kCancelled; null: never
  // Reads and writes: the caller has nothing to do until the answer, so submit_*() may do the work on its thread, and
  // block on the disk. For one small page at a time, where changes of threads cost as much as the disk. Not from a
  // `done`, which may run on the thread that would have to end the operation. A pipeline ignores it: its callers do
  // not wait, and it starts operations on threads of others.
  bool caller_waits = false;
};

struct ExistsRequest {
  std::shared_ptr<const StoreScope> scope;
  std::vector<PageKey> keys;    // chain order
  std::vector<PoolName> pools;  // every pool whose presence matters
  OperationTerms terms{};
};
struct ExistsResult {
  Status status;                       // not ok: `presence` is empty
  std::vector<PoolPresence> presence;  // one per requested pool, present[i] <-> keys[i]
};

struct ReadItem {
  PoolName pool;
  PageKey key;
  std::vector<Segment> payload;  // where the bytes go; total size = the pool's page_bytes()
};
struct ReadRequest {
  std::shared_ptr<const StoreScope> scope;
  std::vector<ReadItem> items;
  OperationTerms terms{};
};
struct ReadResult {
  std::vector<Status> items;  // one per item; payload of a failed item is undefined
};

// A moment in the row of a store's clears. `store` is drawn anew where nobody knows the clears before; marks of two
// stores cannot be compared. `count` grows with each clear. store 0: no mark, as of a backend that keeps none.
struct ClearMark {
  std::uint64_t store = 0, count = 0;
  [[nodiscard]] bool is_none() const { return store == 0; }
  friend bool operator==(const ClearMark&, const ClearMark&) = default;
};

struct WriteItem {
  PoolName pool;
  PageKey key;
  std::vector<Segment> payload;
  PageKey parent{};  // key of the page before it in its chain: eviction takes tails before heads. Zero: none or unknown
};
// Commits as a whole. Items in order: sidecars before their anchor; the last item is the commit mark.
struct PageGroup {
  std::vector<WriteItem> items;
};
struct WriteRequest {
  std::shared_ptr<const StoreScope> scope;
  std::vector<PageGroup> groups;  // parents before children; a failed group does not stop the next
  bool durable = false;           // acknowledge only when it survives a power cut (fsync)
  OperationTerms terms{Urgency::kBackground, TimePoint::max(), nullptr};
  // When the pages came into being. Was their namespace cleared after that, or is it a mark of another store, then each
  // group is answered kCancelled, and nothing is written. None: now. Backends without marks take no notice.
  ClearMark as_of{};
};
struct WriteResult {
  // One per group: kOk = whole group visible. kUnsupported: the backend's admission policy declines it; not a failure,
  // and not worth a retry. kOverloaded, kUnavailable: perhaps later.
  std::vector<Status> groups;
};

struct BackendInfo {
  std::string name;            // "memory", "file"
  bool persistent = false;     // survives a restart
  bool atomic_groups = false;  // all-or-none after a crash
  bool zero_copy = false;      // moves segments without a staging copy
  std::size_t alignment = 1;   // preferred alignment of segments, bytes
  bool counts_pages = true;    // stats() knows pages, bytes and physical_bytes
  bool supports_clear = true;  // else submit_clear() gives kUnsupported
};

struct BackendStats {
  std::uint64_t pages = 0, bytes = 0, physical_bytes = 0;
  std::uint64_t reads = 0, read_hits = 0, read_misses = 0, read_errors = 0;
  std::uint64_t writes = 0, write_errors = 0, duplicate_writes = 0;
  std::uint64_t corrupt = 0, evicted = 0;
  std::uint64_t torn_tails = 0;      // unfinished groups cut off at open (persistent backends)
  std::uint64_t queued = 0;          // operations taken and not yet done
  std::uint64_t declined = 0;        // groups that admission did not want
  std::uint64_t moved = 0;           // pages that cleaning copied
  std::uint64_t written_bytes = 0;   // to the device, all overheads counted
  std::uint64_t capacity_bytes = 0;  // most physical_bytes; 0: no limit known
  std::uint64_t segments = 0;
  std::uint64_t suspended_volumes = 0;  // directories that take no writes now, after an error
};

class StorageBackend {
 public:
  using ExistsDone = std::function<void(ExistsResult)>;
  using ReadDone = std::function<void(ReadResult)>;
  using WriteDone = std::function<void(WriteResult)>;
  using ClearDone = std::function<void(Status)>;

  virtual ~StorageBackend() = default;  // = close() with no wait limit for what is in flight
  [[nodiscard]] virtual const BackendInfo& info() const = 0;
  [[nodiscard]] virtual Status submit_exists(ExistsRequest request, ExistsDone done) = 0;
  [[nodiscard]] virtual Status submit_read(ReadRequest request, ReadDone done) = 0;
  [[nodiscard]] virtual Status submit_write(WriteRequest request, WriteDone done) = 0;
  // Drops every page of the scope (null: of the whole store, other files untouched). A write of such pages that is
  // under way happens after it, or ends kCancelled.
  [[nodiscard]] virtual Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) = 0;
  [[nodiscard]] virtual BackendStats stats() const = 0;
  // The mark of the last clear that has begun, of whatever namespace, by whichever process: for WriteRequest::as_of.
  [[nodiscard]] virtual ClearMark clear_mark() const { return {}; }
  // The mark of the last clear of the whole store that has ended, well or not. Is it another one than before, then
  // nothing that was stored before counts as stored.
  [[nodiscard]] virtual ClearMark emptied_mark() const { return {}; }
  // Payloads will often lie in `regions` from now on: a device that can prepares them once, not at each transfer. They
  // outlive a close() that ends ok. Any thread, any time; transfers work the same without. kUnsupported: nothing to
  // gain here; kOverloaded: the system refuses (mostly its limit of locked memory).
  [[nodiscard]] virtual Status register_memory(std::span<const Segment> /*regions*/) {
    return unsupported("storage backend '" + info().name + "' does not register memory");
  }
  // Refuses new operations and waits for those in flight. kDeadlineExceeded: some still run; their buffers stay theirs
  // and close() may be called again. Idempotent.
  [[nodiscard]] virtual Status close(std::chrono::nanoseconds limit) = 0;
};

}  // namespace larder
