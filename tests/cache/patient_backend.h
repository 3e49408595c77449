// SPDX-License-Identifier: Apache-2.0
// What tests of rooms work with in place of a cache: a storage that answers when the test says so, and a host with what
// keeps its books.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "controller/host_room.h"
#include "sim/sim_clock.h"
#include "tests/support/passing_backend.h"

namespace larder {

// Keeps each write until the test answers it.
class PatientBackend final : public support::StubBackend {
 public:
  struct Write {
    WriteRequest request;
    WriteDone done;
  };
  std::vector<Write> writes;  // not answered yet
  std::size_t submitted = 0;

  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    ++submitted;
    writes.push_back({std::move(request), std::move(done)});
    return Status::ok();
  }
};

struct HostSink final : SlotSink {
  HostPools* host = nullptr;
  void free_device(ComponentKind, std::span<const DeviceSlot>) override {}
  void free_host(ComponentKind c, std::span<const HostSlot> slots) override {
    for (const HostSlot slot : slots) EXPECT_TRUE(host->free(c, slot).is_ok());
  }
};

class HostRig {
 protected:
  HostRig(ModelSpec model, std::size_t host_bytes)
      : model_(std::move(model)),
        host_(std::move(HostPools::create(model_, HostLayout::kPageFirst, host_bytes, host_memory_source())).value()) {
    sink_.host = host_.get();
    const NamespaceScope scope;
    space_ = tree_.spaces().open(namespace_digest(model_, scope), {}, PathHash());
    spaces_.add({"", ""}, space_, std::make_shared<const StoreScope>(make_store_scope(model_, scope)));
  }
  virtual ~HostRig() = default;
  [[nodiscard]] virtual OutcomeBits outcome_of(Op& op) {
    return op.kind == OpKind::kStore ? backlog_.outcome_of(op) : OutcomeBits{1};
  }

  sim::SimClock clock_;
  const ModelSpec model_;
  const std::unique_ptr<HostPools> host_;
  HostSink sink_;
  RadixTree tree_{tree_config_for(model_, EvictionPolicy::kLru, false), sink_};
  SpaceTable spaces_;
  NamespaceId space_;
  OpTable ops_{{.max_operations = 256}, clock_, nullptr, [this](Op& op) { return outcome_of(op); }};
  CacheConfig config_;
  CacheCounters counters_;
  CacheMetrics metrics_{nullptr};
  StoreBacklog backlog_{config_, {model_, host_.get(), tree_, ops_, spaces_, clock_, counters_, metrics_}};
  HostRoom room_{{model_, host_.get(), tree_, backlog_, counters_}};
};

}  // namespace larder
