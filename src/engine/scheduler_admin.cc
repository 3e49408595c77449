// SPDX-License-Identifier: Apache-2.0
// What operators ask of the scheduler.
#include <openssl/rand.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "base/log.h"
#include "engine/scheduler_impl.h"
#include "storage/pipeline/probe.h"

namespace larder {
namespace {

// stats() asks this often at most; then the last answer must do.
constexpr Nanos kStatsWait = std::chrono::seconds(1);
// A backend that needs longer for a few pages is none that a request should wait for.
constexpr Nanos kProbeLimit = std::chrono::seconds(30);
// How long a switch waits for the operations of what it replaced.
constexpr Nanos kDrainLimit = std::chrono::seconds(1);

void add_device_usage(const Composition& parts, SchedulerStats& stats) {
  const ModelSpec& model = parts.model;
  for (const ComponentKind c : kAllComponents) {
    if (!model.has(c)) continue;
    TierUsage usage;
    usage.tier = "device";
    usage.component = component_name(c);
    usage.capacity = parts.device_pools->slots(c).capacity();
    usage.slots = usage.capacity - parts.device_pools->free_slots(c);
    usage.evictable = parts.cache->tree().counts(c, Tier::kDevice).evictable();
    usage.bytes = usage.slots * model.slot_bytes(c);
    usage.capacity_bytes = usage.capacity * model.slot_bytes(c);
    stats.tiers.push_back(std::move(usage));
  }
}

// The host's bytes are shared: each component's capacity is what it could have if it had all of them.
void add_host_usage(const Composition& parts, SchedulerStats& stats) {
  const HostPools* host = parts.host_pools.get();
  if (host == nullptr) return;
  for (const ComponentKind c : kAllComponents) {
    if (!parts.model.has(c) || host->blocks_per_slot(c) == 0) continue;
    const SlotTable::Counts counts = host->counts(c);
    TierUsage usage;
    usage.tier = "host";
    usage.component = component_name(c);
    usage.slots = counts.live + counts.quarantined;
    usage.capacity = host->total_blocks() / host->blocks_per_slot(c);
    usage.bytes = host->used_bytes(c);
    usage.capacity_bytes = host->total_blocks() * host->block_bytes();
    stats.tiers.push_back(std::move(usage));
  }
}

// Thresholds and time-outs are const in a cache. A request that names the current ones is fine, another one is refused,
// not ignored.
Status check_attach(const CacheConfig& config, const AttachRequest& request, const ExtraConfig& extra) {
  const auto check_policy = [](std::string_view field, const std::string& asked, bool known, std::string_view words) {
    if (asked.empty() || known) return Status::ok();
    return invalid_argument("Invalid " + std::string(field) + ": '" + asked + "'. Expected one of " +
                            std::string(words) + ".");
  };
  LARDER_RETURN_IF_ERROR(check_policy("hicache_storage_prefetch_policy", request.prefetch_policy,
                                      parse_prefetch_policy(request.prefetch_policy).has_value(),
                                      "['best_effort', 'wait_complete', 'timeout']"));
  LARDER_RETURN_IF_ERROR(check_policy("hicache_write_policy", request.write_policy,
                                      parse_write_policy(request.write_policy).has_value(),
                                      "['write_back', 'write_through', 'write_through_selective']"));
  const bool is_same =
      extra.prefetch_threshold.value_or(config.prefetch_threshold) == config.prefetch_threshold &&
      extra.prefetch_timeout_base.value_or(config.prefetch_timeout_base) == config.prefetch_timeout_base &&
      extra.prefetch_timeout_per_ki_token.value_or(config.prefetch_timeout_per_ki_token) ==
          config.prefetch_timeout_per_ki_token &&
      extra.prefetch_timeout_max.value_or(config.prefetch_timeout_max) == config.prefetch_timeout_max;
  if (is_same) return Status::ok();
  return unsupported(
      "prefetch_threshold and prefetch_timeout_* are fixed for the life of this process; give them at "
      "start (--hicache-storage-backend-extra-config), or leave them out");
}

// The extra configuration, after every check that needs no backend.
Result<ExtraConfig> parse_attach(const Composition& parts, const AttachRequest& request) {
  if (parts.host_pools == nullptr) return invalid_argument("Hierarchical cache is not enabled.");
  Result<ExtraConfig> extra =
      parse_extra_config(extra_config_source(request.backend, request.extra_config), *parts.files);
  if (!extra.is_ok()) {
    return invalid_argument("Failed to parse storage_backend_extra_config_json '" + request.extra_config +
                            "': " + extra.status().message());
  }
  LARDER_RETURN_IF_ERROR(check_attach(parts.config, request, *extra));
  LARDER_RETURN_IF_ERROR(check_library(parts.options, *extra, *parts.files));
  return extra;
}

// An extra configuration that is left out is the one that this backend was detached with.
AttachRequest with_last_config(AttachRequest request, const StorageView& now) {
  if (!request.extra_config.empty() || now.last_backend != request.backend || now.last_extra_config.empty()) {
    return request;
  }
  log_info("engine/storage", request.backend + " is attached with the extra configuration that it had last");
  request.extra_config = now.last_extra_config;
  return request;
}

}  // namespace

Status SchedulerImpl::call_status(std::function<void(Promise<Done>)> ask, Nanos limit) {
  Result<Done> answer = call<Done>(std::move(ask), limit);
  return answer.is_ok() ? std::move(answer).value().status : answer.status();
}

Status SchedulerImpl::flush(Nanos limit) {
  const TimePoint deadline = clock_.now() + limit;
  return call_status(
      [this, deadline](const Promise<Done>& promise) {
        if (is_flushing_) return promise->set_value({conflict("Another flush_cache is already in progress.")});
        is_flushing_ = true;
        const auto try_now = [this, promise] {
          const bool is_idle =
              loop_.running() == 0 && loop_.waiting() == 0 && parts_->cache->operations_in_flight() == 0;
          if (!is_idle) return false;
          (void)parts_->cache->flush();
          is_flushing_ = false;
          log_info("engine/cache", "flushed: device and host are empty");
          promise->set_value({});
          return true;
        };
        const auto expire = [this, promise] {
          is_flushing_ = false;
          promise->set_value(
              {deadline_exceeded("Timed out waiting for idle state. #running-req=" + std::to_string(loop_.running()) +
                                 " #queue-req=" + std::to_string(loop_.waiting()) +
                                 " #operations=" + std::to_string(parts_->cache->operations_in_flight()))});
        };
        waiters_.push_back({deadline, try_now, expire});
      },
      limit);
}

Status SchedulerImpl::quiesce(Nanos limit) {
  const TimePoint deadline = clock_.now() + limit;
  return call_status(
      [this, deadline](const Promise<Done>& promise) {
        const auto try_now = [this, promise] {
          if (parts_->cache->operations_in_flight() > 0) return false;
          promise->set_value({});
          return true;
        };
        const auto expire = [this, promise] {
          promise->set_value({deadline_exceeded(std::to_string(parts_->cache->operations_in_flight()) +
                                                " copies and storage operations are still in flight")});
        };
        waiters_.push_back({deadline, try_now, expire});
      },
      limit);
}

Result<Explanation> SchedulerImpl::explain(const GenerateRequest& request, Nanos limit) {
  LARDER_RETURN_IF_ERROR(check_prompt(request.tokens, 0));  // its pages are hashed on the loop's thread
  return call<Explanation>(
      [this, tokens = request.tokens, adapter = request.adapter,
       salt = request.salt](const Promise<Explanation>& promise) {
        BeginRequest begin;
        begin.tokens = tokens;
        begin.adapter = adapter;
        begin.salt = salt;
        parts_->cache->explain(begin, [promise](Explanation e) { promise->set_value(std::move(e)); });
      },
      limit);
}

SchedulerStats SchedulerImpl::stats() {
  Result<SchedulerStats> fresh =
      call<SchedulerStats>([this](const Promise<SchedulerStats>& promise) { promise->set_value(snapshot()); },
                           kStatsWait, CommandKind::kLooks);
  if (fresh.is_ok()) return std::move(fresh).value();
  LockGuard guard(mutex_);
  return last_stats_;
}

SchedulerStats SchedulerImpl::snapshot() {
  SchedulerStats stats;
  stats.running = loop_.running();
  stats.queued = loop_.waiting();
  stats.prompt_tokens = loop_.totals().prompt_tokens;
  stats.completion_tokens = loop_.totals().completion_tokens;
  stats.cached = loop_.totals().cached;
  stats.cache = parts_->cache->counters();
  add_device_usage(*parts_, stats);
  add_host_usage(*parts_, stats);
  if (parts_->storage) {
    stats.storage = parts_->storage->stats();
    stats.storage_health = parts_->storage->health();
    TierUsage usage;
    usage.tier = "storage";
    usage.slots = stats.storage->pages;
    usage.bytes = stats.storage->bytes;
    usage.capacity_bytes = stats.storage->capacity_bytes;
    stats.tiers.push_back(std::move(usage));
  }
  stats.storage_in_force = view_storage();
  stats.storage_retired = stats.storage_in_force.retired;
  if (parts_->events) {
    stats.kv_events = {parts_->events->endpoint(), parts_->events->replay_endpoint(), parts_->events->topic()};
  }
  LockGuard guard(mutex_);
  last_stats_ = stats;
  return stats;
}

StorageView SchedulerImpl::view_storage() {
  StorageView view;
  view.prefetch_policy = prefetch_policy_name(prefetch_policy_);
  view.write_policy = write_policy_name(write_policy_);
  view.is_detaching = is_detaching_;
  view.retired = parts_->retired.size();
  if (parts_->storage && !is_detaching_) {
    view.backend = parts_->storage->info().name;
    view.extra_config = extra_config_;
  } else if (!parts_->storage) {
    view.last_backend = configured_backend_;
    view.last_extra_config = extra_config_;
  }
  LockGuard guard(mutex_);
  return last_stats_.storage_in_force = std::move(view);
}

Result<StorageView> SchedulerImpl::look_at_storage(Nanos limit) {
  return call<StorageView>([this](const Promise<StorageView>& promise) { promise->set_value(view_storage()); }, limit,
                           CommandKind::kLooks);
}

StorageView SchedulerImpl::storage() {
  Result<StorageView> view = look_at_storage(kStatsWait);
  if (view.is_ok()) return std::move(view).value();
  LockGuard guard(mutex_);
  return last_stats_.storage_in_force;
}

Status SchedulerImpl::attach_storage(const AttachRequest& request, Nanos limit) {
  const std::uint64_t turn = ended_waits_.load(std::memory_order_relaxed);
  // Not a view of a while ago: what is attached decides what is done. A step may be long.
  LARDER_ASSIGN_OR_RETURN(const StorageView now, look_at_storage(answer_wait(limit, CommandKind::kChanges)));
  if (now.is_detaching) return conflict("HiCache storage backend is being detached. Try again later.");
  if (now.backend == request.backend && !request.replace && parts_->host_pools != nullptr) {
    // As the reference: the same backend again changes the policies only.
    LARDER_ASSIGN_OR_RETURN(const ExtraConfig extra, parse_attach(*parts_, request));
    return call_status(
        [this, request, asked = extra.backend](const Promise<Done>& promise) {
          if (!request.extra_config.empty() && asked != storage_options_) {
            return promise->set_value({conflict(
                "HiCache storage backend '" + request.backend +
                "' is attached already, with another extra configuration. To change its size, detach it, then attach "
                "it with the new one; to move it, give \"hicache_storage_replace\": true; to change policies only, "
                "leave the extra configuration out.")});
          }
          set_policies(request);
          promise->set_value({});
        },
        limit);
  }
  if (!now.backend.empty() && !request.replace) {
    return conflict("HiCache storage backend is already enabled with backend '" + now.backend +
                    "'. Cannot attach different backend '" + request.backend + "'. Detach first.");
  }
  LARDER_ASSIGN_OR_RETURN(PreparedStorage prepared, prepare_storage(with_last_config(request, now), limit));
  if (ended_waits_.load(std::memory_order_relaxed) != turn) {  // opening it may have taken long
    retire_storage(std::move(prepared));
    return cancelled("nobody waits any more: nothing was changed");
  }
  LARDER_ASSIGN_OR_RETURN(PreparedStorage previous, switch_storage(std::move(prepared), limit));
  // As in a detach: what is in flight is waited for, so that who switches back finds the store closed.
  if (previous.backend) (void)previous.backend->close(std::min(limit, kDrainLimit));
  retire_storage(std::move(previous));
  log_info("engine/storage",
           "attached " + request.backend + (now.backend.empty() ? "" : " in place of " + now.backend));
  return Status::ok();
}

// On the caller's thread and not on the loop's: opening a large store takes seconds.
Result<PreparedStorage> SchedulerImpl::prepare_storage(const AttachRequest& request, Nanos limit) {
  LARDER_ASSIGN_OR_RETURN(const ExtraConfig extra, parse_attach(*parts_, request));
  const auto failed = [&](const Status& why) {
    return Status(why.code(), "Failed to attach storage backend '" + request.backend + "': " + why.message());
  };
  Result<std::unique_ptr<StoragePipeline>> made = parts_->make_backend(request.backend, extra.backend);
  if (!made.is_ok()) return failed(made.status());
  PreparedStorage prepared{request, std::move(made).value(), extra.backend};
  if (!request.probe) return prepared;
  std::uint64_t seed = 0;  // others may probe the same store at the same moment
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(&seed), sizeof seed) != 1) {
    return failed(unavailable("no random numbers from the system"));
  }
  const Status probed = probe_backend(*prepared.backend, clock_, std::min(limit, kProbeLimit), seed);
  // Declined by its admission policy: nothing is wrong with it.
  if (probed.is_ok() || probed.code() == StatusCode::kUnsupported) return prepared;
  retire_storage(std::move(prepared));  // an operation may hang: it must not take this caller with it
  return failed(probed);
}

