// SPDX-License-Identifier: Apache-2.0
// Rows 9 to 14 of the fake's contract: chunks and holes, overlapping buffers, lengths, torn writes, latencies,
// lateness.
#include <cerrno>

#include "tests/hf3fs_fake/fake_fixture.h"

namespace larder::hf3fs {
namespace {

class Rows09To14 : public FakeHf3fsTest {
 protected:
  void SetUp() override {
    FakeHf3fsTest::SetUp();
    if (HasFatalFailure()) return;
    configure(R"({"mode": "sync"})");
    fd_ = open_file("f");
    iov_ = make_iov();
    writer_ = make_ring(false);
    reader_ = make_ring(true);
  }
  void write_at(std::uint64_t offset, std::uint64_t length, std::uint64_t seed) {
    fill(iov_, 0, length, seed);
    ASSERT_EQ(transfer(writer_, iov_, 0, fd_, offset, length), static_cast<std::int64_t>(length));
  }
  // Reads to kAt of the iov.
  std::int64_t read_at(std::uint64_t offset, std::uint64_t length) {
    std::memset(iov_.base + kAt, 0xee, length);  // so that zeros are zeros that came
    return transfer(reader_, iov_, kAt, fd_, offset, length);
  }
  [[nodiscard]] std::int64_t inode_length() const {
    return raw<posix_file_size_fn>("larder_hf3fs_posix_file_size")(fd_);
  }

