// SPDX-License-Identifier: Apache-2.0
// Finds out why a prompt was not reused further (controller/miss.h), when its restore point is chosen.
//
//   storage spoke of it?      damaged, failed, late, not fetched
//   full ends at page p       does it go on in storage, up to no restore point? ─► no checkpoint
//                             was p lost lately? ─► evicted, declined, flushed
//                             has storage not answered yet? ─► late
//                             does the tree go on? ─► diverged
//                             page 0: is it in another namespace?        else ─► never seen
//   window, state lack        lost lately, at a boundary behind the restore point? ─► as above
//                             has storage not answered yet? ─► late                  else ─► no checkpoint
//
// Threads: the cache thread. Ranks: decides nothing. Errors: none; what is not known any more is told without its time.
// Cost: O(1) as a rule; where window or state lack, O(tokens between the restore point and the end of full), of
// kMostBoundaries pages at most, and as many behind full's end if that was lost lately; where nothing of the prompt is
// known, O(namespaces), of kMostSpaces at most.
#pragma once

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "controller/loss_log.h"
#include "controller/miss.h"
#include "controller/prefetcher.h"
#include "controller/space_table.h"
#include "controller/store_backlog.h"
#include "model/model_spec.h"
#include "tree/tree.h"

namespace larder {

class MissReasons {
 public:
  static constexpr std::uint64_t kMostBoundaries = 4096;
  static constexpr std::size_t kMostSpaces = 256;
  // A head that is shorter, in tokens, is that of a chat template: prompts that share no more are not alike.
  static constexpr std::uint64_t kLeastShared = 16;
  struct Parts {  // all outlive the reasons
    const ModelSpec& model;
    RadixTree& tree;
    const SpaceTable& spaces;
    const StoreBacklog& backlog;
    const LossLog& losses;
    const Clock& clock;
  };
  explicit MissReasons(const Parts& parts) : parts_(parts) {}

  void attach_storage(bool is_attached) { has_storage_ = is_attached; }

  struct Found {
    NamespaceId space;
    std::span<const TokenId> tokens{};  // what may be reused: whole pages
    const MatchResult& match;           // of the tokens, and the tree has not changed since
    const TierMatch& best;              // of the match: the restore point that was taken
    std::uint64_t full_pages = 0;       // of full in the same tiers
    Prefetcher::Fetched fetched{};
  };
  [[nodiscard]] Miss explain(const Found& found) const;

 private:
  [[nodiscard]] Miss full_missing(const Found& found) const;
  [[nodiscard]] Miss part_missing(const Found& found) const;
  [[nodiscard]] Miss lost(const Found& found, ComponentKind c, std::uint64_t page, const Loss& loss) const;
  // Storage has full of the page where it ends in the tiers above.
  [[nodiscard]] bool is_full_stored(const Found& found) const;
  [[nodiscard]] Miss without_use(const Found& found) const;
  [[nodiscard]] bool is_elsewhere(const Found& found, bool& has_other_salt) const;

  const Parts parts_;
  bool has_storage_ = false;
};

}  // namespace larder
