// A mount whose daemon dies, again and again, or is stopped and answers nothing.
#include <unistd.h>

#include <filesystem>

#include "tests/hf3fs/store_rig.h"

namespace larder::hf3fs_test {
namespace {

using Mount = StoreRig;

Page kv(std::uint64_t key) { return {PoolName::kKv, key}; }

std::size_t probe_files(const std::string& directory) {
  std::size_t found = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    found += file.path().filename().string().starts_with(".larder-probe") ? 1 : 0;
  }
  return found;
}

// SIGSTOP, or a mount that hangs: the question whether it lives gets no answer, neither does the close of a file.
TEST_F(Mount, AStoppedDaemonKeepsNobody) {
  open();
  ASSERT_TRUE(write({{kv(1)}}).at(0).is_ok());
  ASSERT_TRUE(read_one(kv(1)).is_ok());  // opening files may wait for the mount
  const TimePoint begun = real_clock().now();
  config(R"({"probe_blocks": true})");
  fault(R"({"op": "read", "count": 1, "hold": "before"})");
  EXPECT_EQ(read_one(kv(1)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(read_one(kv(1)).is_ok()) << "the ring goes on";
  EXPECT_EQ(fake_.release(), 1u);
  fake_.idle();
  EXPECT_TRUE(backend_->close(std::chrono::seconds(10)).is_ok());
  backend_.reset();
  EXPECT_LT(real_clock().now() - begun, std::chrono::seconds(20));
  EXPECT_GT(fake_.read_stats().live_registered_fds, 0u) << "that needs the mount";
  config(R"({"probe_blocks": false})");
  const auto is_left = [&] {
    const hf3fs::FakeStats now = fake_.read_stats();
    return now.live_iovs + now.live_rings + now.live_registered_fds + now.live_write_sessions > 0;
  };
  for (int tries = 0; tries < 10'000 && is_left(); ++tries) pass(std::chrono::milliseconds(1));
  EXPECT_FALSE(is_left()) << "when the mount answers again, everything is given back";
}

TEST_F(Mount, SilenceIsNoticedWhileTheProbeHangs) {
  open({{"client_timeout", "20"}, {"dead_after", "1"}});
  ASSERT_TRUE(write({{kv(1)}}).at(0).is_ok());
  ASSERT_TRUE(read_one(kv(1)).is_ok());
  config(R"({"probe_blocks": true})");
  fault(R"({"op": "read", "count": 1, "hold": "before"})");
  const TimePoint begun = real_clock().now();
  EXPECT_EQ(read_one(kv(1)).code(), StatusCode::kUnavailable);
  EXPECT_LT(real_clock().now() - begun, std::chrono::seconds(15));
  config(R"({"probe_blocks": false})");
}

// What was registered under a daemon that is dead cannot be deregistered, and its number not be registered again.
TEST_F(Mount, FilesOpenAgainAfterADaemonsDeath) {
  std::vector<int> holes;
  for (int round = 0; round < 3; ++round) {
    holes.push_back(::dup(2));  // a number below those of the files
    open();
    ASSERT_NE(backend_, nullptr) << "round " << round;
    EXPECT_EQ(probe_files(mount_ + "/larder"), 0u) << "round " << round;
    ASSERT_TRUE(write({{kv(1)}, {kv(static_cast<std::uint64_t>(round) + 10)}}).at(1).is_ok());
    EXPECT_TRUE(read_one(kv(1)).is_ok());
    fake_.daemon(false);
    backend_.reset();
    fake_.daemon(true);
    if (round == 1) {  // now free: files get numbers that are good, and their duplicates such that are not
      for (const int hole : holes) ::close(hole);
      holes.clear();
    }
  }
  for (const int hole : holes) ::close(hole);
  open();
  ASSERT_NE(backend_, nullptr);
  EXPECT_TRUE(read_one(kv(12)).is_ok());
  EXPECT_EQ(probe_files(mount_ + "/larder"), 0u);
}

}  // namespace
}  // namespace larder::hf3fs_test
