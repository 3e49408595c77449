// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_iov.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <utility>

namespace larder::hf3fs {
namespace {

constexpr const char* kSharedMemory = "/dev/shm/";

// Maps `bytes` of the file; 0 or -EIO, as the library answers for all that goes wrong with shared memory.
int map_memory(const std::string& path, int flags, std::size_t bytes, std::uint8_t*& base) {
  const int fd = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0666);
  if (fd < 0) return -EIO;
  // The real library finds out by SIGBUS that /dev/shm is full; here it is an error.
  bool good = (flags & O_CREAT) == 0 || ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)) == 0;
  struct stat info = {};
  good = good && ::fstat(fd, &info) == 0 && static_cast<std::size_t>(info.st_size) >= bytes;
  void* mapped = good ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  ::close(fd);
  if (mapped == MAP_FAILED) {
    if ((flags & O_CREAT) != 0) ::unlink(path.c_str());
    return -EIO;
  }
  base = static_cast<std::uint8_t*>(mapped);
  return 0;
}

std::string target_of(const std::string& link) {
  char buffer[PATH_MAX];
  const ssize_t length = ::readlink(link.c_str(), buffer, sizeof buffer);
  return length > 0 ? std::string(buffer, static_cast<std::size_t>(length)) : std::string();
}

// The name of the link of `id` under the mount, with its ".b<block>", or empty.
std::string find_link(const std::string& mount, const IovId& id) {
  const std::string directory = mount + "/" + kIovLinkDirectory;
  const std::string name = iov_name(id);
  DIR* listing = ::opendir(directory.c_str());
  if (listing == nullptr) return {};
  std::string found;
  while (const dirent* item = ::readdir(listing)) {
    const std::string_view entry = item->d_name;
    if (entry == name || (entry.substr(0, name.size()) == name && entry.substr(name.size(), 2) == ".b")) found = entry;
  }
  ::closedir(listing);
  return found;
}

bool has_link(const std::string& link) {
  struct stat info = {};
  return ::lstat(link.c_str(), &info) == 0;
}

std::shared_ptr<FakeIov> new_iov() {
  static std::atomic<std::uint64_t> next{1};
  auto iov = std::make_shared<FakeIov>();
  iov->number = next.fetch_add(1, std::memory_order_relaxed);
  return iov;
}

}  // namespace

FakeIov::~FakeIov() {
  if (base != nullptr) ::munmap(base, size);
}

bool FakeIov::block_failed(std::size_t offset) const {
  const std::int64_t block = block_size == 0 ? 0 : static_cast<std::int64_t>(offset / block_size);
  for (const std::int64_t failed : failed_blocks) {
    if (failed == -1 || failed == block) return true;
  }
  return false;
}

bool FakeIov::crosses_block(std::size_t offset, std::size_t length) const {
  return block_size != 0 && length > 0 && offset / block_size != (offset + length - 1) / block_size;
}

std::string iov_name(const IovId& id) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (std::size_t i = 0; i < id.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) name += '-';
    name += kDigits[id[i] >> 4];
    name += kDigits[id[i] & 15];
  }
  return name;
}

IovId new_iov_id() {
  IovId id{};
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) std::abort();
  return id;
}

std::string iov_link_path(const std::string& mount, const std::string& name) {
  return mount + "/" + kIovLinkDirectory + "/" + name;
}

std::string iov_memory_path(const IovId& id) { return kSharedMemory + std::string("hf3fs-iov-") + iov_name(id); }

