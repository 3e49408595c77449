// Writes that come too late: not begun after their deadline, and their pages not given away while they may still land.
#include "tests/hf3fs/store_rig.h"

namespace larder::hf3fs_test {
namespace {

using Late = StoreRig;

// The ring's thread was kept longer than a deadline, here by a callback. What has waited meanwhile is over: its page may
// be another's by now.
TEST_F(Late, ATransferWhoseDeadlineIsOverIsNotSent) {
  hf3fs::UsrbioStoreOptions options = store_options();
  options.ring.client_timeout = std::chrono::milliseconds(300);
  make_store(options);
  auto files = open_files();
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  std::promise<void> go_on;
  const auto first = start(*files, 1, go_on.get_future().share());
  while (fake_.read_stats().reaped < 3) pass(std::chrono::milliseconds(1));  // two of the ring's own test
  const auto second = start(*files, 2);
  ASSERT_TRUE(second->submitted.is_ok());
  pass(std::chrono::milliseconds(400));
  const std::uint64_t before = fake_.read_stats().prepared;
  go_on.set_value();
  const hf3fs::TransferEnd end = second->ended.get();
  EXPECT_EQ(end.status.code(), StatusCode::kDeadlineExceeded) << end.status.to_string();
  EXPECT_FALSE(end.may_land_later);
  EXPECT_EQ(fake_.read_stats().prepared, before) << "it was given to the file system";
  EXPECT_TRUE(first->ended.get().status.is_ok());
}

}  // namespace
}  // namespace larder::hf3fs_test
