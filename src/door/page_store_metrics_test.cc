// SPDX-License-Identifier: Apache-2.0
// What a page store tells Prometheus of its backend: all that the alerts of packaging/prometheus look at.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "door/page_store.h"
#include "tests/support/passing_backend.h"

namespace larder {
namespace {

class CountingBackend final : public support::StubBackend {
 public:
  [[nodiscard]] BackendStats stats() const override {
    BackendStats stats;
    stats.pages = 11;
    stats.physical_bytes = 12;
    stats.capacity_bytes = 13;
    stats.segments = 14;
    stats.suspended_volumes = 15;
    stats.evicted = 16;
    stats.written_bytes = 17;
    stats.read_errors = 18;
    stats.write_errors = 19;
    return stats;
  }
};

TEST(PageStoreMetrics, WhatTheBackendCountsIsThere) {
  BackendFactory factory;
  ASSERT_TRUE(factory
                  .add("counting", {},
                       [](const BackendOptions&, const BackendEnvironment&) -> Result<std::unique_ptr<StorageBackend>> {
                         return std::unique_ptr<StorageBackend>(std::make_unique<CountingBackend>());
                       })
                  .is_ok());
  const auto store = PageStore::open({"counting", "", {}}, &factory).value();
  const std::string text = store->metrics_text();
  for (const char* const line :
       {"larder_door_store_pages 11\n", "larder_door_store_bytes{what=\"used\"} 12\n",
        "larder_door_store_bytes{what=\"limit\"} 13\n", "larder_door_store_segments 14\n",
        "larder_door_store_suspended_volumes 15\n", "larder_door_store_evicted_pages_total 16\n",
        "larder_door_store_written_bytes_total 17\n", "larder_door_store_errors_total{op=\"read\"} 18\n",
        "larder_door_store_errors_total{op=\"write\"} 19\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "is not in\n" << text;
  }
  EXPECT_NE(text.find("# TYPE larder_door_store_suspended_volumes gauge\n"), std::string::npos);
  EXPECT_NE(text.find("# TYPE larder_door_store_evicted_pages_total counter\n"), std::string::npos);
}

}  // namespace
}  // namespace larder
