// SPDX-License-Identifier: Apache-2.0
// The cache's own distributions, under the reference's names: sizes and speeds of prefetches and backups, times of
// evictions and load-backs. (What is only counted is in CacheCounters.)
//
// Threads: confined to the cache thread (the registry's metrics are read anywhere).
// Cost: an observation each, a few dozen ns.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"

namespace larder {

class CacheMetrics {
 public:
  // metrics: null: nothing is kept; outlives this.
  explicit CacheMetrics(MetricsRegistry* metrics);

  // The backend that prefetches and backups are counted for, from its attach on.
  void set_storage(const std::string& backend);
  // A storage operation that ended: pages and bytes it was about, from its submission on.
  void prefetched(std::uint64_t pages, std::uint64_t bytes, Nanos took);
  void backed_up(std::uint64_t pages, std::uint64_t bytes, Nanos took);
  void evicted(std::uint64_t tokens, Nanos took);  // from the device
  void loaded_back(Nanos took);

 private:
  struct Direction {
    Histogram* pages = nullptr;
    Histogram* bandwidth = nullptr;
    void observe(std::uint64_t count, std::uint64_t bytes, Nanos took) const;
  };
  MetricsRegistry* const metrics_;
  Direction prefetch_, backup_;
  Histogram* eviction_ = nullptr;
  Histogram* load_back_ = nullptr;
  Counter* evicted_tokens_ = nullptr;
};

}  // namespace larder
