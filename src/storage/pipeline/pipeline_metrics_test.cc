// SPDX-License-Identifier: Apache-2.0
// Gauges that several pipelines of one name and registry share, as while one store replaces another.
#include "storage/pipeline/pipeline_metrics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>

#include "storage/pipeline/pipeline_test_util.h"
#include "storage/pipeline/storage_pipeline.h"

namespace larder {
namespace {

using namespace pipeline_test;

class PipelineMetricsTest : public testing::Test {
 protected:
  struct Store {
    HoldingBackend* inner = nullptr;
    std::unique_ptr<StoragePipeline> pipeline;
    void begin_read(std::uint8_t tag) const {
      ASSERT_TRUE(pipeline->submit_read(read_of(tag), [](const ReadResult&) {}).is_ok());
    }
    // With one failure its breaker of reads opens.
    void fail_read() const {
      begin_read(200);
      inner->answer_tag(200, unavailable("the disk is gone"));
    }
  };
  Store open() {
    PipelineOptions options;
    options.breaker.failures = 1;
    options.breaker.jitter_percent = 0;
    auto inner = std::make_unique<HoldingBackend>();
    HoldingBackend* const kept = inner.get();
    return {kept, make_pipeline(std::move(inner), options, clock_, &metrics_, 7)};
  }
  double state_of_reads() {
    return metrics_.gauge("larder_storage_breaker_state", "", {{"backend", "holding"}, {"direction", "read"}}).value();
  }
  double masked() { return metrics_.gauge("larder_storage_negative_entries", "", {{"backend", "holding"}}).value(); }

  ManualClock clock_{std::chrono::seconds(1000)};
  MetricsRegistry metrics_;
};

// An attach that is given up must not hide that the store in use is not asked.
TEST_F(PipelineMetricsTest, TheEndOfAnotherStoreLeavesTheBreakerOpen) {
  const Store used = open();
  used.fail_read();
  EXPECT_EQ(state_of_reads(), 2);
  {
    const Store tried = open();
    EXPECT_EQ(state_of_reads(), 2);
    tried.fail_read();
    EXPECT_EQ(state_of_reads(), 2) << "no sum";
  }
  EXPECT_EQ(state_of_reads(), 2);
  clock_.advance(std::chrono::minutes(2));
  used.begin_read(1);  // the probe
  EXPECT_EQ(state_of_reads(), 1);
  used.inner->answer_tag(1);
  EXPECT_EQ(state_of_reads(), 0);
}

// One that is let go while it hangs says nothing of the one that has its place.
TEST_F(PipelineMetricsTest, AStoreThatIsClosedSaysNothingOfTheNext) {
  Store old = open();
  old.begin_read(1);
  old.fail_read();
  EXPECT_EQ(state_of_reads(), 2);
  EXPECT_EQ(old.pipeline->close(Nanos(0)).code(), StatusCode::kDeadlineExceeded) << "one read is in flight";
  EXPECT_EQ(state_of_reads(), 0);
  const Store next = open();
  old.inner->answer_tag(1, unavailable("late"));
  EXPECT_EQ(state_of_reads(), 0);
  next.fail_read();
  EXPECT_EQ(state_of_reads(), 2);
  old.pipeline.reset();
  EXPECT_EQ(state_of_reads(), 2);
}

TEST_F(PipelineMetricsTest, MaskedPagesAreCountedTogether) {
  const Store one = open();
  one.fail_read();
  EXPECT_EQ(masked(), 1);
  {
    const Store other = open();
    EXPECT_EQ(masked(), 1);
    other.fail_read();
    EXPECT_EQ(masked(), 2);
  }
  EXPECT_EQ(masked(), 1);
}

}  // namespace
}  // namespace larder
