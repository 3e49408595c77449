// SPDX-License-Identifier: Apache-2.0
// The open file and the lock of SimFileSystem. Internal to sim_file_system; use the File interface.
#pragma once

#include "sim/sim_file_system.h"

namespace larder::sim {

class SimFile final : public File {
 public:
  SimFile(SimFileSystem& files, std::shared_ptr<SimFileSystem::Node> node, std::string path, const OpenOptions& options,
          std::uint64_t epoch);

  [[nodiscard]] Result<std::size_t> read_at(std::span<std::byte> into, std::uint64_t offset) override;
  [[nodiscard]] Result<std::size_t> readv_at(std::span<const std::span<std::byte>> into, std::uint64_t offset) override;
  [[nodiscard]] Result<std::size_t> write_at(std::span<const std::byte> from, std::uint64_t offset) override;
  [[nodiscard]] Result<std::size_t> writev_at(std::span<const std::span<const std::byte>> from,
                                              std::uint64_t offset) override;
  [[nodiscard]] Status sync_data() override;
  [[nodiscard]] Status sync_all() override { return sync_data(); }
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override;
  [[nodiscard]] Status allocate(std::uint64_t offset, std::uint64_t length_bytes) override;
  [[nodiscard]] Result<std::uint64_t> size_bytes() const override;
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int native_handle() const override { return -1; }

 private:
  // Dead after a crash; read only; counted and perhaps failed. Ok, or why the call ends here.
  [[nodiscard]] Status admit(const char* operation, bool writes, bool& faulted) LARDER_REQUIRES(files_.mutex_);
  [[nodiscard]] Status check_direct(const void* address, std::size_t length, std::uint64_t offset) const;

  SimFileSystem& files_;
  const std::shared_ptr<SimFileSystem::Node> node_;
  const std::string path_;
  const OpenOptions options_;
  const std::uint64_t epoch_;
};

class SimFileLock final : public FileLock {
 public:
  SimFileLock(SimFileSystem& files, std::string path, std::uint64_t epoch)
      : files_(files), path_(std::move(path)), epoch_(epoch) {}
  ~SimFileLock() override {
    LockGuard guard(files_.mutex_);
    if (files_.epoch_ == epoch_) files_.locks_.erase(path_);
  }

 private:
  SimFileSystem& files_;
  const std::string path_;
  const std::uint64_t epoch_;
};

}  // namespace larder::sim
