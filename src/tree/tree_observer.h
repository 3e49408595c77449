// SPDX-License-Identifier: Apache-2.0
// Who is told what comes to the tiers and what leaves them.
//
//   TreeObserver   the last copy of something is gone: the record of what was lost (controller/loss_log.h)
//   PageObserver   each page in each tier, with its key: events for routers (controller/kv_events.h)
//
// Threads: the cache thread, inside operations of the tree, which they must not call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/strong.h"
#include "key/page_key.h"
#include "key/path_hash.h"
#include "model/pool_spec.h"
#include "pool/tier.h"

namespace larder {

namespace tree {
struct TreeRooms;
}

// Published data of one edge: of a component, in a tier. Spans are good during the call.
struct TreeChange {
  NamespaceId space;
  ComponentKind component = ComponentKind::kFull;
  Tier tier = Tier::kDevice;
  std::uint64_t begin = 0, end = 0;   // pages from the root; mamba: the state at `end`
  std::span<const TokenId> tokens{};  // of these pages
  std::uint32_t stored_epoch = 0;     // attach epoch of the storage that has it; 0: none
  std::uint32_t declined_epoch = 0;   // attach epoch of the storage that declined it; 0: none
};

class TreeObserver {
 public:
  virtual ~TreeObserver() = default;
  // The last copy of device and host is gone. path: of all tokens before change.begin of full, and of those up to
  // change.end of a window or a state, which belong to that place.
  virtual void lost(const TreeChange& change, PathHash path) = 0;
};

// Pages of one edge that a request can use in a tier from now on, or no longer. Spans are good during the call.
struct PageChange {
  NamespaceId space;
  ComponentKind component = ComponentKind::kFull;
  Tier tier = Tier::kDevice;
  std::span<const PageKey> keys{};    // one per page; mamba: of the last page alone, whose end the state is at
  std::optional<PageKey> before;      // key of the page before the first; nullopt: that is the first of its prompt
  std::span<const TokenId> tokens{};  // of these pages
};

// Full of a parent comes before that of its children and goes after it, but for gaps on the host (I2). Windows and
// states come in any order.
class PageObserver {
 public:
  virtual ~PageObserver() = default;
  virtual void came(const PageChange& change) = 0;
  virtual void went(const PageChange& change) = 0;
};

// Who is told by a RadixTree: RadixTree::observers(). Part of its tree, which it must not outlive.
class TreeObservers {
 public:
  explicit TreeObservers(tree::TreeRooms& rooms) : rooms_(rooms) {}
  TreeObservers(const TreeObservers&) = delete;
  TreeObservers& operator=(const TreeObservers&) = delete;

  // Of what is lost from now on; the observer outlives the tree, or until the next call. Null: nobody.
  void set_losses(TreeObserver* observer);
  // The same of each page in each tier, with its key: keys are hashed when pages come, not when somebody asks.
  void set_pages(PageObserver* observer);
  // Tells `observer` of all pages that are there, as if they came now, parents before children. O(tree).
  void tell_pages(PageObserver& observer);

 private:
  tree::TreeRooms& rooms_;
};

}  // namespace larder
