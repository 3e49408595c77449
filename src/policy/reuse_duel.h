// SPDX-License-Identifier: Apache-2.0
// Which way of leaving suits the requests of late: least recently used first, least often used first (scans and floods
// of prompts that never come again), or most recently used first (rounds over more than there is room for). For models
// of whose pages each is a restore point.
//
// Each way has a miniature of the tier, in which it alone decides: a flat cache of names, of every 2^n-th page. The way
// that is ahead gives place when another hits more by enough to be worth a change, and by more than chance explains:
// the sum of the differences, request by request, against the root of the sum of their squares. (Pages of one request
// hit or miss together, so they are no evidence one by one.)
//
//   a tier of 8,192 pages, every 16th page ─► three miniatures of 512 names ─► hits of each request
//
// Threads: confined to the cache thread. Ranks: equal calls, equal answers. Cost of use(): a nanosecond or two for each
// page, and about 0.4 us for each that is looked at; of what a full tier holds those are about 512. Memory: 150 KiB.
// Source: miniature simulations and sampling by hash are Waldspurger et al. (ATC '17); a choice between policies by
// what each would have hit, e.g. Set Dueling (Qureshi et al., ISCA '07).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/strong.h"
#include "policy/keyed_heap.h"

namespace larder {

enum class ReuseWay : std::uint8_t { kLru, kLfu, kMru };
inline constexpr std::size_t kReuseWays = 3;

struct ReuseParameters {
  std::size_t most_names = 512;  // of a miniature
  double half_life = 2048;       // requests in which evidence comes to count half
  double lead = 1.05;            // times as many hits as the way that is ahead
  double sigmas = 2;             // of the difference in hits, before another way comes ahead
  double sigmas_of_mru = 6;  // the same of mru, which lets go of all that is new: a few lucky requests are not enough
};

// A cache of at most so many names, from which one way alone lets go.
class ReuseMiniature {
 public:
  explicit ReuseMiniature(ReuseWay way) : way_(way) {}
  // When a name is used: by which request, counted from 1 on, and how far from the root.
  struct Moment {
    std::uint64_t request = 0;
    std::uint64_t place = 0;
  };
  // Whether it had the name. It has it then; at most `most` in all, 1 at least. Of what one request used, what is
  // farthest from the root leaves first.
  bool use(std::uint64_t name, const Moment& now, std::size_t most);
  // Forgets names whose low bits, by `mask`, are not 0.
  void keep(std::uint64_t mask);
  [[nodiscard]] std::size_t size() const { return heap_.size(); }

 private:
  struct Entry {
    std::uint64_t name = 0;
    std::uint32_t hits = 0, at = 0;  // at: in the heap
  };
  [[nodiscard]] OrderKey key_of(const Entry& entry, const Moment& now) const;
  void remove_first();
  void remove(std::uint32_t id);
  [[nodiscard]] auto note_place() {
    return [this](std::uint32_t id, std::size_t at) { entries_[id].at = static_cast<std::uint32_t>(at); };
  }

  const ReuseWay way_;
  KeyedHeap heap_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> unused_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_name_;
};

class ReuseDuel {
 public:
  explicit ReuseDuel(const ReuseParameters& parameters = {});

  // A request uses these tokens, from the root on. page_tokens: of a page; capacity_tokens: the most that the tier has
  // held so far.
  void use(NamespaceId space, std::span<const TokenId> tokens, std::uint32_t page_tokens,
           std::uint64_t capacity_tokens);
  [[nodiscard]] ReuseWay ahead() const { return ahead_; }

 private:
  // Of one request and way. What stands behind a gap is no hit.
  struct Outcome {
    bool is_whole = true;  // so far
    double hits = 0;
  };
  using Outcomes = std::array<Outcome, kReuseWays>;
  void set_capacity(std::uint64_t units);
  void use(std::uint64_t name, std::uint64_t place, Outcomes& outcomes);
  void count(const Outcomes& outcomes);
  void decide();

  const ReuseParameters parameters_;
  const double fade_;
  std::array<ReuseMiniature, kReuseWays> miniatures_;
  std::uint64_t mask_ = 0;         // of sampled names, these bits are 0
  std::size_t most_ = 1;           // names of a miniature
  double seen_ = 0, sampled_ = 0;  // units of late
  std::uint64_t requests_ = 0;
  // Of late: hits, and by pairs of ways the differences in hits of each request, and their squares.
  std::array<double, kReuseWays> hits_{};
  std::array<std::array<double, kReuseWays>, kReuseWays> ahead_by_{}, squares_{};
  ReuseWay ahead_ = ReuseWay::kLru;
};

}  // namespace larder
