// SPDX-License-Identifier: Apache-2.0
// Device -> host (step 6 of a prefix's life): what gets a copy on the host, and when. Host -> storage: store_backlog.h.
//
//   by_policy()   a request gave pages to the tree, or hit them     write_through, write_through_selective
//   of_victims()  they are to leave the device                      whatever the policy
//      └─► the path above them that the host lacks, parents before children ─► host slots ─► one copy ─► done()
//
// Exclusive tiers: by_policy() makes no effort for room (HostEffort::kNoLoss), and victims are copied without their
// path.
//
// A node that finds no room ends the copy in front of it: a child never stands on the host without its parent, except
// with write_back and exclusive tiers. From the moment its slots are taken a page counts as backed up; if the copy
// fails, as lost.
//
// Threads: the cache thread. Ranks: by the tree and agreed events alone. Errors: a copy that cannot be made is no
// error: counters.backup_no_room, and take_failure().
// Cost: O(nodes of the path that the host lacks + their pages).
#pragma once

#include <cstdint>
#include <vector>

#include "controller/cache.h"
#include "controller/config.h"
#include "controller/device_copies.h"
#include "controller/host_room.h"
#include "controller/op_table.h"
#include "policy/admission.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

class Backups {
 public:
  struct Parts {      // all outlive the backups
    HostPools* host;  // null: nothing is ever copied
    RadixTree& tree;
    OpTable& ops;
    HostRoom& host_room;
    DeviceCopies& copies;
    CacheCounters& counters;
  };
  struct Begun {
    bool copies = false;            // a copy was started
    bool waits_for_stores = false;  // the rest finds room once storage has taken more (host_room.h)
  };
  // config: outlives this; its policies may change.
  Backups(const CacheConfig& config, const Parts& parts);

  // May the component have copies on the host?
  [[nodiscard]] bool keeps(ComponentKind c) const;
  // As the write policy says. What stands at or after page `from` is looked at also beneath a complete copy.
  void by_policy(NodeId node, std::uint64_t from);
  [[nodiscard]] Begun of_victims(const std::vector<NodeId>& victims, bool gently);
  // A copy has ended, on all ranks.
  void done(const Op& op, bool is_ok);
  // Whether the last copy that ended has failed; says so once.
  [[nodiscard]] bool take_failure();

 private:
  [[nodiscard]] ComponentCounts missing_on_host(const NodeView& view) const;
  // Who may enter the host before it has to. Null: nobody.
  [[nodiscard]] const Admission* admission() const;
  void append_path(NodeId node, const Admission& admission, std::uint64_t from, std::vector<NodeId>& out) const;
  [[nodiscard]] Begun begin(const std::vector<NodeId>& nodes, HostEffort effort);  // parents first
  [[nodiscard]] HostAnswer attach(const Op& op, NodeId node, TransferRequest& copy, HostEffort effort);

  const CacheConfig& config_;
  HostPools* const host_;
  RadixTree& tree_;
  OpTable& ops_;
  HostRoom& host_room_;
  DeviceCopies& copies_;
  CacheCounters& counters_;
  const AdmissionPtr all_, by_hits_;
  bool has_failed_ = false;
};

}  // namespace larder
