// SPDX-License-Identifier: Apache-2.0
#include "pool/host_pools.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>

#include "pool/pool_test_util.h"

namespace larder {
namespace {

using pool_test::preset;
using pool_test::take;

using Slots = std::array<std::vector<HostSlot>, kComponentCount>;

std::unique_ptr<HostPools> pools_of(const ModelSpec& model, std::size_t budget) {
  return take(HostPools::create(model, HostLayout::kPageFirst, budget, host_memory_source()));
}

// A component with a slot of `bytes`.
PoolSpec flat_pool(PoolName name, ComponentKind component, std::uint32_t bytes) {
  PlaneSpec plane{.name = "b", .dtype = Dtype::kU8, .rows = 1, .heads = 1, .head_dim = bytes};
  if (bytes == 0) return pool_test::pool_of(name, component, true, {}, {});
  return pool_test::pool_of(name, component, true, {0}, {plane});
}

ModelSpec three_sizes(std::uint32_t full, std::uint32_t swa, std::uint32_t mamba) {
  return pool_test::model_of(
      1, {flat_pool(PoolName::kKv, ComponentKind::kFull, full), flat_pool(PoolName::kSwa, ComponentKind::kSwa, swa),
          flat_pool(PoolName::kMamba, ComponentKind::kMamba, mamba)});
}

// Has so many bytes, and gets back what is freed.
class SmallMemory final : public MemorySource {
 public:
  explicit SmallMemory(std::size_t bytes) : left_(bytes) {}
  Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override {
    if (bytes > left_) return overloaded("the machine has not that much");
    auto made = host_memory_source().allocate(bytes);
    if (!made) return made.status();
    left_ -= bytes;
    return std::unique_ptr<Memory>(std::make_unique<Region>(left_, bytes, std::move(made).value()));
  }

 private:
  class Region final : public Memory {
   public:
    Region(std::size_t& left, std::size_t bytes, std::unique_ptr<Memory> memory)
        : left_(left), bytes_(bytes), memory_(std::move(memory)) {}
    ~Region() override { left_ += bytes_; }
    [[nodiscard]] std::byte* data() const override { return memory_->data(); }
    [[nodiscard]] std::size_t size() const override { return memory_->size(); }

