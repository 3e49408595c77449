// SPDX-License-Identifier: Apache-2.0
// A model, its engine and a cache with three tiers, driven by hand; and the same model without any cache, as the truth.
//
// Everything runs on the test's thread (unless asked otherwise): copies and storage operations on an inline executor,
// files in memory. So a test of a tier is exact about what came from where.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "controller/cache.h"
#include "engine/reference/reference_engine.h"
#include "pool/pool_test_util.h"
#include "storage/factory.h"

namespace larder::exactness {

using Tokens = std::vector<TokenId>;

[[nodiscard]] Tokens random_tokens(std::uint64_t seed, std::size_t count, std::uint32_t vocab);
// All presets that the reference engine computes, with and without draft.
[[nodiscard]] std::vector<std::string> tiny_presets();

// Bytes of one slot of a component: every pool, layer and plane.
[[nodiscard]] std::string slot_bytes(const DevicePools& pools, ComponentKind c, DeviceSlot slot);

struct StepLogits {
  std::vector<float> main, draft;
  friend bool operator==(const StepLogits&, const StepLogits&) = default;
};

// The model alone: every page and every page boundary's state is kept, nothing is ever reused.
class Truth {
 public:
  Truth(const ModelSpec& model, std::size_t most_tokens);

  // Processes tokens after those it has processed; logits of the last one.
  StepLogits feed(std::span<const TokenId> tokens);
  // Feeds `tokens`, then samples greedily until `count` tokens came out. The last one is not fed.
  // logits[i] decided output i.
  Tokens generate(std::span<const TokenId> tokens, std::size_t count, std::vector<StepLogits>& logits);
  [[nodiscard]] const Tokens& tokens() const { return tokens_; }
  // Page `page` of full or swa; for mamba the state after `page` whole pages.
  [[nodiscard]] std::string bytes(ComponentKind c, std::uint64_t page) const;

 private:
  ModelSpec model_;
  std::unique_ptr<DevicePools> pools_;
  std::unique_ptr<ReferenceEngine> engine_;
  PageTable table_;
  std::map<std::uint64_t, DeviceSlot> states_;  // by page boundary
  Tokens tokens_;
};

struct RigOptions {
  HostLayout layout = HostLayout::kPageFirst;
  ComponentCounts device = {16, 16, 8};  // slots
  double host_ratio = 8;
  CacheConfig config;
  StorageBackend* storage = nullptr;               // shared with other rigs; outlives the rig
  std::optional<pool_test::Lending> lending = {};  // the engine lends its memory, and keeps slot 0 of each component
  bool real_threads = false;                       // copies run beside the engine, which waits for them layer by layer
};

struct RunOptions {
  std::string adapter = {}, salt = {};
  std::uint64_t chunk = 1 << 20;       // tokens per prefill step
  const Truth* truth = nullptr;        // restored bytes are compared with it
  std::optional<PoolName> spoil = {};  // the last restored page of this pool is damaged before the engine runs
};

struct RunResult {
  CachedTokens cached;
  Tokens output;
  std::vector<StepLogits> logits;  // logits[i] decided output i
  std::uint64_t pages_compared = 0;
};

class Rig {
 public:
  Rig(const ModelSpec& model, const RigOptions& options);
  ~Rig();

  // One request from begin to finish, greedy. Failures are reported to the test.
  RunResult run(const Tokens& prompt, std::size_t max_new_tokens, const RunOptions& options = {});
  // The prompt to its end; from there as many forks as `first` has tokens, each of which is fed one of them, and then
  // what it samples itself, `count` tokens in all; and the request itself, greedy. All in turns. Outputs after the
  // prompt, that of the request last; no limit of the device may be met.
  std::vector<RunResult> run_forks(const Tokens& prompt, const Tokens& first, std::size_t count);
  // Applies completions until nothing is in flight.
  void settle();
  // Pushes everything cached off the device with a request for other tokens. It is not computed: its pages hold
  // whatever was there, and nobody asks for them again.
  void press_device(std::uint64_t seed);
  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] const ModelSpec& model() const { return model_; }

 private:
  bool start(RequestId id, RunResult& result);
  Result<StepGrant> prepare(RequestId id, std::uint64_t until);
  using Look = std::function<void(const StepGrant&)>;
  // One step over tokens [from, until); logits of the last one, or nothing: the test has failed.
  std::optional<StepLogits> compute(RequestId id, const Tokens& tokens, std::uint64_t from, std::uint64_t until,
                                    const Look& look);
  void spoil_restored(const StepGrant& grant, std::uint64_t restored, PoolName pool);
  void compare_restored(const StepGrant& grant, std::uint64_t restored, const Truth& truth, RunResult& result);

  ModelSpec model_;
  ManualClock clock_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<pool_test::LentBytes> lent_;  // null: none is lent
  std::unique_ptr<DevicePools> device_pools_;
  std::unique_ptr<HostPools> host_pools_;
  std::unique_ptr<TransferEngine> transfer_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<ReferenceEngine> engine_;
};

// Backends for rigs to share, on files in memory.
class Stores {
 public:
  Stores();
  ~Stores();
  // "memory", "file" or "hf3fs" (on the fake library, with a journal); the latter two reopen what an earlier one left.
  // nullptr: the test has failed.
  [[nodiscard]] std::unique_ptr<StorageBackend> open(const std::string& name, BackendOptions options = {});

 private:
  void name_files_on_mount(BackendOptions& options);
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace larder::exactness
