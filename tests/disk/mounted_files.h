// SPDX-License-Identifier: Apache-2.0
// Two simulated disks, one mounted in a directory of the other: the mount may go and come back, and become read-only.
//
// Files that are open stay those of the disk they were opened on, as with a lazy unmount. A read-only disk refuses
// every change with EROFS, also through files that are open.
// Threads: all calls from any thread.
#pragma once

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/passing_file.h"
#include "sim/sim_file_system.h"

namespace larder::disk {

class MountedFiles final : public FileSystem {
 public:
  // Precondition of the paths that come: absolute, without "." and "..".
  MountedFiles(std::string mount_point, std::uint64_t seed, std::uint64_t capacity_bytes = std::uint64_t{1} << 40)
      : mount_point_(std::move(mount_point)), disk(seed, capacity_bytes), below(seed) {
    EXPECT_TRUE(disk.make_dirs(mount_point_));
    EXPECT_TRUE(below.make_dirs(mount_point_));
  }

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, const OpenOptions& options) override {
    if (options.write) LARDER_RETURN_IF_ERROR(check_writable("open", path));
    Result<std::unique_ptr<File>> file = at(path).open(path, options);
    if (!file.is_ok() || !is_on_disk(path)) return file;
    return std::unique_ptr<File>(std::make_unique<MountedFile>(*this, std::move(file).value()));
  }
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override {
    LARDER_RETURN_IF_ERROR(check_writable("rename", from));
    return at(from).rename(from, to);
  }
  [[nodiscard]] Status remove(const std::string& path) override {
    LARDER_RETURN_IF_ERROR(check_writable("remove", path));
    return at(path).remove(path);
  }
  [[nodiscard]] Result<std::vector<std::string>> list(const std::string& directory) override {
    return at(directory).list(directory);
  }
  [[nodiscard]] Status make_dirs(const std::string& directory) override {
    if (stat(directory).is_ok()) return Status::ok();
    LARDER_RETURN_IF_ERROR(check_writable("mkdir", directory));
    return at(directory).make_dirs(directory);
  }
  [[nodiscard]] Status sync_dir(const std::string& directory) override { return at(directory).sync_dir(directory); }
  [[nodiscard]] Result<FileInfo> stat(const std::string& path) override {
    Result<FileInfo> info = at(path).stat(path);
    if (info.is_ok()) info->device_id = is_on_disk(path) ? disk_device.load() : 1;
    return info;
  }
  [[nodiscard]] Result<SpaceInfo> space(const std::string& path) override { return at(path).space(path); }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    LARDER_RETURN_IF_ERROR(check_writable("lock", path));
    return at(path).lock(path);
  }

 private:
  const std::string mount_point_;  // before `disk`: its constructor needs it

 public:
  sim::SimFileSystem disk, below;
  std::atomic<bool> is_mounted{true}, is_read_only{false};
  std::atomic<std::uint64_t> disk_device{2};  // a network disk may have another number after each mount

 private:
  class MountedFile final : public sim::PassingFile {
   public:
    MountedFile(MountedFiles& files, std::unique_ptr<File> file) : PassingFile(std::move(file)), files_(files) {}
    [[nodiscard]] Result<std::size_t> write_at(std::span<const std::byte> from, std::uint64_t offset) override {
      LARDER_RETURN_IF_ERROR(check("write"));
      return PassingFile::write_at(from, offset);
    }
    [[nodiscard]] Result<std::size_t> writev_at(std::span<const std::span<const std::byte>> from,
                                                std::uint64_t offset) override {
      LARDER_RETURN_IF_ERROR(check("write"));
      return PassingFile::writev_at(from, offset);
    }
    [[nodiscard]] Status truncate(std::uint64_t size_bytes) override {
      LARDER_RETURN_IF_ERROR(check("truncate"));
      return PassingFile::truncate(size_bytes);
    }
    [[nodiscard]] Status allocate(std::uint64_t offset, std::uint64_t length_bytes) override {
      LARDER_RETURN_IF_ERROR(check("allocate"));
      return PassingFile::allocate(offset, length_bytes);
    }

   private:
    [[nodiscard]] Status check(const char* operation) const {
      return files_.is_read_only ? status_from_errno(EROFS, operation, path()) : Status::ok();
    }
    MountedFiles& files_;
  };

  [[nodiscard]] bool is_on_disk(const std::string& path) const {
    return is_mounted && (path == mount_point_ || path.starts_with(mount_point_ + "/"));
  }
  [[nodiscard]] FileSystem& at(const std::string& path) { return is_on_disk(path) ? disk : below; }
  [[nodiscard]] Status check_writable(const char* operation, const std::string& path) const {
    return is_on_disk(path) && is_read_only ? status_from_errno(EROFS, operation, path) : Status::ok();
  }
};

}  // namespace larder::disk
