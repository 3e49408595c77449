// SPDX-License-Identifier: Apache-2.0
// The binary interface of libhf3fs_api_shared.so, as this project states it: structs, constants, prototypes.
//
// Purpose: the library ships no versioned header and its rings are shared memory with a daemon of the same build, so
// the layout is the contract. These are our own declarations of x86-64 facts; the asserts below fail the build where
// they do not hold. The loader (usrbio_library.h) uses them, and the fake library (fakes/hf3fs) is built to them.
//
// Ownership: the caller owns every struct; create and destroy fill and empty it and never free it. It must stay at its
// place from create to destroy. `iovh` and `iorh` belong to the library.
//
// Signs, as the library has them (the loader evens them out): most functions give -errno; reg_fd, hardlink and
// punchhole give +errno; reg_fd gives a number <= 0 on success, minus the number of a duplicate that it keeps open.
//
// Names: the struct and field names are ours, the symbols are the library's.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <cstddef>
#include <cstdint>

namespace larder::hf3fs {

inline constexpr const char* kDefaultLibraryName = "libhf3fs_api_shared.so";
// The directory at the top of every mount in which the daemon is talked to, and the links of shared memory in it.
inline constexpr const char* kVirtualDirectory = "3fs-virt";
inline constexpr const char* kIovLinkDirectory = "3fs-virt/iovs";

// Answer of the mount's magic ioctl.
inline constexpr std::uint32_t kSuperMagic = 0x8f3f5fff;

// Flags of a ring.
inline constexpr std::uint64_t kAllowReadUncommitted = 1;  // reads may see a chunk version that is not committed yet
inline constexpr std::uint64_t kForbidReadHoles = 2;       // a hole within a read is -ENODATA, not zeros

inline constexpr std::size_t kMaxMountPoint = 256;     // bytes, with the 0 at the end
inline constexpr std::size_t kMaxPunchRanges = 1000;   // more ranges in one punchhole overrun its stack
inline constexpr std::size_t kRingBytesPerEntry = 96;  // ior_size(n + 1) - ior_size(n)

// Registered shared memory.
struct Hf3fsIov {
  std::uint8_t* base;
  void* iovh;  // nullptr: wrapped, the memory and its link belong to the caller
  std::uint8_t id[16];
  char mount_point[kMaxMountPoint];
  std::size_t size;        // bytes
  std::size_t block_size;  // bytes registered at once; 0: all. No I/O may cross a block border
  int numa;                // < 0: anywhere
};

// A ring: one direction, prepared and submitted by one thread, reaped by one thread.
struct Hf3fsIor {
  Hf3fsIov iov;
  void* iorh;
  char mount_point[kMaxMountPoint];
  bool for_read;
  int io_depth;  // > 0: jobs of exactly so many; 0: one job of all there are; < 0: jobs of at most -io_depth
  int priority;
  int timeout;  // milliseconds
  std::uint64_t flags;
};

// A completion. Only `userdata` and `index` say whose.
struct Hf3fsCqe {
  std::int32_t index;  // what prep_io gave
  std::int32_t reserved;
  std::int64_t result;  // bytes moved, perhaps fewer than asked for, or -errno
  const void* userdata;
};

static_assert(sizeof(void*) == 8, "the interface is known for 64-bit only");
static_assert(sizeof(Hf3fsIov) == 312 && offsetof(Hf3fsIov, iovh) == 8 && offsetof(Hf3fsIov, id) == 16);
static_assert(offsetof(Hf3fsIov, mount_point) == 32 && offsetof(Hf3fsIov, size) == 288);
static_assert(offsetof(Hf3fsIov, block_size) == 296 && offsetof(Hf3fsIov, numa) == 304);
static_assert(sizeof(Hf3fsIor) == 600 && offsetof(Hf3fsIor, iorh) == 312 && offsetof(Hf3fsIor, mount_point) == 320);
static_assert(offsetof(Hf3fsIor, for_read) == 576 && offsetof(Hf3fsIor, io_depth) == 580);
static_assert(offsetof(Hf3fsIor, priority) == 584 && offsetof(Hf3fsIor, timeout) == 588);
static_assert(offsetof(Hf3fsIor, flags) == 592);
static_assert(sizeof(Hf3fsCqe) == 24 && offsetof(Hf3fsCqe, result) == 8 && offsetof(Hf3fsCqe, userdata) == 16);

// Types of the symbols. LARDER_HF3FS_SYMBOLS lists those that the loader needs as X(symbol without "hf3fs_"); the
// others are for the fake, which has all of them.
extern "C" {
using is_hf3fs_fn = bool(int fd);
using extract_mount_point_fn = int(char* buffer, int size, const char* path);
using iovcreate_fn = int(Hf3fsIov* iov, const char* mount, std::size_t size, std::size_t block_size, int numa);
using iovopen_fn = int(Hf3fsIov* iov, const std::uint8_t id[16], const char* mount, std::size_t size,
                       std::size_t block_size, int numa);
using iovwrap_fn = int(Hf3fsIov* iov, void* base, const std::uint8_t id[16], const char* mount, std::size_t size,
                       std::size_t block_size, int numa);
using iovunlink_fn = void(Hf3fsIov* iov);
using iovdestroy_fn = void(Hf3fsIov* iov);
using ior_size_fn = std::size_t(int entries);
using io_entries_fn = int(const Hf3fsIor* ior);
using iorcreate_fn = int(Hf3fsIor* ior, const char* mount, int entries, bool for_read, int io_depth, int numa);
using iorcreate2_fn = int(Hf3fsIor* ior, const char* mount, int entries, bool for_read, int io_depth, int priority,
                          int numa);
using iorcreate3_fn = int(Hf3fsIor* ior, const char* mount, int entries, bool for_read, int io_depth, int priority,
                          int timeout, int numa);
using iorcreate4_fn = int(Hf3fsIor* ior, const char* mount, int entries, bool for_read, int io_depth, int timeout,
                          int numa, std::uint64_t flags);
using iordestroy_fn = void(Hf3fsIor* ior);
using reg_fd_fn = int(int fd, std::uint64_t flags);
using dereg_fd_fn = void(int fd);
using prep_io_fn = int(const Hf3fsIor* ior, const Hf3fsIov* iov, bool read, void* ptr, int fd, std::size_t offset,
                       std::uint64_t length, const void* userdata);
using submit_ios_fn = int(const Hf3fsIor* ior);
using wait_for_ios_fn = int(const Hf3fsIor* ior, Hf3fsCqe* cqes, int capacity, int min_results,
                            const struct timespec* realtime_deadline);
using hardlink_fn = int(const char* target, const char* link_name);
using punchhole_fn = int(int fd, int n, const std::size_t* start, const std::size_t* end, std::size_t flags);

// What a library may bring to stand in for the operating system on paths of its mount; the real one has none of them.
// The fake has all, because it keeps lengths and write sessions. -errno on failure.
using posix_open_fn = int(const char* path, int flags, mode_t mode);
using posix_close_fn = int(int fd);
using posix_ftruncate_fn = int(int fd, std::uint64_t length);
using posix_fsync_fn = int(int fd);
using posix_file_size_fn = std::int64_t(int fd);
using posix_unlink_fn = int(const char* path);
}  // extern "C"

#define LARDER_HF3FS_SYMBOLS(X) \
  X(is_hf3fs)                   \
  X(extract_mount_point)        \
  X(iovcreate)                  \
  X(iovdestroy)                 \
  X(ior_size)                   \
  X(io_entries)                 \
  X(iorcreate4)                 \
  X(iordestroy)                 \
  X(reg_fd)                     \
  X(dereg_fd)                   \
  X(prep_io)                    \
  X(submit_ios)                 \
  X(wait_for_ios)

// Symbols "larder_hf3fs_posix_<name>": all of them or none.
#define LARDER_HF3FS_POSIX(X) \
  X(open)                     \
  X(close)                    \
  X(unlink)

}  // namespace larder::hf3fs
