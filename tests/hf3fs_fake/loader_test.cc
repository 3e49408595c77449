// SPDX-License-Identifier: Apache-2.0
// The loader: what it finds, what it refuses and says, errors, forks; and the fake under load from many threads.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <future>

#include "base/thread_pool.h"
#include "tests/hf3fs_fake/fake_fixture.h"

namespace larder::hf3fs {
namespace {

class LoaderTest : public FakeHf3fsTest {};

StatusCode code_of(std::int64_t result) { return completion_result(result).status().code(); }

TEST_F(LoaderTest, SaysWhichLibraryItDidNotFind) {
  const auto loaded = UsrbioLibrary::load({.path = "/no/such/libhf3fs_api_shared.so", .has_file_table = false});
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(loaded.status().message().find("/no/such/libhf3fs_api_shared.so"), std::string::npos);
  EXPECT_NE(loaded.status().message().find(kLibraryVariable), std::string::npos);
}

TEST_F(LoaderTest, SaysWhichSymbolIsMissing) {
  const auto loaded = UsrbioLibrary::load({.path = "libm.so.6", .has_file_table = false});
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(loaded.status().message().find("hf3fs_is_hf3fs"), std::string::npos) << loaded.status().to_string();
}

TEST_F(LoaderTest, PathIsTakenFromOptionThenVariableThenDefault) {
  ASSERT_EQ(::setenv(kLibraryVariable, LARDER_FAKE_HF3FS, 1), 0);
  EXPECT_TRUE(UsrbioLibrary::load({.path = "", .has_file_table = false}).is_ok());
  EXPECT_FALSE(UsrbioLibrary::load({.path = "/no/such", .has_file_table = false}).is_ok());
  ASSERT_EQ(::setenv(kLibraryVariable, "/from/variable", 1), 0);
  const auto loaded = UsrbioLibrary::load({.path = "", .has_file_table = false});
  EXPECT_NE(loaded.status().message().find("/from/variable"), std::string::npos);
  ASSERT_EQ(::unsetenv(kLibraryVariable), 0);
  // A library of this name is loaded already, and is found by it; elsewhere the message has the name.
  const auto by_name = UsrbioLibrary::load({.path = "", .has_file_table = false});
  EXPECT_TRUE(by_name.is_ok() ? (*by_name)->path() == kDefaultLibraryName
                              : by_name.status().message().find(kDefaultLibraryName) != std::string::npos);
}

TEST_F(LoaderTest, RefusesAnotherRingLayout) {
  configure(R"({"entry_bytes": 104})");
  const auto loaded = UsrbioLibrary::load({.path = LARDER_FAKE_HF3FS, .has_file_table = false});
  EXPECT_EQ(loaded.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(loaded.status().message().find("104 bytes"), std::string::npos) << loaded.status().to_string();
}

TEST_F(LoaderTest, RefusesAHardFileLimitThatTheLibraryCannotTake) {
  EXPECT_TRUE(check_file_limit(1 << 20).is_ok());
  EXPECT_TRUE(check_file_limit(kMaxHardFileLimit).is_ok());
  EXPECT_EQ(check_file_limit(kMaxHardFileLimit + 1).code(), StatusCode::kUnavailable);
  const Status unlimited = check_file_limit(RLIM_INFINITY);
  EXPECT_NE(unlimited.message().find("unlimited"), std::string::npos);
  EXPECT_NE(unlimited.message().find("ulimit -Hn"), std::string::npos) << "says what to do";
}

TEST_F(LoaderTest, ErrnoBecomesACodeAndAText) {
  EXPECT_EQ(*completion_result(4096), 4096u);
  EXPECT_EQ(*completion_result(0), 0u);
  EXPECT_EQ(code_of(-ENODATA), StatusCode::kNotFound);
  EXPECT_EQ(code_of(-ENOSPC), StatusCode::kOverloaded);
  EXPECT_EQ(code_of(-EROFS), StatusCode::kUnsupported);
  EXPECT_EQ(code_of(-EINVAL), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(-EINTR), StatusCode::kCancelled);
  for (const int error : {EIO, EREMOTEIO, EBADF, EACCES}) EXPECT_EQ(code_of(-error), StatusCode::kUnavailable);
  EXPECT_NE(completion_result(-EREMOTEIO).status().message().find("errno 121"), std::string::npos);
  const Status closed = library_->close(-1);
  EXPECT_EQ(closed.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(closed.message().find("close: "), std::string::npos) << closed.to_string();
}

TEST_F(LoaderTest, WhatWouldEndTheProcessDoesNotReachTheLibrary) {
  Hf3fsIov iov{};
  EXPECT_EQ(library_->create_iov(iov, mount_, 4096, 8192, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(library_->create_iov(iov, std::string(256, 'm'), 4096, 0, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(library_->mount_point_of(mount_ + "/none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(library_->mount_point_of("/usr").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(library_->mount_point_of(mount_ + "/3fs-virt").value_or(""), mount_);
  std::vector<std::uint8_t> own(4096);
  iov = wrap_iov(own, std::array<std::uint8_t, 16>{});
  library_->destroy_iov(iov);
  EXPECT_EQ(stats().would_crash, 0u);
}

TEST_F(LoaderTest, AnotherHandleSharesAnIovById) {
  Hf3fsIov made = make_iov(8192);
  Hf3fsIov opened{};
  auto* open = raw<iovopen_fn>("hf3fs_iovopen");
  ASSERT_EQ(open(&opened, made.id, mount_.c_str(), 8192, 0, -1), 0);
  made.base[5] = 77;
  EXPECT_EQ(opened.base[5], 77);
  library_->destroy_iov(opened);
  library_->destroy_iov(made);
  EXPECT_EQ(open(&opened, made.id, mount_.c_str(), 8192, 0, -1), -ENOENT);
}

TEST_F(LoaderTest, MemoryOfTheCallerIsFoundByItsLink) {
  const std::array<std::uint8_t, 16> id{0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 1, 2, 3, 4, 5, 6, 7, 8};
  const std::string name = "10203040-5060-7080-0102-030405060708";
  const std::string memory = "/dev/shm/" + std::filesystem::path(mount_).filename().string();
  const std::string link = mount_ + "/3fs-virt/iovs/" + name + ".b8192";
  const int memory_fd = library_->open(memory, O_RDWR | O_CREAT).value_or(-1);
  ASSERT_EQ(truncate(memory_fd, 16384), 0);
  void* base = ::mmap(nullptr, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
  ASSERT_NE(base, MAP_FAILED);
  std::filesystem::create_symlink(memory, link);

  const int fd = open_file("f");
  const Hf3fsIor ring = make_ring(false);
  Hf3fsIov iov{};
  ASSERT_EQ(raw<iovwrap_fn>("hf3fs_iovwrap")(&iov, base, id.data(), mount_.c_str(), 16384, 8192, -1), 0);
  EXPECT_EQ(transfer(ring, iov, 8192, fd, 0, 8192), 8192);
  EXPECT_EQ(transfer(ring, iov, 4096, fd, 0, 8192), -EINVAL) << "crosses a block of the link's name";
  std::filesystem::remove(link);
  EXPECT_EQ(transfer(ring, iov, 8192, fd, 0, 8192), -EINVAL) << "without its link the daemon does not know it";
  ASSERT_EQ(::munmap(base, 16384), 0);
  expect_ok(library_->close(memory_fd));
  std::filesystem::remove(memory);
}

TEST_F(LoaderTest, ChildOfAForkMayNotUseIt) {
  const int fd = open_file("f");
  const Hf3fsIor ring = make_ring(true);
  EXPECT_EXIT(
      {
        const bool refused = library_->submit(ring).code() == StatusCode::kUnavailable && !library_->is_hf3fs(fd) &&
                             library_->open(mount_ + "/f", O_RDONLY).status().code() == StatusCode::kUnavailable;
        ::_exit(refused ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_TRUE(library_->submit(ring).is_ok()) << "the parent goes on";
}

TEST_F(LoaderTest, DefectD3EndsTheProcessThatLoads) {
  prepare_death_test();
  EXPECT_DEATH(
      {
        ::setenv("LARDER_FAKE_HF3FS_D3", "16", 1);
        ::execl("/proc/self/exe", "test", "--gtest_filter=LoaderTest.SaysWhichSymbolIsMissing", nullptr);
      },
      "no memory for a table of all file descriptors");
}

// Each thread has a ring pair and pages of its own in shared files and memory.
class ThreadsLoad {
 public:
  ThreadsLoad(const UsrbioLibrary& library, Hf3fsIov iov, int fd) : library_(library), iov_(iov), fd_(fd) {}

  // Writes and reads back `rounds` times 16 pages; how many pages were right.
  std::size_t run(std::uint64_t thread, const Hf3fsIor& writer, const Hf3fsIor& reader, int rounds) const {
    std::size_t right = 0;
    std::uint8_t* memory = iov_.base + thread * 32 * kPage;
    for (int round = 0; round < rounds; ++round) {
      for (std::uint64_t i = 0; i < 16 * kPage; ++i) memory[i] = static_cast<std::uint8_t>(i * 7 + thread + i / kPage);
      if (!move(writer, memory, thread) || !move(reader, memory + 16 * kPage, thread)) return right;
      for (std::uint64_t page = 0; page < 16; ++page) {
        const std::uint64_t at = page * kPage;
        right += std::memcmp(memory + at, memory + 16 * kPage + at, kPage) == 0 ? 1 : 0;
      }
    }
    return right;
  }

 private:
  static constexpr std::uint64_t kPage = 8192;

  bool move(const Hf3fsIor& ring, std::uint8_t* memory, std::uint64_t thread) const {
    for (std::uint64_t page = 0; page < 16; ++page) {
      const std::uint64_t offset = (page * 4 + thread) * kPage;
      const PreparedIo io{ring.for_read, memory + page * kPage, fd_, offset, kPage, memory + page * kPage};
      if (!library_.prep(ring, iov_, io).is_ok()) return false;
    }
    if (!library_.submit(ring).is_ok()) return false;
    std::set<const void*> done;
    while (done.size() < 16) {
      std::vector<Hf3fsCqe> cqes(16);
      const auto count = library_.wait(ring, cqes, 1, after_ms(10'000));
      if (count.value_or(0) == 0) return false;
      for (std::size_t i = 0; i < *count; ++i) {
        if (cqes[i].result != static_cast<std::int64_t>(kPage) || !done.insert(cqes[i].userdata).second) return false;
      }
    }
    return true;
  }

  const UsrbioLibrary& library_;
  const Hf3fsIov iov_;
  const int fd_;
};

TEST_F(LoaderTest, ManyThreadsWithRingsOfTheirOwn) {
  configure(R"({"roles": "count", "check_ownership": true, "poison": "prep"})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov(4 * 32 * 8192);
  std::vector<Hf3fsIor> writers, readers;
  for (int i = 0; i < 4; ++i) {
    writers.push_back(make_ring(false, 32, -4));
    readers.push_back(make_ring(true, 32, -4));
  }
  const ThreadsLoad load(*library_, iov, fd);
  std::array<std::size_t, 4> right{};
  {
    ThreadPoolExecutor pool("load", 4, 8);
    for (std::size_t i = 0; i < 4; ++i) {
      expect_ok(pool.post([&, i] { right[i] = load.run(i, writers[i], readers[i], 10); }));
    }
    pool.wait_idle();
  }
  for (const std::size_t pages : right) EXPECT_EQ(pages, 160u);
  EXPECT_EQ(stats().role_changes + stats().role_overlaps + stats().touched_buffers, 0u);
  EXPECT_EQ(stats().in_flight, 0u);
}

}  // namespace
}  // namespace larder::hf3fs
