// SPDX-License-Identifier: Apache-2.0
// GET /metrics?format=json, and what `larder stat` makes of it.
#include "server/stat_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/metrics.h"
#include "server/metrics_json.h"

namespace larder {
namespace {

const MetricFamily* family_of(const std::vector<MetricFamily>& families, std::string_view name) {
  const auto found = std::find_if(families.begin(), families.end(), [&](const auto& f) { return f.name == name; });
  return found == families.end() ? nullptr : &*found;
}

TEST(MetricsJson, ReadsWhatTheRegistryWrites) {
  MetricsRegistry registry;
  registry.counter("larder_storage_reads_total", "Pages asked of storage", {{"backend", "a \"b\"\\\n"}}).increment(7);
  registry.gauge("larder_storage_breaker_state", "0 closed").set(0.5);
  registry.gauge("larder_unknown", "").set(std::numeric_limits<double>::quiet_NaN());
  const double bounds[] = {0.001, 0.01, 0.1};
  Histogram& histogram = registry.histogram("larder_storage_read_seconds", "Time", bounds, {{"op", "get"}});
  for (int i = 0; i < 90; ++i) histogram.observe(0.005);
  for (int i = 0; i < 10; ++i) histogram.observe(5);
  const Result<std::vector<MetricFamily>> read = parse_metrics_json(metrics_json(registry));
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  const MetricFamily* reads = family_of(*read, "larder_storage_reads_total");
  ASSERT_NE(reads, nullptr);
  EXPECT_EQ(reads->type, "counter");
  EXPECT_EQ(reads->help, "Pages asked of storage");
  ASSERT_EQ(reads->series.size(), 1u);
  EXPECT_EQ(reads->series[0].label("backend"), "a \"b\"\\\n");
  EXPECT_EQ(reads->series[0].value, 7);
  EXPECT_EQ(family_of(*read, "larder_storage_breaker_state")->series.at(0).value, 0.5);
  EXPECT_TRUE(std::isnan(family_of(*read, "larder_unknown")->series.at(0).value));
  const MetricFamily* times = family_of(*read, "larder_storage_read_seconds");
  ASSERT_NE(times, nullptr);
  ASSERT_EQ(times->series.size(), 1u);
  const MetricSeries& series = times->series[0];
  EXPECT_EQ(series.count, 100u);
  EXPECT_NEAR(series.sum, 50.45, 1e-6);
  ASSERT_EQ(series.buckets.size(), 4u);
  EXPECT_EQ(series.buckets[1], (std::pair<double, std::uint64_t>{0.01, 90}));
  EXPECT_TRUE(std::isinf(series.buckets[3].first));
  EXPECT_NEAR(histogram_quantile(series, 0.5), 0.001 + 0.009 * 50 / 90, 1e-9);
  EXPECT_EQ(histogram_quantile(series, 0.99), 0.1);  // beyond the last bound
  EXPECT_EQ(histogram_quantile({}, 0.5), 0);
  MetricSeries quick;
  quick.count = 100;
  quick.sum = 100 * 2e-6;
  quick.buckets = {{0.001, 100}, {0.01, 100}};
  EXPECT_DOUBLE_EQ(histogram_quantile(quick, 0.5), 4e-6) << "half of them are no more than twice the mean";
}

TEST(MetricsJson, PassesOverWhatItDoesNotKnow) {
  const Result<std::vector<MetricFamily>> read = parse_metrics_json(R"({"a": 1, "b": {"type": 3, "series": "x"},
    "c": {"type": "histogram", "unit": "s", "series": [5, {"count": -1, "sum": "x", "buckets": [1, [2], [3, 1e300]]},
    {"labels": {"x": 1}, "value": null}]}})");
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_TRUE(family_of(*read, "a")->series.empty());
  EXPECT_TRUE(family_of(*read, "b")->series.empty());
  const MetricFamily& family = *family_of(*read, "c");
  ASSERT_EQ(family.series.size(), 3u);
  EXPECT_EQ(family.series[1].count, 0u);
  EXPECT_EQ(family.series[1].buckets, (std::vector<std::pair<double, std::uint64_t>>{{3, 0}}));
  EXPECT_TRUE(std::isnan(family.series[2].value));
  EXPECT_EQ(parse_metrics_json("# HELP a\na 1\n").status().code(), StatusCode::kCorrupt);
}

StatSample sample_of(std::uint64_t reads) {
  MetricsRegistry registry;
  registry.counter("larder_storage_reads_total", "Reads", {{"model_name", "m"}, {"reason", "absent"}}).increment(reads);
  registry.histogram("larder_storage_op_seconds", "Time", latency_bounds_seconds(), {{"op", "get"}}).observe(0.002);
  StatSample sample;
  sample.metrics = *parse_metrics_json(metrics_json(registry));
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
  const std::string text = stat_text(now, &before, 5, false);
  for (const char* wanted : {"model tiny", "backend file", "2 running, 3 waiting", "10.0 %", "25.0 %", "5.0 %",
                             "1.0 MiB", "2.0 MiB", "50.0 %", "corrupt_pages", "3.0 MiB", "larder_storage_reads_total",
                             "reason=absent", "60", "10.0", "larder_storage_op_seconds", "op=get"}) {
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " is not in\n" << text;
  }
  EXPECT_EQ(text.find("model_name"), std::string::npos);
  EXPECT_EQ(stat_text(now, nullptr, 0, false).find("per s"), std::string::npos);
  const auto json = stat_json(now);
  EXPECT_EQ(json.at("tiers").at(0).at("slots"), 5);
  EXPECT_EQ(json.at("metrics").at("larder_storage_reads_total").at("series").at(0).at("value"), 60);
  EXPECT_EQ(json.at("storage").at("physical_bytes"), 3145728);
}

TEST(StatReport, ShowsTheServersBeforeLlamaCpp) {
  MetricsRegistry registry;
  registry.counter("larder_proxy_restores_total", "Restores").increment(7);
  StatSample sample;
  sample.metrics = *parse_metrics_json(metrics_json(registry));
  sample.info = info_of_front(nlohmann::json::parse(R"({"server": "larder proxy", "version": "1", "model": "tiny",
    "slots": {"all": 4, "busy": 2, "waiting": 3}, "prompt_tokens": 200,
    "cached_tokens": {"device": 20, "host": 50, "storage": 10},
    "tiers": [{"tier": "host", "component": "all", "slots": 5, "capacity": 0, "bytes": 1048576,
               "capacity_bytes": 2097152}],
    "backend": {"backend": "file", "store": {"physical_bytes": 3145728}}})"));
  const std::string text = stat_text(sample, nullptr, 0, false);
  for (const char* wanted : {"model tiny, larder proxy 1; backend file\n", "2 running, 3 waiting", "slots 10.0 %",
                             "host 25.0 %", "storage 5.0 %", "50.0 %", "3.0 MiB", "larder_proxy_restores_total"}) {
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " is not in\n" << text;
  }
  EXPECT_EQ(stat_json(sample).at("running"), 2);
  for (const char* odd : {"{}", R"({"slots": 1, "backend": [], "tiers": "x", "cached_tokens": null})"}) {
    sample.info = info_of_front(nlohmann::json::parse(odd));
    EXPECT_FALSE(stat_text(sample, nullptr, 0, true).empty()) << odd;
  }
}

TEST(StatReport, ShowsAPageOfMetricsAlone) {
  MetricsRegistry registry;
  registry.counter("larder_door_get_pages_total", "Pages", {{"result", "read"}}).increment(7);
  registry.counter("larder_door_store_evicted_pages_total", "Pages").increment(3);
  registry.gauge("larder_sglang_clear_owed", "Whether").set(1);
  registry.gauge("larder_new", "Something").set(5);
  StatSample sample;
  sample.metrics = *parse_metrics_json(metrics_json(registry));
  const std::string text = stat_text(sample, nullptr, 0, false);
  EXPECT_EQ(text.find("model -"), std::string::npos) << "nobody has asked a server\n" << text;
  std::size_t at = 0;
  for (const char* wanted :
       {"metrics alone", "\npage store", "larder_door_get_pages_total", "result=read",
        "larder_door_store_evicted_pages_total", "\nplug-in", "larder_sglang_clear_owed", "\nothers", "larder_new"}) {
    const std::size_t found = text.find(wanted, at);
    ASSERT_NE(found, std::string::npos) << wanted << " is not where it belongs in\n" << text;
    at = found;
  }
  EXPECT_EQ(stat_json(sample).at("metrics").at("larder_new").at("series").at(0).at("value"), 5);
}

TEST(StatReport, LeavesOutWhatIsZeroOrThereTwice) {
  StatSample sample = sample_of(0);
  MetricsRegistry registry;
  (void)registry.counter("larder_storage_reads_total", "Reads", {{"reason", "absent"}});
  registry.counter("larder_storage_moved_pages_total", "Moved").increment(8);
  sample.metrics = *parse_metrics_json(metrics_json(registry));
  sample.info["internal_states"][0] = nlohmann::json::parse(R"({
    "tiers": [{"tier": "storage", "component": "", "slots": 22, "capacity": 0, "bytes": 5, "capacity_bytes": 0}],
    "cache": {"corrupt_pages": 0, "retracted": 3}, "storage": {"moved": 8, "torn_tails": 0, "read_hits": 9}})");
  const std::string brief = stat_text(sample, nullptr, 0, false), all = stat_text(sample, nullptr, 0, true);
  for (const char* zero_or_twice : {"corrupt_pages", "torn_tails", "larder_storage_reads_total", "\nmoved"}) {
    EXPECT_EQ(brief.find(zero_or_twice), std::string::npos) << zero_or_twice << " is in\n" << brief;
    EXPECT_NE(all.find(zero_or_twice), std::string::npos) << zero_or_twice << " is not in\n" << all;
  }
  for (const char* wanted : {"retracted", "read_hits", "larder_storage_moved_pages_total", "--all"}) {
    EXPECT_NE(brief.find(wanted), std::string::npos) << wanted << " is not in\n" << brief;
  }
  EXPECT_EQ(brief.find(" 0 "), std::string::npos) << "storage has no number of slots\n" << brief;
}

