// SPDX-License-Identifier: Apache-2.0
// Data of a node, and what counts it.
//
// One rule keeps the rest simple: data enters and leaves a node only here, which keeps the page counters, the queues of
// victims, the backlog and full_children right, and tells observers. Everybody else speaks in splits and attachments.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <cstdint>
#include <span>

#include "tree/path_keys.h"
#include "tree/run.h"
#include "tree/tree_observer.h"
#include "tree/tree_state.h"
#include "tree/victims.h"

namespace larder::tree {

class Residency : private TreeRoom {
 public:
  Residency(TreeState& state, PathKeys& keys, Victims& victims, SlotSink& sink)
      : TreeRoom(state), keys_(keys), victims_(victims), sink_(sink) {}

  // The slots are in the node already; these make them count. add_published() tells of it, unless the caller will.
  void add_published(Id id, ComponentKind c, Tier t, bool tells = true);
  void add_pending(Id id, ComponentKind c, Tier t);
  void publish(Id id, ComponentKind c, Tier t);
  // Gives the slots to the sink and forgets them, pending or published.
  // goes_with_tier: drop_tier() drops all of the node there, and renews its keys once.
  void drop(Id id, ComponentKind c, Tier t, bool goes_with_tier = false);
  // Everything of the node in the tier.
  void drop_tier(Id id, Tier t);
  void tell_came(Id id, ComponentKind c, Tier t);
  void tell_pages(PageObserver& to);
  // As TreeSpaces::retire(), which has forgotten its seed.
  void retire(Space& space);
  void set_slots(Id id, ComponentKind c, Tier t, SlotRun run);
  void give_back(ComponentKind c, Tier t, std::span<const std::uint32_t> slots);
  // Gives back those of `given` that are not the tree's own already (a caller that hands in a slot twice must not make
  // us free it under a reader).
  void give_back_duplicates(ComponentKind c, Tier t, std::span<const std::uint32_t> given, const std::uint32_t* own);
  // Corrects `locked` after the node came under its first operation or lost its last.
  void recount_covered(Id id, bool was_covered);
  void observe(TreeObserver* observer) { observer_ = observer; }
  void observe_pages(PageObserver* observer) { page_observer_ = observer; }

  // While one lives that `is_so`, what drop() takes from the host was worth least there.
  class Judgement {
   public:
    Judgement(Residency& of, bool is_so) : of_(of) { of_.is_judging_ = is_so; }
    ~Judgement() { of_.is_judging_ = false; }
    Judgement(const Judgement&) = delete;
    Judgement& operator=(const Judgement&) = delete;

   private:
    Residency& of_;
  };

 private:
  void tell_lost(Id id, ComponentKind c, Tier t);
  void tell_retired(Id id);
  // Whether somebody is to be told of its pages.
  [[nodiscard]] bool is_told(Id id) const {
    return page_observer_ != nullptr && !state_.spaces[node(id).space].is_retired;
  }
  [[nodiscard]] PageChange page_change(Id id, ComponentKind c, Tier t);
  // Empties a run of the node. If that leaves its array sparse, the ancestors that share it move to a smaller one.
  void release_slots(Id id, ComponentKind c, Tier t);

  PathKeys& keys_;
  Victims& victims_;
  SlotSink& sink_;
  TreeObserver* observer_ = nullptr;
  PageObserver* page_observer_ = nullptr;
  bool is_judging_ = false;
};

}  // namespace larder::tree
