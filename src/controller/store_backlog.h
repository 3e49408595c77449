// SPDX-License-Identifier: Apache-2.0
// Host -> storage: what the host has and storage lacks, written in one order.
//
// The backlog is the tree's list of unstored nodes, parents before children. pump() takes from its head, always: up to
// kMostStores writes at once, each of one namespace and about kStoreBytes, in groups of about store_group_bytes. A node
// whose parent is being written by an earlier write waits for that, and one whose parent rests, rests too: so no child
// is written before its parent was, or stands behind it in the same write.
//
//   unstored ─► in a write ─┬─► stored                  leaves the backlog
//                           ├─► declined (admission)    leaves it: not tried again under this storage
//                           ├─► refused                 likewise, and counts as failed (kInvalidArgument: for good)
//                           └─► failed ─► again, up to backup_retries times, with a doubling pause
//                                         └─► rests, until a timer that the ranks agree on wakes it
//   If all groups of a write are refused, each of its nodes is tried alone before it is given up.
//   A write of which storage took nothing, to its last attempt, stops the pump until that timer.
//
// What a write holds of the host (locks and leases) is bounded by kHostPercent of it, detached storages included, so a
// storage that hangs costs no more than that.
//
// Threads: the cache thread. Ranks: what is taken, locked, hashed and leased depends on agreed events alone; only when
// a retry is submitted depends on this rank's clock. Cost: a look at kLookAhead nodes for each write that begins; and
// at most kMostLooks looks per pump() in which all of them wait for their parents. A poll's budget ends the pump
// (work_budget.h): a write takes a piece of pages and the node that ends it, keys are hashed a piece at a time, and a
// node that is longer than a piece is split.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "controller/cache.h"
#include "controller/cache_metrics.h"
#include "controller/op_table.h"
#include "controller/space_table.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

class StoreBacklog {
 public:
  struct Parts {  // all outlive the backlog
    const ModelSpec& model;
    HostPools* host;  // null: nothing is ever stored
    RadixTree& tree;
    OpTable& ops;
    SpaceTable& spaces;
    Clock& clock;
    CacheCounters& counters;
    CacheMetrics& metrics;
  };
  StoreBacklog(const CacheConfig& config, const Parts& parts);

  // ---- the storage
  void attach_storage(StorageBackend& backend);
  // Ends what was not submitted, and abandons the rest: it holds its buffers and no place of the next storage's.
  void detach_storage();
  // Nothing counts as stored any more.
  void cleared();
  // Which storage, as it is since it was attached or cleared; TreeBacklog::set_stored() takes it.
  [[nodiscard]] std::uint32_t epoch() const { return epoch_; }

  // ---- writes
  // Begins what there is room for. Once per poll, after the agreed events were applied.
  void pump();
  // This rank's answer to a write: three bits for each group; the ranks AND them.
  [[nodiscard]] OutcomeBits outcome_of(const Op& op) const;
  void done(Op& op, const OutcomeBits& bits);
  [[nodiscard]] OpId rest_timer() const { return rest_timer_; }
  void rest_is_over();
  // When the first write that waits for another try is due. nullopt: none does.
  [[nodiscard]] std::optional<TimePoint> next_retry() const;
  // For a flush, and for the device: the tree lets go of what detached storages are still given, and the buffers remain
  // the writes' by their leases.
  void unlock_abandoned();

  // ---- room on the host
  // What writes keep in place on the host.
  [[nodiscard]] const HostSpace& kept() const { return kept_; }
  [[nodiscard]] const HostSpace& kept_by_abandoned() const { return kept_by_abandoned_; }
  // Whether room may be refused for a while because storage is taking what keeps it: it took something lately.
  [[nodiscard]] bool may_wait() const;
  // Whether storage lacks the node and gets it soon: it is near the head, and the pump does not stand.
  [[nodiscard]] bool is_soon(NodeId node) const;
  // Does storage get soon what comes to the host now? It takes pages, and few wait.
  [[nodiscard]] bool takes_soon() const;
  // Once per poll in which room was refused for that.
  void count_wait();

 private:
  static constexpr std::size_t kMostStores = 16, kSoon = 64, kLookAhead = 256, kMostLooks = 4;
  static constexpr std::uint64_t kStoreBytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kHostPercent = 60;
  static constexpr std::uint32_t kPatience = 32;  // polls
  static constexpr Nanos kShortestRest = std::chrono::seconds(1), kLongestRest = std::chrono::minutes(1);
  enum class Fate : std::uint8_t { kStored, kDeclined, kRefused, kFailed, kPutBack };  // of a piece: its worst group's

  [[nodiscard]] std::vector<NodeId> next_nodes();
  // The node, or as much of its head as a piece is.
  [[nodiscard]] NodeId head_of(NodeId node);
  // False: keys of them are missing still, and the budget has no more.
  [[nodiscard]] bool hash(const std::vector<NodeId>& nodes);
  [[nodiscard]] HostSpace space_of(NodeId node) const;
  [[nodiscard]] std::uint64_t page_bytes(const NodeView& view) const;  // without the state
  [[nodiscard]] std::uint64_t bytes_of(const NodeView& view) const;
  // before: the attempt that failed; null: the first one.
  void begin(const std::vector<NodeId>& nodes, const Store* before);
  void add_groups(Store& store, std::size_t piece);
  void submit(Op& op);
  void cancel(Op& op);
  // Its pages can be found no more, and so need not be written.
  [[nodiscard]] bool is_retired(const Store& store) const;
  // What becomes of it counts for the storage as it is now.
  [[nodiscard]] bool is_current(const Op& op) const;
  [[nodiscard]] static Fate fate_of(const OutcomeBits& bits, std::size_t group, std::size_t groups);
  [[nodiscard]] std::vector<NodeId> nodes_of(const Store::Piece& piece) const;
  // What became of a piece, of whose groups the worst is `fate`. Failed nodes come out in `again`.
  void settle(const Op& op, const Store::Piece& piece, Fate fate, bool retries, std::vector<NodeId>& again);
  void count(const Store& store, const OutcomeBits& bits, const std::vector<Fate>& fates, bool retries);
  [[nodiscard]] bool was_asked(const Store::Piece& piece, NodeId at) const;
  void release(Store& store, bool is_abandoned);
  void arm_rest();

  const CacheConfig& config_;
  const ModelSpec& model_;
  HostPools* const host_;
  RadixTree& tree_;
  OpTable& ops_;
  SpaceTable& spaces_;
  Clock& clock_;
  CacheCounters& counters_;
  CacheMetrics& metrics_;

  StorageBackend* storage_ = nullptr;
  std::uint32_t epoch_ = 0;
  NodeId passed_;            // up to here every node waits for its parent
  std::size_t singles_ = 0;  // so many writes take one node each: a write of several was refused as a whole
  std::uint64_t taken_ = 0;  // writes of which storage took something
  std::deque<OpId> queue_;   // begun and not submitted: they wait for their time
  HostSpace kept_, kept_by_abandoned_;
  std::uint32_t patience_ = 0;
  bool stands_ = false;  // storage took nothing at all: no write begins until the rest is over
  OpId rest_timer_;      // 0: nothing rests
  Nanos next_rest_ = kShortestRest;
};

}  // namespace larder
