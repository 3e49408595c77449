// SPDX-License-Identifier: Apache-2.0
// Tests of `larder plan`: a folder for its files, and a small trace.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "bench/plan.h"
#include "engine/text_file.h"

namespace larder::plan_test {

using Json = nlohmann::json;

class PlanRig : public testing::Test {
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
    const Result<PlanOutput> output = run_plan(options);
    EXPECT_TRUE(output.is_ok()) << output.status().to_string();
    if (!output.is_ok()) return Json::object();
    EXPECT_TRUE(output->written.is_ok()) << output->written.to_string();
    return Json::parse(output->text);
  }
  [[nodiscard]] static std::string text_of(const PlanOptions& options) {
    const Result<PlanOutput> output = run_plan(options);
    EXPECT_TRUE(output.is_ok()) << output.status().to_string();
    return output.is_ok() ? output->text : "";
  }
  static void refused(const PlanOptions& options, std::string_view words) {
    const Status status = run_plan(options).status();
    EXPECT_FALSE(status.is_ok()) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }

  std::string folder_;
};

}  // namespace larder::plan_test
