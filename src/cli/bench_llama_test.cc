// SPDX-License-Identifier: Apache-2.0
// The rows, bars and tables of `larder bench llama`, and one run of it where a llama-server and a model are:
//   LARDER_LLAMA_SERVER=.../llama-server LARDER_LLAMA_MODEL=.../tiny.gguf
#include "bench/bench_llama.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "bench/bench_llama_server.h"

namespace larder {
namespace {

std::size_t row_named(std::string_view name) {
  const auto rows = llama_rows();
  return static_cast<std::size_t>(std::ranges::find(rows, name, &LlamaRow::name) - rows.begin());
}

std::size_t shared_tokens(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// All rows, once, as a proxy without faults and a llama-server without checkpoints would do it.
LlamaModelResult ideal_result(double plain_seconds, double proxy_seconds) {
  LlamaModelResult result{"m.gguf", "a model", true, {}};
  for (std::size_t row = 0; row < kLlamaRows; ++row) {
    const std::uint64_t reused = llama_rows()[row].dense_reused / 64 * 64;
    LlamaCell cell{row, {}};
    cell.of(LlamaSetup::kPlain) = {{0, plain_seconds, 1}};
    cell.of(LlamaSetup::kProxy) = cell.of(LlamaSetup::kServe) = {{reused, proxy_seconds, 1}};
    result.cells.push_back(std::move(cell));
  }
  return result;
}

std::vector<LlamaBar> bars_of(const LlamaBenchOptions& options, const LlamaModelResult& result) {
  return llama_bars(options, result, LlamaSetup::kProxy);
}

std::size_t count_of(const std::vector<LlamaBar>& bars, LlamaVerdict verdict) {
  return static_cast<std::size_t>(std::ranges::count(bars, verdict, &LlamaBar::verdict));
}

TEST(BenchLlama, PromptsShareWhatTheirRowsSay) {
  const LlamaPrompts prompts(1);
  const auto of = [&](std::string_view name) { return prompts.of_row(row_named(name)); };
  const std::vector<TokenId> a = of("0");
  EXPECT_EQ(a.size(), 3000u);
  EXPECT_EQ(a, of("1"));
  EXPECT_EQ(a, of("6"));
  EXPECT_TRUE(std::ranges::all_of(a, [](TokenId token) { return token < 256; }));
  EXPECT_EQ(of("2").size(), 3100u);
  EXPECT_EQ(of("2"), of("8"));
  EXPECT_EQ(shared_tokens(a, of("2")), 3000u);
  for (const auto& [name, tokens] : {std::pair{"3", 2600u},
                                     {"4", 1000u},
                                     {"5", 1000u},
                                     {"10", 2000u},
                                     {"10b", 2000u},
                                     {"11", 2944u},
                                     {"11b", 2944u},
                                     {"7", 0u}}) {
    EXPECT_EQ(of(name).size(), 3000u) << name;
    EXPECT_NEAR(static_cast<double>(shared_tokens(a, of(name))), tokens, 1) << name;
  }
  EXPECT_NEAR(static_cast<double>(shared_tokens(of("10"), of("10b"))), 2000, 1);
  EXPECT_EQ(shared_tokens(of("8"), of("9b")), 3100u);
  EXPECT_NEAR(static_cast<double>(shared_tokens(of("8"), of("9"))), 3000, 1);
  EXPECT_NE(LlamaPrompts(2).of_row(0), a);
}

TEST(BenchLlama, ASubsetBringsWhatItBuildsOn) {
  const LlamaRowChoice all = choose_llama_rows({});
  EXPECT_EQ(std::ranges::count(all.is_run, true), static_cast<long>(kLlamaRows));
  const std::uint32_t five[] = {5};
  const LlamaRowChoice choice = choose_llama_rows(five);
  for (std::size_t row = 0; row < kLlamaRows; ++row) {
    const std::string_view name = llama_rows()[row].name;
    EXPECT_EQ(choice.is_run[row], name == "0" || name == "4" || name == "5") << name;
    EXPECT_EQ(choice.is_shown[row], name == "5") << name;
  }
  for (std::size_t row = 0; row < kLlamaRows; ++row) {
    EXPECT_LT(llama_rows()[row].needs, 1u << row) << "a row builds on earlier ones";
  }
  const std::uint32_t eleven[] = {11};
  EXPECT_TRUE(choose_llama_rows(eleven).is_run[row_named("9b")]) << "where llama-server has nothing of its own";
}

TEST(BenchLlama, BarsAreJudgedByWhatRan) {
  LlamaBenchOptions options;
  EXPECT_EQ(count_of(bars_of(options, ideal_result(20, 0.5)), LlamaVerdict::kMet), 5u);
  LlamaModelResult slow = ideal_result(20, 25);
  EXPECT_EQ(count_of(bars_of(options, slow), LlamaVerdict::kMissed), 4u) << "reuse is still met";
  slow.cells[row_named("10b")].of(LlamaSetup::kProxy)[0].reused = 2000 - 129;
  EXPECT_EQ(count_of(bars_of(options, slow), LlamaVerdict::kMissed), 5u);
  EXPECT_EQ(count_of(bars_of(options, ideal_result(1, 0.01)), LlamaVerdict::kNotJudged), 3u) << "a small model";
  LlamaModelResult dense = ideal_result(20, 0.5);
  dense.has_checkpoints = false;
  EXPECT_EQ(count_of(bars_of(options, dense), LlamaVerdict::kNotJudged), 3u);
  options.rows = {5};
  const std::vector<LlamaBar> few = bars_of(options, ideal_result(20, 0.5));
  ASSERT_EQ(few.size(), 1u);
  EXPECT_NE(few[0].text.find("row 5 960 of 1000"), std::string::npos) << few[0].text;
}

TEST(BenchLlama, TablesAndJson) {
  LlamaBenchOptions options;
  options.fronts = {LlamaSetup::kProxy, LlamaSetup::kServe};
  LlamaModelResult result = ideal_result(20, 0.5);
  const std::string table = llama_table(options, result);
  EXPECT_NE(table.find("10b other branch at 2000"), std::string::npos) << table;
  EXPECT_NE(table.find("40.00"), std::string::npos) << table;
  result.cells[0].of(LlamaSetup::kServe).push_back({0, 1.5, 1});
  EXPECT_NE(llama_table(options, result).find("1.000 [0.500..1.500]"), std::string::npos)
      << llama_table(options, result);
  const auto json = llama_json(options, {}, {result});
  EXPECT_EQ(json.at("models").at(0).at("rows").size(), kLlamaRows);
  EXPECT_EQ(json.at("models").at(0).at("bars").size(), 10u);
  EXPECT_EQ(json.at("models").at(0).at("bars").at(0).at("verdict"), "met");
  EXPECT_EQ(json.at("models").at(0).at("rows").at(0).at("serve").at("seconds").at("high"), 1.5);
}

TEST(BenchLlama, ServeHasNoOptionsOfLlamaServer) {
  const std::string_view words = "serve runs without the options of --server-args";
  LlamaBenchOptions options;
  options.fronts = {LlamaSetup::kProxy, LlamaSetup::kServe};
  EXPECT_EQ(llama_header(options, {}).find(words), std::string::npos);
  EXPECT_TRUE(llama_json(options, {}, {}).at("server_arguments_of").empty());
  options.server_arguments = {"--ctx-checkpoints", "8"};
  EXPECT_NE(llama_header(options, {}).find(words), std::string::npos) << llama_header(options, {});
  EXPECT_EQ(llama_json(options, {}, {}).at("server_arguments_of"), nlohmann::json({"llama-server", "proxy"}));
  options.fronts = {LlamaSetup::kProxy};
  EXPECT_EQ(llama_header(options, {}).find(words), std::string::npos);
}

TEST(BenchLlama, SumsAMetricOverItsLabels) {
  const std::string_view text = "# HELP a what\n# TYPE a counter\na{x=\"1\"} 2\na{x=\"2\"} 3\nab 7\na_count 9\nb 0.5";
  EXPECT_EQ(metric_of(text, "a"), 5);
  EXPECT_EQ(metric_of(text, "a_count"), 9);
  EXPECT_EQ(metric_of(text, "b"), 0.5);
  EXPECT_EQ(metric_of(text, "c"), 0);
}

TEST(BenchLlama, ServersThatAreNotThere) {
  LlamaBenchOptions options;
  options.llama_server = "/no/such/llama-server";
  const auto result = run_llama_model(options, "/no/such/model.gguf");
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("tools/llama_env.sh"), std::string::npos);
  options.llama_server = "/bin/false";  // starts, and has ended before it answers
  options.shows_progress = false;
  const auto none = run_llama_model(options, "/no/such/model.gguf");
  EXPECT_NE(none.status().message().find("--model"), std::string::npos) << none.status().message();
  const auto dead = run_llama_model(options, "/bin/false");
  EXPECT_EQ(dead.status().code(), StatusCode::kUnavailable) << dead.status().to_string();
}

TEST(BenchLlama, ReusesWhatItsRowsAskFor) {
  const char *server = std::getenv("LARDER_LLAMA_SERVER"), *model = std::getenv("LARDER_LLAMA_MODEL");
  const std::string larder = (std::filesystem::current_path() / "larder").string();  // ctest runs in the build folder
  if (server == nullptr || model == nullptr || !std::filesystem::exists(larder)) {
    GTEST_SKIP() << "LARDER_LLAMA_SERVER, LARDER_LLAMA_MODEL and ./larder are not all there";
  }
  LlamaBenchOptions options;
  options.llama_server = server;
  options.larder = larder;
  options.fronts = llama_fronts();
  options.host_memory = "256Mi";
  options.repeats = 1;
  options.shows_progress = false;
  const auto result = run_llama_model(options, model);
  ASSERT_TRUE(result.is_ok()) << result.status().to_string();
  ASSERT_EQ(result->cells.size(), kLlamaRows);
  for (const LlamaCell& cell : result->cells) {
    const LlamaRow& row = llama_rows()[cell.row];
    const std::vector<LlamaSample>& plain = cell.of(LlamaSetup::kPlain);
    ASSERT_EQ(plain.size(), 1u) << row.name;
    const bool is_new = row.name == "0" || row.name == "7";
    if (is_new) {
      EXPECT_EQ(plain[0].reused, 0u) << row.name;
    }
    for (const LlamaSetup front : options.fronts) {
      const std::string where = fmt::format("row {} of {}", row.name, llama_setup_name(front));
      ASSERT_EQ(cell.of(front).size(), 1u) << where;
      const LlamaSample& ours = cell.of(front)[0];
      EXPECT_GT(ours.seconds, 0) << where;
      EXPECT_GE(ours.reused + 2 * options.page_size, row.dense_reused) << where;
      if (is_new) {
        EXPECT_EQ(ours.reused, 0u) << where;
      }
      if (row.name == "1") {
        EXPECT_GE(ours.reused, 2944u) << where;
      }
    }
  }
}

}  // namespace
}  // namespace larder
