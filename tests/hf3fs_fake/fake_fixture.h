// SPDX-License-Identifier: Apache-2.0
// A 3FS mount of the fake library in a temporary directory, reached through the loader.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fakes/hf3fs/fake_control.h"
#include "storage/hf3fs/usrbio_library.h"

namespace larder::hf3fs {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kTestChunk = 64 * kKiB;
inline constexpr std::uint8_t kPoison = 0xd5;  // of the fake

// A deadline in so many milliseconds, as wait() wants it.
inline struct timespec after_ms(std::int64_t milliseconds) {
  struct timespec now = {};
  ::timespec_get(&now, TIME_UTC);
  const std::int64_t nanos = now.tv_nsec + milliseconds * 1'000'000;
  now.tv_sec += nanos / 1'000'000'000;
  now.tv_nsec = nanos % 1'000'000'000;
  return now;
}

class FakeHf3fsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // The fake has no table of all descriptors.
    auto loaded = UsrbioLibrary::load({.path = LARDER_FAKE_HF3FS, .has_file_table = false});
    ASSERT_TRUE(loaded.is_ok()) << loaded.status().to_string();
    library_ = *loaded;
    fake_ = FakeControl::find([&](const char* name) { return library_->symbol(name); });
    ASSERT_TRUE(fake_.is_fake());
    fake_.reset();
    configure(R"({"chunk_bytes": 65536, "roles": "off"})");
    if (const char* of_parent = std::getenv(kMountVariable)) {
      mount_ = of_parent;  // the child of a death test, which removes nothing
    } else {
      std::string pattern = (std::filesystem::temp_directory_path() / "larder-fake-XXXXXX").string();
      ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
      mount_ = std::filesystem::canonical(pattern).string();
    }
    std::filesystem::create_directories(mount_ + "/3fs-virt/iovs");
  }

  void TearDown() override {
    fake_.reset();
    for (const int fd : opened_) (void)library_->close(fd);
    std::filesystem::remove_all(mount_);
    ::unsetenv(kMountVariable);
  }

  // Before a death test: its child starts anew, because of the threads, and gets the mount of this test.
  void prepare_death_test() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    ASSERT_EQ(::setenv(kMountVariable, mount_.c_str(), 1), 0);
  }

  void configure(const char* json) { ASSERT_EQ(fake_.config(json), 0) << fake_.error(); }
  void fault(const char* json) { ASSERT_EQ(fake_.fault(json), 0) << fake_.error(); }
  [[nodiscard]] FakeStats stats() const { return fake_.read_stats(); }

  // A function of the library that the loader does not need.
  template <class Function>
  [[nodiscard]] Function* raw(const char* name) const {
    auto* found = reinterpret_cast<Function*>(library_->symbol(name));
    EXPECT_NE(found, nullptr) << name;
    return found;
  }

  // An open file, registered unless told otherwise. Closed at the end.
  int open_file(const std::string& name, int flags = O_RDWR | O_CREAT, bool registered = true) {
    const auto fd = library_->open(mount_ + "/" + name, flags);
    EXPECT_TRUE(fd.is_ok()) << fd.status().to_string();
    if (!fd.is_ok()) return -1;
    opened_.insert(*fd);
    if (registered) expect_ok(library_->register_fd(*fd));
    return *fd;
  }
  void close_file(int fd) {
    opened_.erase(fd);
    expect_ok(library_->close(fd));
  }

  static void expect_ok(const Status& status) { EXPECT_TRUE(status.is_ok()) << status.to_string(); }

  Hf3fsIov make_iov(std::size_t size = 1024 * kKiB, std::size_t block = 0) {
    Hf3fsIov iov{};
    expect_ok(library_->create_iov(iov, mount_, size, block, -1));
    return iov;
  }
  // Memory of the caller's under an id, in one block.
  Hf3fsIov wrap_iov(std::span<std::uint8_t> memory, std::span<const std::uint8_t, 16> id) {
    Hf3fsIov iov{};
    auto* wrap = raw<iovwrap_fn>("hf3fs_iovwrap");
    EXPECT_EQ(wrap(&iov, memory.data(), id.data(), mount_.c_str(), memory.size(), 0, -1), 0);
    return iov;
  }
  int punch_hole(int fd, std::size_t start, std::size_t end) {
    return raw<punchhole_fn>("hf3fs_punchhole")(fd, 1, &start, &end, 0);
  }
  int truncate(int fd, std::uint64_t length) {
    return raw<posix_ftruncate_fn>("larder_hf3fs_posix_ftruncate")(fd, length);
  }
  Hf3fsIor make_ring(bool for_read, int entries = 16, int io_depth = -8, std::uint64_t flags = 0, int timeout_ms = 0) {
    Hf3fsIor ring{};
    expect_ok(library_->create_ring(ring, {mount_, entries, for_read, io_depth, timeout_ms, -1, flags}));
    return ring;
  }

  // prep_io for bytes [at, at + length) of the iov; `tag` becomes the userdata.
  Result<int> prep(const Hf3fsIor& ring, const Hf3fsIov& iov, std::uint64_t at, int fd, std::uint64_t offset,
                   std::uint64_t length, std::uint64_t tag = 0) {
    return library_->prep(ring, iov,
                          {ring.for_read, iov.base + at, fd, offset, length, reinterpret_cast<const void*>(tag)});
  }
  std::vector<Hf3fsCqe> reap(const Hf3fsIor& ring, std::size_t least, std::int64_t within_ms = 5000,
                             std::size_t capacity = 64) {
    std::vector<Hf3fsCqe> cqes(capacity);
    const auto count = library_->wait(ring, cqes, least, after_ms(within_ms));
    EXPECT_TRUE(count.is_ok()) << count.status().to_string();
    cqes.resize(count.value_or(0));
    return cqes;
  }
  // One I/O to its end; the completion's result.
  std::int64_t transfer(const Hf3fsIor& ring, const Hf3fsIov& iov, std::uint64_t at, int fd, std::uint64_t offset,
                        std::uint64_t length) {
    const auto slot = prep(ring, iov, at, fd, offset, length, 77);
    EXPECT_TRUE(slot.is_ok()) << slot.status().to_string();
    if (!slot.is_ok()) return INT64_MIN;
    expect_ok(library_->submit(ring));
    if (steps_) (void)fake_.step(1000);
    const auto cqes = reap(ring, 1);
    EXPECT_EQ(cqes.size(), 1u);
    if (cqes.size() != 1) return INT64_MIN;
    EXPECT_EQ(cqes[0].index, *slot);
    EXPECT_EQ(cqes[0].userdata, reinterpret_cast<const void*>(std::uint64_t{77}));
    return cqes[0].result;
  }

  // Bytes that tell where they belong.
  static void fill(const Hf3fsIov& iov, std::uint64_t at, std::uint64_t length, std::uint64_t seed) {
    for (std::uint64_t i = 0; i < length; ++i) iov.base[at + i] = pattern(seed, i);
  }
  static bool holds(const Hf3fsIov& iov, std::uint64_t at, std::uint64_t length, std::uint64_t seed,
                    std::uint64_t from = 0) {
    for (std::uint64_t i = 0; i < length; ++i) {
      if (iov.base[at + i] != pattern(seed, from + i)) return false;
    }
    return true;
  }
  static bool all_are(const Hf3fsIov& iov, std::uint64_t at, std::uint64_t length, std::uint8_t byte) {
    for (std::uint64_t i = 0; i < length; ++i) {
      if (iov.base[at + i] != byte) return false;
    }
    return true;
  }
  // Never the poison and never 0.
  static std::uint8_t pattern(std::uint64_t seed, std::uint64_t i) {
    return static_cast<std::uint8_t>(1 + (seed * 31 + i * 7 + (i >> 8)) % 199);
  }

  std::shared_ptr<UsrbioLibrary> library_;
  FakeControl fake_;
  std::string mount_;
  bool steps_ = false;  // sim mode: transfer() advances

 private:
  static constexpr const char* kMountVariable = "LARDER_FAKE_TEST_MOUNT";

  std::set<int> opened_;
};

}  // namespace larder::hf3fs
