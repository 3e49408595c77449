// SPDX-License-Identifier: Apache-2.0
// `larder replay`: traces that are none, and small ones through all tiers. That its hit rates are right:
// tests/replay/lru_model.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "bench/quantile.h"
#include "bench/replay.h"
#include "config/model_file.h"
#include "model/presets.h"
#include "tests/support/command_run.h"

namespace larder {
namespace {

class Replay : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    options_.trace = (std::filesystem::temp_directory_path() / (std::string("larder_replay_") + test->name())).string();
    options_.kv_bytes = 1024;
    options_.page_size = options_.block_tokens = 64;
    options_.host_gib = 1;
  }
  void TearDown() override { std::filesystem::remove(options_.trace); }
  // replay_command(): its exit code, and all that it printed.
  static std::pair<int, std::string> command(std::vector<std::string> words) {
    words.insert(words.begin(), "replay");
    const support::CommandRun run = support::run_command(replay_command, std::move(words));
    return {run.code, run.text()};
  }
  void write(const std::string& text) const {
    const auto file = real_file_system().open(options_.trace, {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(file.is_ok()) << file.status().to_string();
    ASSERT_TRUE(write_fully(**file, std::as_bytes(std::span(text)), 0).is_ok());
  }
  // Conversations of four turns, two under way at a time, and one document that every second begins with.
  void write_conversations(int count) const {
    std::string text;
    int block = 100, time = 0;
    for (int i = 0; i < count; ++i) {
      std::string ids = i % 2 == 0 ? "1,2,3,4" : std::to_string(block++);
      int tokens = i % 2 == 0 ? 256 : 64;
      for (int turn = 0; turn < 4; ++turn, time += 700) {
        for (int n = 0; n < 3; ++n, tokens += 64) ids += "," + std::to_string(block++);
        text += "{\"timestamp\": " + std::to_string(time) + ", \"input_length\": " + std::to_string(tokens) +
                ", \"output_length\": 70, \"hash_ids\": [" + ids + "]}\n";
      }
    }
    write(text);
  }
  // So many prompts of 8 blocks each, and all of them again.
  void write_twice(int prompts) const {
    std::string text;
    for (int i = 0; i < 2 * prompts; ++i) {
      text += "{\"timestamp\": " + std::to_string(i) + R"(, "input_length": 512, "output_length": 1, "hash_ids": [)";
      for (int k = 0; k < 8; ++k) text += std::to_string(i % prompts * 8 + k) + (k < 7 ? "," : "]}\n");
    }
    write(text);
  }
  // swa-tiny with these layers instead of its own.
  [[nodiscard]] static ModelSpec model_with(std::vector<LayerKind> layers) {
    ModelSpec model = *preset_model(layers.front() == LayerKind::kMamba2 ? "mamba2-tiny" : "swa-tiny");
    model.layers = std::move(layers);
    model.pools.clear();
    const Status done = finalize_model(model);
    EXPECT_TRUE(done.is_ok()) << done.to_string();
    return model;
  }
  [[nodiscard]] std::string error_of(const std::string& line) {
    write("{\"timestamp\": 5, \"input_length\": 64, \"output_length\": 1, \"hash_ids\": [1]}\n" + line + "\n");
    const Result<ReplayResult> result = run_replay(options_);
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << line;
    return result.status().message();
  }

  ReplayOptions options_;
};

TEST_F(Replay, ALineThatIsNoneIsNamed) {
  const auto names = [&](const std::string& line, const std::string& what) {
    const std::string error = error_of(line);
    EXPECT_NE(error.find(options_.trace + ":2: "), std::string::npos) << error;
    EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  names("[", "no JSON object");
  names("7", "no JSON object");
  names("{}", "there is no \"timestamp\"");
  names(R"({"timestamp": "6", "input_length": 1, "output_length": 1, "hash_ids": [1]})", "\"timestamp\" is no number");
  names(R"({"timestamp": 4, "input_length": 1, "output_length": 1, "hash_ids": [1]})", "sort the file");
  names(R"({"timestamp": 1e13, "input_length": 1, "output_length": 1, "hash_ids": [1]})", "\"timestamp\" is 1");
  names(R"({"timestamp": 6, "input_length": 1.5, "output_length": 1, "hash_ids": [1]})", "no whole number");
  names(R"({"timestamp": 6, "input_length": 0, "output_length": 1, "hash_ids": []})", "\"input_length\" is 0");
  names(R"({"timestamp": 6, "input_length": 1e300, "output_length": 1, "hash_ids": []})", "which is not from");
  names(R"({"timestamp": 6, "input_length": 65, "output_length": 1, "hash_ids": [1]})", "65 tokens are 2 blocks of 64");
  names(R"({"timestamp": 6, "input_length": 1, "output_length": 1})", "no list \"hash_ids\"");
  names(R"({"timestamp": 6, "input_length": 1, "output_length": 1, "hash_ids": [-1]})", "no whole number");
  names(R"({"timestamp": 6, "input_length": 1, "output_length": 1, "hash_ids": [1.5]})", "no whole number");
  names(R"({"timestamp": 6, "input_length": 1, "output_length": 1, "hash_ids": [1], "block_tokens": 16})",
        "its blocks have 16 tokens: give --block-tokens 16");
  names(R"({"timestamp": 6, "input_length": 1, "output_length": 1, "hash_ids": [1], "block_tokens": null})",
        "\"block_tokens\" is no number");
  names(R"({"timestamp": 6, "input_length": 1, "output_length": 70, "hash_ids": [1], "output_hash_ids": [2, 3]})",
        "the answer fills 1 blocks, and \"output_hash_ids\" has 2");
  names(R"({"timestamp": 6, "input_length": 1, "output_length": 70, "hash_ids": [1], "output_hash_ids": [-2]})",
        "an entry of \"output_hash_ids\" is no whole number");
}

TEST_F(Replay, TenantsShareNothing) {
  const auto line = [](int time, const std::string& tenant) {
    return "{\"timestamp\": " + std::to_string(time) + ", \"input_length\": 200, \"output_length\": 1" + tenant +
           ", \"hash_ids\": [1, 2, 3, 4]}\n";
  };
  write(line(0, "") + line(1, R"(, "tenant": "a")") + line(2, R"(, "tenant": "b")") + line(3, R"(, "tenant": "a")"));
  const Result<ReplayResult> result = run_replay(options_);
  ASSERT_TRUE(result.is_ok()) << result.status().to_string();
  // Of the second of two, in whole pages.
  EXPECT_EQ(result->hit_rates_of_tenants(), (std::map<std::string, double>{{"", 0}, {"a", 192.0 / 400}, {"b", 0}}));
  const std::string text = replay_text(options_, *result);
  EXPECT_NE(text.find("\nthe last page of a prompt is always computed         1 "), std::string::npos) << text;
  EXPECT_NE(text.find("\n(none)  "), std::string::npos) << text;
  EXPECT_NE(error_of(R"({"timestamp": 6, "input_length": 64, "output_length": 1, "hash_ids": [1], "tenant": 7})")
                .find("\"tenant\" is no text"),
            std::string::npos);
  options_.tenant_limits = options_.trace + ".absent.json";
  write(line(0, ""));
  const Status status = run_replay(options_).status();
  EXPECT_TRUE(status.message().starts_with("--tenant-limits: ")) << status.to_string();
}

// Their names are anything.
TEST_F(Replay, ATableOfManyTenantsIsATable) {
  std::string lines;
  for (int i = 100; i < 200; ++i) {
    lines += R"({"timestamp": 0, "input_length": 64, "output_length": 1, "hash_ids": [1], "tenant": "\u001b\n)" +
             std::to_string(i) + "\"}\n";
  }
  write(lines);
  const Result<ReplayResult> result = run_replay(options_);
  ASSERT_TRUE(result.is_ok()) << result.status().to_string();
  const std::string text = replay_text(options_, *result);
  EXPECT_NE(text.find("\n\\u001b\\n163        0.00\nand 36 more: --json has all\n"), std::string::npos) << text;
  EXPECT_EQ(replay_json(options_, *result)["tenant_hit_rates"].size(), 100u);
}

TEST_F(Replay, AFileThatIsNotThereAndOneWithoutLines) {
  EXPECT_EQ(run_replay(options_).status().code(), StatusCode::kNotFound);
  const Status folder = ReplayTrace::read(std::filesystem::temp_directory_path().string(), 64, 9).status();
  EXPECT_EQ(folder.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(folder.message().find("is a folder: name a file in it"), std::string::npos) << folder.to_string();
  write("\n\r\n");
  EXPECT_NE(run_replay(options_).status().message().find("has no request"), std::string::npos);
}

TEST_F(Replay, SizesThatNothingFitsAreRefused) {
  write_conversations(2);
  options_.policy = "arc";
  EXPECT_EQ(run_replay(options_).status().code(), StatusCode::kInvalidArgument);
  options_.policy = "value";
  options_.write_policy = "never";
  EXPECT_EQ(run_replay(options_).status().code(), StatusCode::kInvalidArgument);
  options_.write_policy = "write_through";
  options_.host_gib = 0;
  options_.storage_gib = 1;
  EXPECT_NE(run_replay(options_).status().message().find("give --host above 0"), std::string::npos);
  options_.host_gib = 1;
  options_.device_gib = 1e-6;
  const Status status = run_replay(options_).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("--device: the longest request"), std::string::npos) << status.message();
  options_.device_gib = 0;
  options_.host_gib = 1e-6;
  EXPECT_TRUE(run_replay(options_).status().message().starts_with("--host: "))
      << run_replay(options_).status().message();
}

// 480 pages of windows.
TEST_F(Replay, ALargerDeviceHoldsMoreWindows) {
  write_twice(60);
  options_.model = "swa-real";
  options_.host_gib = 0;
  options_.device_gib = 1000;
  const Result<ReplayResult> large = run_replay(options_);
  ASSERT_TRUE(large.is_ok()) << large.status().to_string();
  EXPECT_GT(large->hit_rate(), 0.4);
  options_.device_gib = 1;
  const Result<ReplayResult> small = run_replay(options_);
  ASSERT_TRUE(small.is_ok()) << small.status().to_string();
  EXPECT_LT(small->hit_rate(), 0.2);
  options_.device_gib = 0.1;
  const Status status = run_replay(options_).status();
  EXPECT_NE(status.message().find("--device: one request needs 135 pages of windows there, and "), std::string::npos)
      << status.to_string();
}

// Also of models in which no layer sees all positions: their pages have no bytes, and so are no limit.
TEST_F(Replay, AllOfADeviceIsUsed) {
  write_twice(60);
  options_.host_gib = 0;
  const Result<ReplayTrace> trace = ReplayTrace::read(options_.trace, 64, 1000);
  ASSERT_TRUE(trace.is_ok()) << trace.status().to_string();
  const ModelSpec models[] = {*preset_model("gqa-tiny"), *preset_model("gdn-tiny"), *preset_model("gemma3-tiny"),
                              model_with({LayerKind::kSlidingAttention}), model_with({LayerKind::kMamba2})};
  for (const ModelSpec& model : models) {
    options_.device_gib = 0.06;
    const Result<ReplayResult> result = run_replay(options_, *trace, model);
    ASSERT_TRUE(result.is_ok()) << model.id << ": " << result.status().to_string();
    const double used = static_cast<double>(result->tier_bytes[0]) / (1 << 30) / options_.device_gib;
    EXPECT_GT(used, 0.97) << model.id << ", " << model.layers.size();
    EXPECT_LT(used, 1.01) << model.id << ", " << model.layers.size();
    EXPECT_GT(result->hit_rate(), 0.4) << model.id << ", " << model.layers.size();
  }
}

TEST_F(Replay, SizesThatAreTooLargeForTheirNumbersAreRefused) {
  write(R"({"timestamp": 0, "input_length": 100000000, "output_length": 1, "hash_ids": [1]})");
  options_.block_tokens = 100'000'000;
  options_.page_size = 1;
  options_.at_once = 4096;
  const Status pages = run_replay(options_).status();
  EXPECT_TRUE(pages.message().starts_with("--at-once: ")) << pages.to_string();
  write_conversations(1);
  options_.block_tokens = 64;
  options_.device_gib = 1e6;  // more pages of 1 KiB than have a number
  const Status status = run_replay(options_).status();
  EXPECT_EQ(status.code(), StatusCode::kOverloaded) << status.to_string();
}

// Of work that takes for ever, its end would be before its beginning.
TEST_F(Replay, WhatTakesCenturiesIsRefused) {
  write_conversations(1);
  for (double ReplayOptions::*const speed : {&ReplayOptions::prefill_rate, &ReplayOptions::decode_rate}) {
    ReplayOptions slow = options_;
    slow.*speed = 1e-16;
    const Status status = run_replay(slow).status();
    EXPECT_NE(status.message().find("longer than 250 years"), std::string::npos) << status.to_string();
  }
}

TEST_F(Replay, ParametersThatChangeNothingAreInTheReport) {
  const std::vector<ReplaySensitivity> rows = {{.parameter = "fade_tokens", .halved = 0, .doubled = 0.25}};
  EXPECT_EQ(sensitivity_text(0, rows).find("nan"), std::string::npos) << sensitivity_text(0, rows);
  EXPECT_EQ(replay_json(options_, {}, rows)["sensitivity"]["fade_tokens"]["doubled"], 0.25);
  EXPECT_FALSE(replay_json(options_, {}).contains("sensitivity"));
}

// All that was there before is found again, from a host that keeps everything: each turn but its new blocks.
TEST_F(Replay, FindsWhatThereIs) {
  write_conversations(10);
  for (const std::uint64_t state_bytes : {std::uint64_t{0}, std::uint64_t{4096}}) {
    options_.state_bytes = state_bytes;
    const Result<ReplayResult> result = run_replay(options_);
    ASSERT_TRUE(result.is_ok()) << result.status().to_string();
    ASSERT_EQ(result->lines.size(), 40u);
    for (std::size_t i = 0; i < 40; ++i) {
      const ReplayLine& line = result->lines[i];
      if (i % 4 == 0) continue;
      // The turn before ended with an answer of 70 tokens, one whole block of which this prompt has.
      EXPECT_GE(line.device + line.host, line.prompt - 3 * 64) << i;
    }
    EXPECT_GT(result->hit_rate(), 0.5);
  }
}

// Two prompts of 70 tokens begin alike; the third repeats the second with its answer. Where the trace does not say what
// the answers were, the third is taken for the next turn of both.
TEST_F(Replay, KnowsWhatAnAnswerWasIfTheTraceSays) {
  const auto third = [&](const std::string& a, const std::string& b) {
    const std::string answer = R"("output_length": 122, "hash_ids": [1, )";
    write("{\"timestamp\": 0, \"input_length\": 70, " + answer + "2]" + a + "}\n" +
          "{\"timestamp\": 9, \"input_length\": 70, " + answer + "3]" + b + "}\n" +
          "{\"timestamp\": 18, \"input_length\": 200, " + answer + "7, 8, 9]}\n");
    const Result<ReplayTrace> trace = ReplayTrace::read(options_.trace, 64, 9);
    EXPECT_TRUE(trace.is_ok()) << trace.status().to_string();
    std::vector<std::size_t> shared;
    std::vector<TokenId> last, before;
    trace->tokens_of(2, last);
    for (const std::size_t i : {0, 1}) {
      trace->tokens_of(i, before);
      shared.push_back(static_cast<std::size_t>(std::ranges::mismatch(before, last).in1 - before.begin()));
    }
    return shared;
  };
  using Shared = std::vector<std::size_t>;
  EXPECT_EQ(third("", ""), (Shared{192, 192}));
  EXPECT_EQ(third(", \"output_hash_ids\": [5, 6]", ", \"output_hash_ids\": [7, 8]"), (Shared{64, 192}));
  EXPECT_EQ(third(", \"output_hash_ids\": [5, 6]", ", \"output_hash_ids\": [7, 6]"), (Shared{64, 128})) << "half of it";
}

TEST_F(Replay, EqualOptionsGiveEqualResults) {
  write_conversations(30);
  options_.state_bytes = 65536;
  options_.host_gib = 0.004;
  options_.at_once = 4;
  options_.prefill_rate = 3000;
  options_.decode_rate = 100;
  options_.link_gbps = 0.001;
  options_.storage_gib = 0.002;
  options_.storage_gbps = 0.0005;
  const Result<ReplayResult> one = run_replay(options_), two = run_replay(options_);
  ASSERT_TRUE(one.is_ok()) << one.status().to_string();
  ASSERT_TRUE(two.is_ok());
  ASSERT_EQ(one->lines.size(), two->lines.size());
  for (std::size_t i = 0; i < one->lines.size(); ++i) {
    EXPECT_EQ(one->lines[i].host, two->lines[i].host) << i;
    EXPECT_EQ(one->lines[i].storage, two->lines[i].storage) << i;
    EXPECT_EQ(one->lines[i].first_token_s, two->lines[i].first_token_s) << i;
    EXPECT_GT(one->lines[i].first_token_s, 0) << i;
  }
  EXPECT_GT(one->stored, 0u);
}

TEST_F(Replay, WaitingForStorageIsNoLackOfRoom) {
  std::string lines;  // ten prompts in turn, of which the host has one or two
  for (int i = 0; i < 30; ++i) {
    lines +=
        "{\"timestamp\": " + std::to_string(i * 10'000) + R"(, "input_length": 512, "output_length": 1, "hash_ids": [)";
    for (int k = 0; k < 8; ++k) lines += std::to_string(i % 10 * 8 + k) + (k < 7 ? "," : "]}\n");
  }
  write(lines);
  options_.host_gib = 0.001;
  options_.storage_gib = 1;
  options_.storage_gbps = 0.0005;
  const Result<ReplayResult> result = run_replay(options_);
  ASSERT_TRUE(result.is_ok()) << result.status().to_string();
  EXPECT_GT(result->fetched, 0u);
  EXPECT_EQ(result->waits, 0u);
}

TEST_F(Replay, AModelFileIsReplayedAsItsPreset) {
  write_conversations(10);
  options_.model = "gdn-tiny";
  const Result<ReplayResult> preset = run_replay(options_);
  ASSERT_TRUE(preset.is_ok()) << preset.status().to_string();
  options_.model.clear();
  options_.model_file = options_.trace + ".json";
  const std::string text = model_to_json(*preset_model("gdn-tiny"));
  const auto made = real_file_system().open(options_.model_file, {.write = true, .create = true, .truncate = true});
  ASSERT_TRUE(made.is_ok() && write_fully(**made, std::as_bytes(std::span(text)), 0).is_ok());
  const Result<ReplayResult> file = run_replay(options_);
  std::filesystem::remove(options_.model_file);
  ASSERT_TRUE(file.is_ok()) << file.status().to_string();
  EXPECT_EQ(file->checkpoint_bytes, preset->checkpoint_bytes);
  EXPECT_GT(file->checkpoint_bytes, 0u);
  EXPECT_EQ(file->hit_rate(), preset->hit_rate());
  options_.model_file = "model.yaml";
  EXPECT_EQ(run_replay(options_).status().code(), StatusCode::kInvalidArgument);
  options_.model_file = "/nowhere/model.json";
  EXPECT_EQ(run_replay(options_).status().code(), StatusCode::kNotFound);
}

// Before the replay: what stood in it is still there if that fails, and a file that was made is gone.
TEST_F(Replay, TheFileOfRequestsIsOpenedFirst) {
  const std::string csv = options_.trace + ".csv";
  const auto run = [&](const std::string& path) {
    return command({options_.trace, "--csv", path, "--block-tokens", "64"});
  };
  // There is no trace yet.
  EXPECT_TRUE(run(options_.trace + "/no.csv").second.starts_with("larder replay: --csv: open ")) << "before the trace";
  EXPECT_EQ(run(csv).first, 2);
  EXPECT_FALSE(std::filesystem::exists(csv));
  write_twice(3);
  EXPECT_EQ(run(csv).first, 0);
  const auto size = std::filesystem::file_size(csv);
  EXPECT_GT(size, 200u);
  write("no trace\n");
  EXPECT_EQ(run(csv).first, 2);
  EXPECT_EQ(std::filesystem::file_size(csv), size);
  write_twice(1);
  EXPECT_EQ(run(csv).first, 0);
  EXPECT_LT(std::filesystem::file_size(csv), size) << "nothing of the longer one is left";
  EXPECT_EQ(run("/dev/null").first, 0);
  std::filesystem::remove(csv);
}

TEST_F(Replay, TheFileOfRequestsIsNotTheTrace) {
  write_twice(3);
  const auto size = std::filesystem::file_size(options_.trace);
  const std::string link = options_.trace + ".link";
  std::filesystem::create_symlink(options_.trace, link);
  for (const std::string& path : {options_.trace, link}) {
    const auto [ended, text] = command({options_.trace, "--csv", path, "--block-tokens", "64"});
    EXPECT_EQ(ended, 2);
    EXPECT_NE(text.find("--csv: '" + path + "' is the file '" + options_.trace + "', too"), std::string::npos) << text;
  }
  std::filesystem::remove(link);
  EXPECT_EQ(std::filesystem::file_size(options_.trace), size);
}

TEST_F(Replay, ATraceWhoseNameIsNoUtf8IsPrintedAsJson) {
  const std::string plain = options_.trace;
  options_.trace += "_caf\xe9";
  write_twice(3);
  const auto [ended, text] = command({options_.trace, "--block-tokens", "64", "--json"});
  EXPECT_EQ(ended, 0) << text;
  EXPECT_NE(text.find("_caf\xef\xbf\xbd\""), std::string::npos) << text;
  std::filesystem::remove(options_.trace);
  options_.trace = plain;
}

TEST_F(Replay, StatesThatAreAskedForNeedNoSizeOfTheDevice) {
  write_twice(3);
  options_.state_bytes = 1'000'000;
  const Result<ReplayResult> usual = run_replay(options_);
  ASSERT_TRUE(usual.is_ok()) << usual.status().to_string();
  options_.device_states = 40;
  const Result<ReplayResult> more = run_replay(options_);
  ASSERT_TRUE(more.is_ok()) << more.status().to_string();
  EXPECT_EQ(more->tier_bytes[0] - usual->tier_bytes[0], (40 - 16) * usual->checkpoint_bytes);
}

TEST_F(Replay, ErrorsNameTheOptionThatIsWrong) {
  write_twice(3);
  options_.state_bytes = 1'000'000;
  options_.device_gib = 1;
  options_.device_states = 100'000;
  EXPECT_EQ(run_replay(options_).status().message(),
            "--device-states: 100000 states have 93.1 GiB, and --device has 1.0 GiB");
  options_.device_states = 1073;
  options_.kv_bytes = 4096;
  const std::string few = run_replay(options_).status().message();
  EXPECT_TRUE(few.starts_with("--device: the longest request")) << few;
  EXPECT_TRUE(few.ends_with("would fit beside the states of --device-states")) << few;
  for (const char* const size : {"--kv-bytes", "--state-bytes"}) {
    const auto [ended, text] = command({options_.trace, "--model", "gdn-tiny", size, "9"});
    EXPECT_EQ(ended, 2);
    EXPECT_NE(text.find(size), std::string::npos) << text;
  }
}

TEST(Quantile, IsByNearestRank) {
  EXPECT_EQ(quantile_of({}, 0.5), 0);
  EXPECT_EQ(quantile_of({1, 2}, 0.99), 2);
  EXPECT_EQ(quantile_of({2, 1}, 0.5), 1);
  std::vector<double> values;
  for (int i = 1; i <= 100; ++i) values.push_back(i);
  for (int i = 0; i <= 100; ++i) EXPECT_EQ(quantile_of_sorted(values, i / 100.0), std::max(1, i)) << i;
  values.resize(50);
  EXPECT_EQ(quantile_of_sorted(values, 0.99), 50);
}

// The second law of policies, on a small scale: a host that is larger hits no less, by more than a point.
TEST_F(Replay, MoreMemoryIsNotWorse) {
  write_conversations(60);
  options_.state_bytes = 65536;
  for (const char* policy : {"lru", "value"}) {
    options_.policy = policy;
    double before = 0;
    for (const double gib : {0.002, 0.004, 0.008, 0.016, 0.064}) {
      options_.host_gib = gib;
      const Result<ReplayResult> result = run_replay(options_);
      ASSERT_TRUE(result.is_ok()) << result.status().to_string();
      EXPECT_GE(result->hit_rate(), before - 0.01) << policy << " " << gib;
      before = result->hit_rate();
    }
  }
}

}  // namespace
}  // namespace larder
