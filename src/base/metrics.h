// SPDX-License-Identifier: Apache-2.0
// The registry of counters, gauges and histograms, and their Prometheus text (format 0.0.4).
//
// Purpose: components push numbers in; an exporter reads them out. No metrics file ever includes a component.
// Names: Prometheus style with the unit last ("larder_storage_read_bytes_total"). Counters end in _total.
// Threads: increments are relaxed atomics, any thread. Registration and rendering take rank kMetrics.
// Lifetime: a metric lives as long as its registry; keep the reference, do not look it up on the data path.
// Limits: at most kMaxSeries series. Beyond it, or when a name is registered again as another kind, the caller gets a
// working metric that is not rendered, and larder_metrics_refused_total counts it: a label gone wild cannot eat memory.
// Cost: ~5 ns per increment, uncontended; a histogram observation is a linear search over its bounds plus three adds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ranked_mutex.h"

namespace larder {

// A number that only grows.
class Counter {
 public:
  void increment(std::uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  // For what is counted elsewhere: takes over a total that is more than this one.
  void rise_to(std::uint64_t total) {
    std::uint64_t seen = value();
    while (seen < total && !value_.compare_exchange_weak(seen, total, std::memory_order_relaxed)) {}
  }
  [[nodiscard]] std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// A number that goes up and down.
class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double by) { value_.fetch_add(by, std::memory_order_relaxed); }
  [[nodiscard]] double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Observations sorted into buckets "<= bound". `bounds` ascend; a last bucket +Inf is implied.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds);
  void observe(double value);
  [[nodiscard]] std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  [[nodiscard]] double sum() const { return sum_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::span<const double> bounds() const { return bounds_; }
  // Observations in bucket i alone (not cumulative); i == bounds().size() is +Inf.
  [[nodiscard]] std::uint64_t bucket(std::size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<std::uint64_t>> buckets_;  // bounds_.size() + 1
  std::atomic<std::uint64_t> count_{0};
  std::atomic<double> sum_{0};
};

// Bounds for latencies in seconds, 10 us to 10 s.
[[nodiscard]] std::span<const double> latency_bounds_seconds();

using Labels = std::vector<std::pair<std::string, std::string>>;  // name, value; any order

// A series as its values were when it was read, one after the other.
struct MetricSeries {
  Labels labels;
  double value = 0;  // of counters and gauges
  // Of histograms: observations <= bound, cumulative, bounds ascending, the last one +Inf; their sum and number.
  std::vector<std::pair<double, std::uint64_t>> buckets;
  double sum = 0;
  std::uint64_t count = 0;

  // "": no such label.
  [[nodiscard]] std::string_view label(std::string_view name) const;
};
struct MetricFamily {
  std::string name, help;
  std::string type;  // "counter", "gauge", "histogram"
  std::vector<MetricSeries> series;
};

// The value below which the share q of a histogram's observations lies, interpolated inside its bucket; the highest
// finite bound if it is beyond that. 0 without observations.
[[nodiscard]] double histogram_quantile(const MetricSeries& histogram, double q);

class MetricsRegistry {
 public:
  static constexpr std::size_t kMaxSeries = 10'000;

  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // Each returns the series of (name, labels), made at the first call. `help` of the first call counts.
  [[nodiscard]] Counter& counter(std::string_view name, std::string_view help, const Labels& labels = {});
  [[nodiscard]] Gauge& gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  // `bounds` of the first call of a (name, labels) count.
  [[nodiscard]] Histogram& histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                                     const Labels& labels = {});

  // The exposition text: families sorted by name, series by label text. Values are read one by one, not as a snapshot.
  [[nodiscard]] std::string render() const LARDER_EXCLUDES(mutex_);
  // The same as values: families sorted by name. Cost: a copy of all names and labels.
  [[nodiscard]] std::vector<MetricFamily> families() const LARDER_EXCLUDES(mutex_);

  // The media type of render()'s text.
  [[nodiscard]] static std::string_view content_type() { return "text/plain; version=0.0.4; charset=utf-8"; }

 private:
  enum class Kind : unsigned char { kCounter, kGauge, kHistogram };
  struct Series {
    Labels labels;
    // Exactly one is set.
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    Kind kind;
    std::string help;
    std::map<std::string, Series> series;  // by label text
  };

  // The series to fill in, or the shared unrendered one of this kind.
  Series& find_or_add(Kind kind, std::string_view name, std::string_view help, const Labels& labels)
      LARDER_REQUIRES(mutex_);
  static MetricSeries values_of(const Series& series);
  static void render_series(std::string& out, const std::string& name, const std::string& labels, const Series& series);

  mutable RankedMutex mutex_{LockRank::kMetrics};
  std::map<std::string, Family, std::less<>> families_ LARDER_GUARDED_BY(mutex_);
  std::size_t series_count_ LARDER_GUARDED_BY(mutex_) = 0;
  Series refused_series_[3] LARDER_GUARDED_BY(mutex_);  // one per kind, never rendered
  Counter refused_;
};

}  // namespace larder
