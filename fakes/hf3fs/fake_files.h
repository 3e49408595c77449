// SPDX-License-Identifier: Apache-2.0
// Files of the fake mount: which chunks are there, how long each is, and what length the inode admits to.
//
// A file is a sparse file of the directory beneath. Which chunks it has is remembered per open file, and found again
// from the holes of the sparse file (SEEK_DATA, in blocks of 4 KiB) for chunks that this process did not write itself:
// other processes' writes are seen, with that granularity. Chunks are atomic: a reader sees a chunk before or after a
// write.
//
// Threads: all methods from any thread. I/O holds the lock of one chunk (one of 64 per file), nothing else.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>

#include "fakes/hf3fs/fake_lock.h"

namespace larder::hf3fs {

// Bytes that all files of the process use, with an optional limit.
class FakeSpace {
 public:
  // False if it would go over `limit` (0: none).
  bool take(std::uint64_t bytes, std::uint64_t limit);
  void give(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  void reset() { used_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> used_{0};
};

// Which of an I/O's chunks a write may store; unset: all.
using ChunkFilter = std::function<bool(std::uint64_t chunk_of_io)>;

class FakeFile {
 public:
  // Takes `fd`, open for reading and writing, and `direct_fd`, the same past the page cache, or -1.
  FakeFile(int fd, int direct_fd, std::uint64_t chunk_bytes, FakeSpace& space);
  ~FakeFile();
  FakeFile(const FakeFile&) = delete;
  FakeFile& operator=(const FakeFile&) = delete;

  [[nodiscard]] std::uint64_t chunk_bytes() const { return chunk_bytes_; }

  // Bytes delivered: up to the end of the last chunk with data within the range. Gaps before it become zeros, or with
  // `forbid_holes` -ENODATA. Never looks at the inode's length.
  [[nodiscard]] std::int64_t read(std::uint8_t* to, std::uint64_t offset, std::uint64_t length, bool forbid_holes);
  // `length`, or -errno of the first chunk that failed; the chunks before it are stored. -ENOSPC over `capacity`.
  [[nodiscard]] std::int64_t write(const std::uint8_t* from, std::uint64_t offset, std::uint64_t length,
                                   const ChunkFilter& filter, std::uint64_t capacity);
  // Removes whole chunks. -EINVAL unless both are multiples of the chunk size.
  [[nodiscard]] int punch(std::uint64_t start, std::uint64_t end);
  // Cuts, or makes longer: then the last chunk alone comes into being.
  [[nodiscard]] int truncate(std::uint64_t length);

  // The inode's length. Writes through rings show after `lag_ms` on the fake's clock, or sync_length().
  [[nodiscard]] std::uint64_t length(std::uint64_t now_ms, std::uint64_t lag_ms) LARDER_EXCLUDES(length_mutex_);
  void note_written(std::uint64_t end, std::uint64_t now_ms) LARDER_EXCLUDES(length_mutex_);
  void sync_length() LARDER_EXCLUDES(length_mutex_);

 private:
  static constexpr std::size_t kLocks = 64;
  static constexpr std::size_t kChunksPerSegment = 4096;
  static constexpr std::size_t kSegments = 8192;
  // A chunk's length + 2; 0: not looked at yet, 1: not there.
  using Segment = std::array<std::atomic<std::uint32_t>, kChunksPerSegment>;

  [[nodiscard]] std::shared_mutex& lock_of(std::uint64_t chunk) { return locks_[chunk % kLocks]; }
  // nullptr beyond what the table can hold.
  [[nodiscard]] std::atomic<std::uint32_t>* entry(std::uint64_t chunk);
  // The chunk's length, looked up beneath when it is unknown or shorter than `wanted`. nullopt: not there.
  [[nodiscard]] std::optional<std::uint64_t> chunk_length(std::uint64_t chunk, std::uint64_t wanted);
  [[nodiscard]] std::optional<std::uint64_t> discover(std::uint64_t chunk) const;
  [[nodiscard]] int write_chunk(const std::uint8_t* from, std::uint64_t chunk, std::uint64_t in_chunk,
                                std::uint64_t bytes, std::uint64_t capacity);
  void set_length(std::uint64_t chunk, std::optional<std::uint64_t> length);
  void forget_from(std::uint64_t first_chunk);

  // Whole blocks go past the page cache: a client of 3FS has none, and its servers have what they acknowledge on disk.
  [[nodiscard]] bool is_direct(std::uint64_t bytes, std::uint64_t offset) const;

  // constant after construction
  const int fd_, direct_fd_;
  const std::uint64_t chunk_bytes_;
  FakeSpace& space_;

  std::array<std::shared_mutex, kLocks> locks_;              // of the chunks' bytes and entries
  std::array<std::atomic<Segment*>, kSegments> segments_{};  // made on demand, freed with the file
  FakeMutex length_mutex_;
  std::uint64_t synced_length_ LARDER_GUARDED_BY(length_mutex_) = 0;
  std::uint64_t written_length_ LARDER_GUARDED_BY(length_mutex_) = 0;
  std::uint64_t last_write_ms_ LARDER_GUARDED_BY(length_mutex_) = 0;
};

// The open files of this process by inode.
class FakeFiles {
 public:
  // The file behind any open `fd`; nullptr and errno if it cannot be opened for reading and writing.
  [[nodiscard]] std::shared_ptr<FakeFile> of_fd(int fd, std::uint64_t chunk_bytes) LARDER_EXCLUDES(mutex_);
  // As of_fd, but only if it is open already.
  [[nodiscard]] std::shared_ptr<FakeFile> find(int fd) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] FakeSpace& space() { return space_; }
  [[nodiscard]] std::uint64_t used_bytes() const { return space_.used(); }

 private:
  using Inode = std::pair<dev_t, ino_t>;

  FakeSpace space_;
  FakeMutex mutex_;
  std::map<Inode, std::weak_ptr<FakeFile>> files_ LARDER_GUARDED_BY(mutex_);
};

// Is `fd` beneath a directory with a "3fs-virt" in it? Works for unlinked files as well.
[[nodiscard]] bool is_on_fake_mount(int fd);
// The nearest directory above `path` (made canonical) with a "3fs-virt"; empty if there is none. nullopt: no such path.
[[nodiscard]] std::optional<std::string> fake_mount_of(const std::string& path);

}  // namespace larder::hf3fs
