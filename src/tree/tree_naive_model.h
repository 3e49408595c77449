// SPDX-License-Identifier: Apache-2.0
// The tree's meaning without a tree: a map from each page's path to where its data is. Slow, short, and believable.
//
// A path is a string: namespace character, then one character per page. Every rule of tree.h is said here page by page;
// what the model cannot know (which victims a policy picks) it takes over from the tree and checks for legality.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "tree/tree.h"

namespace larder::tree_test {

struct NaiveTree {
  enum State : std::uint8_t { kNone, kPending, kComplete, kPublished };  // kComplete: copied, waits for its base
  struct Cell {
    State state = kNone;
    std::uint32_t slot = 0;
    std::uint64_t op = 0;
  };
  struct Page {
    std::array<std::array<Cell, 2>, 3> cells;
    std::array<std::array<int, 2>, 3> locks{};
    std::set<std::uint64_t> ops;
  };
  using Path = std::string;
  struct Answer {
    std::uint64_t at = 0, full = 0, window_best = 0;
  };
  using Freed = std::array<std::array<std::multiset<std::uint32_t>, 2>, 3>;

  std::uint64_t window = 0;  // pages
  bool mamba = false, gaps = false;
  std::map<Path, Page> pages;
  Freed freed;  // what the last operation must have given back

  static Path prefix(const Path& path, std::uint64_t count) { return path.substr(0, count + 1); }  // of `count` pages
  // Page number `i` of the path, or nullptr.
  Page* page(const Path& path, std::uint64_t i) {
    const auto found = pages.find(prefix(path, i + 1));
    return found == pages.end() ? nullptr : &found->second;
  }
  static bool present(const Page* p, std::size_t c, std::size_t t) { return p && p->cells[c][t].state != kNone; }
  static bool published(const Page* p, std::size_t c, std::size_t t) { return p && p->cells[c][t].state == kPublished; }
  static bool covered(const Page& p) {
    for (const auto& tiers : p.cells) {
      for (const Cell& cell : tiers) {
        if (cell.state == kPending || cell.state == kComplete) return true;
      }
    }
    return !p.ops.empty();
  }
  // Of all components, what is in any tier.
  std::uint64_t held() const {
    std::uint64_t out = 0;
    for (const auto& [path, p] : pages) {
      for (std::size_t c = 0; c < 3; ++c) out += present(&p, c, 0) || present(&p, c, 1) ? 1 : 0;
    }
    return out;
  }
  [[nodiscard]] static bool lacks_copy(const NodeView& view) {
    for (std::size_t c = 0; c < 3; ++c) {
      if (!view.device[c].empty() && view.host[c].empty()) return true;
    }
    return false;
  }
  std::uint64_t window_begin(std::uint64_t end) const { return end - std::min(end, window); }
  std::uint64_t walked(const Path& path) {
    std::uint64_t n = 0;
    while (n + 1 < path.size() && page(path, n)) ++n;
    return n;
  }

  // DESIGN.md section 1, said as it stands there.
  bool satisfied(const Path& path, std::uint64_t p, bool host_too, bool with_state) {
    const auto there = [&](std::uint64_t i, std::size_t c) {
      return published(page(path, i), c, 0) || (host_too && published(page(path, i), c, 1));
    };
    for (std::uint64_t i = 0; i < p; ++i) {
      if (!there(i, 0)) return false;
    }
    for (std::uint64_t i = window_begin(p); window != 0 && i < p; ++i) {
      if (!there(i, 1)) return false;
    }
    return p == 0 || !mamba || !with_state || there(p - 1, 2);
  }
  Answer lookup(const Path& path, bool host_too) {
    Answer answer;
    const std::uint64_t end = walked(path);
    const auto full = [&](std::uint64_t i) {
      return published(page(path, i), 0, 0) || (host_too && published(page(path, i), 0, 1));
    };
    while (answer.full < end && full(answer.full)) ++answer.full;
    for (std::uint64_t p = 0; p <= answer.full; ++p) {
      if (satisfied(path, p, host_too, true)) answer.at = p;
      if (satisfied(path, p, host_too, false)) answer.window_best = p;
    }
    return answer;
  }