int FakeIovTable::create(const IovRequest& request, std::shared_ptr<FakeIov>& made) {
  auto iov = new_iov();
  iov->id = new_iov_id();
  iov->block_size = request.block_size;
  iov->daemon_life = request.daemon_life;
  iov->failed_blocks = request.failed_blocks;
  iov->memory_path = iov_memory_path(iov->id);
  iov->creator = true;
  const std::string suffix = request.block_size == 0 ? "" : ".b" + std::to_string(request.block_size);
  iov->link = iov_link_path(request.mount, iov_name(iov->id) + suffix);
  const int mapped = map_memory(iov->memory_path, O_CREAT | O_EXCL, request.size, iov->base);
  if (mapped != 0) return mapped;
  iov->size = request.size;
  if (::symlink(iov->memory_path.c_str(), iov->link.c_str()) != 0) {
    const int failed = -errno;
    ::unlink(iov->memory_path.c_str());
    return failed;
  }
  const FakeGuard guard(mutex_);
  by_handle_[handle_of(*iov)] = iov;
  by_id_[iov->id] = iov;
  made = std::move(iov);
  return 0;
}

int FakeIovTable::open(const IovRequest& request, const IovId& id, std::shared_ptr<FakeIov>& made) {
  const std::string name = find_link(request.mount, id);
  if (name.empty()) return -ENOENT;
  auto iov = new_iov();
  iov->id = id;
  iov->block_size = request.block_size;
  iov->daemon_life = request.daemon_life;
  iov->link = iov_link_path(request.mount, name);
  iov->memory_path = target_of(iov->link);
  const int mapped = map_memory(iov->memory_path, 0, request.size, iov->base);
  if (mapped != 0) return mapped;
  iov->size = request.size;
  const FakeGuard guard(mutex_);
  by_handle_[handle_of(*iov)] = iov;
  by_id_.emplace(id, iov);
  made = std::move(iov);
  return 0;
}

std::shared_ptr<FakeIov> FakeIovTable::find(const void* handle) const {
  const FakeGuard guard(mutex_);
  const auto found = by_handle_.find(handle);
  return found == by_handle_.end() ? nullptr : found->second;
}

std::shared_ptr<FakeIov> FakeIovTable::find_by_id(const IovId& id, const IovRequest& request) {
  std::shared_ptr<FakeIov> known;
  {
    const FakeGuard guard(mutex_);
    const auto found = by_id_.find(id);
    if (found != by_id_.end()) known = found->second;
  }
  // Memory of the caller is known as long as its link is there.
  if (known != nullptr && (known->base != nullptr || has_link(known->link))) return known;
  const std::string name = find_link(request.mount, id);
  const std::string target = name.empty() ? name : target_of(iov_link_path(request.mount, name));
  struct stat info = {};
  if (target.rfind(kSharedMemory, 0) != 0 || ::stat(target.c_str(), &info) != 0) return nullptr;
  auto iov = new_iov();
  iov->id = id;
  iov->size = static_cast<std::size_t>(info.st_size);
  const std::size_t mark = name.find(".b");
  if (mark != std::string::npos) iov->block_size = std::strtoull(name.c_str() + mark + 2, nullptr, 10);
  iov->daemon_life = request.daemon_life;
  iov->failed_blocks = request.failed_blocks;
  iov->link = iov_link_path(request.mount, name);
  const FakeGuard guard(mutex_);
  by_id_[id] = iov;
  return iov;
}

void FakeIovTable::destroy(const void* handle) {
  std::shared_ptr<FakeIov> gone;
  {
    const FakeGuard guard(mutex_);
    const auto found = by_handle_.find(handle);
    if (found == by_handle_.end()) return;
    gone = found->second;
    by_handle_.erase(found);
    const auto known = by_id_.find(gone->id);
    if (known != by_id_.end() && known->second == gone) by_id_.erase(known);
  }
  if (!gone->creator) return;
  ::unlink(gone->link.c_str());
  ::unlink(gone->memory_path.c_str());
}

std::size_t FakeIovTable::live() const {
  const FakeGuard guard(mutex_);
  return by_handle_.size();
}

void FakeIovTable::reset() {
  std::map<const void*, std::shared_ptr<FakeIov>> gone;
  {
    const FakeGuard guard(mutex_);
    gone.swap(by_handle_);
    by_id_.clear();
  }
  for (const auto& [handle, iov] : gone) {
    if (!iov->creator) continue;
    ::unlink(iov->link.c_str());
    ::unlink(iov->memory_path.c_str());
  }
}

}  // namespace larder::hf3fs
