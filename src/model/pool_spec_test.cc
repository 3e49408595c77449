// SPDX-License-Identifier: Apache-2.0
#include "model/pool_spec.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "model/presets.h"

namespace larder {
namespace {

PoolSpec small_pool() {
  PoolSpec pool;
  pool.layers = {1, 4, 5};
  pool.planes = {{.name = "k", .dtype = Dtype::kF32, .rows = 4, .heads = 2, .head_dim = 3},
                 {.name = "v", .dtype = Dtype::kBf16, .rows = 2, .heads = 1, .head_dim = 5},
                 {.name = "score", .dtype = Dtype::kU8, .rows = 1, .heads = 4, .head_dim = 1}};
  return pool;
}

// Walks all chunks in the order of `layout` as the header draws it, and checks that each starts where the last one
// ended.
class LayoutWalk {
 public:
  LayoutWalk(const PoolSpec& pool, HostLayout layout) : pool_(pool), layout_(layout) {}

  void run() {
    if (layout_ == HostLayout::kLayerFirst) {
      for (std::size_t layer = 0; layer < pool_.layers.size(); ++layer) {
        for (std::size_t plane = 0; plane < pool_.planes.size(); ++plane) rows_then_heads(plane, layer);
      }
    } else {
      for (std::size_t plane = 0; plane < pool_.planes.size(); ++plane) one_plane(plane);
    }
    EXPECT_EQ(end_, pool_.page_bytes());
  }

 private:
  void rows_then_heads(std::size_t plane, std::size_t layer) {
    const PlaneSpec& shape = pool_.planes[plane];
    for (std::size_t row = 0; row < shape.rows; ++row) {
      for (std::size_t head = 0; head < shape.heads; ++head) expect_next(plane, layer, row, head);
    }
  }

  void one_plane(std::size_t plane) {
    const PlaneSpec& shape = pool_.planes[plane];
    const std::size_t layers = pool_.layers.size();
    if (layout_ == HostLayout::kPageFirstDirect) {
      for (std::size_t layer = 0; layer < layers; ++layer) rows_then_heads(plane, layer);
    } else if (layout_ == HostLayout::kPageFirst) {
      for (std::size_t row = 0; row < shape.rows; ++row) {
        for (std::size_t layer = 0; layer < layers; ++layer) {
          for (std::size_t head = 0; head < shape.heads; ++head) expect_next(plane, layer, row, head);
        }
      }
    } else {
      for (std::size_t head = 0; head < shape.heads; ++head) {
        for (std::size_t row = 0; row < shape.rows; ++row) {
          for (std::size_t layer = 0; layer < layers; ++layer) expect_next(plane, layer, row, head);
        }
      }
    }
  }

  void expect_next(std::size_t plane, std::size_t layer, std::size_t row, std::size_t head) {
    const std::size_t offset = chunk_offset(pool_, layout_, plane, layer, row, head);
    if (offset != end_) {
      ADD_FAILURE() << "plane " << plane << " layer " << layer << " row " << row << " head " << head << ": " << offset
                    << " instead of " << end_;
    }
    end_ = offset + pool_.planes[plane].head_bytes();
  }

