// SPDX-License-Identifier: Apache-2.0
// The 3FS client library, loaded at run time: one table of functions, errors as Status.
//
// Purpose: the backend talks to 3FS through this class and through nothing else, so that a fake library can take the
// place of the real one, the calls that go to the operating system on paths of the mount included (open, close,
// unlink). Signs and errno are turned into Status and Result here, once. Every message names the operation and the
// errno.
//
// Errors: errno becomes a code so (calls / completions, the two differ where the cause does):
//   EAGAIN ENOSPC EDQUOT EMFILE ENFILE ENOMEM   kOverloaded
//   ENOENT ENODATA                              kNotFound     (ENODATA: a hole within a read that forbids holes)
//   EEXIST                                      kConflict
//   EINVAL ENAMETOOLONG EISDIR ENOTDIR          kInvalidArgument
//   EBADF EACCES EPERM                          kInvalidArgument / kUnavailable: the daemon lost the inode, the memory
//                                               is not registered
//   EROFS ENOTSUP ENOSYS                        kUnsupported
//   EINTR ECANCELED                             kCancelled
//   ETIMEDOUT                                   kDeadlineExceeded
//   others (EIO EREMOTEIO ENOTCONN ...)         kUnavailable
// After a fork the child must not use the library: every call gives kUnavailable there, and the void calls do nothing.
//
// Threads: any thread may call; the rules of a ring (one thread prepares and submits, one waits) are the caller's.
// Lifetime: a loaded library is never unloaded (it has threads and static tables); objects of this class are handles.
// Cost: a call and a compare over the library's own.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "storage/hf3fs/usrbio_abi.h"

namespace larder::hf3fs {

// The real library makes a table with a slot for each file descriptor that the *hard* limit (RLIMIT_NOFILE) allows
// while it is loaded: GiBs for 2^30, an abort for "unlimited". Above this limit it is not loaded.
inline constexpr std::uint64_t kMaxHardFileLimit = std::uint64_t{1} << 24;
inline constexpr const char* kLibraryVariable = "LARDER_HF3FS_LIBRARY";

struct LibraryOptions {
  std::string path;  // empty: the variable LARDER_HF3FS_LIBRARY, else kDefaultLibraryName by the loader's search path
  bool has_file_table = true;  // false: it is known to have none, and loaded whatever the limit
};

struct RingOptions {
  std::string mount_point;
  int entries = 0;
  bool for_read = true;
  int io_depth = -8;
  int timeout_ms = 0;  // keep 0: with io_depth < 0 a timeout keeps a partial batch from being sent at all
  int numa = -1;
  std::uint64_t flags = 0;
};

// One I/O, as prep() takes it. The bytes belong to the library from prep to its completion.
struct PreparedIo {
  bool read = true;
  void* data = nullptr;  // within the iov
  int fd = -1;           // registered
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  const void* userdata = nullptr;
};

struct FunctionTable;  // the loaded symbols; real_usrbio_library.cc

// kOk, or why a process with this hard limit must not load the real library.
[[nodiscard]] Status check_file_limit(std::uint64_t hard_limit);
// What a completion's result says: bytes, or an error by the table above. Says nothing about short counts.
[[nodiscard]] Result<std::uint64_t> completion_result(std::int64_t result);
// Of a write's completion: is it open what a storage server has done, and may it do it later? No for counts, short ones
// too, and for what was refused: no space, no such file or memory, not allowed.
[[nodiscard]] bool leaves_open(std::int64_t result);

class UsrbioLibrary {
 public:
  // kUnavailable: not found or not loadable, the file limit; kUnsupported: a required symbol is missing (named), or the
  // ring layout is not the one of usrbio_abi.h. Loading one path twice gives two handles of one library.
  [[nodiscard]] static Result<std::shared_ptr<UsrbioLibrary>> load(const LibraryOptions& options = {});
  ~UsrbioLibrary();
  UsrbioLibrary(const UsrbioLibrary&) = delete;
  UsrbioLibrary& operator=(const UsrbioLibrary&) = delete;

  // What was given to dlopen.
  [[nodiscard]] const std::string& path() const { return path_; }
  // The address of any other symbol; nullptr if it has none. For tests that steer a fake.
  [[nodiscard]] void* symbol(const char* name) const;

  // The mount that `path` lies on. kNotFound: no 3FS there, or no such path.
  [[nodiscard]] Result<std::string> mount_point_of(const std::string& path) const;
  // Is the file on a 3FS whose daemon answers? Also the probe for a dead mount.
  [[nodiscard]] bool is_hf3fs(int fd) const;

  // Files on the mount. open() adds O_CLOEXEC.
  [[nodiscard]] Result<int> open(const std::string& path, int flags, unsigned mode = 0644) const;
  [[nodiscard]] Status close(int fd) const;
  [[nodiscard]] Status unlink(const std::string& path) const;

  // Register before use and deregister before close, or the library keeps a duplicate open, and the number cannot be
  // registered again (kInvalidArgument), nor be that of a new duplicate. The same when the daemon has died meanwhile:
  // then deregister_fd() does nothing. When the number is that of an open file again, deregister_fd() mends it.
  [[nodiscard]] Status register_fd(int fd) const;
  void deregister_fd(int fd) const;

  // Creates shared memory and registers it. The registration may still fail later, unseen: probe with an I/O.
  // 0 < block_size <= size, or 0.
  [[nodiscard]] Status create_iov(Hf3fsIov& iov, const std::string& mount_point, std::size_t size,
                                  std::size_t block_size, int numa) const;
  // Does nothing for a wrapped iov, which the library refuses to destroy.
  void destroy_iov(Hf3fsIov& iov) const;

  // kNotFound: the mount point is no 3FS mount, or its daemon is gone. kUnsupported: the ring has another layout.
  [[nodiscard]] Status create_ring(Hf3fsIor& ring, const RingOptions& options) const;
  // Does not wait for what is in flight: its memory stays the daemon's.
  void destroy_ring(Hf3fsIor& ring) const;

  // The slot of the prepared I/O. kOverloaded: the ring is full, counting what is completed and not reaped. The I/O may
  // run before submit().
  [[nodiscard]] Result<int> prep(const Hf3fsIor& ring, const Hf3fsIov& iov, const PreparedIo& io) const;
  [[nodiscard]] Status submit(const Hf3fsIor& ring) const;
  // Reaps into `cqes`; returns how many, at the deadline also fewer than `min_results`, also 0. The deadline is
  // absolute on CLOCK_REALTIME and is required: without it a dead daemon is waited for for ever.
  [[nodiscard]] Result<std::size_t> wait(const Hf3fsIor& ring, std::span<Hf3fsCqe> cqes, std::size_t min_results,
                                         const struct timespec& realtime_deadline) const;

 private:
  UsrbioLibrary(std::string path, std::unique_ptr<FunctionTable> table);
  // kUnavailable in a child of the process that loaded the library.
  [[nodiscard]] Status check_process() const;

  // constant after construction
  const std::string path_;
  const std::unique_ptr<FunctionTable> table_;
  const std::uint64_t fork_generation_;
};

}  // namespace larder::hf3fs
