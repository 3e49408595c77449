// SPDX-License-Identifier: Apache-2.0
// What tests of rooms work with in place of a cache: a storage that answers when the test says so, and a sink.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "pool/host_pools.h"
#include "storage/backend.h"
#include "tree/tree.h"

namespace larder {

// Keeps each write until the test answers it.
class PatientBackend final : public StorageBackend {
 public:
  struct Write {
    WriteRequest request;
    WriteDone done;
  };
  std::vector<Write> writes;  // not answered yet
  std::size_t submitted = 0;

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest, ExistsDone) override { return unsupported("no"); }
  [[nodiscard]] Status submit_read(ReadRequest, ReadDone) override { return unsupported("no"); }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    ++submitted;
    writes.push_back({std::move(request), std::move(done)});
    return Status::ok();
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope>, ClearDone) override { return unsupported("no"); }
  [[nodiscard]] BackendStats stats() const override { return {}; }
  [[nodiscard]] Status close(std::chrono::nanoseconds) override { return Status::ok(); }

 private:
  const BackendInfo info_{.name = "patient"};
};

struct HostSink final : SlotSink {
  HostPools* host = nullptr;
  void free_device(ComponentKind, std::span<const DeviceSlot>) override {}
  void free_host(ComponentKind c, std::span<const HostSlot> slots) override {
    for (const HostSlot slot : slots) EXPECT_TRUE(host->free(c, slot).is_ok());
  }
};

}  // namespace larder
