// SPDX-License-Identifier: Apache-2.0
// `larder plan`: where a model's sizes are from, what is refused, and a small trace against sizes of the tiers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/plan_test_util.h"
#include "config/model_file.h"
#include "engine/llama/gguf_test_util.h"
#include "model/presets.h"
#include "tests/support/command_run.h"

namespace larder {
namespace {

using plan_test::Json;

class Plan : public plan_test::PlanRig {};

// --- where sizes are from

TEST_F(Plan, APresetAndAModelFileOfIt) {
  PlanOptions options;
  options.source.preset = "gdn-real";
  const Json preset = run(options);
  EXPECT_EQ(preset["page_bytes"], 64 * 12 * 2 * 2 * 256 * 2);
  EXPECT_EQ(preset["restore_point_tokens"], 3144);
  EXPECT_EQ(preset["layers"], 48);
  EXPECT_EQ(preset["tokens"].size(), 3u);
  EXPECT_GT(preset["tokens"][2]["in_100_gib"], preset["tokens"][0]["in_100_gib"]);
  options.source.preset.clear();
  options.source.model_file = write("model.json", model_to_json(*preset_model("gdn-real")));
  Json file = run(options);
  file["origin"] = preset["origin"];
  EXPECT_EQ(file, preset);
}

TEST_F(Plan, AHuggingFaceConfig) {
  PlanOptions options;
  options.source.hf_config =
      write("config.json", R"({"model_type": "gpt_oss", "head_dim": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "num_hidden_layers": 36, "sliding_window": 128, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16"})");
  const Json config = run(options);
  options.source = {.preset = "swa-real"};
  const Json preset = run(options);
  for (const char* key : {"page_bytes", "window_bytes", "window_tokens", "checkpoint_bytes", "tokens", "layers"}) {
    EXPECT_EQ(config[key], preset[key]) << key;
  }
  EXPECT_EQ(config["architecture"], "gpt_oss");
  // KV in eight bits is said in a file beside it.
  const std::string beside =
      write("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})");
  options.source = {.hf_config = folder_ + "/config.json"};
  const Json eight = run(options);
  EXPECT_EQ(2 * eight["page_bytes"].get<std::uint64_t>(), config["page_bytes"].get<std::uint64_t>());
  EXPECT_EQ(eight["origin"], folder_ + "/config.json; eight bits of KV by " + beside);
  write("hf_quant_config.json", "{");
  refused(options, "hf_quant_config.json:1:");
}

// Mistral 7B v0.1: windows that overlap have their pages once.
TEST_F(Plan, WindowsAlone) {
  PlanOptions options;
  options.source.hf_config = write("config.json", R"({"model_type": "mistral", "hidden_size": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16"})");
  const Json json = run(options);
  EXPECT_EQ(json["page_bytes"], 0);
  EXPECT_EQ(json["window_bytes"], 512 << 20);
  EXPECT_EQ(json["tokens"][0]["in_1_gib"], 8192);
  const std::string text = text_of(options);
  EXPECT_NE(text.find(" 4.0 GiB"), std::string::npos) << text;
  EXPECT_EQ(text.find("32.0 GiB"), std::string::npos) << text;
  options.sweep.trace = write_trace();
  options.sweep.block_tokens = 64;
  options.page_size = 64;
  const Json sweep = run(options)["sweep"];
  EXPECT_GT(sweep["cells"][0]["device_gib"].get<double>(), 0.5) << "a window at least";
  EXPECT_GT(sweep["kept_hit_rate"].get<double>(), 0.3);
}

