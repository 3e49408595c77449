// SPDX-License-Identifier: Apache-2.0
// The scheduler's numbers: the reference's names where it has one, ours with larder_ (internal to engine/).
//
// Threads: confined to the loop thread (the registry's own metrics are read anywhere).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/metrics.h"
#include "controller/cache.h"
#include "engine/scheduler.h"

namespace larder {

// The backend's name as the reference's meta_info and metrics spell it: "file" -> "HiCacheFile".
[[nodiscard]] std::string storage_class_name(std::string_view backend);

class RequestMetrics {
 public:
  // model_name: label of all series. metrics outlives this.
  RequestMetrics(MetricsRegistry& metrics, const std::string& model_name);

  // The backend that cached tokens of storage are counted for ("file"), under its class name; "": none is attached.
  void set_storage(const std::string& backend);
  // Once for each request: it has left the queue.
  void started(double queue_seconds);
  // Once for each request: its first step has succeeded, with `cached` loaded.
  void computes(const CachedTokens& cached);
  // gap_seconds: since the submit for the first token, since the token before for the rest.
  void token(bool is_first, double gap_seconds);
  void ended(bool is_failed, double total_seconds);
  void callback_threw() { callbacks_threw_.increment(); }
  // Gauges and the counters of the parts below, from a fresh snapshot. page_size: tokens.
  void publish(const SchedulerStats& stats, std::uint32_t page_size);

 private:
  // A counter that follows a number somebody else counts.
  class Follower {
   public:
    explicit Follower(Counter& counter) : counter_(counter) {}
    void follow(std::uint64_t total) {
      if (total > seen_) counter_.increment(total - seen_);
      seen_ = total;  // a smaller one is a new source (another backend): it starts from there
    }

   private:
    Counter& counter_;
    std::uint64_t seen_ = 0;
  };
  [[nodiscard]] Labels with(std::string_view name, std::string_view value) const;
  void publish_cache(const SchedulerStats& stats, std::uint32_t page_size);
  void publish_storage(const SchedulerStats& stats);
  void publish_tiers(const SchedulerStats& stats, std::uint32_t page_size);
  void set_tier_bytes(const TierUsage& usage);

  MetricsRegistry& metrics_;
  const Labels labels_;
  Counter &prompt_tokens_, &generation_tokens_, &requests_, &aborted_, &callbacks_threw_;
  Counter &cached_device_, &cached_host_, &cached_total_;
  bool shows_storage_ = false;         // a backend was attached once
  Counter* cached_storage_ = nullptr;  // of the backend attached now or last; null: there was none
  Histogram &ttft_, &inter_token_, &end_to_end_, &queue_time_;
  Gauge &running_, &queued_, &used_tokens_, &token_usage_, &hit_rate_, &host_used_, &host_total_;
  Follower prefetched_, backed_up_, loaded_back_, evicted_, flushed_;
  Follower late_, partial_, refused_, shared_, corrupt_, stored_, store_failed_, store_declined_, store_waits_,
      floors_broken_;
  Follower retracted_, lost_, internal_errors_;
  Follower storage_reads_, storage_read_errors_, storage_writes_, storage_write_errors_, storage_corrupt_;
  Follower storage_duplicates_, storage_declined_, storage_evicted_, storage_moved_, storage_written_bytes_;
};

}  // namespace larder
