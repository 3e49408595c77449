// What the storage conformance suite needs from a backend under test, and helpers to talk to it.
//
// A harness owns the environment (executor, files, clock) and opens the backend in it, again and again for persistent
// ones. Threads: the test's thread; with a thread pool the callbacks come from elsewhere, which the helpers wait for.
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
#include "storage/factory.h"

namespace larder::conformance {

class StorageHarness {
 public:
  virtual ~StorageHarness() = default;
  // Opens the store (of a persistent backend: with what earlier ones left). `extra` overrides the harness's options.
  [[nodiscard]] virtual Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra = {}) = 0;
  // Runs what was posted, if the harness's executor must be told to. With threads: nothing.
  virtual void drain() = 0;
  // Does drain() decide when tasks run? Then tests can look at the state in between.
  [[nodiscard]] virtual bool is_manual() const = 0;
  // Does a group that is evicted leave as a whole? Not if its pools have budgets of their own.
  [[nodiscard]] virtual bool evicts_whole_groups() const { return true; }
  // Flips bits in stored bytes; returns how many. 0: this backend has nothing to flip bits in.
  virtual std::size_t flip_stored_bits(Rng& rng, std::size_t flips) {
    (void)rng, (void)flips;
    return 0;
  }
};

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

// A page's content, cut into odd pieces; the bytes follow from (key, pool, generation), so a mix-up shows.
class PageBuffer {
 public:
  PageBuffer(std::size_t bytes, std::size_t pieces, Rng& rng);
  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
  void fill(const PageKey& key, PoolName pool, std::uint64_t salt = 0);
  [[nodiscard]] bool holds(const PageKey& key, PoolName pool, std::uint64_t salt = 0) const;

 private:
  std::vector<std::vector<std::byte>> pieces_;
  std::vector<Segment> segments_;
};

// A scope with the pools kv, swa, mamba, indexer and deepseek_v4_c4, made of `number`.
[[nodiscard]] std::shared_ptr<const StoreScope> test_scope(std::uint64_t number);
[[nodiscard]] PageKey test_key(std::uint64_t number);

// Submit, drain, wait. A refused submit is a test failure.
[[nodiscard]] ExistsResult exists(StorageHarness& harness, StorageBackend& backend, ExistsRequest request);
[[nodiscard]] ReadResult read(StorageHarness& harness, StorageBackend& backend, ReadRequest request);
[[nodiscard]] WriteResult write(StorageHarness& harness, StorageBackend& backend, WriteRequest request);
[[nodiscard]] Status clear(StorageHarness& harness, StorageBackend& backend, std::shared_ptr<const StoreScope> scope);

// The seed of this run: LARDER_TEST_SEED, or a fixed one. Printed by tests that fail.
[[nodiscard]] std::uint64_t test_seed();

}  // namespace larder::conformance