   private:
    std::size_t& left_;
    const std::size_t bytes_;
    const std::unique_ptr<Memory> memory_;
  };
  std::size_t left_;
};

// A small state makes small blocks, and many: their tables take as much as they do.
TEST(HostPools, TheMachineIsAskedForTheTablesToo) {
  const ModelSpec model = three_sizes(1 << 20, 0, 64);
  constexpr std::size_t kBudget = std::size_t{4} << 20;
  SmallMemory just_the_budget(kBudget), enough(2 * kBudget);
  const Status refused = HostPools::create(model, HostLayout::kPageFirst, kBudget, just_the_budget).status();
  EXPECT_EQ(refused.code(), StatusCode::kOverloaded);
  EXPECT_NE(refused.message().find("tables of host slots"), std::string::npos) << refused.message();
  const auto pools = take(HostPools::create(model, HostLayout::kPageFirst, kBudget, enough));
  EXPECT_EQ(pools->total_blocks() * pools->block_bytes(), kBudget);
}

TEST(BlockSize, FollowsTheArithmetic) {
  EXPECT_EQ(choose_block_bytes({0, 0, 0}), 0u);
  EXPECT_EQ(choose_block_bytes({1, 0, 0}), 64u);
  EXPECT_EQ(choose_block_bytes({4095, 0, 0}), 4096u);      // granule 64, rounded up to it
  EXPECT_EQ(choose_block_bytes({65'536, 0, 0}), 65'536u);  // alone: one block per slot
  EXPECT_EQ(choose_block_bytes({65'536, 65'536, 0}), 65'536u);
  EXPECT_EQ(choose_block_bytes({65'536, 0, 655'360}), 65'536u);  // a multiple: no waste
  EXPECT_EQ(choose_block_bytes({65'536, 0, 98'304}), 32'768u);   // 2 : 3, cut in halves
  // 256 and 257 times 4 KiB: three pieces of 86 hold either; one or two pieces would waste half of the second slot.
  EXPECT_EQ(choose_block_bytes({1 << 20, 0, (1 << 20) + 4096}), 86u * 4096);
}

TEST(BlockSize, IsAMultipleOfItsGranuleAndWastesLittle) {
  Rng rng(7);
  for (int i = 0; i < 500; ++i) {
    std::array<std::size_t, kComponentCount> slots{};
    for (std::size_t& slot : slots)
      slot = rng.chance(1, 4) ? 0 : rng.between(1, std::uint64_t{1} << rng.between(7, 26));
    const std::size_t block = choose_block_bytes(slots);
    std::size_t smallest = SIZE_MAX;
    for (const std::size_t slot : slots) smallest = slot == 0 ? smallest : std::min(smallest, slot);
    if (smallest == SIZE_MAX) continue;
    const std::size_t granule = smallest >= 4096 ? 4096 : 64;
    ASSERT_EQ(block % granule, 0u);
    ASSERT_LE(block, (smallest + granule - 1) / granule * granule);
  }
}

TEST(HostPools, ABudgetTooSmallSaysTheLeastThatWorks) {
  for (const std::string& name : pool_test::tiny_preset_names()) {
    SCOPED_TRACE(name);
    const ModelSpec model = preset(name);
    const std::size_t least = pool_test::smallest_budget(model);
    const auto refused = HostPools::create(model, HostLayout::kPageHead, least - 1, host_memory_source());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(std::to_string(least)), std::string::npos) << refused.status().message();
    const auto pools = pools_of(model, least);
    for (const ComponentKind c : kAllComponents) {
      const auto slot = pools->allocate(c);
      EXPECT_EQ(slot.has_value(), model.has(c));
      if (slot) {
        EXPECT_TRUE(pools->free(c, *slot).is_ok());
      }
    }
  }
  pool_test::RefusingMemory refusing;
  EXPECT_EQ(HostPools::create(preset("gqa-tiny"), HostLayout::kPageHead, 1 << 20, refusing).status().code(),
            StatusCode::kOverloaded);
  EXPECT_EQ(HostPools::create(three_sizes(0, 0, 0), HostLayout::kPageHead, 1 << 20, refusing).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(HostPools, BlocksMoveBetweenComponents) {
  const auto pools = pools_of(three_sizes(4096, 8192, 40'960), 10 * 4096);
  ASSERT_EQ(pools->block_bytes(), 4096u);
  Slots out;
  ASSERT_TRUE(pools->reserve({10, 0, 0}, out));  // all bytes to full
  EXPECT_FALSE(pools->allocate(ComponentKind::kMamba));
  EXPECT_EQ(pools->shortage({0, 0, 1}), (HostSpace{10, 0}));
  for (const HostSlot slot : out[0]) EXPECT_TRUE(pools->free(ComponentKind::kFull, slot).is_ok());
  EXPECT_TRUE(pools->allocate(ComponentKind::kMamba));  // and all of them to one checkpoint
  EXPECT_EQ(pools->free_blocks(), 0u);
  EXPECT_EQ(pools->used_bytes(ComponentKind::kMamba), 40'960u);
}

TEST(HostPools, ReserveIsAllOrNothingAndMissingSaysHowMuch) {
  const auto pools = pools_of(three_sizes(4096, 8192, 12'288), 10 * 4096);
  Slots out;
  EXPECT_TRUE(pools->shortage({1, 1, 1}).is_none());
  EXPECT_EQ(pools->shortage({4, 2, 1}).blocks, UINT64_MAX);  // 11 of 10: never
  EXPECT_FALSE(pools->reserve({4, 2, 1}, out));
  EXPECT_EQ(pools->free_blocks(), 10u);
  EXPECT_TRUE(pools->reserve({3, 2, 1}, out));
  EXPECT_EQ(pools->shortage({2, 0, 1}), (HostSpace{5, 0}));
  EXPECT_FALSE(pools->reserve({2, 0, 1}, out));
  EXPECT_EQ(out[0].size() + out[1].size() + out[2].size(), 6u);
  EXPECT_EQ(pools->shortage({0xffffffffu, 0xffffffffu, 0xffffffffu}).blocks, UINT64_MAX);
  const auto lacking = pools_of(preset("gqa-tiny"), 1 << 20);
  EXPECT_EQ(lacking->shortage({0, 0, 1}).blocks, UINT64_MAX);
  EXPECT_FALSE(lacking->reserve({0, 0, 1}, out));
}

TEST(HostPools, AComponentWithoutBytesTakesMarkersAndNoBlocks) {
  const auto pools = pools_of(three_sizes(0, 4096, 0), 4 * 4096);
  EXPECT_EQ(pools->blocks_per_slot(ComponentKind::kFull), 0u);
  EXPECT_EQ(pools->total(), (HostSpace{4, 65'536}));
  EXPECT_EQ(pools->space_of({7, 2, 1}), (HostSpace{2, 8}));
  Slots out;
  EXPECT_TRUE(pools->reserve({65'534, 4, 1}, out));
  EXPECT_TRUE(pools->allocate(ComponentKind::kMamba));  // markers serve whoever comes, like blocks
  EXPECT_EQ(pools->available(), HostSpace{});
  EXPECT_FALSE(pools->allocate(ComponentKind::kFull));
  EXPECT_EQ(pools->shortage({1, 0, 2}), (HostSpace{0, 3}));
  EXPECT_EQ(pools->shortage({65'537, 0, 0}).blocks, UINT64_MAX);
  EXPECT_EQ(pools->shortage({65'536, 0, 1}).blocks, UINT64_MAX);
  EXPECT_TRUE(pools->free(ComponentKind::kFull, out[0][0]).is_ok());
  EXPECT_TRUE(pools->shortage({0, 0, 1}).is_none());
  EXPECT_EQ(pools->check_invariants().to_string(), "ok");
  const HostSlot leased = out[0][2];
  ASSERT_TRUE(pools->add_lease(ComponentKind::kFull, leased).is_ok());
  ASSERT_TRUE(pools->free(ComponentKind::kFull, leased).is_ok());
  EXPECT_EQ(pools->available().markers, 1u) << "in quarantine";
  EXPECT_EQ(pools->check_invariants().to_string(), "ok");
  const Generation generation = pools->generation(ComponentKind::kFull, leased);
  ASSERT_TRUE(pools->drop_lease(ComponentKind::kFull, leased, generation).is_ok());
  EXPECT_EQ(pools->available().markers, 2u);
  std::vector<Segment> segments;
  pools->append_page(PoolName::kKv, out[0][1], segments);
  EXPECT_TRUE(segments.empty());
  EXPECT_EQ(pools->check_invariants().to_string(), "ok");
}

TEST(HostPools, MarkersAreBoundedByWhatTheirBookkeepingTakes) {
  ModelSpec model = three_sizes(0, 0, 1 << 20);
  const auto markers = [&](std::uint32_t page_size, std::size_t budget) {
    model.page_size = page_size;
    return pools_of(model, budget)->total().markers;
  };
  EXPECT_EQ(markers(1, 1 << 20), 65'536u);
  EXPECT_EQ(markers(1, std::size_t{136} << 20), 131'072u);  // 68 bytes each, a sixteenth of the budget
  EXPECT_EQ(markers(16, std::size_t{136} << 20), 69'632u);  // 128 bytes
  EXPECT_EQ(pools_of(preset("gqa-tiny"), 1 << 20)->total().markers, 0u);
}

TEST(HostPools, AFreedButLeasedSlotKeepsItsBlocks) {
  const auto pools = pools_of(three_sizes(4096, 0, 0), 2 * 4096);
  const HostSlot slot = *pools->allocate(ComponentKind::kFull);
  const Generation generation = pools->generation(ComponentKind::kFull, slot);
  ASSERT_TRUE(pools->add_lease(ComponentKind::kFull, slot).is_ok());
  ASSERT_TRUE(pools->free(ComponentKind::kFull, slot).is_ok());
  EXPECT_EQ(pools->free(ComponentKind::kFull, slot).code(), StatusCode::kInternal);
  EXPECT_EQ(pools->free_blocks(), 1u);
  EXPECT_EQ(pools->used_bytes(ComponentKind::kFull), 4096u);
  EXPECT_EQ(pools->add_lease(ComponentKind::kFull, slot).status().code(), StatusCode::kInternal);
  EXPECT_EQ(pools->drop_lease(ComponentKind::kFull, slot, generation - 1).code(), StatusCode::kConflict);
  EXPECT_EQ(pools->check_invariants().to_string(), "ok");
  EXPECT_TRUE(pools->drop_lease(ComponentKind::kFull, slot, generation).is_ok());
  EXPECT_EQ(pools->free_blocks(), 2u);
  EXPECT_EQ(pools->check_invariants().to_string(), "ok");
}

// Every range of every page: right length, in the memory of exactly one slot, pieces consistent with the whole page.
TEST(HostPools, SegmentsOfARangeAreThatRangeOfThePage) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const ModelSpec model = pool_test::random_model(rng);
    const auto pools = pools_of(model, 4 * pool_test::smallest_budget(model));
    pool_test::scatter(*pools, rng);
    std::set<const std::byte*> used;
    for (const PoolSpec& pool : model.pools) {
      const auto slot = pools->allocate(pool.component);
      if (!slot) continue;
      std::vector<Segment> page;
      pools->append_page(pool.name, *slot, page);
      std::vector<std::byte*> bytes;
      for (const Segment& segment : page) {
        for (std::size_t i = 0; i < segment.size; ++i) bytes.push_back(segment.data + i);
      }
      ASSERT_EQ(bytes.size(), pool.page_bytes());
      for (const std::byte* byte : bytes) ASSERT_TRUE(used.insert(byte).second) << "a byte belongs to two pages";
      for (int i = 0; i < 50; ++i) {
        const std::size_t offset = rng.below(pool.page_bytes());
        const std::size_t size = rng.between(0, pool.page_bytes() - offset);
        std::vector<Segment> range;
        pools->append_segments(pool.name, *slot, offset, size, range);
        std::size_t at = offset;
        for (const Segment& segment : range) {
          for (std::size_t b = 0; b < segment.size; ++b) ASSERT_EQ(segment.data + b, bytes[at++]);
        }
        ASSERT_EQ(at, offset + size);
      }
    }
  }
}

TEST(HostPools, PagesStartAligned) {
  for (const std::string& name : pool_test::tiny_preset_names()) {
    SCOPED_TRACE(name);
    const ModelSpec model = preset(name);
    const auto pools = pools_of(model, 4 * pool_test::smallest_budget(model));
    for (const PoolSpec& pool : model.pools) {
      if (pool.page_bytes() == 0) continue;
      const std::size_t granule = pool.page_bytes() >= 4096 && pools->block_bytes() % 4096 == 0 ? 4096 : 64;
      const HostSlot slot = *pools->allocate(pool.component);
      std::vector<Segment> page;
      pools->append_page(pool.name, slot, page);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(page.front().data) % granule, 0u) << pool_name(pool.name);
      EXPECT_TRUE(pools->free(pool.component, slot).is_ok());
    }
  }
}

// Random use against a naive model: which slots are live or leased, how many blocks that takes.
class HostModel {
 public:
  explicit HostModel(Rng& rng) : rng_(rng), model_(pool_test::random_model(rng)) {
    pools_ = pools_of(model_, rng.between(1, 6) * pool_test::smallest_budget(model_));
  }

  void step() {
    const ComponentKind c = kAllComponents[rng_.below(kComponentCount)];
    switch (rng_.below(4)) {
      case 0: reserve(); break;
      case 1: free(c); break;
      case 2: lease(c); break;
      default: drop(); break;
    }
    ASSERT_EQ(pools_->check_invariants().to_string(), "ok");
    std::uint64_t used = 0;
    for (const ComponentKind k : kAllComponents) used += pools_->used_bytes(k);
    ASSERT_EQ(used / pools_->block_bytes() + pools_->free_blocks(), pools_->total_blocks());
  }

  void end() {  // everything comes back
    while (!leases_.empty()) ASSERT_NO_FATAL_FAILURE(drop());
    for (const ComponentKind c : kAllComponents) {
      while (!live_[index_of(c)].empty()) ASSERT_NO_FATAL_FAILURE(free(c));
    }
    ASSERT_EQ(pools_->free_blocks(), pools_->total_blocks());
    ASSERT_EQ(pools_->check_invariants().to_string(), "ok");
  }

 private:
  struct Lease {
    ComponentKind component;
    HostSlot slot;
    Generation generation;
  };
  void reserve() {
    ComponentCounts counts{};
    for (const ComponentKind c : kAllComponents) {
      if (model_.has(c)) counts[index_of(c)] = static_cast<std::uint32_t>(rng_.below(3));
    }
    const std::uint64_t free_before = pools_->free_blocks();
    const HostSpace missing = pools_->shortage(counts);
    Slots out;
    const bool is_taken = pools_->reserve(counts, out);
    ASSERT_EQ(is_taken, missing.is_none());
    std::uint64_t taken = 0;
    for (const ComponentKind c : kAllComponents) {
      const std::size_t i = index_of(c);
      ASSERT_EQ(out[i].size(), is_taken ? counts[i] : 0);
      taken += out[i].size() * pools_->blocks_per_slot(c);
      live_[i].insert(live_[i].end(), out[i].begin(), out[i].end());
    }
    ASSERT_EQ(pools_->free_blocks() + taken, free_before);
  }
  void free(ComponentKind c) {
    auto& live = live_[index_of(c)];
    if (live.empty()) return;
    std::swap(live[rng_.below(live.size())], live.back());
    ASSERT_TRUE(pools_->free(c, live.back()).is_ok());
    ASSERT_FALSE(pools_->free(c, live.back()).is_ok());
    live.pop_back();
  }
  void lease(ComponentKind c) {
    const auto& live = live_[index_of(c)];
    if (live.empty()) return;
    const HostSlot slot = live[rng_.below(live.size())];
    ASSERT_TRUE(pools_->add_lease(c, slot).is_ok());
    leases_.push_back({c, slot, pools_->generation(c, slot)});
  }
  void drop() {
    if (leases_.empty()) return;
    std::swap(leases_[rng_.below(leases_.size())], leases_.back());
    const Lease lease = leases_.back();
    leases_.pop_back();
    ASSERT_EQ(pools_->generation(lease.component, lease.slot), lease.generation) << "handed out while leased";
    ASSERT_TRUE(pools_->drop_lease(lease.component, lease.slot, lease.generation).is_ok());
  }

  Rng& rng_;
  ModelSpec model_;
  std::unique_ptr<HostPools> pools_;
  Slots live_;
  std::vector<Lease> leases_;
};

TEST(HostPools, RandomUseConservesBlocks) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    HostModel model(rng);
    for (int i = 0; i < 300; ++i) {
      ASSERT_NO_FATAL_FAILURE(model.step()) << "step " << i;
    }
    ASSERT_NO_FATAL_FAILURE(model.end());
  }
}

}  // namespace
}  // namespace larder
