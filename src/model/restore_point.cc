// SPDX-License-Identifier: Apache-2.0
#include "model/restore_point.h"

#include <algorithm>
#include <array>

namespace larder {
namespace {

// The model's pools with their presence, found once so that the pass over pages does not search.
class PoolTable {
 public:
  PoolTable(const ModelSpec& model, std::span<const PoolPresence> presence) : model_(model) {
    for (const PoolPresence& entry : presence) by_name_[static_cast<std::size_t>(entry.pool)] = &entry.present;
  }

  [[nodiscard]] bool has_page(PoolName pool, std::uint64_t page) const {
    const Presence* present = by_name_[static_cast<std::size_t>(pool)];
    return present != nullptr && page < present->size() && (*present)[page];
  }

  // The first pool of component c, anchor before sidecars, for which `fails(pool name)`; nullptr: none.
  template <class Predicate>
  [[nodiscard]] const PoolSpec* find_failing(ComponentKind c, Predicate fails) const {
    const PoolSpec* found = nullptr;
    for (const PoolSpec& pool : model_.pools) {
      if (pool.component != c || !fails(pool.name)) continue;
      if (pool.is_anchor) return &pool;
      if (found == nullptr) found = &pool;
    }
    return found;
  }

  // The pool of component c that lacks `page`; nullptr: none.
  [[nodiscard]] const PoolSpec* lacking(ComponentKind c, std::uint64_t page) const {
    return find_failing(c, [&](PoolName pool) { return !has_page(pool, page); });
  }

  // The window pool that cannot serve boundary p; nullptr: none.
  [[nodiscard]] const PoolSpec* lacking_window(std::uint64_t p) const {
    const std::uint64_t first = p - model_.window_pages_at(p);
    return find_failing(ComponentKind::kSwa, [&](PoolName pool) {
      for (std::uint64_t page = first; page < p; ++page) {
        if (!has_page(pool, page)) return true;
      }
      return false;
    });
  }

 private:
  const ModelSpec& model_;
  std::array<const Presence*, kPoolNameCount> by_name_{};
};

// What one pass over the pages learned.
struct Scan {
  std::uint64_t best = 0;        // largest restore point
  std::uint64_t full_reach = 0;  // pages of [0, full_reach) are all there in every pool of full
  std::uint64_t windowed = 0;    // smallest boundary in (best, full_reach] with its whole window; 0: none
};

Scan scan_pages(const ModelSpec& model, const PoolTable& table, std::uint64_t max_pages) {
  Scan scan;
  const std::uint32_t window_pages = model.window_pages();
  std::uint64_t window_run = 0;  // pages that end at p and that every window pool has
  for (std::uint64_t p = 1; p <= max_pages; ++p) {
    if (table.lacking(ComponentKind::kFull, p - 1) != nullptr) break;
    scan.full_reach = p;
    window_run = table.lacking(ComponentKind::kSwa, p - 1) == nullptr ? window_run + 1 : 0;
    if (window_run < std::min<std::uint64_t>(window_pages, p)) continue;
    if (table.lacking(ComponentKind::kMamba, p - 1) == nullptr) {
      scan.best = p;
      scan.windowed = 0;
    } else if (scan.windowed == 0) {
      scan.windowed = p;
    }
  }
  return scan;
}

RestorePoint explain(const PoolTable& table, const Scan& scan, std::uint64_t max_pages) {
  RestorePoint point{.pages = scan.best};
  if (scan.best == max_pages) return point;
  const PoolSpec* pool = nullptr;
  if (scan.full_reach == scan.best) {
    pool = table.lacking(ComponentKind::kFull, scan.best);
    point.reason = pool != nullptr && pool->is_anchor ? StopReason::kFullMissing : StopReason::kSidecarMissing;
  } else if (scan.windowed == 0) {
    pool = table.lacking_window(scan.best + 1);
    point.reason = StopReason::kWindowMissing;
  } else {
    pool = table.lacking(ComponentKind::kMamba, scan.windowed - 1);
    point.reason = StopReason::kStateMissing;
  }
  if (pool != nullptr) point.pool = pool->name;
  return point;
}

}  // namespace

std::string_view stop_reason_name(StopReason r) {
  switch (r) {
    case StopReason::kNone: return "none";
    case StopReason::kFullMissing: return "full_missing";
    case StopReason::kSidecarMissing: return "sidecar_missing";
    case StopReason::kWindowMissing: return "window_missing";
    case StopReason::kStateMissing: return "state_missing";
    case StopReason::kNotFetched: return "not_fetched";
  }
  return "?";
}

RestorePoint largest_restore_point(const ModelSpec& model, std::span<const PoolPresence> presence,
                                   std::uint64_t max_pages) {
  const PoolTable table(model, presence);
  return explain(table, scan_pages(model, table, max_pages), max_pages);
}

bool is_restore_point(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t p) {
  if (p == 0) return true;
  const PoolTable table(model, presence);
  for (std::uint64_t page = 0; page < p; ++page) {
    if (table.lacking(ComponentKind::kFull, page) != nullptr) return false;
  }
  return table.lacking_window(p) == nullptr && table.lacking(ComponentKind::kMamba, p - 1) == nullptr;
}

}  // namespace larder