  const PoolSpec& pool_;
  HostLayout layout_;
  std::size_t end_ = 0;
};

TEST(ChunkOffsetTest, FollowsTheOrderOfEachLayoutWithoutGaps) {
  const PoolSpec pool = small_pool();
  EXPECT_EQ(pool.layer_bytes(), 4 * 2 * 3 * 4 + 2 * 5 * 2 + 4u);
  for (const HostLayout layout : kAllHostLayouts) {
    SCOPED_TRACE(host_layout_name(layout));
    LayoutWalk(pool, layout).run();
  }
}

TEST(ChunkOffsetTest, EveryPoolOfEveryTinyPreset) {
  for (const PresetInfo& info : all_presets()) {
    if (!info.is_tiny) continue;
    const Result<ModelSpec> model = preset_model(info.name);
    ASSERT_TRUE(model.is_ok());
    for (const PoolSpec& pool : model->pools) {
      for (const HostLayout layout : kAllHostLayouts) {
        SCOPED_TRACE(info.name + " " + std::string(pool_name(pool.name)) + " " + std::string(host_layout_name(layout)));
        LayoutWalk(pool, layout).run();
      }
    }
  }
}

TEST(NamesTest, PoolNamesKeepTheFieldsSpelling) {
  EXPECT_EQ(pool_name(PoolName::kKv), "kv");
  EXPECT_EQ(pool_name(PoolName::kMamba), "mamba");
  EXPECT_EQ(pool_name(PoolName::kSwa), "swa");
  EXPECT_EQ(pool_name(PoolName::kIndexer), "indexer");
  EXPECT_EQ(pool_name(PoolName::kDeepseekV4C4), "deepseek_v4_c4");
  EXPECT_EQ(pool_name(PoolName::kDeepseekV4C4Indexer), "deepseek_v4_c4_indexer");
  EXPECT_EQ(pool_name(PoolName::kDeepseekV4C128), "deepseek_v4_c128");
  EXPECT_EQ(pool_name(PoolName::kDeepseekV4C4State), "deepseek_v4_c4_state");
  EXPECT_EQ(pool_name(PoolName::kDeepseekV4C4IndexerState), "deepseek_v4_c4_indexer_state");
  EXPECT_EQ(pool_name(PoolName::kDeepseekV4C128State), "deepseek_v4_c128_state");
  EXPECT_EQ(pool_name(PoolName::kDraft), "draft");
  EXPECT_EQ(hit_policy_name(HitPolicy::kAllPages), "all_pages");
  EXPECT_EQ(hit_policy_name(HitPolicy::kTrailingPages), "trailing_pages");
  EXPECT_EQ(component_name(ComponentKind::kFull), "full");
  EXPECT_EQ(component_name(ComponentKind::kSwa), "swa");
  EXPECT_EQ(component_name(ComponentKind::kMamba), "mamba");
}

TEST(NamesTest, ParseIsTheInverseOfName) {
  for (std::size_t i = 0; i < kPoolNameCount; ++i) {
    const auto name = static_cast<PoolName>(i);
    EXPECT_EQ(parse_pool_name(pool_name(name)), name);
  }
  EXPECT_EQ(pool_name(static_cast<PoolName>(kFirstOpenPool)), "pool_32");
  EXPECT_EQ(pool_name(static_cast<PoolName>(kPoolNumberCount - 1)), "pool_63");
  EXPECT_EQ(pool_name(static_cast<PoolName>(kPoolNumberCount)), "?");
  EXPECT_FALSE(parse_pool_name("pool_32"));  // a number, not a name that a model file may use
  for (std::size_t i = 0; i < kPoolNumberCount; ++i) {
    const auto pool = static_cast<PoolName>(i);
    EXPECT_EQ(parse_pool_number(pool_name(pool)), pool) << i;
  }
  for (const char* text : {"pool_64", "pool_032", "pool_", "pool_3", "?", ""}) EXPECT_FALSE(parse_pool_number(text));
  for (const HostLayout layout : kAllHostLayouts) EXPECT_EQ(parse_host_layout(host_layout_name(layout)), layout);
  std::set<std::string_view> dtypes;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16, Dtype::kFp8E4m3, Dtype::kU8}) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_TRUE(dtypes.insert(dtype_name(dtype)).second);
  }
  EXPECT_EQ(dtype_bytes(Dtype::kF32), 4u);
  EXPECT_EQ(dtype_bytes(Dtype::kBf16), 2u);
  EXPECT_EQ(dtype_bytes(Dtype::kF16), 2u);
  EXPECT_EQ(dtype_bytes(Dtype::kFp8E4m3), 1u);
  EXPECT_EQ(dtype_bytes(Dtype::kU8), 1u);
  EXPECT_FALSE(parse_pool_name("KV"));
  EXPECT_FALSE(parse_pool_name(""));
  EXPECT_FALSE(parse_dtype("float32"));
  EXPECT_FALSE(parse_host_layout("page-first"));
}

}  // namespace
}  // namespace larder
