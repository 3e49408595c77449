// SPDX-License-Identifier: Apache-2.0
#include "controller/cache_metrics.h"

#include <array>
#include <chrono>

namespace larder {
namespace {

constexpr std::array<double, 5> kPageBounds = {1, 5, 10, 50, 100};
constexpr std::array<double, 7> kBandwidthBounds = {0.1, 0.5, 1, 5, 10, 50, 100};  // GB/s
constexpr std::array<double, 18> kCopyBounds = {.001, .002, .003, .004, .005, .006, .007, .008, .009,
                                                .01,  .02,  .03,  .04,  .05,  .1,   .2,   .5,   1};

double seconds(Nanos duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

CacheMetrics::CacheMetrics(MetricsRegistry* metrics) : metrics_(metrics) {
  if (metrics_ == nullptr) return;
  const Labels labels = {{"cache_type", "larder"}};
  eviction_ =
      &metrics_->histogram("sglang:eviction_duration_seconds", "Time to evict from the device", kCopyBounds, labels);
  evicted_tokens_ = &metrics_->counter("sglang:evicted_tokens_total", "Tokens of KV evicted from the device", labels);
  load_back_ = &metrics_->histogram("sglang:load_back_duration_seconds", "Time to copy from the host to the device",
                                    kCopyBounds, labels);
}

void CacheMetrics::set_storage(const std::string& backend) {
  if (metrics_ == nullptr) return;
  const Labels labels = {{"storage_backend", backend}};
  prefetch_ = {
      &metrics_->histogram("sglang:prefetch_pgs", "Pages of a prefetch", kPageBounds, labels),
      &metrics_->histogram("sglang:prefetch_bandwidth", "Speed of a prefetch, GB/s", kBandwidthBounds, labels)};
  backup_ = {
      &metrics_->histogram("sglang:backup_pgs", "Pages of a backup to storage", kPageBounds, labels),
      &metrics_->histogram("sglang:backup_bandwidth", "Speed of a backup to storage, GB/s", kBandwidthBounds, labels)};
}

void CacheMetrics::Direction::observe(std::uint64_t count, std::uint64_t bytes, Nanos took) const {
  if (pages == nullptr || bytes == 0) return;
  pages->observe(static_cast<double>(count));
  if (took > Nanos::zero()) bandwidth->observe(static_cast<double>(bytes) * 1e-9 / seconds(took));
}

void CacheMetrics::prefetched(std::uint64_t pages, std::uint64_t bytes, Nanos took) {
  prefetch_.observe(pages, bytes, took);
}

void CacheMetrics::backed_up(std::uint64_t pages, std::uint64_t bytes, Nanos took) {
  backup_.observe(pages, bytes, took);
}

void CacheMetrics::evicted(std::uint64_t tokens, Nanos took) {
  if (eviction_ == nullptr) return;
  eviction_->observe(seconds(took));
  evicted_tokens_->increment(tokens);
}

void CacheMetrics::loaded_back(Nanos took) {
  if (load_back_ != nullptr) load_back_->observe(seconds(took));
}

}  // namespace larder