TEST_F(Plan, AGgufFile) {
  const std::vector<std::byte> bytes = llama::gguf_test::small_model().file(64);
  PlanOptions options;
  options.source.gguf = write("m.gguf", std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const Json json = run(options);
  EXPECT_GT(json["page_bytes"], 0);
  EXPECT_EQ(json["identity"].get<std::string>().size(), 64u);
  options.source.keys = options.source.values = "q8_0";
  EXPECT_LT(run(options)["page_bytes"], json["page_bytes"]);
  // What is replayed has the sizes that are printed.
  const Result<PlanModel> model = plan_model({.gguf = options.source.gguf});
  ASSERT_TRUE(model.is_ok());
  EXPECT_EQ(model->spec.slot_bytes(ComponentKind::kFull), model->plan.page_bytes);
}

TEST_F(Plan, KvInEightBitsIsHalfAsLarge) {
  PlanOptions options;
  options.source.preset = "gdn-real";
  const Json plain = run(options);
  options.kv_dtype = "fp8_e4m3";
  const Json small = run(options);
  EXPECT_EQ(small["page_bytes"].get<int>() * 2, plain["page_bytes"].get<int>());
  EXPECT_EQ(small["checkpoint_bytes"], plain["checkpoint_bytes"]);
}

// 64 tokens, which nobody asked for, are no whole entries of it.
TEST_F(Plan, PagesAreAsLargeAsTheModelNeeds) {
  PlanOptions options;
  options.source.preset = "dsv4-real";
  EXPECT_EQ(run(options)["page_size"], 128);
  options.source.preset = "dsv4-tiny";
  EXPECT_EQ(run(options)["page_size"], 128);
  options.page_size = 64;
  refused(options, "must be a multiple of 128");
}

// What is kept is whole pages, and restore points are pages apart.
TEST_F(Plan, OfPagesLargerThanADistanceTheDistanceIsAPage) {
  PlanOptions options;
  options.source.preset = "gdn-real";
  options.page_size = 40'000;
  const Json json = run(options);
  ASSERT_EQ(json["tokens"].size(), 1u);
  EXPECT_EQ(json["tokens"][0]["restore_point_every"], 40'000);
  const std::string text = text_of(options);
  EXPECT_NE(text.find("40,000 tokens"), std::string::npos) << text;
  EXPECT_EQ(text.find(" 0 B"), std::string::npos) << text;
  options.page_size = 500;
  EXPECT_EQ(run(options)["tokens"][1]["restore_point_every"], 2000);
  // A window for each restore point: a GiB holds less than 8,192 tokens of it.
  options.page_size = 64;
  options.source.preset = "gemma3-real";
  const Json windows = run(options)["tokens"];
  for (std::size_t i = 0; i < windows.size(); ++i) EXPECT_GT(windows[i]["in_1_gib"], 0) << i;
}

TEST_F(Plan, AConfigIsReadOnceThoughPageSizesAreTried) {
  constexpr std::string_view kV4 = R"({"model_type": "deepseek_v4", "num_hidden_layers": 4, "num_attention_heads": 8,
    "head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "sliding_window": 128,
    "compress_ratios": [0, 0, 4, 128]})";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], kV4.data(), kV4.size()), static_cast<ssize_t>(kV4.size()));
  ::close(ends[1]);
  PlanOptions options;
  options.source.hf_config = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_EQ(run(options)["page_size"], 128);
  ::close(ends[0]);
}

