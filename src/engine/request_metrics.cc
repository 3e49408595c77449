// SPDX-License-Identifier: Apache-2.0
#include "engine/request_metrics.h"

#include <algorithm>

#include "model/restore_point.h"

namespace larder {
namespace {

constexpr std::string_view kCachedHelp = "Prompt tokens that were not computed, by where they were";

}  // namespace

std::string storage_class_name(std::string_view backend) {
  if (backend == "file") return "HiCacheFile";
  if (backend == "hf3fs") return "HiCacheHF3FS";
  if (backend == "mooncake") return "MooncakeStore";
  if (backend == "nixl") return "HiCacheNixl";
  return std::string(backend);
}

Labels RequestMetrics::with(std::string_view name, std::string_view value) const {
  Labels labels = labels_;
  labels.emplace_back(name, value);
  return labels;
}

RequestMetrics::RequestMetrics(MetricsRegistry& m, const std::string& model_name)
    : metrics_(m),
      labels_{{"model_name", model_name}},
      prompt_tokens_(
          m.counter("sglang:prompt_tokens_total", "Prompt tokens of requests that have computed a step", labels_)),
      generation_tokens_(m.counter("sglang:generation_tokens_total", "Tokens sampled", labels_)),
      requests_(m.counter("sglang:num_requests_total", "Requests that ended", labels_)),
      aborted_(m.counter("sglang:num_aborted_requests_total", "Requests that failed or were cancelled", labels_)),
      callbacks_threw_(m.counter("larder_callbacks_threw_total", "Update callbacks that threw", labels_)),
      cached_device_(m.counter("sglang:cached_tokens_total", kCachedHelp, with("cache_source", "device"))),
      cached_host_(m.counter("sglang:cached_tokens_total", kCachedHelp, with("cache_source", "host"))),
      cached_total_(m.counter("sglang:cached_tokens_total", kCachedHelp, with("cache_source", "total"))),
      ttft_(m.histogram("sglang:time_to_first_token_seconds", "From submit to the first token",
                        latency_bounds_seconds(), labels_)),
      inter_token_(m.histogram("sglang:inter_token_latency_seconds", "Between two tokens of a request",
                               latency_bounds_seconds(), labels_)),
      end_to_end_(m.histogram("sglang:e2e_request_latency_seconds", "From submit to the last token",
                              latency_bounds_seconds(), labels_)),
      queue_time_(
          m.histogram("sglang:queue_time_seconds", "From submit to the start", latency_bounds_seconds(), labels_)),
      running_(m.gauge("sglang:num_running_reqs", "Requests running", labels_)),
      queued_(m.gauge("sglang:num_queue_reqs", "Requests waiting", labels_)),
      used_tokens_(m.gauge("sglang:num_used_tokens",
                           "Tokens of device KV that requests use; what is only cached counts as free", labels_)),
      token_usage_(
          m.gauge("sglang:token_usage", "sglang:num_used_tokens as a share of what fits on the device", labels_)),
      hit_rate_(m.gauge("sglang:cache_hit_rate", "Share of prompt tokens that were cached, since the start", labels_)),
      host_used_(m.gauge("sglang:hicache_host_used_tokens", "Tokens of KV on the host", labels_)),
      host_total_(m.gauge("sglang:hicache_host_total_tokens", "Tokens of KV that fit on the host", labels_)),
      prefetched_(m.counter("sglang:prefetched_tokens_total", "Tokens read from storage to the host", labels_)),
      backed_up_(m.counter("sglang:backuped_tokens_total", "Tokens written from the host to storage", labels_)),
      loaded_back_(m.counter("sglang:load_back_tokens_total", "Tokens copied from the host to the device", labels_)),
      evicted_(m.counter("larder_host_evicted_pages_total", "KV pages that left the host to make room", labels_)),
      flushed_(m.counter("larder_host_flushed_pages_total", "KV pages that a flush dropped from the host", labels_)),
      late_(m.counter("larder_prefetch_late_total", "Requests that stopped waiting for storage", labels_)),
      partial_(
          m.counter("larder_prefetch_partial_total", "Prefetches of which less arrived than storage had", labels_)),
      refused_(m.counter("larder_prefetch_refused_total", "Prefetches that found no host capacity, or no place to read",
                         labels_)),
      shared_(m.counter("larder_prefetch_shared_total", "Requests that shared the prefetch of another", labels_)),
      corrupt_(m.counter("larder_corrupt_pages_total", "Stored pages that failed verification", labels_)),
      stored_(m.counter("larder_stored_pages_total", "KV pages written to storage", labels_)),
      store_failed_(m.counter("larder_store_failed_pages_total", "KV pages that storage did not take", labels_)),
      store_declined_(
          m.counter("larder_store_declined_pages_total", "KV pages that storage's admission declined", labels_)),
      store_waits_(m.counter("larder_store_waits_total", "Polls for which room waited for a slow storage", labels_)),
      floors_broken_(m.counter("larder_floors_broken_total",
                               "Device slots that requests took from below the floors of other tenants", labels_)),
      retracted_(m.counter("larder_retracted_requests_total",
                           "Running requests that were set aside for want of device KV", labels_)),
      lost_(m.counter("larder_host_lost_pages_total", "Host pages lost to failures", labels_)),
      internal_errors_(m.counter("larder_internal_errors_total", "Refused internal calls: defects", labels_)),
      storage_reads_(m.counter("larder_storage_reads_total", "Pages asked of storage", labels_)),
      storage_read_errors_(m.counter("larder_storage_read_errors_total", "Reads that storage failed", labels_)),
      storage_writes_(m.counter("larder_storage_writes_total", "Groups of pages given to storage", labels_)),
      storage_write_errors_(
          m.counter("larder_storage_write_errors_total", "Groups of pages that storage failed to write", labels_)),
      storage_corrupt_(m.counter("larder_storage_corrupt_total", "Pages that storage dropped as corrupt", labels_)),
      storage_duplicates_(m.counter("larder_storage_duplicate_pages_total", "Pages that storage had already", labels_)),
      storage_declined_(m.counter("larder_storage_declined_groups_total", "Groups that admission declined", labels_)),
      storage_evicted_(m.counter("larder_storage_evicted_pages_total", "Pages that storage evicted for room", labels_)),
      storage_moved_(m.counter("larder_storage_moved_pages_total", "Pages that cleaning copied", labels_)),
      storage_written_bytes_(
          m.counter("larder_storage_device_written_bytes_total", "Bytes written, all overheads counted", labels_)) {}

void RequestMetrics::set_storage(const std::string& backend) {
  if (backend.empty()) return;  // what a detached backend brought to the host is still its own
  cached_storage_ = &metrics_.counter("sglang:cached_tokens_total", kCachedHelp,
                                      with("cache_source", "storage_" + storage_class_name(backend)));
}

void RequestMetrics::started(double queue_seconds) { queue_time_.observe(queue_seconds); }

void RequestMetrics::computes(const CachedTokens& cached) {
  prompt_tokens_.increment(cached.prompt);
  cached_device_.increment(cached.device);
  cached_host_.increment(cached.host);
  if (cached_storage_ != nullptr) cached_storage_->increment(cached.storage);
  cached_total_.increment(cached.cached());
  Labels why = with("reason", stop_reason_name(cached.reason));
  why.emplace_back("component", cached.reason == StopReason::kNone ? "none" : component_name(cached.component));
  metrics_
      .counter("larder_lookups_total",
               "Lookups by the component that ended the hit (none: the cached path ends, or the prompt)", why)
      .increment();
  const Labels miss = with("reason", miss_reason_name(cached.miss.reason));
  metrics_.counter("larder_misses_total", "Requests by why they reused no more (none: all that may be reused)", miss)
      .increment();
  metrics_.counter("larder_missed_tokens_total", "Prompt tokens that were computed, by the same reason", miss)
      .increment(cached.prompt - std::min(cached.prompt, cached.cached()));
}

void RequestMetrics::token(bool is_first, double gap_seconds) {
  generation_tokens_.increment();
  (is_first ? ttft_ : inter_token_).observe(gap_seconds);
}

void RequestMetrics::ended(bool is_failed, double total_seconds) {
  requests_.increment();
  if (is_failed) {
    aborted_.increment();
  } else {
    end_to_end_.observe(total_seconds);
  }
}

void RequestMetrics::publish(const SchedulerStats& stats, std::uint32_t page_size) {
  running_.set(static_cast<double>(stats.running));
  queued_.set(static_cast<double>(stats.queued));
  if (stats.cached.prompt > 0) {
    hit_rate_.set(static_cast<double>(stats.cached.cached()) / static_cast<double>(stats.cached.prompt));
  }
  publish_cache(stats, page_size);
  publish_storage(stats);
  publish_tiers(stats, page_size);
}

void RequestMetrics::publish_cache(const SchedulerStats& stats, std::uint32_t page_size) {
  const CacheCounters& c = stats.cache;
  prefetched_.follow(c.prefetched * page_size);
  backed_up_.follow(c.stored * page_size);
  loaded_back_.follow(c.loaded_back * page_size);
  evicted_.follow(c.host_evicted);
  flushed_.follow(c.host_flushed);
  metrics_.gauge("larder_host_pages", "KV pages on the host", labels_).set(static_cast<double>(c.host_resident));
  late_.follow(c.prefetch_late);
  partial_.follow(c.prefetch_partial);
  refused_.follow(c.prefetch_refused);
  shared_.follow(c.prefetch_shared);
  corrupt_.follow(c.corrupt);
  stored_.follow(c.stored);
  store_failed_.follow(c.store_failed);
  store_declined_.follow(c.store_declined);
  store_waits_.follow(c.store_waits);
  floors_broken_.follow(c.floors_broken);
  retracted_.follow(c.retracted);
  lost_.follow(c.host_lost);
  internal_errors_.follow(c.internal_errors);
  if (!stats.storage) return;
  storage_reads_.follow(stats.storage->reads);
  storage_read_errors_.follow(stats.storage->read_errors);
  storage_writes_.follow(stats.storage->writes);
  storage_write_errors_.follow(stats.storage->write_errors);
  storage_corrupt_.follow(stats.storage->corrupt);
  storage_duplicates_.follow(stats.storage->duplicate_writes);
  storage_declined_.follow(stats.storage->declined);
  storage_evicted_.follow(stats.storage->evicted);
  storage_moved_.follow(stats.storage->moved);
  storage_written_bytes_.follow(stats.storage->written_bytes);
}

void RequestMetrics::publish_storage(const SchedulerStats& stats) {
  metrics_.gauge("larder_storage_retired_backends", "Detached backends with operations in flight", labels_)
      .set(static_cast<double>(stats.storage_retired));
  if (!stats.storage && !shows_storage_) return;
  shows_storage_ = true;
  const BackendStats detached;  // what was left behind is no longer ours: a gauge that stayed would go on alarming
  const BackendStats& now = stats.storage ? *stats.storage : detached;
  const auto set = [&](const char* name, const char* help, std::uint64_t value) {
    metrics_.gauge(name, help, labels_).set(static_cast<double>(value));
  };
  set("larder_storage_pages", "Pages in storage", now.pages);
  set("larder_storage_physical_bytes", "Bytes on disk", now.physical_bytes);
  set("larder_storage_capacity_bytes", "Most bytes on disk: max_size, or what a full disk left; 0: no limit known",
      now.capacity_bytes);
  set("larder_storage_segments", "Segment files", now.segments);
  set("larder_storage_suspended_volumes", "Directories that take no writes after errors", now.suspended_volumes);
}

void RequestMetrics::set_tier_bytes(const TierUsage& usage) {
  Labels labels = with("tier", usage.tier);
  labels.emplace_back("component", usage.component.empty() ? "all" : usage.component);
  metrics_.gauge("larder_tier_used_bytes", "Bytes in use, by tier and component", labels)
      .set(static_cast<double>(usage.bytes));
  metrics_.gauge("larder_tier_capacity_bytes", "Bytes there are (host: shared by its components)", labels)
      .set(static_cast<double>(usage.capacity_bytes));
}

void RequestMetrics::publish_tiers(const SchedulerStats& stats, std::uint32_t page_size) {
  for (const TierUsage& usage : stats.tiers) {
    set_tier_bytes(usage);
    if (usage.component != "full") continue;
    const auto used = static_cast<double>((usage.slots - std::min(usage.slots, usage.evictable)) * page_size);
    const auto total = static_cast<double>(usage.capacity * page_size);
    if (usage.tier == "device") {
      used_tokens_.set(used);
      token_usage_.set(total > 0 ? used / total : 0);
    } else if (usage.tier == "host") {
      host_used_.set(used);
      host_total_.set(total);
    }
  }
  if (shows_storage_ && !stats.storage) set_tier_bytes({"storage", {}});  // as publish_storage()
}

}  // namespace larder
