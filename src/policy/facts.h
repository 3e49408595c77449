// SPDX-License-Identifier: Apache-2.0
// What a policy is told of cached data before it decides: facts of one component of one tree node in one tier.
//
// Plain values, by which every rank decides alike. But for the last ones they keep their value while nobody uses the
// data: an edge may be cut or joined at any time, so its length is none of them. A new fact is a new field, which its
// owner fills (RadixTree::facts()) and keeps right: keys that were made of an old value must be made again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "model/pool_spec.h"
#include "pool/tier.h"

namespace larder {

// Why a checkpoint of recurrent state was taken (controller/checkpoint_plan.h); or a prefetch brought it. Behind these
// are kinds without a name, of ends of prompts and outputs in turns of which more is known: kind_in_turn(). It is
// learnt of each how often it is used.
enum class CheckpointKind : std::uint8_t { kPrompt, kOutput, kFork, kGrid, kFetched };
inline constexpr std::size_t kBaseKinds = 5, kCheckpointKinds = kBaseKinds + 5 * 2;

// Without what is known of its turn.
[[nodiscard]] constexpr CheckpointKind base_kind(CheckpointKind kind) {
  const auto at = static_cast<std::size_t>(kind);
  if (at < kBaseKinds) return kind;
  return (at - kBaseKinds) % 2 == 0 ? CheckpointKind::kPrompt : CheckpointKind::kOutput;
}
// A request ended there, its prompt or its answer.
[[nodiscard]] constexpr bool ends_turn(CheckpointKind kind) {
  const CheckpointKind base = base_kind(kind);
  return base == CheckpointKind::kPrompt || base == CheckpointKind::kOutput;
}

struct TurnFacts {
  bool is_later = false;  // the request goes on where an earlier one ended: who came back once does so again
  std::optional<bool> will_return{};  // BeginRequest: what the caller believes, who may be wrong as a rule
};
[[nodiscard]] constexpr CheckpointKind kind_in_turn(CheckpointKind kind, const TurnFacts& turn) {
  const CheckpointKind base = base_kind(kind);
  const int known = (turn.is_later ? 1 : 0) + (!turn.will_return ? 0 : *turn.will_return ? 2 : 4);
  if (!ends_turn(base) || known == 0) return base;
  const int place = 2 * (known - 1) + (base == CheckpointKind::kPrompt ? 0 : 1);
  return static_cast<CheckpointKind>(static_cast<int>(kBaseKinds) + place);
}

struct Facts {
  ComponentKind component = ComponentKind::kFull;
  Tier tier = Tier::kDevice;
  NamespaceId space{};         // model, adapter and tenant
  std::uint64_t last_use = 0;  // ticks of the tree, which grow with every use
  std::uint64_t created = 0;   // ticks: when the tokens came to the tree
  std::uint64_t end = 0;       // pages from the root: what its request had computed up to here
  std::uint32_t hits = 0;      // uses by later requests; 0 for swa and mamba, whose uses are not counted
  bool is_fresh = false;       // used last while most recently used first was ahead (EvictionOrder::chooses())
  std::int32_t priority = 0;   // the highest that a request brought; 0 for swa; for mamba only of orders that weigh

  // Of models with recurrent state, for orders that weigh (EvictionOrder::weighs()). What stands around the node is in
  // them, and may change while nobody uses it.
  bool restores = false;  // there is a checkpoint at its end, on device or host
  bool is_held = false;   // full that leaves with its checkpoint, or on which a running request stands: not by itself
  CheckpointKind kind{};  // of that checkpoint
  float uses = 0;         // by later requests, faded (CheckpointStats)
  double gain = 0;        // bytes of KV that resuming there saves to compute, for each byte that leaves
};

}  // namespace larder