namespace {

// A switch between the thread that asked for it and the loop's: when its caller has given up, it does not happen any
// more. Backends that are not used die on the caller's thread, as the loop must not wait for a disk.
class PendingSwitch {
 public:
  explicit PendingSwitch(PreparedStorage wanted) : next(std::move(wanted)) {}

  // The loop. False: nobody waits any more.
  [[nodiscard]] bool begin() LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    has_begun_ = !has_left_;
    return has_begun_;
  }
  // The loop: what was replaced, or why nothing was.
  void end(Result<PreparedStorage> previous) LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    answer_ = std::move(previous);
    ended_.notify_all();
  }
  // The loop will not run it any more, or an exception has ended it half-way.
  void drop() LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    if (answer_) return;
    answer_ = has_begun_ ? internal_error("the switch broke off: the scheduler has failed")
                         : cancelled("the scheduler is stopping");
    ended_.notify_all();
  }
  // The caller. What has begun ends at once: the loop does no I/O in it.
  [[nodiscard]] Result<PreparedStorage> wait(Nanos limit) LARDER_EXCLUDES(mutex_) {
    const TimePoint until = real_clock().now() + limit;
    PreparedStorage unused;
    LockGuard guard(mutex_);
    while (!answer_ && (has_begun_ || real_clock().now() < until)) {
      (void)ended_.wait_for(mutex_, has_begun_ ? kLook : until - real_clock().now());
    }
    unused = std::move(next);
    if (answer_) return std::move(*answer_);
    has_left_ = true;
    return deadline_exceeded("the scheduler is busy: nothing was changed");
  }

  PreparedStorage next;  // its caller's until it is posted, the loop's from begin() on

 private:
  static constexpr Nanos kLook = std::chrono::seconds(1);
  RankedMutex mutex_{LockRank::kEngine};
  RankedCondition ended_;
  bool has_begun_ LARDER_GUARDED_BY(mutex_) = false, has_left_ LARDER_GUARDED_BY(mutex_) = false;
  std::optional<Result<PreparedStorage>> answer_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace

