// SPDX-License-Identifier: Apache-2.0
#include "sim/world/event_index.h"

#include "base/mix.h"

namespace larder::sim {
namespace {

std::uint64_t then(std::uint64_t so_far, std::uint64_t next) { return mix64(so_far * 31 + next + 1); }
std::uint64_t then(std::uint64_t so_far, const std::string& text) {
  for (const char c : text) so_far = then(so_far, static_cast<unsigned char>(c));
  return then(so_far, text.size());
}

}  // namespace

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
      const std::uint64_t name = then(then(names_[block], index_of(event.component)), static_cast<int>(event.tier));
      digest_ += comes ? name : 0 - name;
      continue;
    }
    error_ = std::string("a page of ") + std::string(component_name(event.component)) +
             (comes ? " came twice" : " went, and was not there");
  }
}

void EventIndex::name_pages(const KvEvent& event) {
  std::uint64_t name = 0;
  if (!event.parent) {
    name = then(then(name, event.names->adapter), event.names->salt);
  } else if (const auto parent = names_.find(*event.parent); parent != names_.end()) {
    name = parent->second;
  } else {
    error_ = std::string("a page of ") + std::string(component_name(event.component)) + " came before its parent";
  }
  const std::size_t page_size = event.tokens.size() / event.blocks.size();
  for (std::size_t i = 0; i < event.tokens.size(); ++i) {
    name = then(name, event.tokens[i]);
    if ((i + 1) % page_size == 0) names_[event.blocks[i / page_size]] = name;
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
