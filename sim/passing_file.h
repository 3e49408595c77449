// SPDX-License-Identifier: Apache-2.0
// A file that passes every call on: what wraps one overrides the calls that it means.
//
// Threads: as the file inside.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/file_system.h"

namespace larder::sim {

class PassingFile : public File {
 public:
  explicit PassingFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  [[nodiscard]] Result<std::size_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    return file_->read_at(into, offset);
  }
  [[nodiscard]] Result<std::size_t> readv_at(std::span<const std::span<std::byte>> into,
                                             std::uint64_t offset) override {
    return file_->readv_at(into, offset);
  }
  [[nodiscard]] Result<std::size_t> write_at(std::span<const std::byte> from, std::uint64_t offset) override {
    return file_->write_at(from, offset);
  }
  [[nodiscard]] Result<std::size_t> writev_at(std::span<const std::span<const std::byte>> from,
                                              std::uint64_t offset) override {
    return file_->writev_at(from, offset);
  }
  [[nodiscard]] Status sync_data() override { return file_->sync_data(); }
  [[nodiscard]] Status sync_all() override { return file_->sync_all(); }
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override { return file_->truncate(size_bytes); }
  [[nodiscard]] Status allocate(std::uint64_t offset, std::uint64_t length_bytes) override {
    return file_->allocate(offset, length_bytes);
  }
  [[nodiscard]] Result<std::uint64_t> size_bytes() const override { return file_->size_bytes(); }
  [[nodiscard]] const std::string& path() const override { return file_->path(); }
  [[nodiscard]] int native_handle() const override { return file_->native_handle(); }

 private:
  const std::unique_ptr<File> file_;
};

}  // namespace larder::sim
