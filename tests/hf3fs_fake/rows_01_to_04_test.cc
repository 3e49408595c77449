// SPDX-License-Identifier: Apache-2.0
// Rows 1 to 4 of the fake's contract: answers and signs, what prep checks, when I/O starts, when bytes move.
#include <cerrno>
#include <limits>

#include "tests/hf3fs_fake/fake_fixture.h"

namespace larder::hf3fs {
namespace {

class Rows01To04 : public FakeHf3fsTest {};

TEST_F(Rows01To04, Row01SignsAreThoseOfTheLibrary) {
  const int fd = open_file("f", O_RDWR | O_CREAT, false);
  auto* reg_fd = raw<reg_fd_fn>("hf3fs_reg_fd");
  const int registered = reg_fd(fd, 0);
  EXPECT_LE(registered, 0);
  EXPECT_NE(::fcntl(-registered, F_GETFD), -1) << "minus a duplicate that is open";
  EXPECT_EQ(reg_fd(fd, 0), EINVAL) << "twice: +errno";
  const int outside = library_->open("/dev/null", O_RDONLY).value_or(-1);
  ASSERT_GE(outside, 0);
  EXPECT_EQ(reg_fd(outside, 0), EBADF) << "not on the mount: +errno";
  EXPECT_FALSE(library_->is_hf3fs(outside));
  EXPECT_TRUE(library_->is_hf3fs(fd));
  expect_ok(library_->close(outside));

  EXPECT_EQ(punch_hole(fd, 1, kTestChunk), EINVAL) << "+errno";
  auto* hardlink = raw<hardlink_fn>("hf3fs_hardlink");
  EXPECT_EQ(hardlink((mount_ + "/none").c_str(), (mount_ + "/x").c_str()), ENOENT) << "+errno";

  auto* iovcreate = raw<iovcreate_fn>("hf3fs_iovcreate");
  EXPECT_EQ(iovcreate(nullptr, mount_.c_str(), 4096, 0, -1), -EINVAL);
  Hf3fsIov iov{};
  EXPECT_EQ(iovcreate(&iov, std::string(256, 'm').c_str(), 4096, 0, -1), -EINVAL);
  EXPECT_EQ(iovcreate(&iov, "/tmp", 4096, 0, -1), -ENOENT) << "the link cannot be made";
  auto* iorcreate4 = raw<iorcreate4_fn>("hf3fs_iorcreate4");
  Hf3fsIor ring{};
  EXPECT_EQ(iorcreate4(&ring, "", 8, true, 0, 0, -1, 0), -EINVAL);
  EXPECT_EQ(iorcreate4(&ring, mount_.c_str(), 8, true, 0, -1, -1, 0), -EINVAL);
  EXPECT_EQ(iorcreate4(&ring, "/tmp", 8, true, 0, 0, -1, 0), -ENOENT) << "no 3FS mount";
  auto* wait = raw<wait_for_ios_fn>("hf3fs_wait_for_ios");
  Hf3fsCqe cqe{};
  EXPECT_EQ(wait(nullptr, &cqe, 1, 0, nullptr), -EINVAL);
}

TEST_F(Rows01To04, Row01MountPointAndRingSizes) {
  auto* extract = raw<extract_mount_point_fn>("hf3fs_extract_mount_point");
  const int length = static_cast<int>(mount_.size()) + 1;
  std::array<char, 256> buffer{};
  EXPECT_EQ(extract(buffer.data(), 256, (mount_ + "/3fs-virt").c_str()), length);
  EXPECT_STREQ(buffer.data(), mount_.c_str());
  buffer.fill('#');
  EXPECT_EQ(extract(buffer.data(), length - 1, mount_.c_str()), length);
  EXPECT_EQ(buffer[0], '#') << "a buffer that is too small stays as it is";
  EXPECT_EQ(extract(buffer.data(), 256, "/usr"), -1);
  auto* ior_size = raw<ior_size_fn>("hf3fs_ior_size");
  for (const int entries : {1, 8, 64, 512, 4096}) {
    EXPECT_EQ(ior_size(entries), 16u + 32 + 96 * (static_cast<std::size_t>(entries) + 1) + 4096);
    Hf3fsIor ring = make_ring(true, entries);
    EXPECT_EQ(raw<io_entries_fn>("hf3fs_io_entries")(&ring), entries);
    library_->destroy_ring(ring);
  }
}

TEST_F(Rows01To04, Row01BadCallsAreSurvivedAndCounted) {
  Hf3fsIov iov{};
  EXPECT_EQ(raw<iovcreate_fn>("hf3fs_iovcreate")(&iov, nullptr, 4096, 0, -1), -EINVAL);
  EXPECT_EQ(raw<iovcreate_fn>("hf3fs_iovcreate")(&iov, mount_.c_str(), 4096, 8192, -1), -EINVAL);
  EXPECT_EQ(stats().would_crash, 2u);
  Hf3fsIor ring = make_ring(true);
  const Hf3fsIor copy = ring;
  library_->destroy_ring(ring);
  EXPECT_EQ(raw<submit_ios_fn>("hf3fs_submit_ios")(&copy), -EINVAL);
  EXPECT_EQ(stats().stale_handles, 1u);
}

TEST_F(Rows01To04, Row02PrepChecksWhatTheLibraryChecks) {
  const int fd = open_file("f");
  const int unregistered = open_file("g", O_RDWR | O_CREAT, false);
  const Hf3fsIov iov = make_iov(8 * 4096, 4096);
  const Hf3fsIor ring = make_ring(false);
  const auto code = [&](const PreparedIo& io) {
    const auto slot = library_->prep(ring, iov, io);
    return slot.is_ok() ? StatusCode::kOk : slot.status().code();
  };
  EXPECT_EQ(code({true, iov.base, fd, 0, 16, nullptr}), StatusCode::kInvalidArgument) << "direction";
  EXPECT_EQ(code({false, iov.base, fd, 0, 0, nullptr}), StatusCode::kInvalidArgument) << "length 0";
  EXPECT_EQ(code({false, iov.base + iov.size - 8, fd, 0, 16, nullptr}), StatusCode::kInvalidArgument) << "range";
  EXPECT_EQ(code({false, iov.base - 1, fd, 0, 16, nullptr}), StatusCode::kInvalidArgument) << "range";
  const auto not_known = library_->prep(ring, iov, {false, iov.base, unregistered, 0, 16, nullptr});
  EXPECT_NE(not_known.status().message().find("errno 9"), std::string::npos) << not_known.status().to_string();

  EXPECT_EQ(transfer(ring, iov, 3, fd, 5, 7), 7) << "nothing needs to be aligned";
  EXPECT_EQ(transfer(ring, iov, 4000, fd, 0, 200), -EINVAL) << "crossing a block is found late";
}

TEST_F(Rows01To04, Row02TheRangeOfAWrappedIovIsCheckedByTheDaemonToo) {
  const int fd = open_file("f");
  const Hf3fsIov made = make_iov(2 * 4096);
  // The client says that the memory is longer than what is registered.
  std::vector<std::uint8_t> longer(4 * 4096);
  Hf3fsIov wrapped = wrap_iov(longer, made.id);
  const Hf3fsIor ring = make_ring(false);
  EXPECT_EQ(transfer(ring, wrapped, 4096, fd, 0, 4096), 4096);
  EXPECT_EQ(transfer(ring, wrapped, 2 * 4096, fd, 0, 4096), -EINVAL);
  // An id that nobody linked is found out at completion only.
  const std::array<std::uint8_t, 16> unknown{1, 2, 3};
  wrapped = wrap_iov(longer, unknown);
  EXPECT_EQ(transfer(ring, wrapped, 0, fd, 0, 4096), -EINVAL);
}

TEST_F(Rows01To04, Row03IoStartsWithoutSubmit) {
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor ring = make_ring(false);
  fill(iov, 0, 4096, 1);
  ASSERT_TRUE(prep(ring, iov, 0, fd, 0, 4096).is_ok());
  const auto cqes = reap(ring, 1);  // the daemon looks on its own
  ASSERT_EQ(cqes.size(), 1u);
  EXPECT_EQ(cqes[0].result, 4096);
  EXPECT_EQ(stats().started_unsubmitted, 1u);
}

TEST_F(Rows01To04, Row03WhetherAPrepStartsIsDrawnFromTheSeed) {
  // With certainty, each prep is a job of its own; without, the four wait for each other.
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  configure(R"({"start_at_prep_permille": 1000})");
  const Hf3fsIor eager = make_ring(false);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(prep(eager, iov, i * 4096, fd, i * 4096, 4096).is_ok());
  EXPECT_EQ(stats().jobs, 4u);
  EXPECT_EQ(stats().started_unsubmitted, 4u);
  EXPECT_EQ(reap(eager, 4).size(), 4u);
}

TEST_F(Rows01To04, Row04BytesMoveAtExecution) {
  configure(R"({"mode": "sim", "poison": "prep"})");
  steps_ = true;
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor writer = make_ring(false);
  const Hf3fsIor reader = make_ring(true);
  fill(iov, 0, 4096, 1);
  ASSERT_TRUE(prep(writer, iov, 0, fd, 0, 4096).is_ok());
  fill(iov, 0, 4096, 2);  // a client must not do this; the write takes what is there when it runs
  expect_ok(library_->submit(writer));
  ASSERT_GT(fake_.step(1000), 0u);
  ASSERT_EQ(reap(writer, 1).size(), 1u);

  fill(iov, 8192, 4096, 9);
  ASSERT_TRUE(prep(reader, iov, 8192, fd, 0, 4096).is_ok());
  expect_ok(library_->submit(reader));
  EXPECT_TRUE(all_are(iov, 8192, 4096, kPoison)) << "nothing is there before the read runs, not even the old bytes";
  ASSERT_GT(fake_.step(1000), 0u);
  ASSERT_EQ(reap(reader, 1).size(), 1u);
  EXPECT_TRUE(holds(iov, 8192, 4096, 2));
}

TEST_F(Rows01To04, Row04TheTailOfAShortReadIsPoisoned) {
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor writer = make_ring(false);
  const Hf3fsIor reader = make_ring(true);
  fill(iov, 0, 1000, 1);
  ASSERT_EQ(transfer(writer, iov, 0, fd, 0, 1000), 1000);
  fill(iov, 8192, 4096, 5);
  EXPECT_EQ(transfer(reader, iov, 8192, fd, 0, 4096), 1000);
  EXPECT_TRUE(holds(iov, 8192, 1000, 1));
  EXPECT_TRUE(all_are(iov, 9192, 3096, kPoison));
}

}  // namespace
}  // namespace larder::hf3fs
