// SPDX-License-Identifier: Apache-2.0
// Everything under a cache that takes no time: pages that nobody may touch, instant copies, instant or silent storage.
//
// Threads: confined, with the cache. Lifetime: a world owns its parts and outlives nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/cache.h"
#include "controller/kv_events.h"
#include "storage/backend.h"

namespace larder {

// Memory that is an address range and nothing else: what reads or writes it ends the program.
[[nodiscard]] std::unique_ptr<MemorySource> no_memory();

// Copies nothing and says so at once. The leases that a real engine takes would be dropped in the next poll.
class InstantTransfer final : public TransferEngine {
 public:
  explicit InstantTransfer(std::uint32_t layers) : layers_(layers) {}
  [[nodiscard]] Status submit(TransferRequest request, Done done) override;
  [[nodiscard]] std::size_t in_flight() const override { return 0; }

 private:
  const std::uint32_t layers_;
};

// What a storage answers, at once.
enum class InstantAnswer : std::uint8_t {
  kNothing,  // it takes every page, and has none
  kAll,      // it takes every page, and has all
  kSilence,  // it keeps what it is asked for until the destructor, which cancels it
};

class InstantStorage final : public StorageBackend {
 public:
  explicit InstantStorage(InstantAnswer answer) : answer_(answer) {}
  ~InstantStorage() override;
  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  [[nodiscard]] BackendStats stats() const override { return {}; }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

 private:
  const InstantAnswer answer_;
  BackendInfo info_{.name = "instant"};
  std::vector<ExistsDone> waiting_;
};

struct CacheWorldSizes {
  ComponentCounts device{};
  std::uint64_t host_pages = 0;  // of full, and room for as many windows and half as many states; 0: no host tier
  bool has_storage = false;
  bool has_events = false;
  InstantAnswer answer = InstantAnswer::kNothing;
  CacheConfig config;
};

// Takes events as fast as they come, and forgets them.
class ForgetfulSink final : public KvEventSink {
 public:
  Wish wish() override { return Wish::kChanges; }
  void take(std::vector<KvEvent>) override {}
  bool wants_all_components() const override { return true; }
};

struct CacheWorld {
  ModelSpec model;
  ForgetfulSink events;
  std::unique_ptr<MemorySource> memory;
  std::unique_ptr<DevicePools> device;
  std::unique_ptr<HostPools> host;
  std::unique_ptr<InstantTransfer> transfer;
  std::unique_ptr<InstantStorage> storage;
  ManualClock clock;  // stands still, so that nothing is late
  std::unique_ptr<Cache> cache;
};

// `shape`: full, full+swa (a window of 128 tokens) or full+mamba. Pages of a few bytes.
[[nodiscard]] Result<ModelSpec> bench_model(const std::string& shape, std::uint32_t page_size);
[[nodiscard]] Result<std::unique_ptr<CacheWorld>> make_cache_world(const ModelSpec& model,
                                                                   const CacheWorldSizes& sizes);

}  // namespace larder
