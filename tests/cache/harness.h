// SPDX-License-Identifier: Apache-2.0
// A cache with everything under it, and an engine that does not compute but knows what every byte must be.
//
// Each page's bytes are a pattern of (tokens up to its end, namespace, pool, layer, plane): when a request resumes, the
// harness checks every restored byte against the pattern, so a wrong page, a stale slot or a half-done copy is seen at
// once. Time, threads and I/O are under the test's control: copies and storage run on a ManualExecutor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/rng.h"
#include "controller/cache.h"
#include "pool/pool_test_util.h"
#include "storage/factory.h"
#include "tests/cache/faults.h"

namespace larder::test {

// A model small enough for a million operations: page size 4, a few dozen bytes per page and layer.
enum class Shape { kFull, kFullSwa, kFullMamba, kAll, kFullSidecar };
[[nodiscard]] ModelSpec small_model(Shape shape);
[[nodiscard]] std::string shape_name(Shape shape);

struct HarnessOptions {
  Shape shape = Shape::kFullMamba;
  HostLayout layout = HostLayout::kPageFirst;
  ComponentCounts device = {64, 64, 16};
  std::size_t host_slots = 128;  // full pages' worth of host bytes; 0: no host tier
  bool storage = true;
  std::string backend = "memory";
  BackendOptions backend_options;
  CacheConfig config;
  std::optional<std::uint64_t> seed;  // order of background tasks; nullopt: first in, first out
  RankGroup* ranks = nullptr;
  KvEventSink* events = nullptr;
  // Puts a faulty backend around the real one.
  std::function<std::unique_ptr<StorageBackend>(std::unique_ptr<StorageBackend>)> wrap_backend;
};

// n tokens; different ones for different `first`.
[[nodiscard]] std::vector<TokenId> prompt_of(std::size_t n, TokenId first = 0);
// Fetches and loads back whatever is there, in small chunks.
[[nodiscard]] HarnessOptions eager_options(Shape shape);

// How the engine treats one step: computes only a part of what was prepared, or does not tell that it did.
struct StepHabit {
  std::uint64_t leave = 0;  // tokens at the end of the chunk that are not computed
  bool completes = true;    // else its step stays open: Job::open
};

class Harness {
 public:
  explicit Harness(const HarnessOptions& options);
  ~Harness();

  struct Job {
    RequestId id;
    std::vector<TokenId> prompt;
    std::uint64_t new_tokens = 0;
    std::string salt;
    bool started = false;
    CachedTokens cached;
    std::vector<TokenId> tokens;  // prompt + "generated" so far
    std::uint64_t computed = 0;
    std::uint64_t resumed = 0;  // tokens that the last start gave back
    int retracts = 0;
    std::vector<StepToken> open;  // that advance() did not complete
    DeviceSlot spoilt;            // its working state, which such a step has changed
    // Copies of its page table that know what grants say has changed: all of them, and some.
    pool_test::StaleTable table, late_table;
    int restarts = 0;
  };

  // Begins a request; the job is driven by advance().
  [[nodiscard]] Job begin(std::vector<TokenId> prompt, std::uint64_t new_tokens, std::string salt = "");
  // One move: start it, or one step of up to `chunk` tokens. False: could not move now (kOverloaded, prefetching).
  [[nodiscard]] bool advance(Job& job, std::uint64_t chunk, StepHabit habit = {});
  [[nodiscard]] bool done(const Job& job) const { return job.started && job.computed == last_token(job); }
  void finish(Job& job) { cache->finish(job.id); }
  void cancel_open(Job& job);
  void retract(Job& job);  // advance() starts it again
  // Runs a job from begin to finish, running background tasks as needed.
  CachedTokens run(std::vector<TokenId> prompt, std::uint64_t new_tokens, std::string salt = "",
                   std::uint64_t chunk = 16);
  // Runs all background tasks and polls until nothing is in flight.
  void settle();
  // Invariants hold, and after a flush no slot of any tier is taken, leased or in quarantine. Empty, or what is wrong.
  std::string check_clean();
  // The same, after settle().
  std::string check_settled() {
    settle();
    return check_clean();
  }
  bool run_background(std::size_t tasks);
  // First broken expectation, empty if none. Checked by tests after each step.
  std::string failure;
  std::string refusal;  // why advance() could not move, the last time

  ModelSpec model;
  HarnessOptions options;
  ManualClock clock;
  ManualExecutor executor;
  std::unique_ptr<ScriptedDevice> device_api;
  std::unique_ptr<DevicePools> device;
  std::unique_ptr<HostPools> host;
  std::unique_ptr<TransferEngine> transfer;
  BackendFactory factory;
  std::unique_ptr<ScriptedBackend> backend;
  std::unique_ptr<Cache> cache;

 private:
  [[nodiscard]] static std::uint64_t last_token(const Job& job) {
    return job.new_tokens ? job.prompt.size() + job.new_tokens - 1 : job.prompt.size();
  }
  void update_tables(Job& job, const StepGrant& grant);
  [[nodiscard]] bool wait_for_gate(const StepGrant& grant);
  void write_page(const Job& job, ComponentKind c, std::uint64_t page, DeviceSlot slot);
  void write_state(const Job& job, std::uint64_t position, DeviceSlot slot);
  [[nodiscard]] bool take_back(Job& job);
  void check_restored(const Job& job, const StepGrant& grant);
  // Writes what the slot must hold, or compares.
  void fill(const Job& job, ComponentKind c, std::uint64_t tokens, DeviceSlot slot, bool check);
};

// Runs the request, waits until storage has its pages, and takes them from the tiers above.
inline void store_only(Harness& h, const std::vector<TokenId>& prompt, const std::string& salt = "") {
  (void)h.run(prompt, 4, salt);
  h.settle();
  (void)h.cache->flush();
}

// Polls until the request has its answer, as far as it gets without any time passing.
inline void look(Harness& h) {
  for (int i = 0; i < 20; ++i) (void)h.run_background(100);
}

}  // namespace larder::test
