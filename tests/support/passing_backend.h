// SPDX-License-Identifier: Apache-2.0
// Storage backends of which tests override what theirs does otherwise. Header only.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "storage/backend.h"

namespace larder::support {

// Passes everything on. Threads, lifetime, errors: those of the inner one.
class PassingBackend : public StorageBackend {
 public:
  explicit PassingBackend(std::unique_ptr<StorageBackend> inner) : owned_(std::move(inner)), inner_(owned_.get()) {}
  // Another keeps it, for longer.
  explicit PassingBackend(StorageBackend& inner) : inner_(&inner) {}
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

 private:
  const std::unique_ptr<StorageBackend> owned_;

 protected:
  StorageBackend* const inner_;
};

// Has nothing, can nothing, and keeps no state.
class StubBackend : public StorageBackend {
 public:
  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest, ExistsDone) override { return unsupported("no"); }
  [[nodiscard]] Status submit_read(ReadRequest, ReadDone) override { return unsupported("no"); }
  [[nodiscard]] Status submit_write(WriteRequest, WriteDone) override { return unsupported("no"); }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope>, ClearDone done) override {
    done(Status::ok());
    return Status::ok();
  }
  [[nodiscard]] BackendStats stats() const override { return {}; }
  [[nodiscard]] Status close(std::chrono::nanoseconds) override { return Status::ok(); }

 private:
  const BackendInfo info_{.name = "stub"};
};

}  // namespace larder::support
