// SPDX-License-Identifier: Apache-2.0
// Reading /metrics, and what `larder stat` makes of it.
#include "server/stat_report.h"

#include <gtest/gtest.h>

#include "base/metrics.h"

namespace larder {
namespace {

TEST(MetricsText, ReadsWhatTheRegistryWrites) {
  MetricsRegistry registry;
  registry.counter("larder_storage_reads_total", "Pages asked of storage", {{"backend", "a \"b\"\\\n"}}).increment(7);
  registry.gauge("larder_storage_breaker_state", "0 closed").set(0.5);
  const double bounds[] = {0.001, 0.01, 0.1};
  Histogram& histogram = registry.histogram("larder_storage_read_seconds", "Time", bounds, {{"op", "get"}});
  for (int i = 0; i < 90; ++i) histogram.observe(0.005);
  for (int i = 0; i < 10; ++i) histogram.observe(5);
  const MetricsText text = parse_metrics_text(registry.render());
  EXPECT_EQ(text.lines_skipped, 0u);
  const MetricFamily* reads = text.find("larder_storage_reads_total");
  ASSERT_NE(reads, nullptr);
  EXPECT_EQ(reads->type, "counter");
  EXPECT_EQ(reads->help, "Pages asked of storage");
  ASSERT_EQ(reads->series.size(), 1u);
  EXPECT_EQ(reads->series[0].label("backend"), "a \"b\"\\\n");
  EXPECT_EQ(metric_sum(*reads), 7);
  EXPECT_EQ(metric_sum(*reads, "backend", "other"), 0);
  EXPECT_EQ(text.find("larder_storage_breaker_state")->series[0].value, 0.5);
  const MetricFamily* times = text.find("larder_storage_read_seconds");
  ASSERT_NE(times, nullptr);
  ASSERT_EQ(times->series.size(), 1u);
  const MetricSeries& series = times->series[0];
  EXPECT_EQ(series.count, 100);
  EXPECT_NEAR(series.sum, 50.45, 1e-6);
  ASSERT_EQ(series.buckets.size(), 4u);
  EXPECT_NEAR(histogram_quantile(series, 0.5), 0.001 + 0.009 * 50 / 90, 1e-9);
  EXPECT_EQ(histogram_quantile(series, 0.99), 0.1);  // beyond the last bound
  EXPECT_EQ(histogram_quantile({}, 0.5), 0);
}

TEST(MetricsText, PassesOverWhatItDoesNotKnow) {
  const MetricsText text = parse_metrics_text(
      "# a comment\n\n# TYPE a counter\na 1 1700000000\nb{x=\"1\"} NaN\nbroken{x=\"1 2\nbroken\nc{} +Inf\na_count 3\n"
      "d{x=\"1\",} 4");
  EXPECT_EQ(text.lines_skipped, 2u);
  EXPECT_EQ(text.find("a")->series[0].value, 1);
  EXPECT_TRUE(std::isnan(text.find("b")->series[0].value));
  EXPECT_TRUE(std::isinf(text.find("c")->series[0].value));
  EXPECT_EQ(text.find("a_count")->series[0].value, 3);  // a is no histogram
  EXPECT_EQ(text.find("d")->series[0].label("x"), "1");
  EXPECT_EQ(text.find("nothing"), nullptr);
}

StatSample sample_of(std::uint64_t reads) {
  MetricsRegistry registry;
  registry.counter("larder_storage_reads_total", "Reads", {{"model_name", "m"}, {"reason", "absent"}}).increment(reads);
  registry.histogram("larder_storage_op_seconds", "Time", latency_bounds_seconds(), {{"op", "get"}}).observe(0.002);
  StatSample sample;
  sample.metrics = parse_metrics_text(registry.render());
  sample.info =
      nlohmann::json::parse(R"({"served_model_name": "tiny", "version": "1", "hicache_storage_backend": "file",
    "internal_states": [{"num_running_reqs": 2, "num_queue_reqs": 3, "prompt_tokens": 200,
    "cached_tokens": {"device": 20, "host": 50, "storage": 10, "total": 80},
    "tiers": [{"tier": "host", "component": "full", "slots": 5, "capacity": 10, "bytes": 1048576,
               "capacity_bytes": 2097152}],
    "cache": {"corrupt_pages": 4}, "storage": {"physical_bytes": 3145728}}]})");
  return sample;
}

TEST(StatReport, ShowsTiersBackendsMetricsAndRates) {
  const StatSample before = sample_of(10), now = sample_of(60);
  const std::string text = stat_text(now, &before, 5);
  for (const char* wanted : {"model tiny", "backend file", "2 running, 3 waiting", "10.0 %", "25.0 %", "5.0 %",
                             "1.0 MiB", "2.0 MiB", "50.0 %", "corrupt_pages", "3.0 MiB", "larder_storage_reads_total",
                             "reason=absent", "60", "10.0", "larder_storage_op_seconds", "op=get"}) {
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " is not in\n" << text;
  }
  EXPECT_EQ(text.find("model_name"), std::string::npos);
  EXPECT_EQ(stat_text(now, nullptr, 0).find("per s"), std::string::npos);
  const auto json = stat_json(now);
  EXPECT_EQ(json.at("tiers").at(0).at("slots"), 5);
  EXPECT_EQ(json.at("metrics").at("larder_storage_reads_total").at("series").at(0).at("value"), 60);
  EXPECT_EQ(json.at("storage").at("physical_bytes"), 3145728);
}

TEST(StatReport, WorksWithAServerThatSaysLess) {
  StatSample sample;
  sample.info = nlohmann::json::object();
  EXPECT_NE(stat_text(sample, nullptr, 0).find("model -"), std::string::npos);
  EXPECT_TRUE(stat_json(sample).at("tiers").is_null());
  sample.info = nlohmann::json::parse(R"({"internal_states": [{"tiers": 5, "cached_tokens": "x", "storage": null}]})");
  EXPECT_FALSE(stat_text(sample, nullptr, 0).empty());
}

}  // namespace
}  // namespace larder
