// SPDX-License-Identifier: Apache-2.0
#include "model/pool_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "model/presets.h"

namespace larder {
namespace {

PoolList list_of(const ModelSpec& model) {
  return {.id = model.id,
          .revision = model.revision,
          .page_size = model.page_size,
          .window = model.dims.window,
          .pools = model.pools};
}

TEST(PoolList, EveryPresetIsTheListOfItsPools) {
  for (const PresetInfo& preset : all_presets()) {
    const std::string& name = preset.name;
    const Result<ModelSpec> model = preset_model(name);
    ASSERT_TRUE(model.is_ok()) << name;
    PoolList list = list_of(*model);
    std::reverse(list.pools.begin(), list.pools.end());
    const Result<ModelSpec> made = model_of_pools(list);
    ASSERT_TRUE(made.is_ok()) << name << made.status().to_string();
    EXPECT_EQ(made->window_pages(), model->window_pages()) << name;
    EXPECT_EQ(made->is_rank_mixed(), model->is_rank_mixed()) << name;
    EXPECT_EQ(made->layer_count(), model->layer_count()) << name;
    ASSERT_EQ(made->pools.size(), model->pools.size()) << name;
    for (const ComponentKind c : kAllComponents) {
      ASSERT_EQ(made->has(c), model->has(c)) << name;
      EXPECT_EQ(made->slot_bytes(c), model->slot_bytes(c)) << name;
      if (made->has(c)) {
        EXPECT_EQ(made->anchor(c), model->anchor(c)) << name;
        EXPECT_EQ(made->pools_of(c).back(), &made->anchor(c)) << name << ": sidecars come before their anchor";
      }
    }
    EXPECT_TRUE(std::is_sorted(made->pools.begin(), made->pools.end(),
                               [](const PoolSpec& a, const PoolSpec& b) { return a.component < b.component; }));
  }
}

// Two kinds of recurrent layers, which no list of layers can mix in one pool, are two pools of one checkpoint.
TEST(PoolList, AModelHasSeveralKindsOfRecurrentStates) {
  const auto state = [](PoolName name, bool is_anchor, std::vector<std::uint32_t> layers, std::uint32_t elements) {
    return PoolSpec{.name = name,
                    .component = ComponentKind::kMamba,
                    .is_anchor = is_anchor,
                    .hit_policy = HitPolicy::kTrailingPages,
                    .layers = std::move(layers),
                    .planes = {{.name = "temporal", .rows = 1, .heads = 2, .head_dim = elements}}};
  };
  PoolList list{.id = "two-kinds", .page_size = 16};
  list.pools = {PoolSpec{.name = PoolName::kKv,
                         .is_anchor = true,
                         .layers = {3},
                         .planes = {{.name = "k", .rows = 16, .heads = 2, .head_dim = 8}}},
                state(PoolName::kMamba, true, {0, 2}, 32), state(PoolName::kDraft, false, {1}, 100)};
  const Result<ModelSpec> model = model_of_pools(list);
  ASSERT_TRUE(model.is_ok()) << model.status().to_string();
  EXPECT_EQ(model->slot_bytes(ComponentKind::kMamba), (2 * 2 * 32 + 2 * 100) * sizeof(float));
  EXPECT_EQ(model->layer_count(), 4u);
  EXPECT_EQ(model->pools_of(ComponentKind::kMamba).size(), 2u);
}

// An engine's own name of a pool stands in messages, and is no part of the bytes that pages are kept under.
TEST(PoolList, AnEnginesNameOfAPoolIsInMessagesAlone) {
  const Result<ModelSpec> preset = preset_model("gemma3-tiny");
  ASSERT_TRUE(preset.is_ok());
  PoolList list = list_of(*preset);
  const Result<ModelSpec> unnamed = model_of_pools(list);
  list.pools.front().engine_name = "attn-keys";
  const Result<ModelSpec> named = model_of_pools(list);
  ASSERT_TRUE(unnamed.is_ok() && named.is_ok());
  EXPECT_EQ(unnamed->pools.front().label(), pool_name(list.pools.front().name));
  EXPECT_EQ(named->pools.front().label(), "attn-keys");
  EXPECT_EQ(namespace_digest(*unnamed, {}), namespace_digest(*named, {}));
  EXPECT_EQ(layout_fingerprint(*unnamed, unnamed->pools.front(), HostLayout::kPageFirst),
            layout_fingerprint(*named, named->pools.front(), HostLayout::kPageFirst));
  list.pools.front().layers.clear();
  EXPECT_NE(model_of_pools(list).status().message().find("pool 'attn-keys'"), std::string::npos);
}

TEST(PoolList, WhatDoesNotFitIsRefusedByName) {
  const Result<ModelSpec> preset = preset_model("gemma3-tiny");
  ASSERT_TRUE(preset.is_ok());
  const struct {
    const char* says;
    std::function<void(PoolList&)> spoil;
  } kBad[] = {
      {"id and revision have", [](PoolList& l) { l.id.clear(); }},
      {"page_size is 0", [](PoolList& l) { l.page_size = 0; }},
      {"the model has no window", [](PoolList& l) { l.window = 0; }},
      {"no pool is of component swa",
       [](PoolList& l) {
         std::erase_if(l.pools, [](const PoolSpec& p) { return p.component == ComponentKind::kSwa; });
       }},
      {"no pool is of component full",
       [](PoolList& l) {
         std::erase_if(l.pools, [](const PoolSpec& p) { return p.component == ComponentKind::kFull; });
       }},
      {"has 0 anchors", [](PoolList& l) { l.pools.front().is_anchor = false; }},
      {"is there twice", [](PoolList& l) { l.pools.push_back(l.pools.front()); }},
      {"has no layers", [](PoolList& l) { l.pools.front().layers.clear(); }},
      {"do not ascend",
       [](PoolList& l) {
         l.pools.front().layers = {2, 2};
       }},
      {"has layer 4000", [](PoolList& l) { l.pools.front().layers = {4000}; }},
      {"has hit policy trailing_pages", [](PoolList& l) { l.pools.front().hit_policy = HitPolicy::kTrailingPages; }},
      {"has 0 rows", [](PoolList& l) { l.pools.front().planes.front().rows = 0; }},
      {"4 GiB or more", [](PoolList& l) { l.pools.front().planes.front().head_dim = ~0u; }},
      {"a number of storage alone", [](PoolList& l) { l.pools.front().name = static_cast<PoolName>(kPoolNameCount); }},
      {"4 GiB or more",  // the product is 0 in 64 bits
       [](PoolList& l) {
         l.pools.front().planes = {{.name = "k", .rows = 1, .heads = 1u << 31, .head_dim = 1u << 31}};
       }},
      {"4 GiB or more",
       [](PoolList& l) { l.pools.front().planes.front() = {.name = "k", .rows = ~0u, .heads = ~0u, .head_dim = ~0u}; }},
  };
  for (const auto& bad : kBad) {
    PoolList list = list_of(*preset);
    bad.spoil(list);
    const Result<ModelSpec> made = model_of_pools(list);
    ASSERT_FALSE(made.is_ok()) << bad.says;
    EXPECT_NE(made.status().message().find(bad.says), std::string::npos) << made.status().message();
  }
}

}  // namespace
}  // namespace larder