// Two numbers under like names may be of two things: what storage holds, and what was moved by operations.
TEST(StatReport, OnlyWhatSaysTheSameIsThereTwice) {
  StatSample sample = sample_of(0);
  MetricsRegistry registry;
  registry.counter("larder_storage_bytes_total", "Moved", {{"op", "read"}}).increment(4096);
  registry.counter("larder_storage_bytes_total", "Moved", {{"op", "write"}}).increment(8192);
  (void)registry.counter("larder_storage_evicted_pages_total", "Of the backend that is attached now");
  registry.gauge("larder_storage_segments", "Segments").set(3);
  registry.gauge("larder_tenant_bytes", "Held", {{"tenant", "blue"}, {"tier", "host"}}).set(2048);
  sample.metrics = *parse_metrics_json(metrics_json(registry));
  sample.info["internal_states"][0] =
      nlohmann::json::parse(R"({"storage": {"bytes": 12288, "evicted": 7, "segments": 3}})");
  const std::string text = stat_text(sample, nullptr, 0, false);
  for (const char* wanted : {"\nbytes            12.0 KiB\n", "\nevicted                 7\n"}) {
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " is not in\n" << text;
  }
  EXPECT_EQ(text.find("\nsegments"), std::string::npos) << text;
  EXPECT_NE(text.find("larder_tenant_bytes  tenant=blue, tier=host  2.0 KiB"), std::string::npos) << text;
}

