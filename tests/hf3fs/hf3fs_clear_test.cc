// SPDX-License-Identifier: Apache-2.0
// What a clear reaches: pages of other processes, and of other options, which may be this process's again tomorrow.
#include <array>
#include <chrono>

#include "tests/hf3fs/doubtful_service.h"
#include "tests/hf3fs/hf3fs_rig.h"

namespace larder::hf3fs_test {
namespace {

using Clear = Rig;

TEST_F(Clear, ReachesWhatAnotherProcessHasMadeSince) {
  open();
  ASSERT_EQ(presence(PoolName::kKv, {1}), "0") << "now it knows which namespaces there are";
  std::unique_ptr<StorageBackend> other = std::move(backend_);
  open();
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  backend_.swap(other);
  EXPECT_TRUE(clear().is_ok());
  backend_.swap(other);
  EXPECT_EQ(presence(PoolName::kKv, {1}), "0");
  EXPECT_EQ(totals().stored, 0u);
}

TEST_F(Clear, ReachesPagesOfAnotherGeometry) {
  for (const BackendOptions& changed : {BackendOptions{{"files", "4"}}, BackendOptions{{"chunk_size", "64Ki"}}}) {
    SCOPED_TRACE(changed.begin()->first);
    open();
    ASSERT_TRUE(write({{{PoolName::kKv, 1}}}, 1).at(0).is_ok());
    ASSERT_TRUE(write({{{PoolName::kKv, 1}}}, 2).at(0).is_ok());
    open(changed);
    EXPECT_TRUE(clear(1).is_ok());
    open();
    EXPECT_EQ(presence(PoolName::kKv, {1}, 1), "0");
    EXPECT_EQ(presence(PoolName::kKv, {1}, 2), "1") << "another tenant's";
    open(changed);
    EXPECT_TRUE(clear().is_ok());
    open();
    EXPECT_EQ(presence(PoolName::kKv, {1}, 2), "0");
    EXPECT_EQ(totals().stored, 0u);
  }
}

// That there is nothing else to clear was true a moment ago.
TEST_F(Clear, FailsIfTheServiceDoesNotSayWhatThereIs) {
  auto line = std::make_shared<DoubtfulService>(service_);
  reached_through_ = line;
  open();
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  ASSERT_EQ(presence(PoolName::kKv, {1}), "1");
  line->stats_are_lost = true;
  const Status cleared = clear();
  EXPECT_EQ(cleared.code(), StatusCode::kUnavailable) << cleared.to_string();
  EXPECT_NE(cleared.message().find("which namespaces"), std::string::npos) << cleared.message();
  EXPECT_EQ(totals().stored, 0u) << "what is known is cleared all the same";
  line->stats_are_lost = false;
  EXPECT_TRUE(clear().is_ok());
}

// Of two ranks one clears: its own pages and those that they share go, with other options, too; the other one's stay.
TEST_F(Clear, LeavesPagesOfOtherRanks) {
  reached_through_ = std::make_shared<DoubtfulService>(service_);
  ranks_ = 2;
  const auto write_some = [&](std::uint64_t from) {
    for (std::uint64_t key = from; key < from + 8; ++key) {
      ASSERT_TRUE(write({{{PoolName::kKv, key}, {PoolName::kMamba, 100 * rank_ + key, 9000}}}).at(0).is_ok());
    }
  };
  for (rank_ = 0; rank_ < ranks_; ++rank_) {
    open({{"rank", std::to_string(rank_)}, {"files", "4"}});
    write_some(0);
  }
  rank_ = 1;
  open({{"rank", "1"}});
  write_some(50);
  EXPECT_TRUE(clear().is_ok());
  const auto spaces = service_->stats();
  ASSERT_TRUE(spaces.is_ok());
  ASSERT_EQ(spaces->size(), 5u) << "of two geometries: the shared ones, and those of rank 1; and one of rank 0";
  for (const auto& [name, numbers] : *spaces) {
    const bool is_of_other = name.rank == 0 && !name.name.starts_with("kv-");
    EXPECT_EQ(numbers.stored, is_of_other ? 8u : 0u) << name.text();
  }
}

// A service may serve others, too.
TEST_F(Clear, LeavesNamespacesThatAreNotOurs) {
  open();
  const MetadataNamespace foreign{0, "kv"};
  ASSERT_TRUE(service_->initialize(foreign, 8).is_ok());
  const MetadataSession session{{1, 2}, 3};
  const std::array<ReserveItems, 1> wanted = {ReserveItems{&foreign, {{"a key of the reference", {}}}}};
  const auto reserved = service_->reserve(session, wanted, std::chrono::seconds(10));
  ASSERT_TRUE(reserved.is_ok());
  ConfirmRequest request;
  request.session = session;
  request.groups = {{{&foreign, wanted[0].items[0].key, reserved->at(0).at(0).ref}}};
  ASSERT_TRUE(service_->confirm(request).is_ok());
  EXPECT_TRUE(clear().is_ok());
  EXPECT_EQ(totals().stored, 1u);
}

}  // namespace
}  // namespace larder::hf3fs_test
