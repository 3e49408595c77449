// SPDX-License-Identifier: Apache-2.0
// The library's symbols for shared memory, registered files, mounts; and the files of the mount (larder_hf3fs_posix_*).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "fakes/hf3fs/fake_api.h"
#include "fakes/hf3fs/fake_world.h"

namespace larder::hf3fs {
namespace {

// 0 or -errno. What ends the process in the real library is counted and refused.
int check_iov(World& world, const Hf3fsIov* iov, const char* mount, std::size_t size, std::size_t block_size) {
  if (iov == nullptr) return -EINVAL;
  if (mount == nullptr || block_size > size) {
    count(world.counters.would_crash);
    return -EINVAL;
  }
  return std::strlen(mount) < kMaxMountPoint ? 0 : -EINVAL;
}

void fill_iov(Hf3fsIov& iov, const char* mount, const std::uint8_t* id, std::uint8_t* base, std::size_t size,
              std::size_t block_size, int numa) {
  iov = {};
  iov.base = base;
  std::memcpy(iov.id, id, sizeof iov.id);
  std::strncpy(iov.mount_point, mount, sizeof iov.mount_point - 1);
  iov.size = size;
  iov.block_size = block_size;
  iov.numa = numa;
}

void fill_registered(Hf3fsIov& iov, const char* mount, const FakeIov& made, int numa) {
  fill_iov(iov, mount, made.id.data(), made.base, made.size, made.block_size, numa);
  iov.iovh = FakeIovTable::handle_of(made);
}

// Gone for the daemon as soon as it is dead.
int check_daemon(const World& world) { return world.alive() ? 0 : -ENOTCONN; }

}  // namespace

LARDER_FAKE_EXPORT bool hf3fs_is_hf3fs(int fd) {
  World& world = World::get();
  return world.next_call(__func__) == 0 && world.answers_for(fd);
}

LARDER_FAKE_EXPORT int hf3fs_extract_mount_point(char* buffer, int size, const char* path) {
  World& world = World::get();
  if (world.next_call(__func__) != 0) return -1;
  const auto mount = path == nullptr ? std::nullopt : fake_mount_of(path);
  if (!mount) {
    count(world.counters.would_crash);  // throws through its C interface
    return -1;
  }
  if (mount->empty()) return -1;
  (void)::mkdir((*mount + "/" + kIovLinkDirectory).c_str(), 0777);
  const int needed = static_cast<int>(mount->size()) + 1;
  if (needed <= size && buffer != nullptr) std::memcpy(buffer, mount->c_str(), mount->size() + 1);
  return needed;
}

LARDER_FAKE_EXPORT int hf3fs_iovcreate(Hf3fsIov* iov, const char* mount, std::size_t size, std::size_t block_size,
                                       int numa) {
  World& world = World::get();
  if (const int fault = world.next_call(__func__)) return -fault;
  const int refused = check_iov(world, iov, mount, size, block_size);
  if (refused != 0) return refused;
  if (!world.alive()) return -ENOTCONN;
  struct stat info = {};
  const std::string directory = std::string(mount) + "/" + kVirtualDirectory;
  if (::stat(directory.c_str(), &info) == 0) {
    (void)::mkdir((std::string(mount) + "/" + kIovLinkDirectory).c_str(), 0777);
  }
  std::shared_ptr<FakeIov> made;
  const int failed = world.iovs.create(world.iov_request(mount, size, block_size), made);
  if (failed != 0) return failed;
  fill_registered(*iov, mount, *made, numa);
  return 0;
}

LARDER_FAKE_EXPORT int hf3fs_iovopen(Hf3fsIov* iov, const std::uint8_t id[16], const char* mount, std::size_t size,
                                     std::size_t block_size, int numa) {
  World& world = World::get();
  if (const int fault = world.next_call(__func__)) return -fault;
  const int refused = check_iov(world, iov, mount, size, block_size);
  if (refused != 0) return refused;
  IovId wanted{};
  std::memcpy(wanted.data(), id, wanted.size());
  std::shared_ptr<FakeIov> made;
  const int failed = world.iovs.open(world.iov_request(mount, size, block_size), wanted, made);
  if (failed != 0) return failed;
  fill_registered(*iov, mount, *made, numa);
  return 0;
}

LARDER_FAKE_EXPORT int hf3fs_iovwrap(Hf3fsIov* iov, void* base, const std::uint8_t id[16], const char* mount,
                                     std::size_t size, std::size_t block_size, int numa) {
  const int refused = check_iov(World::get(), iov, mount, size, block_size);
  if (refused != 0) return refused;
  fill_iov(*iov, mount, id, static_cast<std::uint8_t*>(base), size, block_size, numa);
  return 0;
}

LARDER_FAKE_EXPORT void hf3fs_iovunlink(Hf3fsIov* iov) {
  World& world = World::get();
  const auto known = iov == nullptr ? nullptr : world.iovs.find(iov->iovh);
  if (known == nullptr) {
    count(world.counters.would_crash);  // a wrapped iov has no handle
    return;
  }
  (void)::unlink(known->memory_path.c_str());
}

LARDER_FAKE_EXPORT void hf3fs_iovdestroy(Hf3fsIov* iov) {
  World& world = World::get();
  if (iov == nullptr || iov->iovh == nullptr) return;  // wrapped: refused with a line in its log
  const auto known = world.iovs.find(iov->iovh);
  if (known == nullptr) {
    count(world.counters.stale_handles);
    return;
  }
  const bool in_flight = known->in_flight.load(std::memory_order_acquire) > 0;
  if (in_flight && world.serves(known->daemon_life)) count(world.counters.destroyed_in_flight);
  world.iovs.destroy(iov->iovh);
}

LARDER_FAKE_EXPORT int hf3fs_reg_fd(int fd, std::uint64_t flags) {
  (void)flags;
  World& world = World::get();
  if (const int refused = world.next_call(__func__)) return refused;
  if (!world.answers_for(fd)) return EBADF;
  const FakeConfig& config = world.config();
  return world.fds.add(fd, config.chunk_bytes, world.daemon_life(), config.max_fds);
}

LARDER_FAKE_EXPORT void hf3fs_dereg_fd(int fd) {
  World& world = World::get();
  if (world.answers_for(fd)) world.fds.remove(fd);
}

LARDER_FAKE_EXPORT int hf3fs_hardlink(const char* target, const char* link_name) {
  World& world = World::get();
  if (const int refused = world.next_call(__func__)) return refused;
  if (!world.alive()) return ENOTCONN;
  return ::link(target, link_name) == 0 ? 0 : errno;
}

LARDER_FAKE_EXPORT int hf3fs_punchhole(int fd, int n, const std::size_t* start, const std::size_t* end,
                                       std::size_t flags) {
  (void)flags;
  World& world = World::get();
  if (const int refused = world.next_call(__func__)) return refused;
  if (!world.alive() || !is_on_fake_mount(fd)) return ENOTTY;  // the ioctl is not known there
  if (n < 0 || static_cast<std::size_t>(n) > kMaxPunchRanges) {
    count(world.counters.would_crash);
    return EINVAL;
  }
  const auto file = world.files.of_fd(fd, world.config().chunk_bytes);
  if (file == nullptr) return errno;
  for (int i = 0; i < n; ++i) {
    const int failed = file->punch(start[i], end[i]);
    if (failed != 0) return -failed;
  }
  return 0;
}

LARDER_FAKE_EXPORT int larder_hf3fs_posix_open(const char* path, int flags, mode_t mode) {
  World& world = World::get();
  if (const int refused = world.next_call(__func__)) return -refused;
  const FakeConfig& config = world.config();
  if (!world.alive()) return -ENOTCONN;
  if (config.max_fds != 0 && world.fds.opened() >= config.max_fds) return -EMFILE;
  const bool writable = (flags & O_ACCMODE) != O_RDONLY;
  if (config.read_only && (writable || (flags & (O_CREAT | O_TRUNC)) != 0)) return -EROFS;
  const int fd = ::open(path, flags & ~O_TRUNC, mode);
  if (fd < 0) return -errno;
  std::shared_ptr<FakeFile> file = is_on_fake_mount(fd) ? world.files.of_fd(fd, config.chunk_bytes) : nullptr;
  if (file != nullptr && (flags & O_TRUNC) != 0) (void)file->truncate(0);
  if (file != nullptr) world.fds.note_open(fd, writable, world.daemon_life(), std::move(file));
  return fd;
}

LARDER_FAKE_EXPORT int larder_hf3fs_posix_close(int fd) {
  World& world = World::get();
  const auto [file, writable] = world.fds.note_close(fd);
  if (file != nullptr && writable && world.alive()) file->sync_length();  // the close of a written file is an fsync
  const int refused = world.next_call(__func__);
  return ::close(fd) == 0 ? -refused : -errno;  // one that fails has closed it all the same
}

LARDER_FAKE_EXPORT int larder_hf3fs_posix_ftruncate(int fd, std::uint64_t length) {
  World& world = World::get();
  if (const int refused = world.next_call(__func__)) return -refused;
  if (const int dead = check_daemon(world)) return dead;
  if (world.config().read_only) return -EROFS;
  const auto file = is_on_fake_mount(fd) ? world.files.of_fd(fd, world.config().chunk_bytes) : nullptr;
  if (file != nullptr) return file->truncate(length);
  return ::ftruncate(fd, static_cast<off_t>(length)) == 0 ? 0 : -errno;
}

LARDER_FAKE_EXPORT int larder_hf3fs_posix_fsync(int fd) {
  World& world = World::get();
  if (const int refused = world.next_call(__func__)) return -refused;
  if (const int dead = check_daemon(world)) return dead;
  const auto file = world.files.find(fd);
  if (file == nullptr) return ::fsync(fd) == 0 ? 0 : -errno;
  file->sync_length();
  return 0;
}

LARDER_FAKE_EXPORT std::int64_t larder_hf3fs_posix_file_size(int fd) {
  World& world = World::get();
  if (const int refused = world.next_call(__func__)) return -refused;
  if (const int dead = check_daemon(world)) return dead;
  const auto file = world.files.find(fd);
  if (file != nullptr) {
    return static_cast<std::int64_t>(file->length(world.now_ms(), world.config().lazy_length_ms));
  }
  struct stat info = {};
  return ::fstat(fd, &info) == 0 ? static_cast<std::int64_t>(info.st_size) : -errno;
}

LARDER_FAKE_EXPORT int larder_hf3fs_posix_unlink(const char* path) {
  World& world = World::get();
  if (const int refused = world.next_call(__func__)) return -refused;
  if (const int dead = check_daemon(world)) return dead;
  if (world.config().read_only) return -EROFS;
  return ::unlink(path) == 0 ? 0 : -errno;
}

}  // namespace larder::hf3fs
