// SPDX-License-Identifier: Apache-2.0
// Continuous batching over the cache and the reference engine: chunked prefill, decode, sampling.
//
// Purpose: the request loop. One thread owns cache, pools and engine: it admits requests (prefetching ones wait aside,
// woken by the cache), builds steps, samples, streams tokens.
// Threads: submit, cancel, finish and the admin calls from any thread; callbacks run on the scheduler thread and must
// not block. Limits: max_queued_requests waiting, max_running_requests running; more: kOverloaded.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "controller/cache.h"
#include "engine/composition.h"
#include "engine/options.h"
#include "engine/reference/reference_engine.h"
#include "engine/reference/sampler.h"

namespace larder {

struct GenerateRequest {
  std::vector<TokenId> tokens;
  std::uint64_t max_new_tokens = 128;
  bool ignore_eos = false;
  double temperature = 0;  // 0: greedy
  double top_p = 1;
  std::uint32_t top_k = 0;  // 0: all
  std::optional<std::uint64_t> seed;
  std::vector<TokenId> stop_tokens;
  std::string adapter, salt;
  std::int32_t priority = 0;
  std::optional<bool> will_return{};  // BeginRequest
  bool is_probe = false;              // asks whether the engine works: no user's, and not in the numbers
};

enum class FinishReason : std::uint8_t { kRunning, kLength, kStop, kAbort };

// A request ends with exactly one update whose `finish` is not kRunning.
struct GenerateUpdate {
  std::vector<TokenId> new_tokens;  // since the last update; the end-of-sequence or stop token is one of them
  CachedTokens cached;
  std::uint64_t completion_tokens = 0;
  FinishReason finish = FinishReason::kRunning;
  Status status;             // not ok: the request failed; last update
  double ttft_seconds = 0;   // from submit to the first token; valid once completion_tokens > 0
  double queue_seconds = 0;  // of that, before start() succeeded
};

struct TierUsage {
  std::string tier;       // "device", "host", "storage"
  std::string component;  // "full", ...; "" for storage totals
  std::uint64_t slots = 0, capacity = 0, bytes = 0, capacity_bytes = 0;
  std::uint64_t evictable = 0;  // device: of the slots, those cached that nobody uses
};
// Where routers hear of pages that come and go.
struct KvEventsView {
  std::string endpoint, replay_endpoint;  // with the ports that the system chose
  std::string topic;
};
struct StorageView {
  std::string backend;  // "": none
  std::string extra_config, prefetch_policy, write_policy;
  bool is_detaching = false;                        // a detach waits for operations in flight
  std::uint64_t retired = 0;                        // detached backends with operations in flight, nobody waits for
  std::string last_backend{}, last_extra_config{};  // where none is attached: the one that was detached last
};

struct SchedulerStats {
  std::uint64_t running = 0, queued = 0;
  std::uint64_t prompt_tokens = 0, completion_tokens = 0;
  CachedTokens cached;  // sums
  std::vector<TierUsage> tiers;
  CacheCounters cache;
  StorageView storage_in_force;
  std::optional<BackendStats> storage;
  std::optional<PipelineHealth> storage_health;
  std::uint64_t storage_retired = 0;      // detached backends that wait for their last operations
  std::optional<KvEventsView> kv_events;  // none: nobody is told
};

// A storage backend attached while the server runs. Empty policies keep what the process was started with.
struct AttachRequest {
  std::string backend;       // as --hicache-storage-backend
  std::string extra_config;  // as --hicache-storage-backend-extra-config; empty: attach_storage() says
  std::string prefetch_policy, write_policy;
  bool replace = false;  // another backend is attached: this one takes its place, then that one is detached
  bool probe = true;     // write, read back and compare a few pages before it is used
};
// A backend that is open and has passed its probe, and is not in use (yet, or any more). Dropping it closes it, and
// waits for operations in flight. Null: none.
struct PreparedStorage {
  AttachRequest request;
  std::unique_ptr<StoragePipeline> backend;
  BackendOptions options;  // of `backend`, as request.extra_config said when it was opened: an @file may change
};

class Scheduler {
 public:
  using Update = std::function<void(const GenerateUpdate&)>;
  using Ticket = std::uint64_t;