// It is a word of the file and of a model's publisher.
TEST_F(Plan, ANameOfAGgufFileIsNoWordToTheTerminal) {
  llama::gguf_test::GgufWriter writer;
  writer.text("general.architecture", "llama");
  writer.text("general.name", "a\x1b[2J\xe9");
  writer.u32("llama.block_count", 1);
  writer.u32("llama.context_length", 64);
  writer.u32("llama.embedding_length", 64);
  writer.u32("llama.attention.head_count", 1);
  const std::vector<std::byte> bytes = writer.file(64);
  PlanOptions options;
  options.source.gguf = write("m.gguf", std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const std::string text = text_of(options);
  EXPECT_TRUE(text.starts_with("a\\u001b[2J\\ufffd, llama")) << text;
  EXPECT_EQ(run(options)["name"], "a\x1b[2J\xef\xbf\xbd");
}

TEST_F(Plan, WhatIsRefused) {
  PlanOptions options;
  refused(options, "--model PRESET, --model-file FILE, --gguf FILE or --hf-config FILE is missing");
  options.source.preset = "gdn-real";
  options.source.gguf = "x.gguf";
  refused(options, "--model and --gguf: give one of them");
  options.source = {.preset = "gdn"};
  refused(options, "--model: no preset 'gdn'; there are");
  options.source = {.model_file = "m.yaml"};
  refused(options, "--model-file: 'm.yaml' ends in neither");
  options.source = {.model_file = folder_ + "/none.json"};
  refused(options, "none.json");
  options.source = {.model_file = write("bad.json", "{\"id\": 7}")};
  refused(options, "bad.json: id: expected a text");
  options.source = {.hf_config = write("config.json", "{\"model_type\": \"rwkv7\"}")};
  refused(options, "config.json: model_type: models of family 'rwkv7' are not known here");
  options.source = {.gguf = write("x.gguf", "no gguf")};
  refused(options, "x.gguf");
  options.source = {.preset = "dsv4-real"};
  options.page_size = 100;
  refused(options, "--page-size or --kv-dtype: model 'dsv4-real': page_size is 100");
  options.page_size = 0;
  options.kv_dtype = "int4";
  refused(options, "--kv-dtype: 'int4' is none of");
  options.kv_dtype = "u8";  // bytes of any meaning
  refused(options, "--kv-dtype: 'u8' is none of");
  options.kv_dtype = "bf16";
  options.source = {.gguf = "x.gguf"};
  refused(options, "--kv-dtype: a GGUF model's types");
}

TEST_F(Plan, WhatIsRefusedOfASweep) {
  PlanOptions options = sweep_options();
  options.plots = {"x.jpg"};
  refused(options, "--plot: 'x.jpg' ends in neither .svg nor .png");
  options.plots = {folder_ + "/no/folder.svg"};
  options.sweep.gib = {std::vector<double>{0.01}, {0.01}, {0}};
  refused(options, "--plot: open");
  options.plots.clear();
  options.csv = folder_ + "/no/folder.csv";
  refused(options, "--csv: open");
  options.csv.clear();
  options.sweep.policy = "arc";
  refused(options, "--policy is 'arc': it must be one of lru, lfu");
  options.sweep.policy = "value";
  options.sweep.gib = {std::vector<double>{1e-5}, {0.01}, {0}};
  refused(options, "--device: the longest request of the trace needs");
  options.sweep.gib = {std::vector<double>{0.01}, {0}, {1}};
  refused(options, "--host: storage needs a host");
  options.sweep.gib = {std::vector<double>{0.01}, std::vector<double>(1100), {0}};
  for (std::size_t i = 0; i < 1100; ++i) options.sweep.gib[kPlanHost][i] = 0.01 + 1e-6 * static_cast<double>(i);
  refused(options, "1100 sizes; 1024 is the limit");
  options.sweep.trace = folder_ + "/none.jsonl";
  refused(options, "none.jsonl");
  options.sweep.trace = folder_;
  refused(options, "is a folder: name a file in it");
  options.csv = folder_ + "/no/folder.csv";
  refused(options, "--csv: open");  // before the trace is read
  options.csv = write("old.csv", "what was there");
  options.plots = {folder_ + "/new.svg"};
  refused(options, "is a folder");
  EXPECT_EQ(read(options.csv), "what was there");
  EXPECT_FALSE(std::filesystem::exists(options.plots[0]));
}

TEST_F(Plan, TheCommandLine) {
  const auto code = [](std::vector<std::string> words) {
    const support::CommandRun run = support::run_command(plan_command, std::move(words));
    return std::pair(run.code, run.text());
  };
  EXPECT_EQ(code({"plan", "--model", "gdn-real", "--json"}).first, 0);
  EXPECT_EQ(code({"plan"}).first, 2);
  EXPECT_EQ(code({"plan", "--model", "gdn-real", "--gguf", "x"}).first, 2);
  EXPECT_EQ(code({"plan", "--model", "gdn-real", "--host", "1"}).first, 2);  // of a sweep alone
  EXPECT_EQ(code({"plan", "--model", "gdn-real", "--trace", "x", "--host", "1,-2"}).first, 2);
  EXPECT_EQ(code({"plan", "--hf-config", folder_ + "/none"}).first, 2);
  EXPECT_EQ(code({"plan", "--gguf", write("x.gguf", "no gguf, but long enough for the head of one")}).first, 2);
  EXPECT_EQ(code({"plan", "--gguf", write("x.gguf", "cut")}).first, 2);
  const auto [ended, text] =
      code({"plan", "--model", "gdn-tiny", "--trace", write_trace(), "--block-tokens", "64", "--device", "0.01",
            "--host", "0,0.002,0.004", "--storage", "0", "--price-host", "3"});
  EXPECT_EQ(ended, 0) << text;
  EXPECT_NE(text.find("a point costs"), std::string::npos) << text;
  EXPECT_NE(text.find("knee: from this host on, no doubling gains 1 point"), std::string::npos) << text;
}

TEST_F(Plan, OneSizeHasNoKnee) {
  PlanOptions options = sweep_options();
  options.sweep.gib = {std::vector<double>{0.01}, {0, 0.004}, {0, 0.01}};
  const std::string text = text_of(options);
  EXPECT_NE(text.find("storage 0.01 GiB: one size alone: give several with --host"), std::string::npos) << text;
}

// --- sizes against a trace

TEST_F(Plan, ACellIsTheReplayOfItsSizes) {
  PlanOptions options = sweep_options();
  options.sweep.gib = {std::vector<double>{0.0006}, {0.002, 0.02}, {0, 0.01}};
  const Result<PlanModel> model = plan_model({.preset = "gdn-tiny"});
  ASSERT_TRUE(model.is_ok());
  const Result<PlanSweep> sweep = plan_sweep(options.sweep, *model);
  ASSERT_TRUE(sweep.is_ok()) << sweep.status().to_string();
  ASSERT_EQ(sweep->cells.size(), 4u);
  EXPECT_GT(sweep->options.prefill_rate, 0);
  EXPECT_GT(sweep->options.at_once, 0u);
  for (const PlanCell& cell : sweep->cells) {
    ReplayOptions replay = replay_of(sweep->options, cell.gib);
    replay.model = "gdn-tiny";
    replay.page_size = 64;
    const Result<ReplayResult> alone = run_replay(replay);
    ASSERT_TRUE(alone.is_ok()) << alone.status().to_string();
    const nlohmann::ordered_json json = replay_json(replay, *alone);
    EXPECT_DOUBLE_EQ(cell.hit_rate(), alone->hit_rate());
    EXPECT_DOUBLE_EQ(cell.hit[kPlanHost] * json["prompt_tokens"].get<double>(), json["host_tokens"].get<double>());
    EXPECT_DOUBLE_EQ(cell.first_p50_s, json["first_token_p50_s"].get<double>());
    EXPECT_DOUBLE_EQ(cell.first_p99_s, json["first_token_p99_s"].get<double>());
    EXPECT_GT(cell.first_p50_s, 0);
  }
  EXPECT_GT(sweep->cells.back().hit[kPlanStorage] + sweep->cells.back().hit[kPlanHost], 0);
}

TEST_F(Plan, ModelsOfFilesAreReplayedToo) {
  PlanOptions options = sweep_options();
  const std::vector<std::byte> bytes = llama::gguf_test::small_model().file(64);
  options.source = {.gguf =
                        write("m.gguf", std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()))};
  const Json gguf = run(options)["sweep"];
  EXPECT_GT(gguf["kept_hit_rate"].get<double>(), 0.3);
  // KV and a state in each layer, and the trace's own answer: what is kept is reused.
  options.source = {.hf_config = write("config.json", R"({"model_type": "falcon_h1", "num_hidden_layers": 2,
    "num_attention_heads": 2, "head_dim": 16, "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 16,
    "mamba_n_groups": 1, "mamba_n_heads": 4, "torch_dtype": "bfloat16"})")};
  const Json config = run(options)["sweep"];
  EXPECT_NEAR(config["kept_hit_rate"].get<double>(), gguf["kept_hit_rate"].get<double>(), 0.01);
}

