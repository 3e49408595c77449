// SPDX-License-Identifier: Apache-2.0
// A mount whose daemon dies, again and again, or is stopped and answers nothing.
#include <unistd.h>

#include <filesystem>

#include "base/log.h"
#include "tests/hf3fs/store_rig.h"

namespace larder::hf3fs_test {
namespace {

using Mount = StoreRig;

std::size_t probe_files(const std::string& directory) {
  std::size_t found = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    found += file.path().filename().string().starts_with(".larder-probe") ? 1 : 0;
  }
  return found;
}

class StoppedMount : public StoreRig {
 protected:
  void SetUp() override {
    StoreRig::SetUp();
    make_store(store_options());  // the fake's threads begin
    store_.reset();
    pass(std::chrono::milliseconds(20));
    threads_before_ = running_threads();
  }
  static std::ptrdiff_t running_threads() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  }
  void stop() { config(R"({"probe_blocks": true})"); }
  // Lets the mount go on, and waits until whoever hung in it has ended, and it has back all that was taken from it. The
  // library cannot forget files whose daemon has died.
  void go_on(bool has_died = false) {
    config(R"({"probe_blocks": false})");
    const auto is_left = [&] {
      const hf3fs::FakeStats now = fake_.read_stats();
      const std::uint64_t files = has_died ? 0 : now.live_registered_fds + now.live_write_sessions;
      return now.live_iovs + now.live_rings + files > 0 || running_threads() > threads_before_;
    };
    for (int tries = 0; tries < 10'000 && is_left(); ++tries) pass(std::chrono::milliseconds(1));
    const hf3fs::FakeStats left = fake_.read_stats();
    EXPECT_FALSE(is_left()) << "when the mount answers again, everything is given back; left are " << left.live_iovs
                            << " iovs, " << left.live_rings << " rings, " << left.live_registered_fds << " files, "
                            << running_threads() - threads_before_ << " threads";
  }
  void close_all() {
    EXPECT_TRUE(backend_->close(std::chrono::seconds(10)).is_ok());
    backend_.reset();
  }
  void TearDown() override {
    config(R"({"probe_blocks": false})");
    StoreRig::TearDown();
  }

  std::ptrdiff_t threads_before_ = 0;
};

// SIGSTOP, or a mount that hangs: the question whether it lives gets no answer, neither does the close of a file.
TEST_F(StoppedMount, KeepsNobody) {
  open();
  ASSERT_TRUE(write({{kv(1)}}).at(0).is_ok());
  ASSERT_TRUE(read_one(kv(1)).is_ok());
  const TimePoint begun = real_clock().now();
  stop();
  fault(R"({"op": "read", "count": 1, "hold": "before"})");
  EXPECT_EQ(read_one(kv(1)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(read_one(kv(1)).is_ok()) << "the ring goes on";
  EXPECT_EQ(fake_.release(), 1u);
  fake_.idle();
  close_all();
  EXPECT_LT(real_clock().now() - begun, std::chrono::seconds(20));
  EXPECT_GT(fake_.read_stats().live_registered_fds, 0u) << "that needs the mount";
  go_on();
}

TEST_F(StoppedMount, KeepsNobodyWhoOpensFiles) {
  open();
  const TimePoint begun = real_clock().now();
  stop();
  EXPECT_EQ(write({{kv(1)}}).at(0).code(), StatusCode::kUnavailable);
  const TimePoint known = real_clock().now();
  for (std::uint64_t page = 2; page < 6; ++page) {
    EXPECT_EQ(write({{kv(page)}}).at(0).code(), StatusCode::kUnavailable);
  }
  EXPECT_LT(real_clock().now() - known, std::chrono::seconds(1)) << "it is known by now that the mount hangs";
  close_all();
  EXPECT_LT(real_clock().now() - begun, std::chrono::seconds(20));
  go_on();
}

TEST_F(StoppedMount, FilesOpenWhenItGoesOn) {
  open();
  stop();
  EXPECT_EQ(write({{kv(1)}}).at(0).code(), StatusCode::kUnavailable);
  config(R"({"probe_blocks": false})");
  Status written = unavailable("not tried");
  for (int tries = 0; tries < 5'000 && !written.is_ok(); ++tries) {
    written = write({{kv(2)}}).at(0);
    pass(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(written.is_ok()) << written.to_string();
  EXPECT_TRUE(read_one(kv(2)).is_ok());
}

// The daemon that comes after a dead one hangs at once.
TEST_F(StoppedMount, KeepsNobodyWhoOpensItAnew) {
  hf3fs::UsrbioStoreOptions options = store_options();
  options.ring.client_timeout = std::chrono::milliseconds(500);
  make_store(options);
  auto files = open_files();
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  fake_.daemon(false);
  EXPECT_EQ(start(*files, 1)->ended.get().status.code(), StatusCode::kUnavailable);
  files = unavailable("given back");
  const TimePoint begun = real_clock().now();
  stop();
  fake_.daemon(true);
  for (int tries = 0; tries < 4; ++tries) {
    EXPECT_EQ(open_files().status().code(), StatusCode::kUnavailable);
    pass(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(store_->close(std::chrono::seconds(10)).is_ok());
  store_.reset();
  EXPECT_LT(real_clock().now() - begun, std::chrono::seconds(30));
  go_on(/*has_died=*/true);
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

TEST_F(Mount, ManyDeathsLeaveNothingBehind) {
  make_store(store_options());
  auto files = open_files();
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  for (int death = 1; death <= 40; ++death) {
    fake_.daemon(false);
    EXPECT_EQ(start(*files, 1)->ended.get().status.code(), StatusCode::kUnavailable);
    fake_.daemon(true);
    for (int tries = 0; tries < 5'000; ++tries) {
      files = open_files();
      if (files.is_ok()) break;
      pass(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(files.is_ok()) << "death " << death << ": " << files.status().to_string();
    ASSERT_TRUE(start(*files, 1)->ended.get().status.is_ok()) << "death " << death;
    ASSERT_LE(fake_.read_stats().live_iovs, 2u) << "death " << death;
    ASSERT_LE(fake_.read_stats().live_rings, 2u) << "death " << death;
    EXPECT_EQ(store_->stats().remounts, static_cast<std::uint64_t>(death));
  }
}

// A daemon that lives and says nothing may still write into the memory of its rings: that is never given back. There is
// a limit to it, and whoever meets it says so.
TEST_F(Mount, ItIsSaidWhenTheMountIsGivenUp) {
  std::atomic<int> said{0};
  set_log_sink([&](LogLevel level, std::string_view component, std::string_view message) {
    const bool is_ours = component == "storage/hf3fs" && message.find("given up") != std::string_view::npos;
    if (level == LogLevel::kError && is_ours) ++said;
  });
  hf3fs::UsrbioStoreOptions options = store_options();
  options.ring.dead_after = std::chrono::milliseconds(1);
  make_store(options);
  int sessions = 0;
  for (auto files = open_files(); files.is_ok() && sessions < 100; ++sessions) {
    fault(R"({"op": "write", "count": 1, "drop": true})");
    EXPECT_EQ(start(*files, 1)->ended.get().status.code(), StatusCode::kUnavailable);
    for (int tries = 0; tries < 20; ++tries) {
      files = open_files();
      if (files.is_ok()) break;
      pass(std::chrono::milliseconds(1));
    }
  }
  for (int tries = 0; tries < 10; ++tries) EXPECT_EQ(open_files().status().code(), StatusCode::kUnavailable);
  set_log_sink({});
  EXPECT_GT(sessions, 30);
  EXPECT_LT(sessions, 40);
  EXPECT_EQ(said, 1);
  fake_.daemon(false);
  fake_.daemon(true);
  auto files = open_files();
  for (int tries = 0; tries < 5'000 && !files.is_ok(); ++tries) {
    pass(std::chrono::milliseconds(1));
    files = open_files();
  }
  ASSERT_TRUE(files.is_ok()) << "a new daemon: " << files.status().to_string();
}

}  // namespace
}  // namespace larder::hf3fs_test
