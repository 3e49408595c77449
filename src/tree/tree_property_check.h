// SPDX-License-Identifier: Apache-2.0
// Replay, shrinking and the shapes of models of the tree's property test; tree_property_support.h has the operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tree/tree_property_support.h"

namespace larder::tree_test {

inline void PrintTo(const PropertyConfig& config, std::ostream* out) { *out << config.name; }

// Empty: no failure. Else the step and what differed.
inline std::string replay(const PropertyConfig& config, const std::vector<Op>& ops) {
  PropertyRun run(config);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (std::string error = run.step(ops[i]); !error.empty()) return "step " + std::to_string(i) + ": " + error;
  }
  return run.finish();
}

// Drops stretches of operations, halving their length, as long as some failure stays.
inline std::vector<Op> shrink(const PropertyConfig& config, std::vector<Op> ops) {
  for (std::size_t length = ops.size() / 2; length > 0; length /= 2) {
    for (std::size_t at = 0; at + length <= ops.size();) {
      std::vector<Op> fewer(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(at));
      fewer.insert(fewer.end(), ops.begin() + static_cast<std::ptrdiff_t>(at + length), ops.end());
      if (replay(config, fewer).empty()) {
        at += length;
      } else {
        ops = std::move(fewer);
      }
    }
  }
  return ops;
}

inline std::string describe(const std::vector<Op>& ops) {
  std::string text;
  for (const Op& op : ops) {
    text += "  {OpKind(" + std::to_string(static_cast<int>(op.kind)) + "), {";
    for (const std::uint64_t r : op.r) text += std::to_string(r) + "u, ";
    text += "}},\n";
  }
  return text;
}

// Sequences of `length` operations from `seed` on, at least `operations` in all; each on a fresh tree.
inline void check_property(const PropertyConfig& config, std::uint64_t seed, std::uint64_t operations,
                           std::uint64_t length = 400) {
  for (std::uint64_t done = 0; done < operations; done += length, ++seed) {
    Rng rng(seed);
    std::vector<Op> ops;
    while (ops.size() < length) ops.push_back(PropertyRun::random_op(rng));
    const std::string error = replay(config, ops);
    if (error.empty()) continue;
    const std::vector<Op> fewer = shrink(config, ops);
    FAIL() << config.name << ", seed " << seed << ": " << error << "\nshrunk to " << fewer.size() << " operations ("
           << replay(config, fewer) << "):\n"
           << describe(fewer);
  }
}

// The shapes of models that matter: page sizes 1, 4, 64; window below, at and above a page, and longer than any path;
// state; every policy; gaps on the host.
inline std::vector<PropertyConfig> property_configs() {
  std::vector<PropertyConfig> configs;
  for (const std::uint32_t page : {1u, 4u, 64u}) {
    for (const std::uint32_t window : {0u, page / 2, page, page * 2 + 1, page * 20}) {
      if (window == 0 && !configs.empty() && configs.back().tree.page_size == page) continue;  // half a token
      for (const bool mamba : {false, true}) {
        TreeConfig tree =
            config_of(page, window, mamba, static_cast<EvictionPolicy>(configs.size() % kEvictionPolicyCount));
        tree.allow_host_gaps = configs.size() % 3 == 2;
        tree.is_exclusive = configs.size() % 5 == 2;
        configs.push_back({"page" + std::to_string(page) + "_window" + std::to_string(window) +
                               (mamba ? "_mamba" : "") + "_" + std::string(eviction_policy_name(tree.policy)) +
                               (tree.is_exclusive      ? "_exclusive"
                                : tree.allow_host_gaps ? "_gaps"
                                                       : ""),
                           tree});
        configs.back().watches_pages = configs.size() % 2 == 0;
      }
    }
  }
  return configs;
}

}  // namespace larder::tree_test