TEST_F(Plan, TheNumberOfThreadsChangesNothing) {
  PlanOptions options = sweep_options();
  options.sweep.threads = 1;
  const Json one = run(options);
  options.sweep.threads = 5;
  EXPECT_EQ(run(options), one);
}

// Sizes that nobody gave: all can be replayed, more host is not worse, and the largest keeps what there is.
TEST_F(Plan, SizesThatAreChosen) {
  for (const char* preset : {"gdn-tiny", "gqa-tiny", "gemma3-tiny", "mla-tiny", "mamba2-tiny"}) {
    PlanOptions options = sweep_options();
    options.source.preset = preset;
    const Json sweep = run(options)["sweep"];
    const auto& cells = sweep["cells"];
    ASSERT_GT(cells.size(), 10u) << preset;
    EXPECT_GE(cells.back()["host_gib"].get<double>() * (1ull << 30), sweep["kept_bytes"].get<double>()) << preset;
    EXPECT_NEAR(cells.back()["hit_rate"].get<double>(), sweep["kept_hit_rate"].get<double>(), 0.01) << preset;
    for (std::size_t i = 1; i < cells.size(); ++i) {
      if (cells[i]["host_gib"] <= cells[i - 1]["host_gib"]) continue;
      EXPECT_GE(cells[i]["hit_rate"].get<double>(), cells[i - 1]["hit_rate"].get<double>() - 0.02)
          << preset << " " << i;
    }
  }
}

