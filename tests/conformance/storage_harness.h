// SPDX-License-Identifier: Apache-2.0
// Harnesses of this project's backends for the conformance suite, and helpers for other tests to talk to a backend.
//
// Threads: the test's thread; with a thread pool the callbacks come from elsewhere, which the helpers wait for.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "storage/backend.h"
#include "storage/conformance/harness.h"
#include "storage/factory.h"

namespace larder::conformance {

// Executor, clock and factory for harnesses.
class HarnessBase : public StorageHarness {
 public:
  // threads == 0: a ManualExecutor that takes a random task each step.
  HarnessBase(std::size_t threads, std::uint64_t seed);
  void drain() override;
  [[nodiscard]] bool is_manual() const override { return manual_ != nullptr; }

 protected:
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> create(std::string_view name, BackendOptions options,
                                                               const BackendOptions& extra, FileSystem* files);
  // Of backends that want one: as their options say.
  [[nodiscard]] virtual Result<std::shared_ptr<MetadataService>> open_service(const MetadataOptions& options);
  BackendFactory factory_;
  ManualClock clock_;
  std::unique_ptr<ManualExecutor> manual_;
  std::unique_ptr<ThreadPoolExecutor> pool_;
};

struct BackendUnderTest {
  std::string name;  // of the test instance
  std::function<std::unique_ptr<StorageHarness>(std::uint64_t seed)> make;
  friend void PrintTo(const BackendUnderTest& backend, std::ostream* out) { *out << backend.name; }
};

// Fixed ones, for tests that are no checks.
[[nodiscard]] inline std::shared_ptr<const StoreScope> test_scope(std::uint64_t number) {
  return check_scope(0, number);
}
[[nodiscard]] inline PageKey test_key(std::uint64_t number) { return check_key(0, number); }

// Submit, drain, wait. A refused submit is a test failure.
[[nodiscard]] ExistsResult exists(StorageHarness& harness, StorageBackend& backend, ExistsRequest request);
[[nodiscard]] ReadResult read(StorageHarness& harness, StorageBackend& backend, ReadRequest request);
[[nodiscard]] WriteResult write(StorageHarness& harness, StorageBackend& backend, WriteRequest request);
[[nodiscard]] Status clear(StorageHarness& harness, StorageBackend& backend, std::shared_ptr<const StoreScope> scope);

// For StorageHarness::flip_stored_bits(): in any of these files, or in any segment of a file store's directory.
std::size_t flip_bits(FileSystem& files, const std::vector<std::string>& paths, Rng& rng, std::size_t flips);
std::size_t flip_bits_of_segments(FileSystem& files, const std::string& directory, Rng& rng, std::size_t flips);

// The seed of this run: LARDER_TEST_SEED, or a fixed one. Printed by tests that fail.
[[nodiscard]] std::uint64_t test_seed();

}  // namespace larder::conformance
