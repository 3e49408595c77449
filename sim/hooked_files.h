// SPDX-License-Identifier: Apache-2.0
// Simulated files, of which single operations can be made to fail by what they are and what they are done to.
//
// Threads: confined to one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "sim/passing_file.h"
#include "sim/sim_file_system.h"

namespace larder::sim {

class HookedFiles final : public FileSystem {
 public:
  explicit HookedFiles(std::uint64_t seed, std::uint64_t capacity_bytes = std::uint64_t{1} << 40)
      : inner(seed, capacity_bytes) {}
  SimFileSystem inner;
  // Asked before a file is made, opened to be read only, given room, read, synced, and removed, and before a directory
  // is synced. Not ok: the operation ends so, and nothing happened.
  std::function<Status(const std::string&path)> before_create, before_open, before_allocate, before_read, before_sync,
      before_remove, before_sync_dir;
  // What is said of the disk's space instead of the truth.
  std::function<SpaceInfo(SpaceInfo)> change_space;

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, const OpenOptions& options) override {
    if (options.create && before_create) LARDER_RETURN_IF_ERROR(before_create(path));
    if (!options.write && before_open) LARDER_RETURN_IF_ERROR(before_open(path));
    Result<std::unique_ptr<File>> file = inner.open(path, options);
    if (!file.is_ok()) return file;
    return std::unique_ptr<File>(std::make_unique<HookedFile>(*this, std::move(file).value()));
  }
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override {
    return inner.rename(from, to);
  }
  [[nodiscard]] Status remove(const std::string& path) override {
    if (before_remove) LARDER_RETURN_IF_ERROR(before_remove(path));
    return inner.remove(path);
  }
  [[nodiscard]] Result<std::vector<std::string>> list(const std::string& directory) override {
    return inner.list(directory);
  }
  [[nodiscard]] Status make_dirs(const std::string& directory) override { return inner.make_dirs(directory); }
  [[nodiscard]] Status sync_dir(const std::string& directory) override {
    if (before_sync_dir) LARDER_RETURN_IF_ERROR(before_sync_dir(directory));
    return inner.sync_dir(directory);
  }
  [[nodiscard]] Result<FileInfo> stat(const std::string& path) override { return inner.stat(path); }
  [[nodiscard]] Result<SpaceInfo> space(const std::string& path) override {
    Result<SpaceInfo> space = inner.space(path);
    if (space.is_ok() && change_space) return change_space(*space);
    return space;
  }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> lock(const std::string& path) override { return inner.lock(path); }

 private:
  class HookedFile final : public PassingFile {
   public:
    HookedFile(HookedFiles& files, std::unique_ptr<File> file) : PassingFile(std::move(file)), files_(files) {}
    [[nodiscard]] Result<std::size_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
      if (files_.before_read) LARDER_RETURN_IF_ERROR(files_.before_read(path()));
      return PassingFile::read_at(into, offset);
    }
    [[nodiscard]] Result<std::size_t> readv_at(std::span<const std::span<std::byte>> into,
                                               std::uint64_t offset) override {
      if (files_.before_read) LARDER_RETURN_IF_ERROR(files_.before_read(path()));
      return PassingFile::readv_at(into, offset);
    }
    [[nodiscard]] Status allocate(std::uint64_t offset, std::uint64_t length_bytes) override {
      if (files_.before_allocate) LARDER_RETURN_IF_ERROR(files_.before_allocate(path()));
      return PassingFile::allocate(offset, length_bytes);
    }
    [[nodiscard]] Status sync_data() override {
      if (files_.before_sync) LARDER_RETURN_IF_ERROR(files_.before_sync(path()));
      return PassingFile::sync_data();
    }
    [[nodiscard]] Status sync_all() override {
      if (files_.before_sync) LARDER_RETURN_IF_ERROR(files_.before_sync(path()));
      return PassingFile::sync_all();
    }

   private:
    HookedFiles& files_;
  };
};

}  // namespace larder::sim