TEST(StatReport, LargeNumbersAndCountersThatBeganAnew) {
  const auto with = [](std::uint64_t pages, std::uint64_t bytes) {
    MetricsRegistry registry;
    registry.counter("larder_storage_pages_total", "Pages").increment(pages);
    registry.counter("larder_storage_bytes_total", "Bytes").increment(bytes);
    StatSample sample = sample_of(0);
    sample.metrics = *parse_metrics_json(metrics_json(registry));
    return sample;
  };
  const StatSample now = with(2'000'000'000'000'000, std::uint64_t{3} << 50);
  const std::string text = stat_text(now, nullptr, 0, false);
  EXPECT_NE(text.find("2,000,000,000,000,000"), std::string::npos) << text;
  EXPECT_NE(text.find("3072.0 TiB"), std::string::npos) << text;
  const StatSample before = with(3'000'000'000'000'000, 4096);
  const std::string rates = stat_text(now, &before, 2, false);
  EXPECT_EQ(rates.find("-500000000000000.0"), std::string::npos) << rates;
  EXPECT_NE(rates.find("1000000000000000.0"), std::string::npos) << "2e15 since the server began anew\n" << rates;
}

TEST(StatReport, WorksWithAServerThatSaysLess) {
  StatSample sample;
  sample.info = nlohmann::json::object();
  EXPECT_NE(stat_text(sample, nullptr, 0, false).find("model -"), std::string::npos);
  EXPECT_TRUE(stat_json(sample).at("tiers").is_null());
  sample.info = nlohmann::json::parse(R"({"internal_states": [{"tiers": 5, "cached_tokens": "x", "storage": null}]})");
  EXPECT_FALSE(stat_text(sample, nullptr, 0, false).empty());
}

}  // namespace
}  // namespace larder
