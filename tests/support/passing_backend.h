// SPDX-License-Identifier: Apache-2.0
// A storage backend that passes everything on: tests override what theirs does otherwise.
// Threads, lifetime, errors: those of the inner one. Header only.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "storage/backend.h"

namespace larder::support {

class PassingBackend : public StorageBackend {
 public:
  explicit PassingBackend(std::unique_ptr<StorageBackend> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] const BackendInfo& info() const override { return inner_->info(); }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return inner_->submit_exists(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return inner_->submit_read(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return inner_->submit_write(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return inner_->submit_clear(std::move(scope), std::move(done));
  }
  [[nodiscard]] BackendStats stats() const override { return inner_->stats(); }
  [[nodiscard]] ClearMark clear_mark() const override { return inner_->clear_mark(); }
  [[nodiscard]] ClearMark emptied_mark() const override { return inner_->emptied_mark(); }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override { return inner_->close(limit); }

 protected:
  const std::unique_ptr<StorageBackend> inner_;
};

}  // namespace larder::support