  void give_back(std::size_t c, std::size_t t, std::uint32_t slot) { freed[c][t].insert(slot); }
  void clear(Page& p, std::size_t c, std::size_t t) {
    give_back(c, t, p.cells[c][t].slot);
    p.cells[c][t] = Cell{};
  }
  void sweep() {  // a page without full in any tier is gone
    std::erase_if(pages,
                  [](const auto& entry) { return !present(&entry.second, 0, 0) && !present(&entry.second, 0, 1); });
  }
  // Places a slot in a page of the path, making the page if there is none; duplicates go back.
  bool put(const Path& path, std::uint64_t i, std::size_t c, std::size_t t, std::uint32_t slot) {
    if (c != 0 && !published(page(path, i), 0, t)) return give_back(c, t, slot), false;
    Page& p = pages[prefix(path, i + 1)];
    if (present(&p, c, t)) return give_back(c, t, slot), false;
    p.cells[c][t] = {kPublished, slot, 0};
    return true;
  }

  // kOk: may be inserted.
  StatusCode may_insert(const Path& path, std::uint64_t owned_from) {
    const std::uint64_t known = walked(path);
    if (known < owned_from) return StatusCode::kInternal;
    StatusCode code = StatusCode::kOk;
    for (std::uint64_t i = known; i-- > 0;) {  // the tree looks from the end upwards
      const Page* p = page(path, i);
      const bool in_window = i >= window_begin(owned_from);
      const auto waits = [&](std::size_t c) { return present(p, c, 0) && !published(p, c, 0); };
      if (waits(0) || (in_window && waits(1)) || (i + 1 == owned_from && waits(2))) return StatusCode::kConflict;
      if (i < owned_from && !published(p, 0, 0)) return StatusCode::kInternal;
    }
    return code;
  }
  bool may_attach_device(const Path& path, std::size_t c, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t i = from; i < to; ++i) {
      if (present(page(path, i), c, 0) || (c != 0 && !present(page(path, i), 0, 0))) return false;
    }
    return c != 0 || from == 0 || present(page(path, from - 1), 0, 0);
  }
  bool may_attach_host(const Path& path, std::size_t c, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t i = from; i < to; ++i) {
      if (present(page(path, i), c, 1) || (c != 0 && !present(page(path, i), 0, 1))) return false;
    }
    return c != 0 || gaps || from == 0 || present(page(path, from - 1), 0, 1);
  }
  void attach(const Path& path, std::size_t c, std::size_t t, std::uint64_t i, std::uint32_t slot, std::uint64_t op) {
    page(path, i)->cells[c][t] = {kPending, slot, op};
  }

  void finish(std::uint64_t op, bool ok) {
    for (auto& [path, p] : pages) {
      p.ops.erase(op);
      for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t t = 0; t < 2; ++t) {
          if (p.cells[c][t].state != kPending || p.cells[c][t].op != op) continue;
          ok ? void(p.cells[c][t].state = kComplete) : clear(p, c, t);
        }
      }
    }
    while (settle_complete()) {}
  }
  // Publishes or drops one complete cell whose base is decided. False: none.
  bool settle_complete() {
    for (auto& [path, p] : pages) {
      for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t t = 0; t < 2; ++t) {
          if (p.cells[c][t].state != kComplete) continue;
          const std::uint64_t depth = path.size() - 1;
          const Page* base = c != 0 ? &p : (depth == 1 ? nullptr : page(path, depth - 2));
          const bool free = c == 0 && (depth == 1 || (t == 1 && gaps));
          if (!free && present(base, 0, t) && !published(base, 0, t)) continue;
          free || published(base, 0, t) ? void(p.cells[c][t].state = kPublished) : clear(p, c, t);
          return true;
        }
      }
    }
    return false;
  }

  // What the tree says it evicted. Empty text: legal.
  std::string take_evicted(const Freed& given) {
    for (auto& [path, p] : pages) {
      for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t t = 0; t < 2; ++t) {
          if (p.cells[c][t].state == kNone || !given[c][t].contains(p.cells[c][t].slot)) continue;
          if (p.cells[c][t].state != kPublished) return "evicted a pending page";
          if (p.locks[c][t] != 0 || covered(p))
            return "evicted a locked or covered page at depth " + std::to_string(path.size() - 1);
          clear(p, c, t);
        }
      }
    }
    for (const auto& [path, p] : pages) {
      const bool kept = present(&p, 0, 0) || present(&p, 0, 1);
      for (const auto& tiers : p.locks) {
        if (!kept && (tiers[0] != 0 || tiers[1] != 0)) return "a claimed page vanished";
      }
    }
    sweep();
    return {};
  }
};

}  // namespace larder::tree_test
