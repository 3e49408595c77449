// SPDX-License-Identifier: Apache-2.0
// Rows 15 to 20 of the fake's contract: a dead daemon, failed registration, descriptors, limits, and its own checkers.
#include <sys/stat.h>

#include <cerrno>
#include <future>

#include "base/thread_pool.h"
#include "tests/hf3fs_fake/fake_fixture.h"

namespace larder::hf3fs {
namespace {

class Rows15To20 : public FakeHf3fsTest {
 protected:
  void SetUp() override {
    FakeHf3fsTest::SetUp();
    if (!HasFatalFailure()) configure(R"({"mode": "sync"})");
  }
  // Runs `work` on another thread, to its end.
  static void elsewhere(const std::function<void()>& work) {
    ThreadPoolExecutor pool("other", 1, 4);
    ASSERT_TRUE(pool.post([&] { work(); }).is_ok());
    pool.wait_idle();
  }
  [[nodiscard]] std::size_t links() const {
    const std::filesystem::directory_iterator all(mount_ + "/3fs-virt/iovs");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }
};

TEST_F(Rows15To20, Row15DeadDaemonCompletesNothingAndOnlyNewRingsLive) {
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor ring = make_ring(false);
  EXPECT_EQ(transfer(ring, iov, 0, fd, 0, 4096), 4096);
  fake_.daemon(false);
  ASSERT_TRUE(prep(ring, iov, 0, fd, 0, 4096).is_ok()) << "prep and submit go on as if nothing had happened";
  expect_ok(library_->submit(ring));
  EXPECT_EQ(reap(ring, 1, 10).size(), 0u);
  EXPECT_FALSE(library_->is_hf3fs(fd));
  Hf3fsIor refused{};
  EXPECT_EQ(library_->create_ring(refused, {mount_, 8, true}).code(), StatusCode::kNotFound);
  EXPECT_EQ(library_->open(mount_ + "/f", O_RDONLY).status().code(), StatusCode::kUnavailable);

  fake_.daemon(true);
  EXPECT_FALSE(library_->is_hf3fs(fd)) << "its connection is gone for ever";
  EXPECT_EQ(reap(ring, 1, 5).size(), 0u) << "the old ring stays dead";
  const Hf3fsIor again = make_ring(false);
  const int again_fd = open_file("f");
  EXPECT_EQ(transfer(again, iov, 0, again_fd, 0, 4096), -EINVAL) << "the daemon does not know the old memory";
  const Hf3fsIov again_iov = make_iov();
  EXPECT_EQ(transfer(again, again_iov, 0, fd, 0, 4096), -EBADF) << "nor the old file";
  EXPECT_EQ(transfer(again, again_iov, 0, again_fd, 0, 4096), 4096);
  EXPECT_TRUE(library_->is_hf3fs(again_fd));
}

TEST_F(Rows15To20, Row15AFileOfADeadDaemonCannotBeDeregistered) {
  const int fd = open_file("f");
  fake_.daemon(false);
  library_->deregister_fd(fd);
  fake_.daemon(true);
  library_->deregister_fd(fd);
  EXPECT_EQ(stats().live_registered_fds, 1u) << "the probe of its descriptor fails";
  close_file(fd);
  const int reused = open_file("g", O_RDWR | O_CREAT, false);
  ASSERT_EQ(reused, fd);
  EXPECT_EQ(library_->register_fd(reused).code(), StatusCode::kInvalidArgument);
  library_->deregister_fd(reused);
  EXPECT_EQ(stats().live_registered_fds, 0u);
  expect_ok(library_->register_fd(reused));
}

TEST_F(Rows15To20, Row17ANumberThatIsTakenCannotBeADuplicates) {
  const int low = open_file("low", O_RDWR | O_CREAT, false), fd = open_file("old");
  close_file(fd);  // still registered
  EXPECT_EQ(library_->register_fd(low).code(), StatusCode::kInvalidArgument) << "its duplicate gets that number";
  const int reused = open_file("new", O_RDWR | O_CREAT, false);
  ASSERT_EQ(reused, fd);
  expect_ok(library_->register_fd(low));
}

TEST_F(Rows15To20, Row15DiesAfterAChosenNumberOfEvents) {
  for (const char* mode : {R"({"mode": "sync"})", R"({"mode": "threads"})"}) {
    fake_.reset();
    configure(mode);
    configure(R"({"die_after_events": 3, "roles": "off"})");
    const int fd = open_file("f");
    const Hf3fsIov iov = make_iov();
    const Hf3fsIor ring = make_ring(false, 16, -1);
    for (std::uint64_t i = 0; i < 2; ++i) EXPECT_EQ(transfer(ring, iov, 0, fd, i * 4096, 4096), 4096);
    ASSERT_TRUE(prep(ring, iov, 0, fd, 0, 4096).is_ok());
    expect_ok(library_->submit(ring));
    EXPECT_EQ(reap(ring, 1, 20).size(), 0u) << mode;
    EXPECT_FALSE(library_->is_hf3fs(fd));
  }
}

TEST_F(Rows15To20, Row16FailedRegistrationShowsAtTheIo) {
  const int fd = open_file("f");
  const Hf3fsIor ring = make_ring(false);
  configure(R"({"fail_registration": [1]})");
  const Hf3fsIov iov = make_iov(4 * 65536, 65536);  // itself a success
  configure(R"({"fail_registration": []})");
  EXPECT_EQ(transfer(ring, iov, 0, fd, 0, 4096), 4096);
  EXPECT_EQ(transfer(ring, iov, 65536, fd, 0, 4096), -EACCES);
  EXPECT_EQ(transfer(ring, iov, 2 * 65536, fd, 0, 4096), 4096);
  const Hf3fsIov good = make_iov(4 * 65536, 65536);
  EXPECT_EQ(transfer(ring, good, 65536, fd, 0, 4096), 4096);
}

TEST_F(Rows15To20, Row17AccessModeIsCapturedAtRegistration) {
  const int writable = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor writer = make_ring(false);
  const Hf3fsIor reader = make_ring(true);
  ASSERT_EQ(transfer(writer, iov, 0, writable, 0, 4096), 4096);
  const int read_only = open_file("f", O_RDONLY);
  const int write_only = open_file("f", O_WRONLY);
  EXPECT_NE(prep(writer, iov, 0, read_only, 0, 16).status().message().find("errno 13"), std::string::npos);
  EXPECT_NE(prep(reader, iov, 0, write_only, 0, 16).status().message().find("errno 13"), std::string::npos);
  EXPECT_EQ(transfer(reader, iov, 0, read_only, 0, 4096), 4096);
  EXPECT_EQ(transfer(writer, iov, 0, write_only, 0, 4096), 4096);
}

TEST_F(Rows15To20, Row17ClosedWithoutDeregistrationKeepsTheOldInode) {
  const int fd = open_file("old");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor writer = make_ring(false);
  const Hf3fsIor reader = make_ring(true);
  fill(iov, 0, 4096, 1);
  ASSERT_EQ(transfer(writer, iov, 0, fd, 0, 4096), 4096);
  close_file(fd);
  library_->deregister_fd(fd);  // too late: the probe of a closed descriptor fails
  EXPECT_EQ(stats().live_registered_fds, 1u);
  const int reused = open_file("new", O_RDWR | O_CREAT, false);
  ASSERT_EQ(reused, fd);
  EXPECT_EQ(library_->register_fd(reused).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(transfer(reader, iov, 8192, reused, 0, 4096), 4096);
  EXPECT_TRUE(holds(iov, 8192, 4096, 1)) << "bytes of the old file";
  library_->deregister_fd(reused);
  EXPECT_EQ(stats().live_registered_fds, 0u);
  EXPECT_EQ(prep(reader, iov, 0, reused, 0, 16).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Rows15To20, Row18NoSpaceReadOnlyAndTooManyFiles) {
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor writer = make_ring(false);
  configure(R"({"capacity_bytes": 131072})");
  EXPECT_EQ(transfer(writer, iov, 0, fd, 0, 2 * kTestChunk), static_cast<std::int64_t>(2 * kTestChunk));
  EXPECT_EQ(transfer(writer, iov, 0, fd, 2 * kTestChunk, 4096), -ENOSPC);
  EXPECT_EQ(transfer(writer, iov, 0, fd, 0, 4096), 4096) << "what is there can be overwritten";
  EXPECT_EQ(completion_result(-ENOSPC).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(punch_hole(fd, 0, kTestChunk), 0);
  EXPECT_EQ(transfer(writer, iov, 0, fd, 2 * kTestChunk, 4096), 4096);

  configure(R"({"capacity_bytes": 0, "read_only": true})");
  EXPECT_EQ(transfer(writer, iov, 0, fd, 0, 4096), -EROFS);
  EXPECT_EQ(truncate(fd, 0), -EROFS);

  configure(R"({"read_only": false, "max_fds": 1})");
  const auto more = library_->open(mount_ + "/g", O_RDWR | O_CREAT);
  EXPECT_EQ(more.status().code(), StatusCode::kOverloaded);
  EXPECT_NE(more.status().message().find("errno 24"), std::string::npos) << more.status().to_string();
  configure(R"({"max_fds": 2})");
  const int second = open_file("g", O_RDWR | O_CREAT, false);
  configure(R"({"max_fds": 1})");
  EXPECT_EQ(library_->register_fd(second).code(), StatusCode::kOverloaded);
}

TEST_F(Rows15To20, Row19SecondThreadInARoleIsCounted) {
  configure(R"({"roles": "count"})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor ring = make_ring(false);
  ASSERT_TRUE(prep(ring, iov, 0, fd, 0, 4096).is_ok());
  expect_ok(library_->submit(ring));
  elsewhere([&] { EXPECT_EQ(reap(ring, 1).size(), 1u); });
  EXPECT_EQ(stats().role_changes, 0u) << "one thread prepares, another waits: allowed";
  elsewhere([&] { EXPECT_TRUE(prep(ring, iov, 0, fd, 0, 4096).is_ok()); });
  EXPECT_EQ(stats().role_changes, 1u);
  EXPECT_EQ(reap(ring, 0).size(), 0u);
  EXPECT_EQ(stats().role_changes, 2u);
}

TEST_F(Rows15To20, Row19SecondThreadInARoleCanAbort) {
  prepare_death_test();
  EXPECT_DEATH(
      {
        configure(R"({"roles": "abort"})");
        const Hf3fsIor ring = make_ring(false);
        (void)reap(ring, 0);
        elsewhere([&] { (void)reap(ring, 0); });
      },
      "a second thread in one role of a ring");
}

TEST_F(Rows15To20, Row20BuffersTouchedBeforeTheCompletionAreCounted) {
  configure(R"({"check_ownership": true, "poison": "prep"})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor writer = make_ring(false);
  const Hf3fsIor reader = make_ring(true);
  fill(iov, 0, 4096, 1);
  EXPECT_EQ(transfer(writer, iov, 0, fd, 0, 4096), 4096);
  EXPECT_EQ(transfer(reader, iov, 0, fd, 0, 4096), 4096);
  EXPECT_EQ(stats().touched_buffers, 0u);

  ASSERT_TRUE(prep(writer, iov, 0, fd, 0, 4096).is_ok());
  iov.base[17] = static_cast<std::uint8_t>(iov.base[17] + 1);
  expect_ok(library_->submit(writer));
  ASSERT_EQ(reap(writer, 1).size(), 1u);
  EXPECT_GE(stats().touched_buffers, 1u) << "a write's bytes changed";
  const std::uint64_t before = stats().touched_buffers;
  ASSERT_TRUE(prep(reader, iov, 8192, fd, 0, 4096).is_ok());
  iov.base[8192 + 4095] = 0;
  expect_ok(library_->submit(reader));
  ASSERT_EQ(reap(reader, 1).size(), 1u);
  EXPECT_EQ(stats().touched_buffers, before + 1) << "a read's target was used early";
  fault(R"({"op": "read", "hold": "after"})");
  ASSERT_TRUE(prep(reader, iov, 8192, fd, 0, 4096).is_ok());
  expect_ok(library_->submit(reader));
  iov.base[8192] = static_cast<std::uint8_t>(iov.base[8192] + 1);
  EXPECT_EQ(fake_.release(), 1u);
  EXPECT_EQ(stats().touched_buffers, before + 2) << "between execution and completion";
}

TEST_F(Rows15To20, Row20LeaksAreCounted) {
  const int fd = open_file("f");
  Hf3fsIov iov = make_iov();
  Hf3fsIor ring = make_ring(false);
  EXPECT_EQ(stats().live_iovs, 1u);
  EXPECT_EQ(stats().live_rings, 1u);
  EXPECT_EQ(stats().live_registered_fds, 1u);
  EXPECT_EQ(links(), 2u);
  fault(R"({"hold": "before"})");
  ASSERT_TRUE(prep(ring, iov, 0, fd, 0, 4096).is_ok());
  expect_ok(library_->submit(ring));
  EXPECT_EQ(stats().in_flight, 1u);
  library_->deregister_fd(fd);
  library_->destroy_iov(iov);
  EXPECT_EQ(stats().destroyed_in_flight, 1u) << "memory that the daemon still has";
  library_->destroy_ring(ring);
  EXPECT_EQ(stats().destroyed_in_flight, 2u);
  EXPECT_EQ(fake_.release(), 1u);
  EXPECT_EQ(stats().dropped_completions, 1u);
  EXPECT_EQ(stats().live_iovs + stats().live_rings + stats().live_registered_fds, 0u);
  EXPECT_EQ(links(), 0u);
}

TEST_F(Rows15To20, Row20LeaksAreReportedAtTheEndOfTheProcess) {
  prepare_death_test();
  EXPECT_EXIT(
      {
        configure(R"({"report_leaks": true})");
        (void)make_iov();
        (void)make_ring(true);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "left open: 1 iovs, 1 rings, 0 registered fds");
}

TEST_F(Rows15To20, DefectD2LeavesTheLinkOfARingWithFlags) {
  Hf3fsIor ring = make_ring(true, 8, -8, kForbidReadHoles);
  library_->destroy_ring(ring);
  EXPECT_EQ(links(), 1u);
  EXPECT_EQ(stats().leaked_ring_links, 1u);
  configure(R"({"defects": []})");
  ring = make_ring(true, 8, -8, kForbidReadHoles);
  library_->destroy_ring(ring);
  EXPECT_EQ(links(), 1u) << "the one from before";
}

TEST_F(Rows15To20, DefectD4MakesARingThatDoesNothing) {
  configure(R"({"semaphores_fail": true})");
  Hf3fsIor ring{};
  EXPECT_EQ(library_->create_ring(ring, {mount_, 8, false}).code(), StatusCode::kUnavailable);
  configure(R"({"defects": ["D4"]})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  ring = make_ring(false);
  ASSERT_TRUE(prep(ring, iov, 0, fd, 0, 16).is_ok());
  expect_ok(library_->submit(ring));
  EXPECT_EQ(stats().would_crash, 1u);
  EXPECT_EQ(reap(ring, 1, 5).size(), 0u);
}

TEST_F(Rows15To20, DefectD8ChecksTheFirstOfARunOnly) {
  const int fd = open_file("f");
  const Hf3fsIov made = make_iov(2 * 4096);
  std::vector<std::uint8_t> longer(4 * 4096);
  const Hf3fsIov wrapped = wrap_iov(longer, made.id);
  const Hf3fsIor ring = make_ring(false);
  const auto second_result = [&] {
    EXPECT_TRUE(prep(ring, wrapped, 0, fd, 0, 4096, 1).is_ok());
    EXPECT_TRUE(prep(ring, wrapped, 3 * 4096, fd, 4096, 4096, 2).is_ok());
    expect_ok(library_->submit(ring));
    for (const auto& cqe : reap(ring, 2)) {
      if (cqe.userdata == reinterpret_cast<const void*>(std::uint64_t{2})) return cqe.result;
    }
    return std::int64_t{INT64_MIN};
  };
  EXPECT_EQ(second_result(), -EINVAL);
  configure(R"({"defects": ["D8"]})");
  EXPECT_EQ(second_result(), 4096) << "beyond the memory, and nobody says so";
  EXPECT_EQ(stats().out_of_bounds, 1u);
}

}  // namespace
}  // namespace larder::hf3fs
