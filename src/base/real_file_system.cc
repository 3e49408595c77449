// SPDX-License-Identifier: Apache-2.0
// FileSystem on POSIX calls. Each call restarts on EINTR.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_system.h"

namespace larder {
namespace {

using StatBuffer = struct ::stat;
using SpaceBuffer = struct ::statvfs;

constexpr std::size_t kMaxBuffers = 1024;  // IOV_MAX

// Calls `call` until it does not end with EINTR.
template <class Call>
auto retry(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// Owns a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

class RealFile final : public File {
 public:
  RealFile(Descriptor descriptor, std::string path) : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  [[nodiscard]] Result<std::size_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    return count_or_error("read", retry([&] { return ::pread(fd(), into.data(), into.size(), signed_of(offset)); }));
  }

  [[nodiscard]] Result<std::size_t> readv_at(std::span<const std::span<std::byte>> into,
                                             std::uint64_t offset) override {
    iovec buffers[kMaxBuffers];
    if (into.size() > kMaxBuffers) return invalid_argument("read " + path_ + ": more than 1024 buffers");
    for (std::size_t i = 0; i < into.size(); ++i) buffers[i] = {into[i].data(), into[i].size()};
    const int count = static_cast<int>(into.size());
    return count_or_error("read", retry([&] { return ::preadv(fd(), buffers, count, signed_of(offset)); }));
  }

  [[nodiscard]] Result<std::size_t> write_at(std::span<const std::byte> from, std::uint64_t offset) override {
    return count_or_error("write", retry([&] { return ::pwrite(fd(), from.data(), from.size(), signed_of(offset)); }));
  }

  [[nodiscard]] Result<std::size_t> writev_at(std::span<const std::span<const std::byte>> from,
                                              std::uint64_t offset) override {
    iovec buffers[kMaxBuffers];
    if (from.size() > kMaxBuffers) return invalid_argument("write " + path_ + ": more than 1024 buffers");
    for (std::size_t i = 0; i < from.size(); ++i) {
      buffers[i] = {const_cast<std::byte*>(from[i].data()), from[i].size()};  // iovec serves both ways
    }
    const int count = static_cast<int>(from.size());
    return count_or_error("write", retry([&] { return ::pwritev(fd(), buffers, count, signed_of(offset)); }));
  }

  [[nodiscard]] Status sync_data() override {
    return done("fdatasync", retry([&] { return ::fdatasync(fd()); }));
  }
  [[nodiscard]] Status sync_all() override {
    return done("fsync", retry([&] { return ::fsync(fd()); }));
  }

  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override {
    return done("truncate", retry([&] { return ::ftruncate(fd(), signed_of(size_bytes)); }));
  }

  [[nodiscard]] Status allocate(std::uint64_t offset, std::uint64_t length_bytes) override {
    return done("allocate", retry([&] { return ::fallocate(fd(), 0, signed_of(offset), signed_of(length_bytes)); }));
  }

  [[nodiscard]] Result<std::uint64_t> size_bytes() const override {
    StatBuffer info{};
    if (::fstat(fd(), &info) != 0) return status_from_errno(errno, "stat", path_);
    return static_cast<std::uint64_t>(info.st_size);
  }

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int native_handle() const override { return fd(); }

 private:
  [[nodiscard]] int fd() const { return descriptor_.get(); }
  // Offsets beyond 2^63 become negative, and the system answers EINVAL.
  static off_t signed_of(std::uint64_t offset) { return static_cast<off_t>(offset); }
  [[nodiscard]] Result<std::size_t> count_or_error(const char* operation, ssize_t result) const {
    if (result < 0) return status_from_errno(errno, operation, path_);
    return static_cast<std::size_t>(result);
  }
  [[nodiscard]] Status done(const char* operation, int result) const {
    return result == 0 ? Status::ok() : status_from_errno(errno, operation, path_);
  }

  const Descriptor descriptor_;
  const std::string path_;
};

// Closing the descriptor alone would leave the lock with a forked child that still has a copy of it.
class RealFileLock final : public FileLock {
 public:
  explicit RealFileLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  ~RealFileLock() override {
    if (::getpid() == owner_) (void)retry([&] { return ::flock(descriptor_.get(), LOCK_UN); });
  }