// An id is its tenant's own: as many ids as there are tenants, or one that all use.
TEST_F(Plan, BlocksOfTwoTenantsAreTwo) {
  const auto trace = [&](const std::string& name, int apart) {
    std::string lines;
    for (int i = 0; i < 120; ++i) {
      const int tenant = i % 12, turns = i / 12 % 5 + 1;
      std::string ids;
      for (int k = 0; k < 4 * turns; ++k) ids += (k > 0 ? "," : "") + std::to_string(tenant * apart + k);
      lines += "{\"timestamp\": " + std::to_string(100 * i) + ", \"input_length\": " + std::to_string(256 * turns) +
               R"(, "output_length": 64, "tenant": "t)" + std::to_string(tenant) + "\", \"hash_ids\": [" + ids + "]}\n";
    }
    return write(name, lines);
  };
  PlanOptions options = sweep_options();
  options.sweep.trace = trace("shared.jsonl", 0);
  Json shared = run(options)["sweep"];
  options.sweep.trace = trace("apart.jsonl", 1000);
  shared["trace"] = options.sweep.trace;
  EXPECT_EQ(run(options)["sweep"], shared);
}

// Nothing comes to a host if all stays on the device, or if no request fills a page.
TEST_F(Plan, SizesAreChosenWhereAHostGetsNothing) {
  PlanOptions options = sweep_options();
  options.sweep.write_policy = "write_back";
  options.sweep.gib[kPlanDevice] = {1.0};
  const Json back = run(options)["sweep"];
  EXPECT_EQ(back["write_policy"], "write_back");
  EXPECT_GT(back["kept_bytes"].get<double>(), 0) << "a host that keeps everything has all, whenever it comes there";
  EXPECT_GT(back["cells"].size(), 5u);
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    lines += "{\"timestamp\": " + std::to_string(100 * i) + ", \"input_length\": 30, \"output_length\": 1, " +
             "\"hash_ids\": [" + std::to_string(i % 5) + "]}\n";
  }
  for (const char* preset : {"gdn-tiny", "gqa-tiny", "gemma3-tiny"}) {
    PlanOptions brief = sweep_options();
    brief.source.preset = preset;
    brief.sweep.trace = write("short.jsonl", lines);
    const Json sweep = run(brief)["sweep"];
    ASSERT_FALSE(sweep["cells"].empty()) << preset;
    EXPECT_EQ(sweep["kept_bytes"], 0) << preset;
  }
}

