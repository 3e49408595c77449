// SPDX-License-Identifier: Apache-2.0
// The system's files, of which those of one folder have so much room together and no more.
//
// Threads: any. Who writes at once to several of its files may get a little more.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "sim/passing_file.h"

namespace larder::llama::relay_test {

class SmallFolder final : public FileSystem {
 public:
  explicit SmallFolder(std::string directory) : directory_(std::move(directory)) {}
  void limit(std::uint64_t bytes) { limit_ = bytes; }
  [[nodiscard]] std::uint64_t used_bytes() {
    std::uint64_t sum = 0;
    for (const std::string& name : inner_.list(directory_).value_or({})) {
      sum += inner_.stat(join_path(directory_, name)).value_or({}).size_bytes;
    }
    return sum;
  }

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, const OpenOptions& options) override {
    auto file = inner_.open(path, options);
    if (!file.is_ok() || parent_path(path) != directory_) return file;
    return std::unique_ptr<File>(std::make_unique<SmallFile>(*this, std::move(*file)));
  }
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override {
    return inner_.rename(from, to);
  }
  [[nodiscard]] Status remove(const std::string& path) override { return inner_.remove(path); }
  [[nodiscard]] Result<std::vector<std::string>> list(const std::string& directory) override {
    return inner_.list(directory);
  }
  [[nodiscard]] Status make_dirs(const std::string& directory) override { return inner_.make_dirs(directory); }
  [[nodiscard]] Status sync_dir(const std::string& directory) override { return inner_.sync_dir(directory); }
  [[nodiscard]] Result<FileInfo> stat(const std::string& path) override { return inner_.stat(path); }
  [[nodiscard]] Result<SpaceInfo> space(const std::string& path) override {
    if (path != directory_) return inner_.space(path);
    return SpaceInfo{limit_, free_bytes()};
  }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> lock(const std::string& path) override { return inner_.lock(path); }

 private:
  class SmallFile final : public sim::PassingFile {
   public:
    SmallFile(SmallFolder& folder, std::unique_ptr<File> file) : PassingFile(std::move(file)), folder_(folder) {}
    [[nodiscard]] Result<std::size_t> write_at(std::span<const std::byte> from, std::uint64_t offset) override {
      const std::uint64_t most = size_bytes().value_or(0) + folder_.free_bytes();
      if (offset >= most && !from.empty()) return overloaded("the folder is full");
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(from.size(), most - offset));
      return PassingFile::write_at(from.first(count), offset);
    }

   private:
    SmallFolder& folder_;
  };
  [[nodiscard]] std::uint64_t free_bytes() {
    const std::uint64_t used = used_bytes();
    return limit_ - std::min<std::uint64_t>(limit_, used);
  }

  FileSystem& inner_ = real_file_system();
  const std::string directory_;
  std::atomic<std::uint64_t> limit_ = std::uint64_t{1} << 40;
};

}  // namespace larder::llama::relay_test
