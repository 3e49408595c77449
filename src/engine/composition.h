// SPDX-License-Identifier: Apache-2.0
// Everything between an engine and its bytes, built from options.
//
// Picture (an arrow: needs; members stand in the order of construction, and die in the reverse one):
//
//   copy_threads ◄─ device ◄─ device_pools ◄─┬─ transfer ◄─ cache
//                             host_pools  ◄──┤              │
//                       storage (pipeline) ◄─┴──────────────┘
//
// Threads: create() on any one thread; afterwards the cache and both pools belong to the cache thread, the rest is used
// through them. attach and detach at run time replace `storage` (scheduler_admin.cc).
// Lifetime: on the heap, because members point at each other; files, clock and metrics outlive it. The destructor waits
// for copies and storage operations in flight (rule 3: their buffers are in host_pools).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/metrics.h"
#include "base/ranked_mutex.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "controller/cache.h"
#include "engine/options.h"
#include "events/kv_event_publisher.h"
#include "model/model_spec.h"
#include "pool/device_pools.h"
#include "pool/host_pools.h"
#include "storage/factory.h"
#include "storage/pipeline/storage_pipeline.h"
#include "transfer/device.h"
#include "transfer/transfer.h"

namespace larder {

// Registers backends of a host program (or of a test) besides those of this build (door/register_backends.h).
using MoreBackends = std::function<Status(BackendFactory&)>;

// A backend that was detached while operations of it were in flight. Its buffers and itself live until they have ended.
// Threads: any.
class RetiredBackend {
 public:
  explicit RetiredBackend(std::unique_ptr<StorageBackend> backend) : backend_(std::move(backend)) {}
  // Closes it, which may write to a disk, if nothing of it is in flight.
  void try_to_close() LARDER_EXCLUDES(mutex_);
  // Waits for what is in flight, then closes it.
  void end() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_gone() const LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    return is_gone_;
  }
  std::atomic<bool> is_posted{false};  // somebody will try to close it

 private:
  [[nodiscard]] bool take(bool waits) LARDER_EXCLUDES(mutex_);
  void give_back() LARDER_EXCLUDES(mutex_);

  std::unique_ptr<StorageBackend> backend_;  // of who has taken it; null: gone
  mutable RankedMutex mutex_{LockRank::kEngine};
  RankedCondition given_back_;
  bool is_taken_ LARDER_GUARDED_BY(mutex_) = false, is_gone_ LARDER_GUARDED_BY(mutex_) = false;
};

// Opens what --device names; copy_threads outlive it. Errors: kInvalidArgument (no such name), as open_cuda_device().
[[nodiscard]] Result<std::unique_ptr<Device>> open_device(const Options& options, Executor& copy_threads);
// Tests open a simulated one instead.
using OpenDevice = std::function<Result<std::unique_ptr<Device>>(const Options& options, Executor& copy_threads)>;

// Device slots that the options ask for. Components that the model lacks get 0.
[[nodiscard]] ComponentCounts device_slots(const Options& options, const ModelSpec& model);
// Host bytes that the options ask for: --hicache-size, or the ratio of what the device holds.
[[nodiscard]] std::size_t host_bytes(const Options& options, std::size_t device_bytes);

struct Composition {
  // Waits for every operation in flight, those of retired backends too: they use the host pools. A storage that hangs
  // for ever keeps it for ever.
  ~Composition();
  Composition(const Composition&) = delete;
  Composition& operator=(const Composition&) = delete;
  // Errors: as the parts say; messages name the options. Allocates and touches all memory: seconds for many GiB.
  [[nodiscard]] static Result<std::unique_ptr<Composition>> create(const Options& options, FileSystem& files,
                                                                   Clock& clock, MetricsRegistry& metrics,
                                                                   const MoreBackends& more = nullptr,
                                                                   const OpenDevice& open = open_device);
  // A backend of this process, behind a pipeline, with threads of its own: one that hangs holds up no other. Opening a
  // persistent one reads its disk: not on the cache thread.
  [[nodiscard]] Result<std::unique_ptr<StoragePipeline>> make_backend(std::string_view name,
                                                                      const BackendOptions& options) const;
  // Takes a detached backend that may have operations in flight. Cache thread.
  void retire(std::unique_ptr<StorageBackend> backend);
  // Closes, on the closing threads, those whose operations have ended; forgets those that are closed. Cache thread;
  // cheap when there are none.
  void close_retired();

  // const after create
  Options options;
  ModelSpec model;
  CacheConfig config;
  FileSystem* files = nullptr;
  Clock* clock = nullptr;
  MetricsRegistry* metrics = nullptr;
  BackendFactory factory;
  // the stage's parts
  std::unique_ptr<ThreadPoolExecutor> copy_threads;
  std::unique_ptr<ThreadPoolExecutor> closing_threads;  // of retired backends
  std::unique_ptr<Device> device;
  std::unique_ptr<DevicePools> device_pools;
  std::unique_ptr<HostPools> host_pools;     // null: no host tier
  std::unique_ptr<StoragePipeline> storage;  // null: none attached; owned by the cache thread once it runs
  BackendOptions storage_options;            // of the storage that create() opened; const after it
  std::vector<std::shared_ptr<RetiredBackend>> retired;
  std::unique_ptr<TransferEngine> transfer;
  std::unique_ptr<KvEventPublisher> events;  // null: nobody is told of pages
  std::unique_ptr<Cache> cache;

 private:
  Composition() = default;
  [[nodiscard]] Status build_pools(const OpenDevice& open);
  [[nodiscard]] Status open_events();
  [[nodiscard]] Status build_cache(const ExtraConfig& extra);
};

}  // namespace larder
