// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace larder {
namespace {

TEST(Metrics, RendersTheExpositionFormat) {
  MetricsRegistry registry;
  registry.counter("larder_hits_total", "Hits,\nby tier.", {{"tier", "ho\"st"}, {"pool", "k\\v"}}).increment(3);
  registry.gauge("larder_pages", "Pages.").set(1.5);
  const double bounds[] = {0.1, 1};
  Histogram& histogram = registry.histogram("larder_wait_seconds", "Waits.", bounds, {{"op", "read"}});
  histogram.observe(0.1);
  histogram.observe(0.5);
  histogram.observe(7);
  EXPECT_EQ(registry.render(),
            "# HELP larder_hits_total Hits,\\nby tier.\n"
            "# TYPE larder_hits_total counter\n"
            "larder_hits_total{pool=\"k\\\\v\",tier=\"ho\\\"st\"} 3\n"
            "# HELP larder_pages Pages.\n"
            "# TYPE larder_pages gauge\n"
            "larder_pages 1.5\n"
            "# HELP larder_wait_seconds Waits.\n"
            "# TYPE larder_wait_seconds histogram\n"
            "larder_wait_seconds_bucket{op=\"read\",le=\"0.1\"} 1\n"
            "larder_wait_seconds_bucket{op=\"read\",le=\"1\"} 2\n"
            "larder_wait_seconds_bucket{op=\"read\",le=\"+Inf\"} 3\n"
            "larder_wait_seconds_sum{op=\"read\"} 7.6\n"
            "larder_wait_seconds_count{op=\"read\"} 3\n"
            "# HELP larder_metrics_refused_total Series refused: the limit was reached, or the name has another kind.\n"
            "# TYPE larder_metrics_refused_total counter\n"
            "larder_metrics_refused_total 0\n");
}

// One such byte, and Prometheus takes nothing of the page.
TEST(Metrics, BytesOfALabelThatAreNoUtf8AreShownInHex) {
  MetricsRegistry registry;
  for (const char* label : {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf5\x80\x80\x80", "\x80"}) {
    registry.counter("a_total", "", {{"x", label}}).increment();
  }
  registry.counter("b_total", "", {{"x", "\u00e9\u20ac\U0001f600"}}).increment();
  const std::string text = registry.render();
  for (const char* shown :
       {"\\\\xff", "a\\\\xc3", "\\\\xed\\\\xa0\\\\x80", "\\\\xc0\\\\xaf", "\\\\xf5\\\\x80\\\\x80\\\\x80", "\\\\x80"}) {
    EXPECT_NE(text.find("a_total{x=\"" + std::string(shown) + "\"} 1\n"), std::string::npos) << shown << "\n" << text;
  }
  EXPECT_NE(text.find("b_total{x=\"\u00e9\u20ac\U0001f600\"} 1\n"), std::string::npos) << text;
}

TEST(Metrics, OneSeriesPerNameAndLabelsInAnyOrder) {
  MetricsRegistry registry;
  Counter& first = registry.counter("a_total", "", {{"x", "1"}, {"y", "2"}});
  EXPECT_EQ(&first, &registry.counter("a_total", "", {{"y", "2"}, {"x", "1"}}));
  EXPECT_NE(&first, &registry.counter("a_total", "", {{"x", "2"}}));
}

TEST(Metrics, RefusesAnotherKindAndTooManySeriesButKeepsWorking) {
  MetricsRegistry registry;
  (void)registry.counter("a_total", "");
  registry.gauge("a_total", "").set(4);
  for (std::size_t i = 0; i < MetricsRegistry::kMaxSeries + 5; ++i) {
    registry.counter("wild_total", "", {{"id", std::to_string(i)}}).increment();
  }
  EXPECT_NE(registry.render().find("larder_metrics_refused_total 7\n"), std::string::npos);
}

TEST(Log, GoesToTheSinkAboveTheLevel) {
  std::string seen;
  set_log_sink([&](LogLevel level, std::string_view component, std::string_view message) {
    seen += std::string(log_level_name(level)) + "|" + std::string(component) + "|" + std::string(message) + ";";
  });
  log_debug("test", "hidden");
  log_error("test", "shown");
  set_log_sink({});
  EXPECT_EQ(seen, "error|test|shown;");
}

}  // namespace
}  // namespace larder