  static constexpr std::uint64_t kAt = 512 * kKiB;
  int fd_ = -1;
  Hf3fsIov iov_{};
  Hf3fsIor writer_{}, reader_{};
};

TEST_F(Rows09To14, Row09EndOfDataIsShortAndNothingIsZero) {
  write_at(0, kTestChunk + 1000, 1);
  EXPECT_EQ(read_at(0, 2 * kTestChunk), static_cast<std::int64_t>(kTestChunk + 1000));
  EXPECT_TRUE(holds(iov_, kAt, kTestChunk + 1000, 1));
  EXPECT_EQ(read_at(2 * kTestChunk, 4096), 0) << "beyond all data";
  EXPECT_EQ(read_at(kTestChunk + 1000, 4096), 0);
}

TEST_F(Rows09To14, Row09MissingLeadingChunkIsZerosOrAnError) {
  write_at(kTestChunk, 4096, 2);
  EXPECT_EQ(read_at(0, 2 * kTestChunk), static_cast<std::int64_t>(kTestChunk + 4096));
  EXPECT_TRUE(all_are(iov_, kAt, kTestChunk, 0)) << "a hole in front of data, silently";
  EXPECT_TRUE(holds(iov_, kAt + kTestChunk, 4096, 2));
  EXPECT_EQ(read_at(0, kTestChunk), 0) << "nothing behind it: nothing";

  const Hf3fsIor strict = make_ring(true, 16, -8, kForbidReadHoles);
  EXPECT_EQ(transfer(strict, iov_, kAt, fd_, 0, 2 * kTestChunk), -ENODATA);
  EXPECT_EQ(transfer(strict, iov_, kAt, fd_, kTestChunk, 4096), 4096);
  EXPECT_EQ(transfer(strict, iov_, kAt, fd_, kTestChunk, kTestChunk), 4096) << "short is no hole";
}

TEST_F(Rows09To14, Row09GapWithinAChunkIsZeros) {
  write_at(0, 4096, 3);
  write_at(16 * kKiB, 4096, 4);
  const Hf3fsIor strict = make_ring(true, 16, -8, kForbidReadHoles);
  std::memset(iov_.base + kAt, 0xee, kTestChunk);
  EXPECT_EQ(transfer(strict, iov_, kAt, fd_, 0, kTestChunk), static_cast<std::int64_t>(20 * kKiB));
  EXPECT_TRUE(holds(iov_, kAt, 4096, 3));
  EXPECT_TRUE(all_are(iov_, kAt + 4096, 12 * kKiB, 0));
  EXPECT_TRUE(holds(iov_, kAt + 16 * kKiB, 4096, 4));
}

TEST_F(Rows09To14, Row09TruncateMakesTheLastChunkOnlyAndPunchTakesWholeOnes) {
  ASSERT_EQ(truncate(fd_, 3 * kTestChunk), 0);
  EXPECT_EQ(read_at(0, kTestChunk), 0);
  EXPECT_EQ(read_at(2 * kTestChunk, kTestChunk), static_cast<std::int64_t>(kTestChunk));
  EXPECT_TRUE(all_are(iov_, kAt, kTestChunk, 0));
  write_at(0, 2 * kTestChunk, 5);
  EXPECT_EQ(punch_hole(fd_, 0, 4096), EINVAL);
  EXPECT_EQ(punch_hole(fd_, 0, kTestChunk), 0);
  EXPECT_EQ(read_at(0, kTestChunk), 0);
  EXPECT_EQ(read_at(kTestChunk, kTestChunk), static_cast<std::int64_t>(kTestChunk));
}

TEST_F(Rows09To14, Row09ChunksAreFoundAgainByAnotherProcess) {
  write_at(kTestChunk, kTestChunk, 6);
  fake_.reset();  // all that was remembered is gone
  configure(R"({"chunk_bytes": 65536, "mode": "sync", "roles": "off"})");
  close_file(fd_);
  fd_ = open_file("f");
  iov_ = make_iov();
  reader_ = make_ring(true, 16, -8, kForbidReadHoles);
  EXPECT_EQ(read_at(0, 2 * kTestChunk), -ENODATA);
  EXPECT_EQ(read_at(kTestChunk, kTestChunk), static_cast<std::int64_t>(kTestChunk));
  EXPECT_TRUE(holds(iov_, kAt, kTestChunk, 6));
}

TEST_F(Rows09To14, Row10OverlappingReadBuffersFailTheJob) {
  write_at(0, kTestChunk, 1);
  const auto results = [&](int io_depth) {
    const Hf3fsIor ring = make_ring(true, 16, io_depth);
    EXPECT_TRUE(prep(ring, iov_, kAt, fd_, 0, 4096).is_ok());
    EXPECT_TRUE(prep(ring, iov_, kAt + 4095, fd_, 4096, 4096).is_ok());
    EXPECT_TRUE(prep(ring, iov_, kAt + 0x8000, fd_, 8192, 4096).is_ok());
    expect_ok(library_->submit(ring));
    std::multiset<std::int64_t> all;
    for (const auto& cqe : reap(ring, 3)) all.insert(cqe.result);
    return all;
  };
  EXPECT_EQ(results(0), (std::multiset<std::int64_t>{-EINVAL, -EINVAL, -EINVAL})) << "the third for nothing of its own";
  EXPECT_EQ(results(-1), (std::multiset<std::int64_t>{4096, 4096, 4096})) << "in jobs of their own";
}

TEST_F(Rows09To14, Row11LengthLagsBehindWrites) {
  write_at(0, 4096, 1);
  EXPECT_EQ(read_at(0, 4096), 4096) << "readable at once";
  EXPECT_EQ(inode_length(), 0);
  fake_.advance(29'000);
  EXPECT_EQ(inode_length(), 0);
  fake_.advance(2'000);
  EXPECT_EQ(inode_length(), 4096) << "the periodic sync";
  write_at(4096, 4096, 1);
  EXPECT_EQ(inode_length(), 4096);
  ASSERT_EQ(raw<posix_fsync_fn>("larder_hf3fs_posix_fsync")(fd_), 0);
  EXPECT_EQ(inode_length(), 8192);
  const int other = open_file("f", O_WRONLY, false);
  EXPECT_EQ(stats().live_write_sessions, 2u);
  write_at(8192, 4096, 1);
  EXPECT_EQ(inode_length(), 8192);
  close_file(other);
  EXPECT_EQ(inode_length(), 12288) << "the close of a descriptor for writing";
  EXPECT_EQ(stats().live_write_sessions, 1u);
}

TEST_F(Rows09To14, Row12FailedWriteLeavesChosenChunks) {
  write_at(0, 4 * kTestChunk, 1);
  fault(R"({"op": "write", "chunks": [0, 2], "error": 121})");
  fill(iov_, 0, 4 * kTestChunk, 2);
  EXPECT_EQ(transfer(writer_, iov_, 0, fd_, 0, 4 * kTestChunk), -EREMOTEIO) << "of the whole";
  ASSERT_EQ(read_at(0, 4 * kTestChunk), static_cast<std::int64_t>(4 * kTestChunk));
  for (std::uint64_t chunk = 0; chunk < 4; ++chunk) {
    const std::uint64_t at = chunk * kTestChunk;
    EXPECT_TRUE(holds(iov_, kAt + at, kTestChunk, chunk % 2 == 0 ? 2 : 1, at)) << "chunk " << chunk;
  }
}

TEST_F(Rows09To14, Row12DeathTearsWritesAtChunks) {
  std::size_t mixed = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    fake_.reset();
    configure(
        (R"({"mode": "sync", "roles": "off", "chunk_bytes": 65536, "seed": )" + std::to_string(seed) + "}").c_str());
    fd_ = open_file("torn" + std::to_string(seed));
    iov_ = make_iov();
    writer_ = make_ring(false);
    write_at(0, 4 * kTestChunk, 1);
    fault(R"({"op": "write", "hold": "before"})");
    fill(iov_, 0, 4 * kTestChunk, 2);
    ASSERT_TRUE(prep(writer_, iov_, 0, fd_, 0, 4 * kTestChunk).is_ok());
    expect_ok(library_->submit(writer_));
    fake_.daemon(false);
    EXPECT_EQ(reap(writer_, 1, 5).size(), 0u);
    fake_.daemon(true);
    fd_ = open_file("torn" + std::to_string(seed));
    iov_ = make_iov();
    reader_ = make_ring(true);
    ASSERT_EQ(read_at(0, 4 * kTestChunk), static_cast<std::int64_t>(4 * kTestChunk));
    std::size_t landed = 0;
    for (std::uint64_t at = 0; at < 4 * kTestChunk; at += kTestChunk) {
      const bool is_new = holds(iov_, kAt + at, kTestChunk, 2, at);
      EXPECT_TRUE(is_new || holds(iov_, kAt + at, kTestChunk, 1, at)) << "a chunk is old or new, seed " << seed;
      landed += is_new ? 1 : 0;
    }
    mixed += landed > 0 && landed < 4 ? 1 : 0;
  }
  EXPECT_GT(mixed, 2u);
}

TEST_F(Rows09To14, Row13LatencyIsDistributed) {
  configure(R"({"latency_us": [5000, 20000]})");
  const Hf3fsIor ring = make_ring(false, 64, -1);
  for (std::uint64_t i = 0; i < 64; ++i) ASSERT_TRUE(prep(ring, iov_, 0, fd_, i * 4096, 4096).is_ok());
  expect_ok(library_->submit(ring));
  fake_.advance(4);
  EXPECT_EQ(reap(ring, 0).size(), 0u);
  fake_.advance(8);
  const std::size_t half = reap(ring, 0).size();
  EXPECT_GT(half, 8u);
  EXPECT_LT(half, 56u);
  fake_.advance(8);
  EXPECT_EQ(half + reap(ring, 0).size(), 64u);
}

TEST_F(Rows09To14, Row13StallsEndInAnErrorAfterAMinute) {
  for (const int error : {EREMOTEIO, EIO}) {
    configure((R"({"stall_permille": 1000, "stall_ms": 61000, "stall_error": )" + std::to_string(error) + "}").c_str());
    ASSERT_TRUE(prep(writer_, iov_, 0, fd_, 0, 4096).is_ok());
    expect_ok(library_->submit(writer_));
    fake_.advance(60'999);
    EXPECT_EQ(reap(writer_, 1, 5).size(), 0u);
    fake_.advance(1);
    const auto cqes = reap(writer_, 1);
    ASSERT_EQ(cqes.size(), 1u);
    EXPECT_EQ(cqes[0].result, -error);
    EXPECT_EQ(completion_result(cqes[0].result).status().code(), StatusCode::kUnavailable);
  }
}

TEST_F(Rows09To14, Row13ErrorsAndShortCountsByChance) {
  write_at(0, kTestChunk, 1);
  configure(R"({"error_permille": 300, "error": 5, "short_permille": 300})");
  std::size_t failed = 0, cut = 0;
  for (int i = 0; i < 60; ++i) {
    const std::int64_t result = read_at(0, 4096);
    failed += result == -EIO ? 1 : 0;
    cut += result >= 0 && result < 4096 ? 1 : 0;
  }
  EXPECT_GT(failed, 5u);
  EXPECT_GT(cut, 5u);
  EXPECT_LT(failed + cut, 55u);
  EXPECT_EQ(stats().faults, failed + cut);
}

TEST_F(Rows09To14, Row14LateCompletionStillWritesTheBuffer) {
  write_at(0, 4096, 1);
  fault(R"({"op": "read", "hold": "before"})");
  ASSERT_TRUE(prep(reader_, iov_, kAt, fd_, 0, 4096, 41).is_ok());
  expect_ok(library_->submit(reader_));
  EXPECT_EQ(reap(reader_, 1, 5).size(), 0u) << "the caller's time-out";
  fill(iov_, kAt, 4096, 9);  // as if the memory were used again
  ASSERT_TRUE(prep(reader_, iov_, kAt + 8192, fd_, 0, 4096, 42).is_ok());
  expect_ok(library_->submit(reader_));
  EXPECT_EQ(fake_.release(), 1u);
  EXPECT_TRUE(holds(iov_, kAt, 4096, 1)) << "the late read wrote over it";
  std::set<std::uint64_t> tags;
  for (const auto& cqe : reap(reader_, 2)) tags.insert(reinterpret_cast<std::uint64_t>(cqe.userdata));
  EXPECT_EQ(tags, (std::set<std::uint64_t>{41, 42})) << "among the completions of the next wait";
}

}  // namespace
}  // namespace larder::hf3fs
