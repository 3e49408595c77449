// SPDX-License-Identifier: Apache-2.0
// Registered file descriptors, and those opened through the fake's own open().
//
// Registration remembers inode and access mode, as they are then, and keeps a duplicate. A descriptor that is closed
// without deregistration keeps its entry: its number cannot be registered again, nor be the duplicate of another. So it
// is with one whose daemon has died, which cannot be deregistered (World::answers_for). A new descriptor with its
// number can, and takes the old entry away. Threads: all methods from any thread; lookups share a lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "fakes/hf3fs/fake_files.h"

namespace larder::hf3fs {

struct RegisteredFd {
  int fd = -1;
  int duplicate = -1;
  bool can_read = false, can_write = false;
  std::uint64_t daemon_life = 0;  // of the daemon that it was opened under
  std::shared_ptr<FakeFile> file;
};

class FakeFdTable {
 public:
  explicit FakeFdTable(FakeFiles& files) : files_(files) {}

  // As hf3fs_reg_fd, of a descriptor on the mount: minus the duplicate (<= 0), or +errno. `max_fds` 0: no limit.
  [[nodiscard]] int add(int fd, std::uint64_t chunk_bytes, std::uint64_t daemon_life, std::uint64_t max_fds);
  // As hf3fs_dereg_fd, of a descriptor on the mount: nothing for an unregistered one. Whatever was registered under its
  // number is forgotten.
  void remove(int fd);
  // By the original number or the duplicate's; nullptr if it is not registered.
  [[nodiscard]] std::shared_ptr<const RegisteredFd> find(int fd) const;
  [[nodiscard]] std::size_t size() const;

  // Opened for writing through the fake: the file's length is synced when the last such descriptor goes.
  void note_open(int fd, bool writable, std::uint64_t daemon_life, std::shared_ptr<FakeFile> file);
  // Under which daemon it was opened, if it was opened through the fake.
  [[nodiscard]] std::optional<std::uint64_t> opened_life(int fd) const;
  // The file of a descriptor that goes, and whether it was open for writing; nullptr if it did not come from here.
  [[nodiscard]] std::pair<std::shared_ptr<FakeFile>, bool> note_close(int fd);
  [[nodiscard]] std::size_t opened() const;
  [[nodiscard]] std::size_t write_sessions() const;

  void reset();

 private:
  struct Opened {
    bool writable = false;
    std::uint64_t daemon_life = 0;
    std::shared_ptr<FakeFile> file;
  };

  FakeFiles& files_;
  mutable std::shared_mutex mutex_;                                          // of both maps
  std::unordered_map<int, std::shared_ptr<const RegisteredFd>> registered_;  // also under the duplicate's number
  std::map<int, Opened> opened_;
};

}  // namespace larder::hf3fs
