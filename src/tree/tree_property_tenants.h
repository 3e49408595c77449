// SPDX-License-Identifier: Apache-2.0
// Tenants in the tree's property test: what each may lose to whom, by the naive model. Two namespaces, 'A' and 'B'.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "tree/tree.h"
#include "tree/tree_naive_model.h"

namespace larder::tree_test {

class TenantWatch {
 public:
  using Bounds = std::array<std::optional<TenantBook::AllBounds>, 2>;

  // None of the two: nothing is checked. pages_max: of a path.
  TenantWatch(const Bounds& bounds, const TreeConfig& config, std::uint64_t pages_max)
      : bounds_(bounds), config_(config), pages_max_(pages_max) {}
  // Whose the namespace is; before it is opened.
  TenantId open(RadixTree& tree, std::size_t space) {
    tree_ = &tree;
    if (bounds_[space]) ids_[space] = tree.tenants().open(*bounds_[space]);
    return ids_[space];
  }

  [[nodiscard]] EvictFor who(std::uint64_t r) const {
    if (!is_on()) return {};
    return {.tenant = ids_[r % 2], .breaks_floors = (r >> 1) % 8 == 0, .coming = (r >> 4) % 4};
  }
  void before_eviction(const NaiveTree& model, const EvictFor& who) {
    who_ = who;
    before_ = held_of(model);
  }
  // May the page still leave in the last eviction, for all that bounds say?
  [[nodiscard]] bool may_leave(const NaiveTree::Path& path, std::size_t c, std::size_t t) const {
    const TenantId id = ids_[path[0] == 'A' ? 0 : 1];
    if (id.v == 0 || id == who_.tenant || who_.breaks_floors) return true;
    return tree_->tenants().standing(id, budget(c, t)) != TenantBook::Standing::kBelow;
  }

  // After an eviction of component c in tier t. is_dropping: no victim stayed to be backed up. has_more: of namespace i
  // there is more that could have left.
  [[nodiscard]] std::string judge(const NaiveTree& model, std::size_t c, std::size_t t, const EvictResult& out,
                                  bool is_dropping, const std::array<bool, 2>& has_more) const {
    if (!is_on()) return {};
    const Held after = held_of(model);
    if (!who_.breaks_floors && out.from_floors != 0) return "a floor was broken unasked";
    for (std::size_t i = 0; i < 2; ++i) {
      if (ids_[i].v == 0) continue;
      if (std::string error = judge_floor(after, i, c, t); !error.empty()) return error;
      const bool was_over = tree_->tenants().standing(ids_[i], budget(c, t)) == TenantBook::Standing::kOver;
      const std::uint64_t coming = ids_[1 - i] == who_.tenant ? who_.coming : 0;
      const bool other_over =
          ids_[1 - i].v != 0 && weighed(before_, 1 - i, c, t) + coming > (*bounds_[1 - i])[budget(c, t)].ceiling;
      const bool other_lost = after[1 - i][c][t] < before_[1 - i][c][t];
      if (is_dropping && was_over && has_more[i] && other_lost && !other_over) {
        return "who is above its ceiling did not lose its own first";
      }
    }
    return {};
  }

  [[nodiscard]] std::string compare_held(const NaiveTree& model) const {
    const Held held = held_of(model);
    for (std::size_t i = 0; i < 2; ++i) {
      if (ids_[i].v == 0) continue;
      for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t t = 0; t < 2; ++t) {
          const Tier tier = t == 0 ? Tier::kDevice : Tier::kHost;
          if (tree_->tenants().counts(ids_[i], kAllComponents[c], tier).held() != held[i][c][t]) {
            return "what a tenant holds differs";
          }
        }
      }
    }
    return {};
  }

 private:
  using Held = std::array<std::array<std::array<std::uint64_t, 2>, 3>, 2>;  // [namespace][component][tier], slots

  [[nodiscard]] bool is_on() const { return bounds_[0] || bounds_[1]; }
  [[nodiscard]] static std::size_t budget(std::size_t c, std::size_t t) {
    return TenantBook::budget_of(kAllComponents[c], t == 0 ? Tier::kDevice : Tier::kHost);
  }
  [[nodiscard]] static Held held_of(const NaiveTree& model) {
    Held held{};
    for (const auto& [path, page] : model.pages) {
      for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t t = 0; t < 2; ++t) {
          held[path[0] == 'A' ? 0 : 1][c][t] += page.cells[c][t].state != NaiveTree::kNone;
        }
      }
    }
    return held;
  }
  [[nodiscard]] std::uint64_t weighed(const Held& held, std::size_t i, std::size_t c, std::size_t t) const {
    if (t == 0) return held[i][c][0];
    std::uint64_t blocks = 0;
    for (std::size_t k = 0; k < 3; ++k) blocks += held[i][k][1] * config_.host_blocks[k];
    return blocks;
  }
  // Pages of full leave one by one, and states are one each; what leaves with them on the host, and windows, go beyond
  // the floor by one edge at most.
  [[nodiscard]] std::string judge_floor(const Held& after, std::size_t i, std::size_t c, std::size_t t) const {
    if (ids_[i] == who_.tenant || who_.breaks_floors) return {};
    const std::uint64_t had = weighed(before_, i, c, t), has = weighed(after, i, c, t);
    const std::uint64_t kept = std::min(had, (*bounds_[i])[budget(c, t)].floor);
    const bool is_exact = t == 0 && c != 1;
    const std::uint64_t slack =
        is_exact ? 0 : pages_max_ * (config_.host_blocks[0] + config_.host_blocks[1]) + config_.host_blocks[2];
    if (has + slack >= kept) return {};
    return "a floor of " + std::to_string(kept) + " was broken: " + std::to_string(has);
  }

  const Bounds bounds_;
  const TreeConfig config_;
  const std::uint64_t pages_max_;
  RadixTree* tree_ = nullptr;
  std::array<TenantId, 2> ids_{};
  EvictFor who_;
  Held before_{};
};

}  // namespace larder::tree_test
