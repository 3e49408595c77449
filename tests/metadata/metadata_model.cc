// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata/metadata_model.h"

#include <algorithm>

namespace larder::conformance {

void MetadataModel::settle() {
  for (auto at = pages_.begin(); at != pages_.end();) {
    Page& page = at->second;
    if (page.state == State::kReserved && page.until <= now_) {
      page.state = State::kQuarantined;
      page.until += kMaxIoLifetime;
    }
    at = page.state == State::kQuarantined && page.until <= now_ ? pages_.erase(at) : std::next(at);
  }
}

MetadataModel::Pages::iterator MetadataModel::stored(const std::string& key) {
  return std::find_if(pages_.begin(), pages_.end(),
                      [&](const auto& page) { return page.second.state == State::kStored && page.second.key == key; });
}

MetadataModel::Pages::iterator MetadataModel::owner(const std::string& key) {
  return std::find_if(pages_.begin(), pages_.end(), [&](const auto& page) {
    return page.second.state != State::kQuarantined && !page.second.is_cleared && page.second.key == key;
  });
}

MetadataModel::Pages::iterator MetadataModel::reserved(const MetadataSession& session, const ConfirmItem& item) {
  const auto at = pages_.find(item.ref.page);
  const bool is_it = at != pages_.end() && at->second.state == State::kReserved && at->second.session == session &&
                     at->second.generation == item.ref.generation && at->second.key == item.key;
  return is_it ? at : pages_.end();
}

bool MetadataModel::has_stored_children(const std::string& key) const {
  return std::any_of(pages_.begin(), pages_.end(), [&](const auto& page) {
    return page.second.state == State::kStored && page.second.parent == key;
  });
}

MetadataModel::Pages::iterator MetadataModel::victim(std::uint64_t protected_from) {
  auto best = pages_.end();
  for (auto at = pages_.begin(); at != pages_.end(); ++at) {
    const Page& page = at->second;
    if (page.state != State::kStored || page.lease_until > now_ || page.tick >= protected_from) continue;
    if (has_stored_children(page.key)) continue;
    if (best == pages_.end() || page.tick < best->second.tick) best = at;
  }
  return best;
}

void MetadataModel::drop(Pages::iterator page) {
  if (page->second.lease_until <= now_) {
    pages_.erase(page);
    return;
  }
  page->second.state = State::kQuarantined;
  page->second.until = page->second.lease_until;
}

std::vector<std::optional<PageRef>> MetadataModel::find(const std::vector<std::string>& keys, Nanos lease) {
  std::vector<std::optional<PageRef>> found;
  for (const std::string& key : keys) {
    const auto page = stored(key);
    found.push_back(page == pages_.end() ? std::nullopt : std::optional(PageRef{page->first, page->second.generation}));
    if (page == pages_.end() || lease.count() == 0) continue;
    page->second.lease_until = std::max(page->second.lease_until, now_ + lease);
    page->second.tick = ++tick_;
  }
  return found;
}

std::string MetadataModel::reserve(const MetadataSession& session, const std::vector<ReserveItem>& items, Nanos ttl,
                                   const std::vector<Reserved>& answers) {
  const std::uint64_t protected_from = tick_ + 1;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].parent.empty() && (i == 0 || items[i].parent != items[i - 1].key)) {
      const auto parent = stored(std::string(items[i].parent));
      if (parent != pages_.end()) parent->second.tick = ++tick_;
    }
    const auto page = stored(std::string(items[i].key));
    if (page != pages_.end()) page->second.tick = ++tick_;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string wrong = reserve_one(session, items[i], ttl, answers.at(i), protected_from);
    if (!wrong.empty()) return "item " + std::to_string(i) + " (" + std::string(items[i].key) + "): " + wrong;
  }
  return "";
}

