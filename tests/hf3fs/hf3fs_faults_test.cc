// SPDX-License-Identifier: Apache-2.0
// What the backend makes of a 3FS that fails, stalls, answers late, dies, or has no room. The published scenarios of
// the reference's backend are in hf3fs_pools_test.cc.
#include "tests/hf3fs/hf3fs_rig.h"

namespace larder::hf3fs_test {
namespace {

using Faults = Rig;

TEST_F(Faults, AShortReadIsAMissAndTheKeyIsDropped) {
  open();
  ASSERT_TRUE(write({{kv(1)}, {kv(2)}}).at(0).is_ok());
  fault(R"({"op": "read", "count": 1, "short_bytes": 4096})");
  EXPECT_EQ(read_one(kv(1)).code(), StatusCode::kNotFound);
  EXPECT_EQ(presence(PoolName::kKv, {1, 2}), "01");
  EXPECT_TRUE(read_one(kv(2)).is_ok());
}

TEST_F(Faults, AnErrorOfAReadIsNoMissAndDropsNothing) {
  open();
  ASSERT_TRUE(write({{kv(1)}}).at(0).is_ok());
  fault(R"({"op": "read", "count": 1, "error": 121})");  // EREMOTEIO
  EXPECT_EQ(read_one(kv(1)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(presence(PoolName::kKv, {1}), "1");
  EXPECT_TRUE(read_one(kv(1)).is_ok());
}

TEST_F(Faults, AFailedWriteReleasesItsGroupAndNoOther) {
  open();
  fault(R"({"op": "write", "skip": 1, "count": 1, "error": 28})");  // ENOSPC
  const std::vector<Status> done = write({{kv(1)}, {kv(2)}, {kv(3)}});
  std::size_t failed = 0;
  for (const Status& status : done) failed += status.is_ok() ? 0 : 1;
  EXPECT_EQ(failed, 1u);
  EXPECT_EQ(totals().stored, 2u);
  EXPECT_EQ(totals().reserved, 0u);
  for (const Status& status : write({{kv(1)}, {kv(2)}, {kv(3)}})) EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(totals().stored, 3u);
}

TEST_F(Faults, AShortWriteIsNotConfirmed) {
  open();
  fault(R"({"op": "write", "count": 1, "short_bytes": 4096})");
  EXPECT_FALSE(write({{kv(1)}}).at(0).is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {1}), "0");
  EXPECT_EQ(totals().reserved, 0u);
}

// Some chunks of a write that failed are there. Its slot is written again before anybody reads it.
TEST_F(Faults, AHalfWrittenPageIsNeverRead) {
  config(R"({"chunk_bytes": 4096})");
  open();
  fault(R"({"op": "write", "count": 1, "chunks": "random", "error": 5})");
  EXPECT_FALSE(write({{{PoolName::kKv, 1, 60'000}}}).at(0).is_ok());
  EXPECT_EQ(read_one({PoolName::kKv, 1, 60'000}).code(), StatusCode::kNotFound);
  EXPECT_TRUE(write({{{PoolName::kKv, 2, 60'000}}}).at(0).is_ok());
  EXPECT_TRUE(read_one({PoolName::kKv, 2, 60'000}).is_ok());
}

// Late completions: the caller has its answer, its memory is its own, and what the file system still does to the
// staging memory hits nobody. The rig fills buffers anew and the fake checks what it owns.
TEST_F(Faults, LateReadsTouchNothing) {
  open();
  for (std::uint64_t key = 0; key < 8; ++key) ASSERT_TRUE(write({{kv(key)}}).at(0).is_ok());
  fault(R"({"op": "read", "count": 3, "hold": "before"})");
  EXPECT_EQ(read_one(kv(0)).code(), StatusCode::kDeadlineExceeded);
  const std::vector<Status> others = read({kv(1), kv(2), kv(3), kv(4)});
  for (const Status& status : others) {
    EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::kDeadlineExceeded) << status.to_string();
  }
  EXPECT_GT(fake_.release(), 0u);
  for (std::uint64_t key = 0; key < 8; ++key) EXPECT_TRUE(read_one(kv(key)).is_ok()) << key;
}

TEST_F(Faults, ALateWriteKeepsItsPageOutOfUseUntilItCannotLand) {
  open();
  ASSERT_TRUE(write({{kv(1)}}).at(0).is_ok());
  fault(R"({"op": "write", "count": 1, "hold": "before"})");
  EXPECT_EQ(write({{kv(2)}}).at(0).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(totals().reserved, 1u) << "not released: its bytes may still come";
  EXPECT_EQ(write({{kv(2)}}).at(0).code(), StatusCode::kOverloaded) << "reserved by the first";
  clock_.advance(std::chrono::seconds(60));
  EXPECT_EQ(totals().reserved, 0u);
  EXPECT_EQ(totals().quarantined, 1u);
  EXPECT_TRUE(write({{kv(2)}}).at(0).is_ok()) << "on another page";
  EXPECT_GT(fake_.release(), 0u);
  fake_.idle();
  EXPECT_TRUE(read_one(kv(2)).is_ok());
  clock_.advance(std::chrono::seconds(200));
  EXPECT_EQ(totals().quarantined, 0u);
}

TEST_F(Faults, AFullNamespaceRefusesGroupsWithoutAnException) {
  open({{"file_size", "64Ki"}, {"files", "1"}});  // 5 pages of 12 KiB
  fault(R"({"op": "write", "count": 5, "hold": "before"})");
  for (std::uint64_t key = 0; key < 5; ++key) {
    EXPECT_EQ(write({{kv(key)}}).at(0).code(), StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(write({{kv(9)}}).at(0).code(), StatusCode::kOverloaded);
  EXPECT_EQ(totals().refused, 1u);
  EXPECT_GT(fake_.release(), 0u);
}

TEST_F(Faults, MemoryThatIsNotRegisteredIsFoundAtOnce) {
  config(R"({"fail_registration": [-1]})");
  const Status opened = try_open({});
  EXPECT_EQ(opened.code(), StatusCode::kUnavailable);
  EXPECT_NE(opened.message().find("test"), std::string::npos) << opened.message();
}

TEST_F(Faults, NotAMountSaysSo) {
  const Status opened = try_open({{"file_path_prefix", "/tmp/pages"}});
  EXPECT_EQ(opened.code(), StatusCode::kUnavailable) << "3FS may be mounted later: a start anew is not in vain";
  EXPECT_NE(opened.message().find("file_path_prefix"), std::string::npos) << opened.message();
}

TEST_F(Faults, NoLibrarySaysSo) {
  const Status opened = try_open({{"library", "/nowhere/libhf3fs_api_shared.so"}});
  EXPECT_EQ(opened.code(), StatusCode::kUnavailable);
  EXPECT_NE(opened.message().find("/nowhere/libhf3fs_api_shared.so"), std::string::npos) << opened.message();
}

// A reservation lasts no longer than the service's own limit, whatever the client asks for.
TEST_F(Faults, ATimeOutThatNoReservationCoversIsRefused) {
  for (const char* const seconds : {"29", "300"}) {
    const Status opened = try_open({{"client_timeout", seconds}});
    EXPECT_EQ(opened.code(), StatusCode::kInvalidArgument) << seconds;
    EXPECT_NE(opened.message().find("client_timeout"), std::string::npos) << opened.message();
    EXPECT_NE(opened.message().find("28"), std::string::npos) << opened.message();
  }
  EXPECT_TRUE(try_open({{"client_timeout", "28"}}).is_ok());
}

// The journal remembers keys whose files are gone.
TEST_F(Faults, KeysWithoutFilesAreDroppedAndWrittenAgain) {
  open();
  ASSERT_TRUE(write({{kv(1)}}).at(0).is_ok());
  backend_.reset();
  for (const auto& file : std::filesystem::directory_iterator(mount_ + "/larder")) std::filesystem::remove(file.path());
  open();
  EXPECT_EQ(presence(PoolName::kKv, {1}), "1") << "nobody has noticed";
  EXPECT_EQ(read_one(kv(1)).code(), StatusCode::kNotFound);
  EXPECT_EQ(presence(PoolName::kKv, {1}), "0");
  EXPECT_TRUE(write({{kv(1)}}).at(0).is_ok());
  EXPECT_TRUE(read_one(kv(1)).is_ok());
  // Without the mount nothing is known of its files.
  ASSERT_TRUE(write({{{PoolName::kMamba, 2}}}).at(0).is_ok());
  open();
  std::filesystem::rename(mount_ + "/larder", mount_ + "/elsewhere");
  EXPECT_EQ(read_one({PoolName::kMamba, 2}).code(), StatusCode::kUnavailable);
  std::filesystem::rename(mount_ + "/elsewhere", mount_ + "/larder");
  EXPECT_TRUE(read_one({PoolName::kMamba, 2}).is_ok());
}

// The daemon dies with I/O in flight: everything ends, soon, and nothing hangs. When it is back, so are the pages.
TEST_F(Faults, ADeadDaemonEndsEverythingAndComesBack) {
  open();
  for (std::uint64_t key = 0; key < 4; ++key) ASSERT_TRUE(write({{kv(key)}}).at(0).is_ok());
  fake_.daemon(false);
  EXPECT_FALSE(read_one(kv(0)).is_ok());
  EXPECT_FALSE(write({{kv(10)}}).at(0).is_ok());
  EXPECT_EQ(read_one(kv(1)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(backend_->stats().suspended_volumes, 1u);
  fake_.daemon(true);
  const TimePoint deadline = real_clock().now() + std::chrono::seconds(30);
  Status status;
  do {
    status = read_one(kv(0));
  } while (!status.is_ok() && real_clock().now() < deadline);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  for (std::uint64_t key = 0; key < 4; ++key) EXPECT_TRUE(read_one(kv(key)).is_ok());
  EXPECT_TRUE(write({{kv(11)}}).at(0).is_ok());
}

TEST_F(Faults, CloseReleasesEverything) {
  open();
  ASSERT_TRUE(write({{kv(1)}}).at(0).is_ok());
  ASSERT_TRUE(read_one(kv(1)).is_ok());
  ASSERT_TRUE(backend_->close(std::chrono::seconds(10)).is_ok());
  backend_.reset();
  const hf3fs::FakeStats now = fake_.read_stats();
  EXPECT_EQ(now.live_iovs, 0u);
  EXPECT_EQ(now.live_rings, 0u);
  EXPECT_EQ(now.live_registered_fds, 0u);
  EXPECT_EQ(now.live_write_sessions, 0u);
}

// A seeded storm of everything above.
TEST_F(Faults, WhateverHappensNoWrongBytesAndNoLeak) {
  config(R"({"seed": 11, "error_permille": 60, "short_permille": 60, "shuffle": true, "start_at_prep_permille": 300})");
  Status opened = try_open({{"numjobs", "2"}, {"entries", "8"}});
  for (int tries = 0; !opened.is_ok() && tries < 20; ++tries) opened = try_open({{"numjobs", "2"}, {"entries", "8"}});
  ASSERT_TRUE(opened.is_ok()) << opened.to_string();
  std::size_t came = 0, stored = 0;
  for (std::uint64_t round = 0; round < 60; ++round) {
    const std::uint64_t key = round % 20;
    const auto done = write({{{PoolName::kMamba, key, 9000}, kv(key)}, {kv(key + 100)}});
    for (const Status& status : done) stored += status.is_ok() ? 1 : 0;
    for (const Status& status : read({kv(key), {PoolName::kMamba, key, 9000}, kv(key + 100), kv(999)})) {
      came += status.is_ok() ? 1 : 0;
    }
    clock_.advance(std::chrono::minutes(5));  // what may have landed late has
    EXPECT_EQ(totals().reserved + totals().quarantined, 0u);
  }
  EXPECT_GT(came, 30u);
  EXPECT_GT(stored, 20u);
}

}  // namespace
}  // namespace larder::hf3fs_test