TEST_F(Plan, StepsArePricedByWhatTheyGain) {
  PlanOptions options = sweep_options();
  options.sweep.gib = {std::vector<double>{0.001}, {0.0005, 0.001, 0.02}, {0}};
  options.sweep.price[kPlanHost] = 4;
  const Json sweep = run(options)["sweep"];
  ASSERT_EQ(sweep["steps"].size(), 2u);
  const Json &step = sweep["steps"][1], &from = sweep["cells"][1], &to = sweep["cells"][2];
  const double more = to["host_gib"].get<double>() - from["host_gib"].get<double>();
  const double points = 100 * (to["hit_rate"].get<double>() - from["hit_rate"].get<double>());
  ASSERT_GT(points, 1);
  EXPECT_EQ(step["tier"], "host");
  // 100 GiB bring no more than all that there is.
  const double left = 100 * (sweep["kept_hit_rate"].get<double>() - from["hit_rate"].get<double>());
  EXPECT_NEAR(step["points_per_100_gib"].get<double>(), std::max(points, left), 1e-6);
  EXPECT_NEAR(step["price_per_point"].get<double>(), 4 * more / points, 1e-9);
  const double saved = from["computing_s_per_hour"].get<double>() - to["computing_s_per_hour"].get<double>();
  EXPECT_NEAR(step["saved_s_per_hour_per_100_gib"].get<double>(), saved * std::max(points, left) / points, 1e-6);
  for (const Json& any : sweep["steps"]) {
    EXPECT_LE(any["points_per_100_gib"].get<double>(), 100);
    EXPECT_GE(any["points_per_100_gib"].get<double>(), -100);
    EXPECT_LE(any["saved_s_per_hour_per_100_gib"].get<double>(), 3600);
  }
  // A step of more than that is counted down.
  options.sweep.gib = {std::vector<double>{0.001}, {0.0005, 200.0005}, {0}};
  const Json large = run(options)["sweep"];
  const double gained = large["cells"][1]["hit_rate"].get<double>() - large["cells"][0]["hit_rate"].get<double>();
  EXPECT_NEAR(large["steps"][0]["points_per_100_gib"].get<double>(), 100 * gained / 2, 1e-6);
}

TEST(PlanKnee, IsWhereLaterDoublingsGainLess) {
  const auto knee = [](std::vector<double> sizes, std::vector<double> rates, double points = 1) {
    return knee_of(sizes, rates, points);
  };
  EXPECT_EQ(knee({1, 2, 4, 8}, {0.1, 0.2, 0.205, 0.206}), 1u);
  // Flat at first: it is after the rise.
  EXPECT_EQ(knee({0, 16, 32, 64, 128}, {0.1, 0.1, 0.1, 0.3, 0.301}), 3u);
  EXPECT_EQ(knee({1, 2, 4}, {0.1, 0.1, 0.1}), 0u);
  EXPECT_EQ(knee({1, 2, 4}, {0.1, 0.2, 0.3}), std::nullopt);  // it still rises
  EXPECT_EQ(knee({1, 16}, {0.1, 0.13}), 0u);                  // four doublings for three points
  EXPECT_EQ(knee({1, 2}, {0.1, 0.13}), std::nullopt);
  EXPECT_EQ(knee({1, 2}, {0.1, 0.13}, 5), 0u);
  EXPECT_EQ(knee({8}, {0.1}), std::nullopt);
  EXPECT_EQ(knee({}, {}), std::nullopt);
}

}  // namespace
}  // namespace larder
