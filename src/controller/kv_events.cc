// SPDX-License-Identifier: Apache-2.0
#include "controller/kv_events.h"

#include <algorithm>
#include <utility>

#include "key/page_key.h"
#include "key/sha256.h"
#include "tree/tree.h"

namespace larder {
namespace {

constexpr std::size_t kLongestToldName = 256;
constexpr Nanos kBetweenBeginnings = std::chrono::seconds(1);
constexpr int kBeginningShare = 20;  // a beginning takes at most one part in so many of the thread's time

std::string told_name(const std::string& name) {
  if (name.size() <= kLongestToldName) return name;
  return "sha256:" + sha256(name).hex();
}

}  // namespace

KvEventRecorder::KvEventRecorder(RadixTree& tree, const SpaceTable& spaces, KvEventSink& sink, Clock& clock)
    : tree_(tree), spaces_(spaces), sink_(sink), clock_(clock) {
  tree_.observers().set_pages(this);
}

KvEventRecorder::~KvEventRecorder() { tree_.observers().set_pages(nullptr); }

const std::shared_ptr<const KvEventNames>& KvEventRecorder::names_of(NamespaceId space) {
  const SpaceTable::Name& name = spaces_.name(space);
  if (names_ == nullptr || named_ != name) {
    named_ = name;
    names_ = std::make_shared<const KvEventNames>(KvEventNames{told_name(name.first), told_name(name.second)});
  }
  return names_;
}

void KvEventRecorder::came(const PageChange& change) {
  if (change.component != ComponentKind::kFull && !sink_.wants_all_components()) return;
  const std::optional<std::int64_t> parent =
      change.before ? std::optional(event_block_hash(*change.before)) : std::nullopt;
  const std::shared_ptr<const KvEventNames>& names = names_of(change.space);
  KvEvent* event = events_.empty() ? nullptr : &events_.back();
  const bool goes_on = event != nullptr && event->kind == KvEventKind::kStored && event->tier == change.tier &&
                       event->component == change.component && parent && event->blocks.back() == *parent &&
                       event->names == names;
  if (!goes_on) {
    event = &events_.emplace_back(KvEvent{KvEventKind::kStored, change.component, change.tier, {}, parent, {}, names});
  }
  for (const PageKey& key : change.keys) event->blocks.push_back(event_block_hash(key));
  event->tokens.insert(event->tokens.end(), change.tokens.begin(), change.tokens.end());
  tokens_ += change.tokens.size();
  if (is_in_pieces_ && tokens_ >= kTokensAtATime) give();
}

void KvEventRecorder::went(const PageChange& change) {
  if (change.component != ComponentKind::kFull && !sink_.wants_all_components()) return;
  KvEvent* event = events_.empty() ? nullptr : &events_.back();
  const bool goes_on = event != nullptr && event->kind == KvEventKind::kRemoved && event->tier == change.tier &&
                       event->component == change.component;
  if (!goes_on) {
    event = &events_.emplace_back(KvEvent{KvEventKind::kRemoved, change.component, change.tier, {}, {}, {}, {}});
  }
  for (const PageKey& key : change.keys) event->blocks.push_back(event_block_hash(key));
}

void KvEventRecorder::hand_over() {
  const KvEventSink::Wish wish = sink_.wish();
  if (wish == KvEventSink::Wish::kAll) owes_beginning_ = true;
  if (wish == KvEventSink::Wish::kNothing) {
    if (events_.empty()) return;
    sink_.dropped();
    return drop_events();
  }
  const bool needs_beginning = owes_beginning_ || !knows_story_;
  if (needs_beginning && (!next_beginning_ || clock_.now() >= *next_beginning_)) return tell_all();
  if (!knows_story_) return drop_events();
  if (!events_.empty()) give();
}

void KvEventRecorder::drop_events() {
  events_.clear();
  tokens_ = 0;
  knows_story_ = false;
}

void KvEventRecorder::tell_all() {
  const TimePoint begun = clock_.now();
  drop_events();
  events_.push_back({});
  is_in_pieces_ = true;
  tree_.observers().tell_pages(*this);
  is_in_pieces_ = false;
  if (!events_.empty()) give();
  knows_story_ = true;
  owes_beginning_ = false;
  const TimePoint ended = clock_.now();
  next_beginning_ = ended + std::max(kBetweenBeginnings, kBeginningShare * (ended - begun));
}

void KvEventRecorder::give() {
  sink_.take(std::exchange(events_, {}));
  tokens_ = 0;
}

}  // namespace larder