std::string MetadataModel::reserve_one(const MetadataSession& session, const ReserveItem& item, Nanos ttl,
                                       const Reserved& answer, std::uint64_t protected_from) {
  const std::string key(item.key);
  const auto there = owner(key);
  if (there != pages_.end()) {
    const PageRef ref{there->first, there->second.generation};
    if (there->second.state == State::kStored) {
      return answer.outcome == ReserveOutcome::kStored && answer.ref == ref ? "" : "should be stored";
    }
    if (!(there->second.session == session)) return answer.outcome == ReserveOutcome::kBusy ? "" : "should be busy";
    there->second.until = std::max(there->second.until, now_ + ttl);
    return answer.outcome == ReserveOutcome::kReserved && answer.ref == ref ? "" : "should be the same page again";
  }
  if (pages_.size() == capacity_) {
    const auto evicted = victim(protected_from);
    if (evicted == pages_.end()) return answer.outcome == ReserveOutcome::kFull ? "" : "should be full";
    if (answer.outcome == ReserveOutcome::kReserved && answer.ref.page != evicted->first) {
      return "should take the page of " + evicted->second.key;
    }
    pages_.erase(evicted);
  }
  if (answer.outcome != ReserveOutcome::kReserved) return "should be reserved";
  if (answer.ref.page >= capacity_ || pages_.contains(answer.ref.page)) return "that page is not free";
  if (answer.ref.generation <= last_generation_) return "that generation was used before";
  last_generation_ = answer.ref.generation;
  used_ = std::max(used_, answer.ref.page + 1);
  Page& page = pages_[answer.ref.page];
  page.key = key;
  page.parent = std::string(item.parent);
  page.session = session;
  page.generation = answer.ref.generation;
  page.until = now_ + ttl;
  return "";
}

bool MetadataModel::confirm(const MetadataSession& session, const std::vector<ConfirmItem>& group) {
  bool is_whole = true;
  for (const ConfirmItem& item : group) {
    const auto there = pages_.find(item.ref.page);
    const bool is_stored = there != pages_.end() && there->second.state == State::kStored &&
                           there->second.generation == item.ref.generation && there->second.key == item.key;
    const auto page = reserved(session, item);
    if (!is_stored && (page == pages_.end() || page->second.is_cleared)) is_whole = false;
  }
  for (const ConfirmItem& item : group) {
    const auto page = reserved(session, item);
    if (page == pages_.end()) continue;
    if (!is_whole) {
      pages_.erase(page);
      continue;
    }
    page->second.state = State::kStored;
    page->second.tick = ++tick_;
  }
  return is_whole;
}

void MetadataModel::release(const MetadataSession& session, const ConfirmItem& item, bool rests) {
  const auto page = reserved(session, item);
  if (page == pages_.end()) return;
  if (!rests) {
    pages_.erase(page);
    return;
  }
  page->second.state = State::kQuarantined;
  page->second.until = now_ + kMaxIoLifetime;
}

std::uint64_t MetadataModel::remove(const ConfirmItem& item) {
  const auto page = stored(std::string(item.key));
  if (page == pages_.end()) return 0;
  if (item.ref.generation != 0 && !(item.ref == PageRef{page->first, page->second.generation})) return 0;
  drop(page);
  return 1;
}

std::uint64_t MetadataModel::clear(const std::string& prefix) {
  std::uint64_t dropped = 0;
  for (auto at = pages_.begin(); at != pages_.end();) {
    const auto page = at++;
    if (!page->second.key.starts_with(prefix)) continue;
    if (page->second.state == State::kReserved) page->second.is_cleared = true;
    if (page->second.state != State::kStored) continue;
    drop(page);
    ++dropped;
  }
  return dropped;
}

void MetadataModel::restart() {
  std::vector<std::pair<std::uint64_t, Page*>> by_generation;
  for (std::uint64_t number = 0; number < used_; ++number) {
    Page& page = pages_[number];  // makes those that were free
    if (page.state == State::kStored) {
      page.lease_until = now_ + kMaxLease;
      by_generation.emplace_back(page.generation, &page);
    } else {
      page = Page();
      page.state = State::kQuarantined;
      page.until = now_ + std::max(kMaxLease, kMaxIoLifetime);
    }
  }
  std::sort(by_generation.begin(), by_generation.end());
  for (const auto& [generation, page] : by_generation) page->tick = ++tick_;
}

NamespaceStats MetadataModel::stats() const {
  NamespaceStats stats;
  stats.pages = capacity_;
  stats.free = capacity_ - pages_.size();
  for (const auto& [number, page] : pages_) {
    stats.reserved += page.state == State::kReserved ? 1 : 0;
    stats.stored += page.state == State::kStored ? 1 : 0;
    stats.quarantined += page.state == State::kQuarantined ? 1 : 0;
  }
  return stats;
}

}  // namespace larder::conformance
