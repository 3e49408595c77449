// SPDX-License-Identifier: Apache-2.0
// What is particular to the memory backend; the port's contract is in tests/conformance.
#include "storage/memory/memory_backend.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/executor.h"
#include "storage/conformance/harness.h"

namespace larder {
namespace {

TEST(MemoryBackend, WhatWasWrittenIsStoredOrEvicted) {
  constexpr std::uint64_t kGroups = 100, kPagesOfGroup = 3;
  InlineExecutor executor;
  ManualClock clock;
  BackendFactory factory;
  ASSERT_TRUE(register_memory_backend(factory).is_ok());
  const auto backend = factory.create("memory", {{"max_size", "64Ki"}}, {nullptr, &clock, &executor, {}});
  ASSERT_TRUE(backend.is_ok()) << backend.status().to_string();
  const auto scope = conformance::check_scope(1, 1);
  std::vector<std::byte> page(1000);
  std::uint64_t number = 0;
  for (std::uint64_t group = 0; group < kGroups; ++group) {
    WriteRequest request{scope, {}};
    PageGroup& out = request.groups.emplace_back();
    for (std::uint64_t i = 0; i < kPagesOfGroup; ++i) {
      out.items.push_back({PoolName::kKv, conformance::check_key(1, number++), {{page.data(), page.size()}}});
    }
    ASSERT_TRUE((*backend)
                    ->submit_write(std::move(request),
                                   [](const WriteResult& result) { EXPECT_TRUE(result.groups.at(0).is_ok()); })
                    .is_ok());
  }
  const BackendStats stats = (*backend)->stats();
  EXPECT_GT(stats.evicted, 0u);
  EXPECT_EQ(stats.pages + stats.evicted, kGroups * kPagesOfGroup);
  EXPECT_EQ(stats.capacity_bytes, std::uint64_t{64} << 10);
  EXPECT_LE(stats.physical_bytes, stats.capacity_bytes);
}

}  // namespace
}  // namespace larder
