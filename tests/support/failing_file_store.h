// SPDX-License-Identifier: Apache-2.0
// A file store on simulated files of which single operations can be made to fail; killed, or cut off from its power.
// Threads: the test's. Header only.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "sim/hooked_files.h"
#include "storage/file/file_backend.h"
#include "storage/file/segment_format.h"

namespace larder::file_store {

class FailureTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(register_file_backend(factory_).is_ok());
    scope_ = std::make_shared<StoreScope>();
    scope_->namespace_digest.bytes[0] = 1;
    scope_->set_pool(PoolName::kKv, Digest256{{2}});
  }
  void TearDown() override { backend_.reset(); }
  // Without a seal or a sync. What was written is there for the next process.
  void kill() {
    files_->inner.fail_nth(1, sim::FileFault::kIoError, 1'000'000'000);
    backend_.reset();
    files_->inner.clear_fault();
  }
  void cut_power() {
    kill();
    files_->inner.crash();
  }
  void open(Executor& executor, BackendOptions options = {}) {
    options.insert({{"directory", "/d"}, {"segment_size", "64Ki"}});
    auto opened = factory_.create("file", options, {files_.get(), &clock_, &executor, {}});
    ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
    backend_ = std::move(opened).value();
  }
  static PageKey key(std::uint64_t i) {
    PageKey k;
    store_le<std::uint64_t>(k.bytes.data() + 8, i + 1);
    return k;
  }
  static std::vector<std::byte> content_of(std::uint64_t i, std::size_t bytes) {
    return std::vector<std::byte>(bytes, static_cast<std::byte>(i));
  }
  // A page's bytes are of its number. kInternal: it has not ended.
  std::shared_ptr<Status> begin_put(std::uint64_t i, std::size_t bytes, bool is_durable = false) {
    auto status = std::make_shared<Status>(internal_error("no callback"));
    auto content = std::make_shared<std::vector<std::byte>>(content_of(i, bytes));
    WriteRequest request{scope_, {}, is_durable, {}};
    request.groups.push_back({{{PoolName::kKv, key(i), {{content->data(), content->size()}}, PageKey{}}}});
    const Status taken = backend_->submit_write(std::move(request),
                                                [status, content](const WriteResult& r) { *status = r.groups.at(0); });
    if (!taken.is_ok()) *status = taken;
    return status;
  }
  Status put(std::uint64_t i, std::size_t bytes, bool is_durable = false) { return *begin_put(i, bytes, is_durable); }
  std::shared_ptr<Status> begin_get(std::uint64_t i, std::size_t bytes) {
    auto status = std::make_shared<Status>(internal_error("no callback"));
    auto content = std::make_shared<std::vector<std::byte>>(bytes);
    const Status taken = backend_->submit_read(
        {scope_, {{PoolName::kKv, key(i), {{content->data(), content->size()}}}}, {}},
        [status, content, i](const ReadResult& r) {
          *status = r.items.at(0);
          EXPECT_TRUE(!status->is_ok() || *content == content_of(i, content->size())) << "wrong bytes of page " << i;
        });
    if (!taken.is_ok()) *status = taken;
    return status;
  }
  Status get(std::uint64_t i, std::size_t bytes) { return *begin_get(i, bytes); }
  std::size_t segments_on_disk() {
    std::size_t count = 0;
    const std::vector<std::string> names = files_->list("/d").value();
    for (const std::string& name : names) count += parse_segment_name(name) ? 1 : 0;
    return count;
  }

  std::unique_ptr<sim::HookedFiles> files_ = std::make_unique<sim::HookedFiles>(3);
  ManualClock clock_;
  BackendFactory factory_;
  std::shared_ptr<StoreScope> scope_;
  std::unique_ptr<StorageBackend> backend_;
};

}  // namespace larder::file_store
