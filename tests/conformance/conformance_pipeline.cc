// SPDX-License-Identifier: Apache-2.0
// The storage pipeline under the conformance suite: it is a backend like any other, whatever is behind it.
#include <algorithm>
#include <string>

#include "base/metrics.h"
#include "sim/faulty_backend.h"
#include "storage/pipeline/storage_pipeline.h"
#include "tests/conformance/storage_conformance.h"

namespace larder::conformance {
namespace {

class PipelineHarness final : public HarnessBase {
 public:
  // is_narrow: limits of one operation, so that nearly everything waits. is_wrapped: a benign FaultyBackend in between.
  PipelineHarness(std::size_t threads, std::uint64_t seed, bool is_narrow, bool is_wrapped)
      : HarnessBase(threads, seed), seed_(seed), is_narrow_(is_narrow), is_wrapped_(is_wrapped) {}

  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    PipelineOptions options;
    // A close() cancels what waits: where the suite closes under load, everything has a place in flight.
    options.max_reads_in_flight = options.max_writes_in_flight = is_narrow_ ? 1 : 1000;
    options.max_exists_in_flight = 1;
    options.max_read_bytes_in_flight = options.max_write_bytes_in_flight = is_narrow_ ? 1000 : 0;
    BackendOptions inner_options = extra;
    if (const auto limit = inner_options.find("queue_limit"); limit != inner_options.end()) {
      // The suite counts operations taken: here those in flight and those that wait.
      options.max_writes_in_flight = 2;
      options.queue_limit = std::max<std::size_t>(std::stoul(limit->second), 3) - 2;
      inner_options.erase(limit);
    }
    auto inner = create("memory", {{"max_size", "64Mi"}}, inner_options, nullptr);
    if (!inner.is_ok()) return inner.status();
    std::unique_ptr<StorageBackend> backend = std::move(inner).value();
    if (is_wrapped_) backend = std::make_unique<sim::FaultyBackend>(std::move(backend), seed_);
    return std::unique_ptr<StorageBackend>(make_pipeline(std::move(backend), options, clock_, &metrics_, seed_));
  }

 private:
  const std::uint64_t seed_;
  const bool is_narrow_, is_wrapped_;
  MetricsRegistry metrics_;
};

BackendUnderTest variant(std::string name, std::size_t threads, bool is_narrow, bool is_wrapped) {
  return {std::move(name),
          [=](std::uint64_t seed) { return std::make_unique<PipelineHarness>(threads, seed, is_narrow, is_wrapped); }};
}

INSTANTIATE_TEST_SUITE_P(Pipeline, StorageConformance,
                         each_check({variant("Manual", 0, false, false), variant("Narrow", 0, true, false),
                                     variant("Threads", 3, false, false), variant("Wrapped", 0, false, true),
                                     variant("WrappedThreads", 3, false, true)}),
                         test_name);

}  // namespace
}  // namespace larder::conformance
