// SPDX-License-Identifier: Apache-2.0
// Writes that come too late: not begun after their deadline, and their pages not given away while they may still land.
#include "tests/hf3fs/store_rig.h"

namespace larder::hf3fs_test {
namespace {

using Late = StoreRig;

// The ring's thread was kept longer than a deadline, here by a callback. What has waited meanwhile is over: its page
// may be another's by now.
TEST_F(Late, ATransferWhoseDeadlineIsOverIsNotSent) {
  hf3fs::UsrbioStoreOptions options = store_options();
  options.ring.client_timeout = std::chrono::seconds(1);
  make_store(options);
  auto files = open_files();
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  std::promise<void> go_on;
  const auto first = start(*files, 1, go_on.get_future().share());
  while (fake_.read_stats().reaped < 3) pass(std::chrono::milliseconds(1));  // two of the ring's own test
  const auto second = start(*files, 2);
  ASSERT_TRUE(second->submitted.is_ok());
  pass(std::chrono::milliseconds(1200));
  const std::uint64_t before = fake_.read_stats().prepared;
  go_on.set_value();
  const hf3fs::TransferEnd end = second->ended.get();
  EXPECT_EQ(end.status.code(), StatusCode::kDeadlineExceeded) << end.status.to_string();
  EXPECT_FALSE(end.may_land_later);
  EXPECT_EQ(fake_.read_stats().prepared, before) << "it was given to the file system";
  EXPECT_TRUE(first->ended.get().status.is_ok());
}

// What a storage server has done with a write that failed is not known. Its page is nobody's until it cannot land.
TEST_F(Late, AWriteThatFailedWithoutAReasonKeepsItsPage) {
  open({{"file_size", "64Ki"}, {"files", "1"}});
  fault(R"({"op": "write", "count": 1, "error": 110, "lands_late": true})");  // ETIMEDOUT
  EXPECT_FALSE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  EXPECT_EQ(totals().reserved, 1u) << "not released: its bytes may still come";
  EXPECT_TRUE(write({{{PoolName::kKv, 2}}}).at(0).is_ok());
  EXPECT_EQ(fake_.release(), 1u);
  EXPECT_TRUE(read_one({PoolName::kKv, 2}).is_ok()) << "the first write has landed in its page";
  clock_.advance(std::chrono::minutes(5));
  EXPECT_EQ(totals().reserved + totals().quarantined, 0u) << "in the end the page comes back";
}

TEST_F(Late, WhichErrorsLeaveAWriteInDoubt) {
  make_store(store_options());
  auto files = open_files();
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  const auto in_doubt = [&](int error) {
    fault(R"({"op": "write", "count": 1, "error": )" + std::to_string(error) + "}");
    const hf3fs::TransferEnd end = start(*files, 1)->ended.get();
    EXPECT_FALSE(end.status.is_ok());
    return end.may_land_later;
  };
  for (const int unknown : {EIO, EREMOTEIO, ETIMEDOUT, EINTR, ECANCELED}) EXPECT_TRUE(in_doubt(unknown)) << unknown;
  for (const int refused : {ENOSPC, EINVAL, EBADF, EROFS, EACCES, ENODATA}) EXPECT_FALSE(in_doubt(refused)) << refused;
  fault(R"({"op": "write", "count": 1, "short_bytes": 4096})");
  EXPECT_FALSE(start(*files, 1)->ended.get().may_land_later) << "the server has told what it did";
}

// Neighbours failed together, in doubt. A second try that succeeds would make them pages that can be read, removed and
// given to others, and then the first try lands over those.
TEST_F(Late, WhatIsInDoubtIsNotTriedAgain) {
  hf3fs::UsrbioStoreOptions options = store_options();
  options.ring.entries = 1;  // while one I/O is held, the others wait together
  make_store(options);
  auto files = open_files();
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  fault(R"({"op": "write", "count": 1, "hold": "before"})");
  fault(R"({"op": "write", "count": 1, "error": 5, "lands_late": true})");
  const auto stopper = start(*files, 1000);
  std::vector<std::unique_ptr<Moving>> pages;
  for (std::uint64_t page = 0; page < 3; ++page) pages.push_back(start(*files, page));
  while (fake_.release() == 0) fake_.idle();
  EXPECT_TRUE(stopper->ended.get().status.is_ok());
  for (const auto& page : pages) {
    const hf3fs::TransferEnd end = page->ended.get();
    EXPECT_EQ(end.status.code(), StatusCode::kUnavailable) << end.status.to_string();
    EXPECT_TRUE(end.may_land_later);
  }
  EXPECT_EQ(fake_.release(), 1u) << "it lands";
}

}  // namespace
}  // namespace larder::hf3fs_test
