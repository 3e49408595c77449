// SPDX-License-Identifier: Apache-2.0
// Goldens pin the hashed bytes (see identity.cc): a change here orphans every stored page.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "key/sha256.h"
#include "model/model_spec.h"
#include "model/presets.h"

namespace larder {
namespace {

ModelSpec preset_named(std::string_view name) { return *preset_model(name); }

TEST(LayoutFingerprintTest, IsTheHashOfTheDocumentedText) {
  const ModelSpec model = preset_named("gdn-tiny");
  EXPECT_EQ(layout_fingerprint(model, *model.find_pool(PoolName::kMamba), HostLayout::kPageFirst),
            sha256("larder.layout.v1\n"
                   "page_size 64\n"
                   "host_layout page_first\n"
                   "pool mamba\n"
                   "component mamba\n"
                   "hit_policy trailing_pages\n"
                   "scope per_rank\n"
                   "layers 3 0 1 2\n"
                   "plane conv f32 1 1 384\n"
                   "plane temporal f32 1 1 1024\n"));
  const ModelSpec v4 = preset_named("dsv4-tiny");
  EXPECT_EQ(layout_fingerprint(v4, *v4.find_pool(PoolName::kKv), HostLayout::kPageHead),
            sha256("larder.layout.v1\npage_size 128\nhost_layout page_head\npool kv\ncomponent full\n"
                   "hit_policy all_pages\nscope replicated\nlayers 0\n"));
}

TEST(LayoutFingerprintTest, NoTwoPoolsOrLayoutsShareOne) {
  std::map<std::string, std::string> owner;
  for (const char* name : {"gqa-tiny", "mla-tiny", "swa-tiny", "gdn-tiny", "dsv4-tiny", "gqa-real", "dsv4-real"}) {
    const ModelSpec model = preset_named(name);
    for (const PoolSpec& pool : model.pools) {
      for (const HostLayout layout : kAllHostLayouts) {
        const std::string who =
            std::string(name) + " " + std::string(pool_name(pool.name)) + " " + std::string(host_layout_name(layout));
        const auto [it, is_new] = owner.emplace(layout_fingerprint(model, pool, layout).hex(), who);
        EXPECT_TRUE(is_new) << who << " and " << it->second;
      }
    }
  }
}

TEST(LayoutFingerprintTest, EveryFieldCounts) {
  const ModelSpec model = preset_named("gdn-tiny");
  const PoolSpec pool = *model.find_pool(PoolName::kMamba);
  const Digest256 original = layout_fingerprint(model, pool, HostLayout::kPageFirst);
  const std::vector<std::function<void(ModelSpec&, PoolSpec&)>> changes = {
      [](auto& m, auto&) { m.page_size = 32; },
      [](auto&, auto& p) { p.name = PoolName::kSwa; },
      [](auto&, auto& p) { p.component = ComponentKind::kSwa; },
      [](auto&, auto& p) { p.hit_policy = HitPolicy::kAllPages; },
      [](auto&, auto& p) { p.scope = RankScope::kReplicated; },
      [](auto&, auto& p) {
        p.layers = {0, 1, 3};
      },
      [](auto&, auto& p) {
        p.layers = {0, 1};
      },
      [](auto&, auto& p) { p.planes[0].name = "c"; },
      [](auto&, auto& p) { p.planes[0].dtype = Dtype::kBf16; },
      [](auto&, auto& p) { p.planes[1].rows = 2; },
      [](auto&, auto& p) { p.planes[1].heads = 2; },
      [](auto&, auto& p) { p.planes[1].head_dim = 2; },
      [](auto&, auto& p) { std::swap(p.planes[0], p.planes[1]); },
      [](auto&, auto& p) { p.planes.pop_back(); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    ModelSpec other_model = model;
    PoolSpec other = pool;
    changes[i](other_model, other);
    EXPECT_NE(layout_fingerprint(other_model, other, HostLayout::kPageFirst), original) << "change " << i;
  }
}

TEST(NamespaceDigestTest, Golden) {
  EXPECT_EQ(namespace_digest(preset_named("gdn-tiny"), {}).hex(),
            "b75dcb45972b4c7d9ada6effd65c58220b3d38f37b3e7c1504d71895b9ccdc06");
  const NamespaceScope rank_1_of_4 = {
      .layout = HostLayout::kLayerFirst, .tp_rank = 1, .tp_size = 4, .adapter = "lora", .salt = "tenant"};
  EXPECT_EQ(namespace_digest(preset_named("dsv4-tiny+draft"), rank_1_of_4).hex(),
            "9f7e56c18c80742c6896cce06d86936fccc6074b87a29eaf73b6804eef01fcdd");
}

using Change = std::function<void(ModelSpec&, NamespaceScope&)>;

// Everything that must keep two requests apart (rule 4).
const std::vector<Change>& separating_changes() {
  static const std::vector<Change> changes = {
      [](auto& m, auto&) { m.id = "gdn-tinx"; },
      [](auto& m, auto&) { m.revision = "2"; },
      [](auto& m, auto&) { m.weight_seed = 2; },
      [](auto& m, auto&) { m.page_size = 32; },
      [](auto& m, auto&) { m.vocab_size = 513; },
      [](auto& m, auto&) { m.kv_dtype = Dtype::kBf16; },
      [](auto& m, auto&) { m.conv_dtype = Dtype::kF16; },
      [](auto& m, auto&) { m.ssm_dtype = Dtype::kBf16; },
      [](auto& m, auto&) { m.dims.hidden = 128; },
      [](auto& m, auto&) { m.dims.ffn = 256; },
      [](auto& m, auto&) { m.dims.q_heads = 8; },
      [](auto& m, auto&) { m.dims.kv_heads = 4; },
      [](auto& m, auto&) { m.dims.head_dim = 32; },
      [](auto& m, auto&) { m.dims.kv_lora_rank = 1; },
      [](auto& m, auto&) { m.dims.rope_dim = 2; },
      [](auto& m, auto&) { m.dims.index_heads = 1; },
      [](auto& m, auto&) { m.dims.index_dim = 1; },
      [](auto& m, auto&) { m.dims.index_topk = 1; },
      [](auto& m, auto&) { m.dims.window = 1; },
      [](auto& m, auto&) { m.dims.ssm_heads = 8; },
      [](auto& m, auto&) { m.dims.ssm_key_heads = 4; },
      [](auto& m, auto&) { m.dims.ssm_head_dim = 8; },
      [](auto& m, auto&) { m.dims.ssm_state_dim = 8; },
      [](auto& m, auto&) { m.dims.conv_kernel = 3; },
      [](auto& m, auto&) { std::swap(m.layers[2], m.layers[3]); },
      [](auto& m, auto&) { m.layers.push_back(LayerKind::kAttention); },
      [](auto& m, auto&) { m.draft.layers = 1; },
      [](auto&, auto& s) { s.layout = HostLayout::kPageHead; },
      [](auto&, auto& s) { s.tp_rank = 1; },
      [](auto&, auto& s) { s.tp_size = 2; },
      [](auto&, auto& s) { s.pp_rank = 1; },
      [](auto&, auto& s) { s.pp_size = 2; },
      [](auto&, auto& s) { s.cp_rank = 1; },
      [](auto&, auto& s) { s.cp_size = 2; },
      [](auto&, auto& s) { s.adapter = "x"; },
      [](auto&, auto& s) { s.salt = "x"; },
  };
  return changes;
}

TEST(NamespaceDigestTest, EveryFieldSeparates) {
  std::map<std::string, std::size_t> owner;
  const ModelSpec model = preset_named("gdn-tiny");
  owner.emplace(namespace_digest(model, {}).hex(), 9999);
  for (std::size_t i = 0; i < separating_changes().size(); ++i) {
    ModelSpec other = model;
    NamespaceScope scope;
    separating_changes()[i](other, scope);
    ASSERT_TRUE(finalize_model(other).is_ok()) << "change " << i;
    const auto [it, is_new] = owner.emplace(namespace_digest(other, scope).hex(), i);
    EXPECT_TRUE(is_new) << "changes " << i << " and " << it->second;
  }
}

// Without length prefixes these pairs would hash the same bytes.
TEST(NamespaceDigestTest, BytesDoNotSlideBetweenFields) {
  const ModelSpec model = preset_named("gqa-tiny");
  EXPECT_NE(namespace_digest(model, {.adapter = "ab", .salt = "c"}),
            namespace_digest(model, {.adapter = "a", .salt = "bc"}));
  EXPECT_NE(namespace_digest(model, {.adapter = "a"}), namespace_digest(model, {.salt = "a"}));
}

TEST(NamespaceDigestTest, ReplicatedModelsShareAcrossTensorRanksOnly) {
  const ModelSpec mla = preset_named("mla-tiny");
  const Digest256 rank0 = namespace_digest(mla, {.tp_rank = 0, .tp_size = 8});
  EXPECT_EQ(rank0, namespace_digest(mla, {.tp_rank = 5, .tp_size = 8}));
  EXPECT_EQ(rank0, namespace_digest(mla, {}));
  EXPECT_NE(rank0, namespace_digest(mla, {.pp_rank = 1, .pp_size = 2}));
  EXPECT_NE(rank0, namespace_digest(mla, {.cp_rank = 1, .cp_size = 2}));
}

// Some pools of the ranks are the same, some are not: one key chain for all, and fingerprints that tell the ranks
// apart.
TEST(NamespaceDigestTest, RanksOfMixedModelsShareTheChain) {
  const ModelSpec with_draft = preset_named("mla-tiny+draft");
  ASSERT_TRUE(with_draft.is_rank_mixed());
  EXPECT_FALSE(preset_named("mla-tiny").is_rank_mixed());
  EXPECT_FALSE(preset_named("gqa-tiny").is_rank_mixed());
  EXPECT_EQ(namespace_digest(with_draft, {.tp_rank = 0, .tp_size = 8}),
            namespace_digest(with_draft, {.tp_rank = 5, .tp_size = 8}));
  const Digest256 layout =
      layout_fingerprint(with_draft, *with_draft.find_pool(PoolName::kDraft), HostLayout::kPageFirst);
  EXPECT_EQ(rank_fingerprint(layout, {.tp_rank = 5, .tp_size = 8}),
            sha256("larder.rank.v1\nlayout " + layout.hex() + "\ntp 5 8\n"));
  EXPECT_NE(rank_fingerprint(layout, {.tp_rank = 0, .tp_size = 8}),
            rank_fingerprint(layout, {.tp_rank = 0, .tp_size = 4}));
}

TEST(NamespaceDigestTest, ContextLengthDoesNotSeparate) {
  ModelSpec model = preset_named("gqa-tiny");
  const Digest256 before = namespace_digest(model, {});
  model.context_length *= 2;
  EXPECT_EQ(namespace_digest(model, {}), before);
}

}  // namespace
}  // namespace larder
