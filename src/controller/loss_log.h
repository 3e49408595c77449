// SPDX-License-Identifier: Apache-2.0
// What left device and host lately: when, from where, and to make room for whom, or by a flush. So a miss can be
// explained afterwards.
//
//   the tree lets a last copy go ─► lost(): path ─► {component, tier, when, for whom, had storage it}
//   a prompt ends in the tree before page p ─► find(path of its tokens through page p)
//
// An edge is found by its first page (full: the next prompt comes to it there), or by its end (window and state: they
// belong to the restore point). Paths are hashes (key/path_hash.h): two that meet mislead an explanation, no more.
//
// Threads: the cache thread. Ranks: decides nothing. Limits: kEntries, in rows of kWays; the oldest of a row goes.
// Cost: 1.3 MiB; O(tokens of a page) for each that is lost, O(1) to find.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/strong.h"
#include "tree/tree_observer.h"

namespace larder {

struct Loss {
  Tier tier = Tier::kDevice;  // that had the last copy
  bool is_flush = false;
  TimePoint when;
  RequestId by;                      // it went to make room for this one; 0: for none (a flush, a copy that failed)
  std::uint32_t stored_epoch = 0;    // attach epoch of the storage that had it as well; 0: none
  std::uint32_t declined_epoch = 0;  // attach epoch of the storage that had declined it; 0: none
};

class LossLog final : public TreeObserver {
  struct Reason {
    RequestId by;
    bool is_flush = false;
  };

 public:
  static constexpr std::size_t kEntries = 32768, kWays = 4;
  // clock: outlives this.
  explicit LossLog(Clock& clock) : clock_(clock), entries_(kEntries) {}

  // Whom room is made for from here on, until the scope ends.
  class For {
   public:
    For(LossLog& log, RequestId request) : For(log, Reason{request, false}) {}
    // For nobody: all that goes was to go.
    [[nodiscard]] static For flush(LossLog& log) { return For(log, Reason{{}, true}); }
    ~For() { log_.for_ = before_; }
    For(const For&) = delete;
    For& operator=(const For&) = delete;

   private:
    For(LossLog& log, Reason reason) : log_(log), before_(std::exchange(log.for_, reason)) {}
    LossLog& log_;
    const Reason before_;
  };

  // full: of the edge whose first page the path ends with. window, state: of the edge that ends with the path.
  [[nodiscard]] std::optional<Loss> find(ComponentKind c, PathHash path) const;

  void lost(const TreeChange& change, PathHash path) override;

 private:
  struct Entry {
    std::uint64_t key = 0;  // 0: none
    Loss loss;
  };
  [[nodiscard]] static std::uint64_t key_of(ComponentKind c, PathHash path);
  [[nodiscard]] static std::size_t row_of(std::uint64_t key) { return key % (kEntries / kWays) * kWays; }

  Clock& clock_;
  Reason for_;
  std::vector<Entry> entries_;
};

}  // namespace larder