Result<PreparedStorage> SchedulerImpl::switch_storage(PreparedStorage next, Nanos limit) {
  const auto pending = std::make_shared<PendingSwitch>(std::move(next));
  // Dies with the command, also when that is dropped unrun, so that the wait ends.
  std::shared_ptr<PendingSwitch> run(pending.get(), [pending](PendingSwitch* one) { one->drop(); });
  LARDER_RETURN_IF_ERROR(post([this, run = std::move(run)] {
    if (run->begin()) run->end(switch_now(run->next));
  }));
  return pending->wait(answer_wait(limit, CommandKind::kChanges));
}

Result<PreparedStorage> SchedulerImpl::switch_now(PreparedStorage& next) {
  if (is_detaching_) return conflict("HiCache storage backend is being detached. Try again later.");
  if (parts_->storage && next.backend && !next.request.replace) {
    return conflict("HiCache storage backend is already enabled. Detach first.");
  }
  PreparedStorage previous;
  previous.request.backend = configured_backend_;
  previous.request.extra_config = extra_config_;
  previous.options = storage_options_;
  previous.request.prefetch_policy = prefetch_policy_name(prefetch_policy_);
  previous.request.write_policy = write_policy_name(write_policy_);
  previous.request.replace = true;
  if (parts_->storage) parts_->cache->detach_storage();
  if (next.backend) {
    const Status attached = parts_->cache->attach_storage(*next.backend);
    if (!attached.is_ok()) {
      if (parts_->storage) (void)parts_->cache->attach_storage(*parts_->storage);
      return attached;
    }
  }
  previous.backend = std::exchange(parts_->storage, std::move(next.backend));
  configured_backend_ = next.request.backend;
  extra_config_ = next.request.extra_config;
  storage_options_ = std::move(next.options);
  metrics_.set_storage(parts_->storage ? configured_backend_ : "");
  set_policies(next.request);  // last: an attach that fails changes nothing
  return previous;
}

