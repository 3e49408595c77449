// SPDX-License-Identifier: Apache-2.0
// Files as a dependency.
//
// Purpose: storage backends reach the disk only through FileSystem, so that the simulator (sim/sim_file_system.h) can
// crash, tear, fail and fill it. open() and friends appear in real_file_system.cc and nowhere else.
// Threads: FileSystem and File may be used from any thread; calls on one File may overlap (they carry their offset).
// All calls may block on the disk: never from the cache thread.
// Buffers belong to the caller and are used only during the call.
// Errors: the message holds the operation, the path and the system's text. Codes, by what the caller does next:
//   ENOENT -> kNotFound            EEXIST, lock held -> kConflict      EINVAL, ENAMETOOLONG -> kInvalidArgument
//   ENOSPC, EDQUOT -> kOverloaded, and nothing else: for it, data may be dropped      ENOTSUP, ENOSYS -> kUnsupported
//   EIO, EACCES, EROFS, EMFILE, ENOMEM and the rest -> kUnavailable
// Durability: a write survives a crash only after sync_data() or sync_all() of its File; a created, renamed or removed
// name only after sync_dir() of its directory. Until then any part of it may be there or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace larder {

struct OpenOptions {
  bool write = false;       // else read only; a writer may read too
  bool create = false;      // make the file if it is absent (mode 0600: pages hold what people wrote)
  bool for_others = false;  // with create: mode 0644, for a program of another user; its umask has the last word
  bool exclusive = false;   // with create: kConflict if it exists
  bool truncate = false;    // with write: cut to 0 bytes
  bool direct = false;      // bypass the page cache: offset, length and addresses must be multiples of kDirectAlignment
};

// What direct files need on any disk we know.
inline constexpr std::size_t kDirectAlignment = 4096;

class File {
 public:
  virtual ~File() = default;  // closes
  // Bytes read: fewer than asked means the end of the file (or a short read, which a caller may see at any time and
  // treats as "not all there"). 0 at or behind the end.
  [[nodiscard]] virtual Result<std::size_t> read_at(std::span<std::byte> into, std::uint64_t offset) = 0;
  // Reads one stretch of the file into several buffers, in order. As read_at. At most 1024 buffers.
  [[nodiscard]] virtual Result<std::size_t> readv_at(std::span<const std::span<std::byte>> into,
                                                     std::uint64_t offset) = 0;
  // Bytes written; fewer than asked only when the disk is full part-way. Holes read as zero.
  [[nodiscard]] virtual Result<std::size_t> write_at(std::span<const std::byte> from, std::uint64_t offset) = 0;
  [[nodiscard]] virtual Result<std::size_t> writev_at(std::span<const std::span<const std::byte>> from,
                                                      std::uint64_t offset) = 0;
  // fdatasync: contents and size.
  [[nodiscard]] virtual Status sync_data() = 0;
  // fsync.
  [[nodiscard]] virtual Status sync_all() = 0;
  [[nodiscard]] virtual Status truncate(std::uint64_t size_bytes) = 0;
  // Reserves disk space for [offset, offset + length_bytes) and grows the file to its end; kOverloaded if there is
  // none.
  [[nodiscard]] virtual Status allocate(std::uint64_t offset, std::uint64_t length_bytes) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> size_bytes() const = 0;
  [[nodiscard]] virtual const std::string& path() const = 0;
  // The descriptor for io_uring, or -1 if this file is not the system's (simulation). Valid while the File lives.
  [[nodiscard]] virtual int native_handle() const = 0;
};

// Held as long as the object lives.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

struct FileInfo {
  std::uint64_t size_bytes = 0;
  bool is_directory = false;
  std::uint64_t device_id = 0;   // of the file system it lies on: differs when a mount came or went
  bool others_may_read = false;  // every user of the machine, by its mode
};

struct SpaceInfo {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  // for this user
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  [[nodiscard]] virtual Result<std::unique_ptr<File>> open(const std::string& path, const OpenOptions& options) = 0;
  // Atomic; replaces `to`.
  [[nodiscard]] virtual Status rename(const std::string& from, const std::string& to) = 0;
  // Removes a file (open handles stay usable) or an empty directory.
  [[nodiscard]] virtual Status remove(const std::string& path) = 0;
  // Names (not paths) in a directory, sorted, without "." and "..".
  [[nodiscard]] virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  // Makes the directory and its missing parents. Ok if it is there.
  [[nodiscard]] virtual Status make_dirs(const std::string& directory) = 0;
  [[nodiscard]] virtual Status sync_dir(const std::string& directory) = 0;
  [[nodiscard]] virtual Result<FileInfo> stat(const std::string& path) = 0;
  [[nodiscard]] virtual Result<SpaceInfo> space(const std::string& path) = 0;
  // Makes `path` if needed and locks it against every other locker, in this process or another (flock).
  // kConflict at once if it is held. The lock ends with the process.
  [[nodiscard]] virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

// The operating system's files. Lives forever.
[[nodiscard]] FileSystem& real_file_system();

// The Status of errno value `error` (see the table above): "operation path: text".
[[nodiscard]] Status status_from_errno(int error, std::string_view operation, std::string_view path);

// "a/b/c" -> "a/b"; "c" -> "."; "/c" -> "/".
[[nodiscard]] std::string parent_path(std::string_view path);
// Joined by exactly one '/'.
[[nodiscard]] std::string join_path(std::string_view directory, std::string_view name);

// Reads until `into` is full. kCorrupt if the file ends before (a partial result is never a shorter success).
[[nodiscard]] Status read_exactly(File& file, std::span<std::byte> into, std::uint64_t offset);
// Writes all of `from`. kOverloaded if the disk takes only a part.
[[nodiscard]] Status write_fully(File& file, std::span<const std::byte> from, std::uint64_t offset);

}  // namespace larder
