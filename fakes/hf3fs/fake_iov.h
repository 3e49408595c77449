// SPDX-License-Identifier: Apache-2.0
// Shared memory that the fake's daemon knows: created, opened, or found by its link when an I/O names it.
//
// Threads: all methods from any thread. A mapping lives as long as anything refers to it, so an iov that is destroyed
// with I/O in flight is counted and stays readable, as the daemon's own mapping would.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fakes/hf3fs/fake_lock.h"
#include "storage/hf3fs/usrbio_abi.h"

namespace larder::hf3fs {

using IovId = std::array<std::uint8_t, 16>;

// What is registered, by the daemon's own knowledge.
struct FakeIov {
  IovId id{};
  std::uint8_t* base = nullptr;  // nullptr: wrapped, the caller's memory
  std::size_t size = 0;
  std::size_t block_size = 0;  // 0: one block
  std::uint64_t daemon_life = 0;
  std::vector<std::int64_t> failed_blocks;  // -1: all
  std::string link, memory_path;
  bool creator = false;
  std::uint64_t number = 0;  // of the handle; never used twice
  std::atomic<std::int64_t> in_flight{0};

  FakeIov() = default;
  ~FakeIov();  // unmaps
  FakeIov(const FakeIov&) = delete;
  FakeIov& operator=(const FakeIov&) = delete;

  [[nodiscard]] bool block_failed(std::size_t offset) const;
  [[nodiscard]] bool crosses_block(std::size_t offset, std::size_t length) const;
};

struct IovRequest {
  std::string mount;
  std::size_t size = 0, block_size = 0;
  std::uint64_t daemon_life = 0;
  std::vector<std::int64_t> failed_blocks;
};

// "01234567-89ab-...": the name of an iov in its links.
[[nodiscard]] std::string iov_name(const IovId& id);
[[nodiscard]] IovId new_iov_id();
// The link of an iov or a ring, and what it points to.
[[nodiscard]] std::string iov_link_path(const std::string& mount, const std::string& name);
[[nodiscard]] std::string iov_memory_path(const IovId& id);

class FakeIovTable {
 public:
  // Makes memory of /dev/shm, maps and links it. 0 or -errno.
  [[nodiscard]] int create(const IovRequest& request, std::shared_ptr<FakeIov>& made) LARDER_EXCLUDES(mutex_);
  // Maps what another iov made.
  [[nodiscard]] int open(const IovRequest& request, const IovId& id, std::shared_ptr<FakeIov>& made)
      LARDER_EXCLUDES(mutex_);
  // By handle; nullptr if it was destroyed.
  [[nodiscard]] std::shared_ptr<FakeIov> find(const void* handle) const LARDER_EXCLUDES(mutex_);
  // As the daemon finds it: by id, else by a link under the mount that points to memory of /dev/shm (its size and
  // block size are then those of file and link).
  [[nodiscard]] std::shared_ptr<FakeIov> find_by_id(const IovId& id, const IovRequest& request) LARDER_EXCLUDES(mutex_);
  // Forgets the iov and removes its names, if this one made them.
  void destroy(const void* handle) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::size_t live() const LARDER_EXCLUDES(mutex_);
  void reset() LARDER_EXCLUDES(mutex_);

  [[nodiscard]] static void* handle_of(const FakeIov& iov) { return reinterpret_cast<void*>(iov.number); }

 private:
  mutable FakeMutex mutex_;
  std::map<const void*, std::shared_ptr<FakeIov>> by_handle_ LARDER_GUARDED_BY(mutex_);
  std::map<IovId, std::shared_ptr<FakeIov>> by_id_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::hf3fs