// Closes it here if nothing of it is in flight, else on the closing threads, later.
void SchedulerImpl::retire_storage(PreparedStorage previous) {
  if (!previous.backend || previous.backend->close(Nanos(0)).is_ok()) return;
  auto shared = std::make_shared<PreparedStorage>(std::move(previous));
  (void)call_status(
      [this, shared](const Promise<Done>& promise) {
        parts_->retire(std::move(shared->backend));
        promise->set_value({});
      },
      kStatsWait);
}

// Those that the request names; a detach keeps them.
void SchedulerImpl::set_policies(const AttachRequest& request) {
  prefetch_policy_ = parse_prefetch_policy(request.prefetch_policy).value_or(prefetch_policy_);
  write_policy_ = parse_write_policy(request.write_policy).value_or(write_policy_);
  parts_->cache->set_policies(prefetch_policy_, write_policy_);
  (void)view_storage();
}

Status SchedulerImpl::detach_storage(Nanos limit) {
  // From the loop to the caller, who may leave at any moment: whoever comes second to is_met has the storage.
  struct HandOver {
    std::unique_ptr<StoragePipeline> storage;
    std::atomic<bool> is_met{false};
  };
  const auto hand = std::make_shared<HandOver>();
  const TimePoint deadline = clock_.now() + limit;
  const Status detached = call_status(
      [this, deadline, hand](const Promise<Done>& promise) {
        if (!parts_->storage) return promise->set_value({});
        if (!is_detaching_) {
          parts_->cache->detach_storage();
          ++detaches_;
        }
        is_detaching_ = true;
        const auto try_now = [this, promise, hand, number = detaches_] {
          if (!is_detaching_ || detaches_ != number) {  // another caller of it has ended it; what is attached now stays
            promise->set_value({});
            return true;
          }
          const bool is_clearing = std::any_of(clears_.begin(), clears_.end(), [this](const Clear& clear) {
            return clear.storage == parts_->storage.get() && !clear.has_ended->load(std::memory_order_acquire);
          });
          if (is_clearing || !parts_->cache->storage_idle()) return false;
          is_detaching_ = false;
          hand->storage = std::move(parts_->storage);
          if (hand->is_met.exchange(true)) parts_->retire(std::move(hand->storage));
          (void)view_storage();
          promise->set_value({});
          return true;
        };
        const auto expire = [this, promise] {  // right after a try_now that found it under way
          is_detaching_ = false;
          log_warning("engine/storage", "detached with operations in flight; they keep their buffers until they end");
          parts_->retire(std::move(parts_->storage));
          (void)view_storage();
          promise->set_value({});
        };
        waiters_.push_back({deadline, try_now, expire});
      },
      limit);
  if (!detached.is_ok() && !hand->is_met.exchange(true)) return detached;
  log_info("engine/storage", "detached");
  if (hand->storage == nullptr) return Status::ok();
  // Here, on the caller's thread, so that who detaches finds the store closed; but not for ever.
  PreparedStorage last;
  last.backend = std::move(hand->storage);
  (void)last.backend->close(std::max(deadline - clock_.now(), kDrainLimit));
  retire_storage(std::move(last));
  return Status::ok();
}

