// SPDX-License-Identifier: Apache-2.0
// The published scenarios of the reference's 3FS backend, in this one's terms.
#include "storage/pipeline/probe.h"
#include "tests/hf3fs/doubtful_service.h"
#include "tests/hf3fs/hf3fs_rig.h"

namespace larder::hf3fs_test {
namespace {

using Pools = Rig;

TEST_F(Pools, EveryPoolHasItsOwnFilesAndPageSize) {
  open();
  const std::vector<Page> pages = {{PoolName::kIndexer, 1, 100},
                                   {PoolName::kSwa, 1, 8192},
                                   {PoolName::kMamba, 1, 300'001},
                                   {PoolName::kKv, 1, 4097}};
  ASSERT_TRUE(write({pages}).at(0).is_ok());
  for (const Status& status : read(pages)) EXPECT_TRUE(status.is_ok()) << status.to_string();
  const auto spaces = service_->stats();
  ASSERT_TRUE(spaces.is_ok());
  EXPECT_EQ(spaces->size(), 4u);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(mount_ + "/larder")) {
    files += entry.path().extension() == ".bin" ? 1 : 0;
  }
  EXPECT_EQ(files, 8u) << "two per pool";
}

// Presence is told per pool and page: the largest joint restore point is the caller's to find, from all pages of one
// pool and the trailing ones of another.
TEST_F(Pools, ExistsTellsEachPoolPageByPage) {
  open();
  for (std::uint64_t key = 0; key < 6; ++key) ASSERT_TRUE(write({{{PoolName::kKv, key}}}).at(0).is_ok());
  ASSERT_TRUE(write({{{PoolName::kMamba, 3, 9000}}}).at(0).is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {0, 1, 2, 3, 4, 5, 6}), "1111110");
  EXPECT_EQ(presence(PoolName::kMamba, {0, 1, 2, 3, 4, 5, 6}), "0001000");
  EXPECT_EQ(presence(PoolName::kSwa, {0, 3}), "00");
  EXPECT_EQ(presence(PoolName::kKv, {0, 1}, 2), "00") << "another tenant's";
}

TEST_F(Pools, APoolThatTheModelHasNotIsAClearError) {
  open();
  const std::vector<Status> done = write({{{PoolName::kDraft, 1}}, {{PoolName::kKv, 1}}});
  EXPECT_EQ(done.at(0).code(), StatusCode::kInvalidArgument) << done.at(0).to_string();
  EXPECT_TRUE(done.at(1).is_ok());
}

// One pool has no room: groups that need it fail, one by one; the others do not, and nothing stays reserved.
TEST_F(Pools, OnePoolOutOfCapacityFailsItsGroupsOnly) {
  open({{"file_size", "640Ki"}, {"files", "1"}});  // one state of 600,000 bytes, dozens of KV pages
  const auto both = [](std::uint64_t key) {
    return std::vector<Page>{{PoolName::kMamba, key, 600'000}, {PoolName::kKv, key}};
  };
  fault(R"({"op": "write", "count": 1, "hold": "after"})");  // keeps the only page reserved
  EXPECT_EQ(write({{{PoolName::kMamba, 1, 600'000}}}).at(0).code(), StatusCode::kDeadlineExceeded);
  const std::vector<Status> done = write({both(2), {{PoolName::kKv, 3}}, both(4), {{PoolName::kKv, 5}}});
  EXPECT_EQ(done.at(0).code(), StatusCode::kOverloaded);
  EXPECT_TRUE(done.at(1).is_ok());
  EXPECT_EQ(done.at(2).code(), StatusCode::kOverloaded);
  EXPECT_TRUE(done.at(3).is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {2, 3, 4, 5}), "0101") << "a failed pool releases what its group had reserved";
  EXPECT_EQ(totals().reserved, 1u);
  EXPECT_GT(fake_.release(), 0u);
}

// Two processes with one service: what one writes the other reads, and what one is writing the other leaves alone.
// Files and namespaces are for ever: each attach tries the store out, and must not leave more of them.
TEST_F(Pools, TryingItOutAgainLeavesNothingNew) {
  open({{"file_size", "1Mi"}});
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  std::size_t spaces = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Status tried = probe_backend(*backend_, real_clock(), std::chrono::seconds(60), seed);
    ASSERT_TRUE(tried.is_ok()) << tried.to_string();
    const auto now = service_->stats();
    ASSERT_TRUE(now.is_ok());
    if (seed == 1) spaces = now->size();
    EXPECT_EQ(now->size(), spaces) << "after probe " << seed;
    EXPECT_EQ(totals().stored, 1u);
    EXPECT_EQ(totals().reserved, 0u);
  }
}

TEST_F(Pools, TwoBackendsShareWhatTheServiceSays) {
  open();
  ASSERT_TRUE(write({{{PoolName::kMamba, 1, 9000}, {PoolName::kKv, 1}}}).at(0).is_ok());
  std::unique_ptr<StorageBackend> first = std::move(backend_);
  open();
  EXPECT_EQ(presence(PoolName::kKv, {1}), "1");
  for (const Status& status : read({{PoolName::kKv, 1}, {PoolName::kMamba, 1, 9000}})) {
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  EXPECT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok()) << "there already";
  EXPECT_EQ(backend_->stats().duplicate_writes, 1u);
}

// The service of another life knows a pool by its name only: also one whose name is an engine's own.
TEST_F(Pools, APoolOfAnEnginesOwnNameIsFoundAfterARestart) {
  for (const PoolName pool : {PoolName::kSwa, kOpenPool}) {
    open();
    ASSERT_TRUE(write({{{pool, 1}}}).at(0).is_ok());
    open();
    EXPECT_EQ(presence(pool, {1, 2}), "10") << pool_name(pool);
    EXPECT_TRUE(read_one({pool, 1}).is_ok()) << pool_name(pool);
  }
}

// Ranks that hold the same bytes use the same number; the others have files of their own.
TEST_F(Pools, RanksHaveFilesOfTheirOwn) {
  open({{"rank", "0"}});
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  open({{"rank", "1"}});
  EXPECT_EQ(presence(PoolName::kKv, {1}), "0");
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  open({{"rank", "0"}});
  EXPECT_EQ(presence(PoolName::kKv, {1}), "1");
  EXPECT_TRUE(read_one({PoolName::kKv, 1}).is_ok());
}

// A model with KV that is the same on all ranks and states that are not: the ranks divide the writing of KV, each page
// is stored once, and every rank finds all of it beside its own states.
TEST_F(Pools, ReplicatedPagesAreWrittenOnceAndStatesByEachRank) {
  reached_through_ = std::make_shared<DoubtfulService>(service_);
  ranks_ = 2;
  const auto state = [&](std::uint64_t key) { return Page{PoolName::kMamba, 100 * rank_ + key, 9000}; };
  for (rank_ = 0; rank_ < ranks_; ++rank_) {
    open({{"rank", std::to_string(rank_)}});
    for (std::uint64_t key = 0; key < 20; ++key) {
      ASSERT_TRUE(write({{{PoolName::kKv, key}, state(key)}}).at(0).is_ok());
    }
    EXPECT_EQ(backend_->stats().duplicate_writes, 0u) << "nobody writes what another one does";
  }
  std::uint64_t kv = 0, states = 0;
  const auto spaces = service_->stats();
  for (const auto& [name, numbers] : spaces.value()) {
    (name.name.starts_with("kv-") ? kv : states) += numbers.stored;
    EXPECT_EQ(numbers.stored, 20u) << name.text();
  }
  EXPECT_EQ(kv, 20u);
  EXPECT_EQ(states, 40u);
  for (rank_ = 0; rank_ < ranks_; ++rank_) {
    open({{"rank", std::to_string(rank_)}});
    EXPECT_EQ(presence(PoolName::kKv, {0, 1, 2, 3, 18, 19, 20}), "1111110");
    EXPECT_EQ(presence(PoolName::kMamba, {100 * rank_, 100 * rank_ + 19}), "11");
    EXPECT_EQ(presence(PoolName::kMamba, {100 * (1 - rank_)}), "0") << "the other rank's state";
    for (std::uint64_t key = 0; key < 20; ++key) {
      EXPECT_TRUE(read_one({PoolName::kKv, key}).is_ok()) << key;
      EXPECT_TRUE(read_one(state(key)).is_ok()) << key;
    }
    EXPECT_EQ(backend_->stats().pages, 40u) << "the shared ones and its own";
  }
  rank_ = 1;
  for (const Status& status : write({{{PoolName::kKv, 100}}, {{PoolName::kKv, 101}}, {{PoolName::kKv, 102}}})) {
    EXPECT_TRUE(status.is_ok()) << "also what is left to the other one: " << status.to_string();
  }
}

// A service in the process knows nothing of the other ranks, so each of them stores all that it has.
TEST_F(Pools, WithoutACommonServiceEachRankStoresEverything) {
  ranks_ = 2;
  rank_ = 1;
  open({{"rank", "1"}});
  for (std::uint64_t key = 0; key < 8; ++key) ASSERT_TRUE(write({{{PoolName::kKv, key}}}).at(0).is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {0, 1, 2, 3, 4, 5, 6, 7}), "11111111");
  const auto spaces = service_->stats();
  ASSERT_EQ(spaces.value().size(), 1u);
  EXPECT_EQ(spaces.value().begin()->first.rank, 1);
}

// The service has lost everything: the backend makes its namespaces anew, and what was stored is a miss.
TEST_F(Pools, AServiceWithoutMemoryIsAColdCache) {
  open();
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  auto fresh = EmbeddedMetadata::create({}, clock_);
  ASSERT_TRUE(fresh.is_ok());
  service_ = std::move(fresh).value();
  open();
  EXPECT_EQ(read_one({PoolName::kKv, 1}).code(), StatusCode::kNotFound);
  EXPECT_TRUE(write({{{PoolName::kKv, 2}}}).at(0).is_ok());
  EXPECT_TRUE(read_one({PoolName::kKv, 2}).is_ok()) << "on the page that held another key";
}

}  // namespace
}  // namespace larder::hf3fs_test
