// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_fd_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

namespace larder::hf3fs {

int FakeFdTable::add(int fd, std::uint64_t chunk_bytes, std::uint64_t daemon_life, std::uint64_t max_fds) {
  const std::unique_lock lock(mutex_);
  if (registered_.count(fd) != 0) return EINVAL;
  if (max_fds != 0 && registered_.size() / 2 >= max_fds) return EMFILE;
  auto entry = std::make_shared<RegisteredFd>();
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return errno;
  entry->fd = fd;
  entry->can_read = (flags & O_ACCMODE) != O_WRONLY;
  entry->can_write = (flags & O_ACCMODE) != O_RDONLY;
  entry->daemon_life = daemon_life;
  entry->file = files_.of_fd(fd, chunk_bytes);
  if (entry->file == nullptr) return errno;
  entry->duplicate = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (entry->duplicate < 0) return errno;
  if (registered_.count(entry->duplicate) != 0) {  // a number that was closed without deregistration
    ::close(entry->duplicate);
    return EINVAL;
  }
  registered_[fd] = entry;
  registered_[entry->duplicate] = entry;
  return -entry->duplicate;
}

void FakeFdTable::remove(int fd) {
  const std::unique_lock lock(mutex_);
  const auto found = registered_.find(fd);
  if (found == registered_.end() || found->second->fd != fd) return;
  const int duplicate = found->second->duplicate;
  registered_.erase(found);
  registered_.erase(duplicate);
  ::close(duplicate);
}

std::shared_ptr<const RegisteredFd> FakeFdTable::find(int fd) const {
  const std::shared_lock lock(mutex_);
  const auto found = registered_.find(fd < 0 ? -fd : fd);
  return found == registered_.end() ? nullptr : found->second;
}

std::size_t FakeFdTable::size() const {
  const std::shared_lock lock(mutex_);
  return registered_.size() / 2;
}

void FakeFdTable::note_open(int fd, bool writable, std::uint64_t daemon_life, std::shared_ptr<FakeFile> file) {
  const std::unique_lock lock(mutex_);
  opened_[fd] = {writable, daemon_life, std::move(file)};
}

std::optional<std::uint64_t> FakeFdTable::opened_life(int fd) const {
  const std::shared_lock lock(mutex_);
  const auto found = opened_.find(fd);
  return found == opened_.end() ? std::nullopt : std::optional(found->second.daemon_life);
}

std::pair<std::shared_ptr<FakeFile>, bool> FakeFdTable::note_close(int fd) {
  const std::unique_lock lock(mutex_);
  const auto found = opened_.find(fd);
  if (found == opened_.end()) return {nullptr, false};
  std::pair<std::shared_ptr<FakeFile>, bool> gone{std::move(found->second.file), found->second.writable};
  opened_.erase(found);
  return gone;
}

std::size_t FakeFdTable::opened() const {
  const std::shared_lock lock(mutex_);
  return opened_.size();
}

std::size_t FakeFdTable::write_sessions() const {
  const std::shared_lock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(opened_.begin(), opened_.end(), [](const auto& item) { return item.second.writable; }));
}

void FakeFdTable::reset() {
  const std::unique_lock lock(mutex_);
  for (const auto& [number, entry] : registered_) {
    if (number == entry->duplicate) ::close(number);
  }
  registered_.clear();
  opened_.clear();
}

}  // namespace larder::hf3fs
