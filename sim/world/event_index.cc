// SPDX-License-Identifier: Apache-2.0
#include "sim/world/event_index.h"

namespace larder::sim {

KvEventSink::Wish EventIndex::wish() {
  constexpr std::uint64_t kSeldom = 100;
  switch (rng_.below(kSeldom)) {
    case 0: is_deaf_ = true; return Wish::kNothing;
    case 1: return Wish::kAll;
    default: return Wish::kChanges;
  }
}

void EventIndex::take(std::vector<KvEvent> events) {
  is_deaf_ = false;  // either this begins anew, or nothing was missed
  for (const KvEvent& event : events) apply(event);
}

void EventIndex::apply(const KvEvent& event) {
  if (event.kind == KvEventKind::kCleared) {
    for (auto& tiers : there_) {
      for (auto& blocks : tiers) blocks.clear();
    }
    knows_story_ = true;
    return;
  }
  if (!knows_story_) error_ = "events go on without a beginning";
  std::unordered_set<std::int64_t>& there = there_[index_of(event.component)][static_cast<std::size_t>(event.tier)];
  for (const std::int64_t block : event.blocks) {
    const bool comes = event.kind == KvEventKind::kStored;
    if (comes ? there.insert(block).second : there.erase(block) != 0) continue;
    error_ = std::string("a page of ") + std::string(component_name(event.component)) +
             (comes ? " came twice" : " went, and was not there");
  }
}

std::string EventIndex::compare(const RadixTree& tree) const {
  if (!error_.empty()) return "events: " + error_;
  if (is_deaf_) return "";
  for (const ComponentKind c : kAllComponents) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const std::uint64_t known = there_[index_of(c)][static_cast<std::size_t>(tier)].size();
      const std::uint64_t resident = tree.counts(c, tier).resident;
      if (known == resident) continue;
      return "events: of " + std::string(component_name(c)) +
             (tier == Tier::kDevice ? " on the device " : " on the host ") + std::to_string(known) +
             " pages are known, and " + std::to_string(resident) + " are there";
    }
  }
  return "";
}

}  // namespace larder::sim