 private:
  const Descriptor descriptor_;
  const pid_t owner_ = ::getpid();  // a child that ends must not take the lock from its parent
};

int flags_of(const OpenOptions& options) {
  int flags = O_CLOEXEC | (options.write ? O_RDWR : O_RDONLY);
  if (options.create) flags |= O_CREAT;
  if (options.create && options.exclusive) flags |= O_EXCL;
  if (options.write && options.truncate) flags |= O_TRUNC;
  if (options.direct) flags |= O_DIRECT;
  return flags;
}

class RealFileSystem final : public FileSystem {
 public:
  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, const OpenOptions& options) override {
    const mode_t mode = options.for_others ? 0644 : 0600;
    Descriptor descriptor(retry([&] { return ::open(path.c_str(), flags_of(options), mode); }));
    if (descriptor.get() < 0) return status_from_errno(errno, "open", path);
    return std::unique_ptr<File>(std::make_unique<RealFile>(std::move(descriptor), path));
  }

  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return status_from_errno(errno, "rename to " + to + ",", from);
    return Status::ok();
  }

  [[nodiscard]] Status remove(const std::string& path) override {
    if (::unlink(path.c_str()) == 0) return Status::ok();
    const int error = errno;
    if (error == EISDIR && ::rmdir(path.c_str()) == 0) return Status::ok();
    return status_from_errno(error == EISDIR ? errno : error, "remove", path);
  }

  [[nodiscard]] Result<std::vector<std::string>> list(const std::string& directory) override {
    DIR* handle = ::opendir(directory.c_str());
    if (handle == nullptr) return status_from_errno(errno, "list", directory);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(handle)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(handle);
    if (error != 0) return status_from_errno(error, "list", directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  [[nodiscard]] Status make_dirs(const std::string& directory) override {
    for (std::size_t end = 0; end != std::string::npos;) {
      end = directory.find('/', end + 1);
      const std::string prefix = directory.substr(0, end);
      if (::mkdir(prefix.c_str(), 0700) == 0) continue;
      if (errno != EEXIST) return status_from_errno(errno, "mkdir", prefix);
    }
    LARDER_ASSIGN_OR_RETURN(const FileInfo info, stat(directory));
    return info.is_directory ? Status::ok() : status_from_errno(ENOTDIR, "mkdir", directory);
  }

  [[nodiscard]] Status sync_dir(const std::string& directory) override {
    const Descriptor descriptor(retry([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (descriptor.get() < 0) return status_from_errno(errno, "open directory", directory);
    if (retry([&] { return ::fsync(descriptor.get()); }) != 0) return status_from_errno(errno, "fsync", directory);
    return Status::ok();
  }

  [[nodiscard]] Result<FileInfo> stat(const std::string& path) override {
    StatBuffer info{};
    if (::stat(path.c_str(), &info) != 0) return status_from_errno(errno, "stat", path);
    return FileInfo{static_cast<std::uint64_t>(info.st_size), S_ISDIR(info.st_mode), info.st_dev,
                    (info.st_mode & S_IROTH) != 0};
  }

  [[nodiscard]] Result<SpaceInfo> space(const std::string& path) override {
    SpaceBuffer info{};
    if (::statvfs(path.c_str(), &info) != 0) return status_from_errno(errno, "statvfs", path);
    return SpaceInfo{info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize};
  }

  [[nodiscard]] Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    Descriptor descriptor(retry([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); }));
    if (descriptor.get() < 0) return status_from_errno(errno, "open", path);
    if (retry([&] { return ::flock(descriptor.get(), LOCK_EX | LOCK_NB); }) != 0) {
      if (errno == EWOULDBLOCK) return conflict("lock " + path + ": held by another process or backend");
      return status_from_errno(errno, "lock", path);
    }
    return std::unique_ptr<FileLock>(std::make_unique<RealFileLock>(std::move(descriptor)));
  }
};

}  // namespace

FileSystem& real_file_system() {
  static RealFileSystem files;
  return files;
}

}  // namespace larder
