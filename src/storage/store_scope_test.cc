// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "model/presets.h"
#include "storage/backend.h"

namespace larder {
namespace {

PageKey scope_key(std::uint8_t number) {
  PageKey key;
  key.bytes[0] = number;
  return key;
}

TEST(StoreScopeTest, RanksOfAMixedModelShareWhatIsTheSame) {
  const ModelSpec model = *preset_model("mla-tiny+draft");
  const StoreScope rank0 = make_store_scope(model, {.tp_rank = 0, .tp_size = 2});
  const StoreScope rank1 = make_store_scope(model, {.tp_rank = 1, .tp_size = 2});
  EXPECT_EQ(rank0.namespace_digest, rank1.namespace_digest);
  EXPECT_EQ(rank0.fingerprint(PoolName::kKv), rank1.fingerprint(PoolName::kKv));
  EXPECT_NE(rank0.fingerprint(PoolName::kDraft), rank1.fingerprint(PoolName::kDraft)) << "bytes of its own";
  EXPECT_FALSE(rank0.fingerprint(PoolName::kDraft).is_zero());
  EXPECT_TRUE(rank0.fingerprint(PoolName::kMamba).is_zero()) << "the model has none";
}

TEST(StoreScopeTest, OneRankWritesEachPageThatAllHave) {
  const ModelSpec model = *preset_model("mla-tiny+draft");
  constexpr std::uint32_t kRanks = 3;
  std::array<int, kRanks> share{};
  for (int number = 0; number < 90; ++number) {
    int writers = 0, own = 0;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      const StoreScope scope = make_store_scope(model, {.tp_rank = rank, .tp_size = kRanks});
      const bool is_writer = scope.is_writer(PoolName::kKv, scope_key(static_cast<std::uint8_t>(number)));
      writers += is_writer ? 1 : 0;
      share[rank] += is_writer ? 1 : 0;
      own += scope.is_writer(PoolName::kDraft, scope_key(static_cast<std::uint8_t>(number))) ? 1 : 0;
    }
    EXPECT_EQ(writers, 1) << number;
    EXPECT_EQ(own, static_cast<int>(kRanks)) << number;
  }
  for (const int pages : share) EXPECT_EQ(pages, 30);
}

}  // namespace
}  // namespace larder
