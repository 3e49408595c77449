// SPDX-License-Identifier: Apache-2.0
// `larder plan`: where a model's sizes are from, what is refused, and a small trace against sizes of the tiers.
#include "bench/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>

#include "base/file_system.h"
#include "bench/drawing.h"
#include "bench/plan_report.h"
#include "config/model_file.h"
#include "engine/llama/gguf_test_util.h"
#include "engine/text_file.h"
#include "model/presets.h"

namespace larder {
namespace {

using Json = nlohmann::json;

class Plan : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = (std::filesystem::temp_directory_path() / (std::string("larder_plan_") + test->name())).string();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  // The path of a file with this text.
  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = folder_ + "/" + name;
    const auto file = real_file_system().open(path, {.write = true, .create = true, .truncate = true});
    EXPECT_TRUE(file.is_ok()) << file.status().to_string();
    EXPECT_TRUE(write_fully(**file, std::as_bytes(std::span(text)), 0).is_ok());
    return path;
  }
  [[nodiscard]] static std::string read(const std::string& path) {
    const Result<std::string> text = read_text_file(real_file_system(), path);
    EXPECT_TRUE(text.is_ok()) << text.status().to_string();
    return text.is_ok() ? *text : "";
  }
  // Conversations of four turns, three under way at a time; every second one begins with one document.
  [[nodiscard]] std::string write_trace(int conversations = 40) const {
    struct Turn {
      std::string ids;
      int tokens = 0;
    };
    std::vector<Turn> open;
    std::string text;
    int block = 100, time = 0;
    for (int i = 0; i < conversations + 3; ++i) {
      if (i < conversations) open.push_back(i % 2 == 0 ? Turn{"1,2,3,4", 256} : Turn{std::to_string(block++), 64});
      for (Turn& turn : open) {
        for (int n = 0; n < 3; ++n, turn.tokens += 64) turn.ids += "," + std::to_string(block++);
        text += "{\"timestamp\": " + std::to_string(time += 150) +
                ", \"input_length\": " + std::to_string(turn.tokens) + ", \"output_length\": 70, \"hash_ids\": [" +
                turn.ids + "]}\n";
      }
      if (open.size() > 3 || i >= conversations) open.erase(open.begin());
    }
    return write("trace.jsonl", text);
  }
  // gdn-tiny against that trace.
  [[nodiscard]] PlanOptions sweep_options() const {
    PlanOptions options;
    options.source.preset = "gdn-tiny";
    options.sweep.trace = write_trace();
    options.sweep.block_tokens = 64;
    options.sweep.threads = 2;
    return options;
  }
  [[nodiscard]] static Json run(PlanOptions options) {
    options.as_json = true;
    const Result<std::string> text = run_plan(options);
    EXPECT_TRUE(text.is_ok()) << text.status().to_string();
    return text.is_ok() ? Json::parse(*text) : Json::object();
  }
  static void refused(const PlanOptions& options, std::string_view words) {
    const Status status = run_plan(options).status();
    EXPECT_FALSE(status.is_ok()) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }

  std::string folder_;
};

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
  const Result<std::string> text = run_plan(options);
  ASSERT_TRUE(text.is_ok()) << text.status().to_string();
  EXPECT_NE(text->find(" 4.0 GiB"), std::string::npos) << *text;
  EXPECT_EQ(text->find("32.0 GiB"), std::string::npos) << *text;
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
    std::vector<char*> line;
    for (std::string& word : words) line.push_back(word.data());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int ended = plan_command(static_cast<int>(line.size()), line.data());
    const std::string out = testing::internal::GetCapturedStdout();
    return std::pair(ended, out + testing::internal::GetCapturedStderr());
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
  const Result<std::string> text = run_plan(options);
  ASSERT_TRUE(text.is_ok()) << text.status().to_string();
  EXPECT_NE(text->find("storage 0.01 GiB: one size alone: give several with --host"), std::string::npos) << *text;
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
  EXPECT_NEAR(step["points_per_100_gib"].get<double>(), points / more * 100, 1e-6);
  EXPECT_NEAR(step["price_per_point"].get<double>(), 4 * more / points, 1e-9);
  const double saved = from["computing_s_per_hour"].get<double>() - to["computing_s_per_hour"].get<double>();
  EXPECT_NEAR(step["saved_s_per_hour_per_100_gib"].get<double>(), saved / more * 100, 1e-6);
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

TEST_F(Plan, CsvHasALineForEachCell) {
  PlanOptions options = sweep_options();
  options.sweep.gib = {std::vector<double>{0.01}, {0, 0.002}, {0, 0.01}};
  options.csv = folder_ + "/sizes.csv";
  const Json sweep = run(options)["sweep"];
  std::istringstream text(read(options.csv));
  std::string line;
  std::vector<std::size_t> commas;
  while (std::getline(text, line))
    commas.push_back(static_cast<std::size_t>(std::count(line.begin(), line.end(), ',')));
  ASSERT_EQ(commas.size(), sweep["cells"].size() + 1);
  EXPECT_EQ(sweep["cells"].size(), 3u);  // storage without a host is none
  for (const std::size_t count : commas) EXPECT_EQ(count, commas.front());
}

// --- pictures

// Tags open and close in order, texts are escaped, and there is no number that is none.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST_F(Plan, Pictures) {
  PlanOptions options = sweep_options();
  options.plots = {folder_ + "/one.svg"};
  const bool has_png = png_of(Drawing(4, 4, ""), 1).is_ok();
  if (has_png) options.plots.push_back(folder_ + "/two.png");
  const Json sweep = run(options)["sweep"];
  const std::string svg = read(options.plots[0]);
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  expect_well_formed(svg);
  std::size_t dots = 0;
  for (std::size_t at = svg.find("r=\"2.8\""); at != std::string::npos; at = svg.find("r=\"2.8\"", at + 1)) ++dots;
  EXPECT_EQ(dots, 3 * sweep["cells"].size());  // in each of three panels
  if (!has_png) {
    options.plots = {folder_ + "/two.png"};
    return refused(options, "--plot: this build of Larder has no Cairo");
  }
  const std::string png = read(options.plots[1]);
  ASSERT_GT(png.size(), 2000u);
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4), "IHDR");
}

TEST(Drawing, TextsAreEscaped) {
  Drawing drawing(10, 10, "a < b & \"c\"");
  drawing.text({{1, 2}, "x > <y>", 12, 0x123456, TextAnchor::kMiddle, true});
  const std::string svg = svg_of(drawing);
  expect_well_formed(svg);
  EXPECT_NE(svg.find("<title>a &lt; b &amp; &quot;c&quot;</title>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("fill=\"#123456\" text-anchor=\"middle\" font-weight=\"bold\">x &gt; &lt;y&gt;<"),
            std::string::npos)
      << svg;
}

}  // namespace
}  // namespace larder