// Whatever the clear says, and whenever: what was stored may be gone, and what was written meanwhile, too.
Status SchedulerImpl::clear_storage(Nanos limit) {
  const Status cleared = call_status(
      [this](const Promise<Done>& promise) {
        if (!parts_->storage || is_detaching_) {
          return promise->set_value({invalid_argument("no storage backend is attached")});
        }
        auto has_ended = std::make_shared<std::atomic<bool>>(false);
        const Status submitted = parts_->storage->submit_clear(nullptr, [promise, has_ended](Status status) {
          has_ended->store(true, std::memory_order_release);
          promise->set_value({std::move(status)});
        });
        if (!submitted.is_ok()) return promise->set_value({submitted});
        clears_.push_back({parts_->storage.get(), std::move(has_ended)});
      },
      limit);
  if (cleared.is_ok()) {
    log_info("engine/storage", "cleared: every page of the store is gone, of all models and servers");
  }
  const bool has_left = cleared.code() == StatusCode::kDeadlineExceeded || cleared.code() == StatusCode::kCancelled;
  if (has_left) return cleared;  // the loop sees its end when it comes
  // The loop has seen its end when this returns; a loop that is busy sees it later.
  (void)call_status(
      [this](const Promise<Done>& promise) {
        end_clears();
        promise->set_value({});
      },
      limit);
  return cleared;
}

void SchedulerImpl::end_clears() {
  bool was_cleared = false;  // what is attached now; the late clear of another says nothing of it
  std::erase_if(clears_, [&](const Clear& clear) {
    if (!clear.has_ended->load(std::memory_order_acquire)) return false;
    was_cleared = was_cleared || clear.storage == parts_->storage.get();
    return true;
  });
  if (was_cleared) parts_->cache->storage_cleared();
}

}  // namespace larder
