// SPDX-License-Identifier: Apache-2.0
// `larder bench cache` with tiny sizes: each load ends with its books balanced, and says what it should.
#include "bench/bench_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace larder {
namespace {

CacheBenchOptions tiny() {
  CacheBenchOptions options;
  options.requests = 20;
  options.nodes = 300;
  options.tokens = 5000;
  options.page_size = 16;
  options.repeats = 2;
  options.tiers = "storage";
  return options;
}

TEST(BenchCache, EachModelHasEachLoadAndTheBarsOfTheIssue) {
  const CacheBenchOptions options = tiny();
  const auto result = run_cache_bench(options);
  ASSERT_TRUE(result.is_ok()) << result.status().to_string();
  for (const char* model : {"full", "full+swa", "full+mamba"}) {
    std::size_t bars = 0;
    for (const CacheBenchRow& row : result->rows) {
      if (row.model != model) continue;
      EXPECT_GT(row.calls, 0u) << row.call;
      EXPECT_LE(row.p50.median, row.p99.median) << row.call;
      EXPECT_LE(row.p99.median, row.p999.median) << row.call;
      EXPECT_LE(row.p999.high, row.most.high) << row.call;
      bars += row.bar > 0 ? 1 : 0;
    }
    EXPECT_EQ(bars, 6u) << "polls of two loads, a request, commits of two sizes, aborts: " << model;
  }
  EXPECT_EQ(result->notes.size(), 12u);
}

TEST(BenchCache, ModelLoadAndTiersAreChosen) {
  for (const char* tiers : {"device", "host"}) {
    CacheBenchOptions options = tiny();
    options.model = "full+swa";
    options.load = "live";
    options.tiers = tiers;
    const auto result = run_cache_bench(options);
    ASSERT_TRUE(result.is_ok()) << result.status().to_string();
    EXPECT_TRUE(std::all_of(result->rows.begin(), result->rows.end(),
                            [](const CacheBenchRow& row) { return row.model == "full+swa" && row.load == "live"; }));
  }
}

TEST(BenchCache, PagesOfOneToken) {
  CacheBenchOptions options = tiny();
  options.page_size = 1;
  options.repeats = 1;
  options.load = "fetch";
  const auto result = run_cache_bench(options);
  ASSERT_TRUE(result.is_ok()) << result.status().to_string();
  for (const CacheBenchRow& row : result->rows) EXPECT_GT(row.calls, 0u) << row.call;
}

TEST(BenchCache, ABarOfNoCallsIsNotMeasured) {
  CacheBenchRow row;
  row.bar_of = "p99.9";
  row.bar = 1000;
  const CacheBenchResult none{{row}, {}};
  const std::string table = cache_bench_table(none);
  EXPECT_NE(table.find("not measured"), std::string::npos) << table;
  EXPECT_EQ(table.find("0.0 ["), std::string::npos) << table;
  EXPECT_TRUE(cache_bench_json({}, {}, none)["results"][0]["bar"]["met"].is_null());
  row.calls = 1;
  const CacheBenchResult one{{row}, {}};
  EXPECT_EQ(cache_bench_table(one).find("not measured"), std::string::npos);
  EXPECT_EQ(cache_bench_json({}, {}, one)["results"][0]["bar"]["met"], true);
}

TEST(BenchCache, TableAndJsonSayTheSame) {
  CacheBenchOptions options = tiny();
  options.model = "full";
  const auto result = run_cache_bench(options);
  ASSERT_TRUE(result.is_ok()) << result.status().to_string();
  const MachineInfo machine{"a CPU", "a kernel", "ext4", "2026-01-31 12:00", 2};
  const std::string head = cache_bench_header(options, machine);
  EXPECT_NE(head.find("a CPU"), std::string::npos);
  EXPECT_NE(head.find("2026-01-31 12:00"), std::string::npos);
  const std::string table = cache_bench_table(*result);
  const auto json = cache_bench_json(options, machine, *result);
  ASSERT_EQ(json["results"].size(), result->rows.size());
  for (const auto& row : json["results"]) {
    EXPECT_NE(table.find(row["call"].get<std::string>()), std::string::npos);
    EXPECT_TRUE(!row.contains("bar") || row["bar"]["us"].get<double>() > 0);
  }
}

}  // namespace
}  // namespace larder
