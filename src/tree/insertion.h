// SPDX-License-Identifier: Apache-2.0
// What requests computed and what storage brought comes into the tree.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <cstdint>
#include <span>

#include "tree/locks.h"
#include "tree/matcher.h"
#include "tree/path_keys.h"
#include "tree/residency.h"
#include "tree/structure.h"
#include "tree/tree_state.h"
#include "tree/uses.h"

namespace larder::tree {

class Insertion : private TreeRoom {
 public:
  Insertion(TreeState& state, PathKeys& keys, Residency& residency, Structure& structure, Matcher& matcher, Uses& uses,
            Locks& locks)
      : TreeRoom(state),
        keys_(keys),
        residency_(residency),
        structure_(structure),
        matcher_(matcher),
        uses_(uses),
        locks_(locks) {}

  // As RadixTree has them.
  [[nodiscard]] Result<InsertResult> extend(LockHandle& held, const ExtendRequest& request);
  [[nodiscard]] Result<InsertResult> insert_host(const HostInsertRequest& request);

 private:
  struct InsertTally {
    std::uint64_t known_pages = 0;  // of the path, before the insertion
    std::uint64_t fresh = 0, duplicate = 0, recovered = 0;
  };
  struct NewCheckpoint {
    std::uint64_t page = 0;
    std::uint32_t slot = 0;
    CheckpointOrigin origin{};
  };
  [[nodiscard]] Status check_extend(const LockHandle& held, const ExtendRequest& request) const;
  [[nodiscard]] Status check_extend_path(const TreePosition& walked, std::uint64_t from) const;
  [[nodiscard]] Status check_insert_host(const HostInsertRequest& request) const;
  // Fills full of pages [from, from + slots.size()) of the path to `node` where it is missing.
  void fill_full(Id node, Tier t, std::uint64_t from, std::span<const std::uint32_t> slots, InsertTally& tally);
  // The same for swa tombstones; returns the node to go on from, upwards.
  Id fill_window(Id node, Tier t, std::uint64_t from, std::span<const std::uint32_t> slots, InsertTally& tally);
  Id fill_window_edge(Id node, Tier t, std::uint64_t low, std::uint64_t high, std::span<const std::uint32_t> given,
                      SlotRun& run, std::span<const std::uint32_t> all, InsertTally& tally);
  void fill_windows(Id node, std::uint64_t from, std::span<const DeviceSlot> slots, InsertTally& tally);
  [[nodiscard]] bool add_checkpoint(Id& cursor, Tier t, const NewCheckpoint& checkpoint);
  [[nodiscard]] std::uint32_t add_checkpoints(Id end, std::span<const Checkpoint> checkpoints);
  // New leaf below `parent` with full data in the tier; slots are one per page of tokens, and keys where they are
  // known.
  [[nodiscard]] Id add_full_leaf(Id parent, Tier t, std::span<const TokenId> tokens,
                                 std::span<const std::uint32_t> slots, std::int32_t priority,
                                 std::span<const PageKey> keys = {});

  PathKeys& keys_;
  Residency& residency_;
  Structure& structure_;
  Matcher& matcher_;
  Uses& uses_;
  Locks& locks_;
};

}  // namespace larder::tree
