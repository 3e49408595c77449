// SPDX-License-Identifier: Apache-2.0
#include "sim/world/event_index.h"

#include <span>

#include "base/mix.h"

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
    digest_ = 0;
    knows_story_ = true;
    return;
  }
  if (!knows_story_) error_ = "events go on without a beginning";
  if (event.kind == KvEventKind::kStored) name_pages(event);
  std::unordered_set<std::int64_t>& there = there_[index_of(event.component)][static_cast<std::size_t>(event.tier)];
  for (const std::int64_t block : event.blocks) {
    const bool comes = event.kind == KvEventKind::kStored;
    if (comes ? there.insert(block).second : there.erase(block) != 0) {
      const std::uint64_t place = index_of(event.component) * kTierCount + static_cast<std::size_t>(event.tier);
      const std::uint64_t page = mix64(paths_[block].spread() + place);
      digest_ += comes ? page : 0 - page;
      continue;
    }
    error_ = std::string("a page of ") + std::string(component_name(event.component)) +
             (comes ? " came twice" : " went, and was not there");
  }
}

void EventIndex::name_pages(const KvEvent& event) {
  PathHash path = PathHash::of_space(event.names->adapter, event.names->salt);
  if (event.parent) {
    const auto parent = paths_.find(*event.parent);
    if (parent == paths_.end()) {
      error_ = std::string("a page of ") + std::string(component_name(event.component)) + " came before its parent";
      return;
    }
    path = parent->second;
  }
  const std::size_t page_size = event.tokens.size() / event.blocks.size();
  for (std::size_t i = 0; i < event.blocks.size(); ++i) {
    path.append(std::span(event.tokens).subspan(i * page_size, page_size));
    paths_[event.blocks[i]] = path;
  }
}

std::optional<std::uint64_t> EventIndex::digest() const {
  return is_deaf_ || !knows_story_ ? std::nullopt : std::optional(digest_);
}

std::string EventIndex::compare(const RadixTree& tree) const {
  if (!error_.empty()) return "events: " + error_;
  if (is_deaf_) return "";
  for (const ComponentKind c : kAllComponents) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const std::uint64_t known = there_[index_of(c)][static_cast<std::size_t>(tier)].size();
      const std::uint64_t resident = tree.counts(c, tier).resident - tree.spaces().retired_pages(c, tier);
      if (known == resident) continue;
      return "events: of " + std::string(component_name(c)) +
             (tier == Tier::kDevice ? " on the device " : " on the host ") + std::to_string(known) +
             " pages are known, and " + std::to_string(resident) + " are there";
    }
  }
  return "";
}

}  // namespace larder::sim
