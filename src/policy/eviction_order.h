// SPDX-License-Identifier: Apache-2.0
// Who leaves a tier: the one question that an eviction policy answers. How data leaves is the tree's business (what may
// leave at all, leaves before what they stand on, page-exact trimming, copies first); which of it goes is decided here.
//
// A policy is one class in one file. Ours have names (eviction_policies.h); an embedder may pass one of its own.
//
// Contract of an order: a pure function of the facts. The tree keeps the keys, and asks again only when a fact has
// changed. Ranks of one model use the same order. Nothing else is asked of it: any function keeps the tree sound.
// Ownership: shared with each tree that uses it. Threads: const, and called by the cache threads of all these trees.
// Errors: none; it does not throw. Cost: once for each change of a leaf, window or state that may leave; it should be a
// handful of instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "policy/checkpoint_stats.h"
#include "policy/facts.h"
#include "policy/order_key.h"
#include "policy/reuse_duel.h"

namespace larder {

// How old the first of a queue is, and how much its tier holds, in tokens. Ticks of the tree grow by a token for each
// that is computed.
struct QueueAge {
  std::uint64_t age_tokens = 0, tier_tokens = 0;
};

// When the firsts of many queues are compared.
struct QueueClock {
  std::uint64_t tick = 0, tier_tokens = 0;
};

class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;

  // Among the data of one component in one tier.
  [[nodiscard]] virtual OrderKey key(const Facts& facts) const = 0;
  // Where components share one budget, as on the host: among those that would leave first of each. What orders that
  // weigh are told beyond the others is not filled.
  [[nodiscard]] virtual OrderKey key_across(const Facts& facts) const { return {facts.last_use, 0}; }

  // An order that weighs has several queues for a component in a tier, each by key(), whose `major` is the last use.
  // The first of the queue that is worth least leaves first; also across components, before key_across() is asked.
  // queue() is asked again when its answer may have changed before the data leaves, and not at once; 254 is the tree's
  // own. worth() is 0 or more, and may change at any time. Neither this nor chooses(): there is one queue, and nothing
  // of it is asked.
  [[nodiscard]] virtual bool weighs() const { return false; }
  [[nodiscard]] virtual CheckpointParameters checkpoint_parameters() const { return {}; }
  [[nodiscard]] virtual std::uint8_t queue(const Facts&) const { return 0; }
  [[nodiscard]] virtual double worth(std::uint8_t, const QueueAge&, const CheckpointStats&) const { return 0; }
  // The same of the firsts of many queues, asked for each victim: as many last uses, none behind the tick, and places
  // for the answers, as queues. Each queue is there once, in any order. What is answered for 254 is not used.
  virtual void worths(std::span<const std::uint8_t> queues, std::span<const std::uint64_t> last_uses,
                      const QueueClock& now, const CheckpointStats& stats, std::span<double> out) const {
    for (std::size_t i = 0; i < queues.size(); ++i) {
      out[i] = worth(queues[i], {now.tick - last_uses[i], now.tier_tokens}, stats);
    }
  }

  // Who orders models without recurrent state instead, if somebody does; it lives as long as this.
  [[nodiscard]] virtual const EvictionOrder* without_states() const { return nullptr; }
  // An order that chooses has several queues, too. What they are worth follows from the way of leaving that suits the
  // requests of late: worth_when(). It orders models without recurrent state, and full alone.
  [[nodiscard]] virtual bool chooses() const { return false; }
  [[nodiscard]] virtual double worth_when(ReuseWay, std::uint8_t) const { return 0; }
};

// Least recently used first. What one request used is told apart by depth: the end of its path is worth more to its
// next turn.
[[nodiscard]] inline OrderKey oldest_first(const Facts& facts) { return {facts.last_use, facts.end}; }

}  // namespace larder