  // Builds model, pools, device, transfer, cache, engine and storage from the options and starts the loop.
  // files/clock: injected; both outlive the scheduler.
  [[nodiscard]] static Result<std::unique_ptr<Scheduler>> create(const Options& options, FileSystem& files,
                                                                 Clock& clock, MetricsRegistry& metrics,
                                                                 const MoreBackends& more = nullptr,
                                                                 const OpenDevice& open = open_device);
  virtual ~Scheduler() = default;  // stops the loop, aborts what runs, flushes backups for a bounded time

  // kInvalidArgument: empty prompt, token id >= vocab, prompt + max_new_tokens beyond the context or the device.
  // kOverloaded: full. kInternal: health().
  [[nodiscard]] virtual Result<Ticket> submit(GenerateRequest request, Update update) = 0;
  virtual void cancel(Ticket ticket) = 0;
  // Its caller has all that it wants, a stop string for instance: the request ends well, with kStop, where cancel() is
  // a request that was aborted. Both: nothing, if it has ended. Updates may come until its last one has.
  virtual void finish(Ticket ticket) = 0;

  // Drops device and host content; waits until no request runs or `limit` is over (kDeadlineExceeded: nothing done).
  [[nodiscard]] virtual Status flush(Nanos limit) = 0;
  // Waits until all backups have reached storage (or limit).
  [[nodiscard]] virtual Status quiesce(Nanos limit) = 0;
  // Attach and detach work under load: no request waits for them. They block the caller, at most for `limit` and what
  // it takes to open or close the backend. An attach that fails changes nothing. Without an extra configuration: that
  // of the attached backend stays (one that replaces it has none); the last one that was attached comes back with its
  // own, where none is; any other has none. kInvalidArgument: no host tier, unknown backend or option. kConflict:
  // another one is attached (and not to be replaced), or still detaching. kUnsupported: a prefetch limit other than the
  // process's. kCancelled: end_waits(). Else why the backend could not be opened, or failed its probe.
  [[nodiscard]] virtual Status attach_storage(const AttachRequest& request, Nanos limit) = 0;
  // Ok also if none is attached. Waits for operations in flight until `limit`; what is in flight then keeps its buffers
  // and its backend until it ends (StorageView::retired), and another backend can be attached at once.
  [[nodiscard]] virtual Status detach_storage(Nanos limit) = 0;
  // The steps of an attach, for those who switch several schedulers at once (engine/storage_switch.h): open and probe;
  // switch to it (or to none), which gives back what was attached, with operations of it perhaps in flight; let go of
  // that without waiting for them.
  [[nodiscard]] virtual Result<PreparedStorage> prepare_storage(const AttachRequest& request, Nanos limit) = 0;
  [[nodiscard]] virtual Result<PreparedStorage> switch_storage(PreparedStorage next, Nanos limit) = 0;
  virtual void retire_storage(PreparedStorage previous) = 0;
  // Drops every page of the attached store, of all models and servers that use it: what adapters and tenants of a model
  // are stored, nobody can tell, as their namespaces are hashes. kInvalidArgument: none is attached.
  [[nodiscard]] virtual Status clear_storage(Nanos limit) = 0;
  // As stats(): does not block for long.
  [[nodiscard]] virtual StorageView storage() = 0;
  // kInvalidArgument: a prompt that submit() refuses, whatever its max_new_tokens.
  [[nodiscard]] virtual Result<Explanation> explain(const GenerateRequest& request, Nanos limit) = 0;
  // Who waits in flush(), quiesce(), detach_storage(), clear_storage() or explain() gets kCancelled soon; what they
  // asked for may still be carried out. Calls that begin later wait as ever. An attach goes on while it opens its
  // backend and tries it out, and then changes nothing.
  virtual void end_waits() = 0;
  // Never blocks for long: when the loop is busy with a long step, the answer is that of an earlier call.
  [[nodiscard]] virtual SchedulerStats stats() = 0;
  // kInternal: an exception has ended the loop, for good. Its requests have ended with this status, and every call gets
  // it. One short lock.
  [[nodiscard]] virtual Status health() const { return Status::ok(); }

  [[nodiscard]] virtual const ModelSpec& model() const = 0;
  [[nodiscard]] virtual const Options& options() const = 0;
};

}  // namespace larder
