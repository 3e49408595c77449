// SPDX-License-Identifier: Apache-2.0
// What may be evicted now, in the order in which it goes by policy (policy/eviction_order.h): leaves of one tier, or
// the nodes with swa or mamba data in one tier. What is locked or covered is in none, so the next victim is always the
// first of a queue. Internal.
//
//   standing of tenants (tenant_book.h) ─► number of the queue ─► heap of tenants by their firsts ─► heap of nodes
//
// Each tenant has queues of its own: one, or up to 256 for an order that weighs or chooses. Nodes know their places in
// them (Node::heap_at[place], queue_at[place]), so that a node that is used, locked or emptied is updated or removed in
// O(log nodes + log tenants); what was used last stands near the end, where that is O(1) as a rule. A tenant whose
// standing changes takes its queues along, in O(its queues that are not empty * log tenants), and no node is touched.
// Without limits everybody is tenant 0.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/eviction_order.h"
#include "policy/keyed_heap.h"
#include "tree/node.h"
#include "tree/tenant_book.h"

namespace larder::tree {

// Of what leaves first of all that its tenant has, whatever its order says: no order has this queue.
inline constexpr std::uint8_t kSpareQueue = 254;

class VictimQueues {
 public:
  // Who is asked first: what is over its ceiling, within its bounds, one's own below the floor, others' below theirs.
  enum class Rank : std::uint8_t { kOver, kWithin, kOwn, kFloor };
  struct First {
    Id id = kNoNode;  // kNoNode: there is none
    OrderKey key;
    double worth = 0;
    std::uint8_t queue = 0;
    Rank rank = Rank::kWithin;
    friend bool operator<(const First& a, const First& b) {
      if (a.rank != b.rank) return a.rank < b.rank;
      return a.worth != b.worth ? a.worth < b.worth : a.key < b.key;
    }
  };

  // What the worths and the ranks of nodes that nobody touches depend on.
  struct Question {
    std::uint64_t tick = 0, tier_pages = 0, changes_of_stats = 0;
    TenantId who{};
    bool breaks_floors = false, own_first = false;
    friend bool operator==(const Question&, const Question&) = default;
  };

  // place: of Node::heap_at. Two objects may have one, if no node is ever in both. Nodes and spaces outlive this.
  VictimQueues(NodePool& nodes, const std::vector<Space>& spaces, std::size_t place);

  [[nodiscard]] std::size_t size() const { return size_; }
  // The first of the queue that is worth least, of those that may leave for `who`. `worths` is called with numbers of
  // queues, the major parts of their firsts' keys, and places for what those are worth. own_first: of those of `who`
  // alone, if there are any, as if it were over its ceiling. O(queue numbers in use; `who`'s own queues).
  template <class Worths>
  [[nodiscard]] First first(Worths worths, const EvictFor& who, bool own_first = false) const;
  // The answer to the last question, if nothing in here has changed since: who makes room asks who would go, compares,
  // and asks again when it goes.
  [[nodiscard]] std::optional<First> known_first(const Question& question) const {
    return asked_at_ == changes_ && asked_ == question ? std::optional(answer_) : std::nullopt;
  }
  void note_first(const Question& question, const First& answer);
  // The first of one number after the other, with each call. kNoNode: all are empty.
  [[nodiscard]] Id next_to_check();
  void set_standing(TenantId tenant, TenantBook::Standing standing);
  [[nodiscard]] TenantBook::Standing standing_of(TenantId tenant) const;
  void push(Id id, std::uint8_t queue, const OrderKey& key);
  void remove(Id id);                                           // precondition: it is in here
  void update(Id id, std::uint8_t queue, const OrderKey& key);  // precondition: it is in here
  [[nodiscard]] bool holds(Id id) const;                        // O(log queues of its tenant); for checks
  [[nodiscard]] const OrderKey& key_of(Id id) const;            // precondition: it is in here
  [[nodiscard]] std::uint8_t queue_of(Id id) const { return nodes_.at(id).queue_at[place_]; }  // the same
  // Heap order, positions and standings hold.
  [[nodiscard]] bool is_sound() const;

 private:
  using QueueId = std::uint32_t;
  static constexpr QueueId kNoQueue = ~QueueId{0};
  static constexpr std::size_t kNumbers = 256;
  struct Queue {
    KeyedHeap nodes;
    TenantId tenant;
    std::uint8_t number = 0;
    std::uint32_t at_top = 0;  // its place among the tenants that have this number
  };
  struct Tenant {
    TenantBook::Standing standing = TenantBook::Standing::kWithin;
    std::vector<QueueId> queues;  // that are not empty, by number
  };
  struct Tops {
    std::vector<KeyedHeap> heaps;                       // by number: of queues by their firsts
    std::array<std::uint64_t, kNumbers / 64> filled{};  // a bit for each number that is not empty
    // Those numbers, and the major parts of their firsts' keys: what is compared for each victim.
    std::vector<std::uint8_t> numbers;
    std::vector<std::uint64_t> majors;
    std::array<std::uint8_t, kNumbers> place_of{};  // in both, by number, where it is there
  };

