// What a tree lets go on the host goes back to its pools. For tests of rooms, which have no device.
#pragma once

#include <gtest/gtest.h>

#include <span>

#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder::test {

struct HostSink final : SlotSink {
  HostPools* host = nullptr;
  void free_device(ComponentKind, std::span<const DeviceSlot>) override {}
  void free_host(ComponentKind c, std::span<const HostSlot> slots) override {
    for (const HostSlot slot : slots) EXPECT_TRUE(host->free(c, slot).is_ok());
  }
};

}  // namespace larder::test
