// SPDX-License-Identifier: Apache-2.0
// Reads the Prometheus text format 0.0.4, as GET /metrics gives it: families by name, histograms put together.
//
// Threads: pure. Lines that are not understood are counted and passed over: a tool must work with a newer server.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace larder {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;  // as the text has them, "le" taken out

struct MetricSeries {
  MetricLabels labels;
  double value = 0;  // counters and gauges
  // histograms
  std::vector<std::pair<double, double>> buckets;  // (bound, observations <= bound), ascending; the last bound is +Inf
  double sum = 0, count = 0;
  // "": no such label.
  [[nodiscard]] std::string_view label(std::string_view name) const;
};
struct MetricFamily {
  std::string name, help;
  std::string type = "untyped";  // "counter", "gauge", "histogram", "summary"
  std::vector<MetricSeries> series;
};
struct MetricsText {
  std::map<std::string, MetricFamily, std::less<>> families;
  std::size_t lines_skipped = 0;
  // Null: there is none.
  [[nodiscard]] const MetricFamily* find(std::string_view name) const;
};
[[nodiscard]] MetricsText parse_metrics_text(std::string_view text);

// The value below which the share q of observations lies, interpolated inside its bucket; the highest finite bound if
// it is beyond that. 0 without observations.
[[nodiscard]] double histogram_quantile(const MetricSeries& histogram, double q);
// Sums over the series whose label `name` is `value`; name "": over all.
[[nodiscard]] double metric_sum(const MetricFamily& family, std::string_view name = {}, std::string_view value = {});

}  // namespace larder