  [[nodiscard]] TenantId tenant_of(Id id) const { return spaces_[nodes_.at(id).space].tenant; }
  [[nodiscard]] QueueId find(TenantId tenant, std::uint8_t number) const;
  [[nodiscard]] QueueId queue_with(Id id) const { return find(tenant_of(id), nodes_.at(id).queue_at[place_]); }
  [[nodiscard]] QueueId open_queue(TenantId tenant, std::uint8_t number);
  void close_queue(QueueId id);
  [[nodiscard]] Tops& tops_of(TenantId tenant) { return tops_[static_cast<std::size_t>(standing_of(tenant))]; }
  void enter_top(QueueId id, Tops& tops);
  void leave_top(QueueId id, Tops& tops);
  static void note_first_of(std::size_t number, Tops& tops);
  // Its first was `before`, and there is one now.
  void first_changed(QueueId id, const OrderKey& before);
  // Which of them is worth least: its place. At least one is there; key_at(place) is asked where worths are equal.
  template <class Worths, class KeyAt>
  [[nodiscard]] static std::size_t least_of(std::span<const std::uint8_t> numbers,
                                            std::span<const std::uint64_t> majors, Worths worths, KeyAt key_at,
                                            double& least);
  template <class Worths>
  [[nodiscard]] First first_of(const Tops& tops, Worths worths, Rank rank) const;
  template <class Worths>
  [[nodiscard]] First own_of(const EvictFor& who, Worths worths, Rank rank) const;
  [[nodiscard]] auto note_place() {
    return [this](std::uint32_t id, std::size_t at) { nodes_.at(id).heap_at[place_] = static_cast<std::uint32_t>(at); };
  }
  [[nodiscard]] auto note_top() {
    return [this](std::uint32_t id, std::size_t at) { queues_[id].at_top = static_cast<std::uint32_t>(at); };
  }

  NodePool& nodes_;
  const std::vector<Space>& spaces_;
  std::size_t place_;
  std::size_t size_ = 0;
  std::uint64_t changes_ = 0, asked_at_ = ~std::uint64_t{0};
  Question asked_;
  First answer_;
  std::vector<Queue> queues_;
  std::vector<QueueId> unused_;
  std::vector<QueueId> everyones_;  // of tenant 0, by number; kNoQueue where there is none. They stay when empty
  std::vector<Tenant> tenants_;     // by id; those that are not in here have no queues, and are within their bounds
  std::array<Tops, TenantBook::kStandings> tops_;
  // Of the last next_to_check(): standing and number. The first look goes to what follows number 0 of kWithin.
  std::size_t checked_ = kNumbers * static_cast<std::size_t>(TenantBook::Standing::kWithin);
};

template <class Worths, class KeyAt>
std::size_t VictimQueues::least_of(std::span<const std::uint8_t> numbers, std::span<const std::uint64_t> majors,
                                   Worths worths, KeyAt key_at, double& least) {
  std::array<double, kNumbers> all;  // NOLINT: filled as far as it is read
  worths(numbers, majors, std::span(all).first(numbers.size()));
  std::size_t best = 0;
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    if (all[i] < all[best] || (all[i] == all[best] && key_at(i) < key_at(best))) best = i;
  }
  least = all[best];
  return best;
}

template <class Worths>
VictimQueues::First VictimQueues::first_of(const Tops& tops, Worths worths, Rank rank) const {
  if (tops.numbers.empty()) return {};
  const auto first_at = [&](std::size_t at) -> const KeyedHeap::Entry& { return tops.heaps[tops.numbers[at]].front(); };
  First best;
  best.rank = rank;
  const std::size_t at = least_of(
      tops.numbers, tops.majors, worths, [&](std::size_t i) -> const OrderKey& { return first_at(i).key; }, best.worth);
  best.queue = tops.numbers[at];
  best.key = first_at(at).key;
  best.id = queues_[first_at(at).id].nodes.front().id;
  return best;
}

template <class Worths>
VictimQueues::First VictimQueues::own_of(const EvictFor& who, Worths worths, Rank rank) const {
  if (who.tenant.v == 0 || who.tenant.v >= tenants_.size()) return {};
  const std::vector<QueueId>& own = tenants_[who.tenant.v].queues;
  if (own.empty()) return {};
  const auto first_at = [&](std::size_t at) -> const KeyedHeap::Entry& { return queues_[own[at]].nodes.front(); };
  std::array<std::uint8_t, kNumbers> numbers;  // NOLINT: filled as far as it is read
  std::array<std::uint64_t, kNumbers> majors;  // NOLINT
  for (std::size_t i = 0; i < own.size(); ++i) {
    numbers[i] = queues_[own[i]].number;
    majors[i] = first_at(i).key.major;
  }
  First best;
  best.rank = rank;
  const std::size_t at = least_of(
      std::span(numbers).first(own.size()), std::span(majors).first(own.size()), worths,
      [&](std::size_t i) -> const OrderKey& { return first_at(i).key; }, best.worth);
  best.queue = numbers[at];
  best.key = first_at(at).key;
  best.id = first_at(at).id;
  return best;
}

template <class Worths>
VictimQueues::First VictimQueues::first(Worths worths, const EvictFor& who, bool own_first) const {
  First best;
  if (own_first) best = own_of(who, worths, Rank::kOver);
  if (best.id == kNoNode) best = first_of(tops_[0], worths, Rank::kOver);
  if (best.id == kNoNode) best = first_of(tops_[1], worths, Rank::kWithin);
  if (best.id == kNoNode) best = own_of(who, worths, Rank::kOwn);
  if (best.id == kNoNode && who.breaks_floors) best = first_of(tops_[2], worths, Rank::kFloor);
  return best;
}

}  // namespace larder::tree
