// SPDX-License-Identifier: Apache-2.0
// The recorder on simulated files and a clock that moves when told: order, bounds, faults, and files that are there.
#include "server/trace/trace_recorder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "base/log.h"
#include "sim/sim_file_system.h"

namespace larder {
namespace {

using TraceJson = nlohmann::json;
constexpr const char* kPath = "/trace.jsonl";

class Recorder : public testing::Test {
 protected:
  Recorder() {
    options_.path = kPath;
    options_.block_tokens = 16;
    set_log_sink([this](LogLevel, std::string_view, std::string_view message) { log_.emplace_back(message); });
  }
  ~Recorder() override {
    recorder_.reset();
    set_log_sink(nullptr);
  }

  void open() {
    recorder_.reset();
    auto opened = TraceRecorder::open(options_, files_, clock_, metrics_, &tasks_, limits_);
    ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
    recorder_ = std::move(*opened);
  }
  [[nodiscard]] Status error() {
    recorder_.reset();
    return TraceRecorder::open(options_, files_, clock_, metrics_, &tasks_, limits_).status();
  }
  [[nodiscard]] TraceRequest begin(std::size_t tokens, const TraceSpace& space = {}) {
    std::vector<TokenId> prompt(tokens);
    std::iota(prompt.begin(), prompt.end(), 0u);
    return recorder_->begin(prompt, space);
  }
  void record(std::size_t tokens, std::uint64_t output = 1) {
    TraceRequest request = begin(tokens);
    request.set_output(output);
    request.end();
    tasks_.run_all();
  }
  void pass(std::int64_t milliseconds) { clock_.advance(std::chrono::milliseconds(milliseconds)); }

  [[nodiscard]] std::string text() {
    auto file = files_.open(kPath, {});
    if (!file.is_ok()) return {};
    std::string all(static_cast<std::size_t>(*(*file)->size_bytes()), '\0');
    EXPECT_TRUE(read_exactly(**file, std::as_writable_bytes(std::span(all)), 0).is_ok());
    return all;
  }
  void put(const std::string& all) {
    recorder_.reset();
    auto file = files_.open(kPath, {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(write_fully(**file, std::as_bytes(std::span(all)), 0).is_ok());
  }
  [[nodiscard]] std::vector<TraceJson> lines() {
    std::vector<TraceJson> out;
    std::istringstream all(text());
    for (std::string line; std::getline(all, line);) {
      out.push_back(TraceJson::parse(line, nullptr, false));
      EXPECT_TRUE(out.back().is_object()) << line;
    }
    return out;
  }
  [[nodiscard]] std::vector<std::uint64_t> prompts() {
    std::vector<std::uint64_t> out;
    for (const TraceJson& line : lines()) out.push_back(line["input_length"].get<std::uint64_t>());
    return out;
  }
  [[nodiscard]] std::string metric(const std::string& name) {
    const std::string all = "\n" + metrics_.render();
    const std::size_t at = all.find("\n" + name + " ");
    if (at == std::string::npos) return "none";
    const std::size_t begin = at + name.size() + 2;
    return all.substr(begin, all.find('\n', begin) - begin);
  }
  [[nodiscard]] std::string dropped(const std::string& reason) {
    return metric("larder_trace_dropped_requests_total{reason=\"" + reason + "\"}");
  }
  [[nodiscard]] std::size_t logged(const std::string& part) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(log_, [&](const std::string& line) { return line.find(part) != line.npos; }));
  }

  std::vector<std::string> log_;
  TraceOptions options_;
  TraceLimits limits_{.waiting = 100, .ready = 200, .ids = 10'000};
  sim::SimFileSystem files_{1};
  ManualClock clock_{std::chrono::seconds(1'000)};
  MetricsRegistry metrics_;
  ManualExecutor tasks_;
  std::unique_ptr<TraceRecorder> recorder_;
};

using Numbers = std::vector<std::uint64_t>;

TEST_F(Recorder, LinesAreMooncakes) {
  open();
  pass(2'500);
  record(40, 7);
  pass(1'500);
  record(33, 9);
  const std::vector<TraceJson> all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["timestamp"], 0) << "since the first request";
  EXPECT_EQ(all[0]["input_length"], 40);
  EXPECT_EQ(all[0]["output_length"], 7);
  EXPECT_EQ(all[0]["unix_ms"], 1'002'500);
  EXPECT_EQ(all[0]["block_tokens"], 16);
  EXPECT_EQ(all[0].size(), 6u);
  EXPECT_EQ(all[1]["timestamp"], 1'500);
  ASSERT_EQ(all[0]["hash_ids"].size(), 3u);
  ASSERT_EQ(all[1]["hash_ids"].size(), 3u);
  EXPECT_EQ(all[0]["hash_ids"][1], all[1]["hash_ids"][1]);
  EXPECT_NE(all[0]["hash_ids"][2], all[1]["hash_ids"][2]) << "parts of 8 tokens and of 1";
  EXPECT_EQ(metric("larder_trace_requests_total"), "2");
  EXPECT_EQ(metric("larder_trace_file_bytes"), std::to_string(text().size()));
}

TEST_F(Recorder, BlocksOfMooncakesSizeAreNotTold) {
  options_.block_tokens = 512;
  open();
  record(513);
  EXPECT_FALSE(lines().at(0).contains("block_tokens"));
}

TEST_F(Recorder, OfSeveralAnswersTheMean) {
  open();
  const std::vector<TokenId> prompt(5);
  TraceRequest request = recorder_->begin(prompt, {}, 3);
  for (int i = 0; i < 10; ++i) request.add_output(prompt);
  request.end();
  tasks_.run_all();
  EXPECT_EQ(lines().at(0)["output_length"], 17) << "of 50 tokens in three answers";
  EXPECT_FALSE(lines().at(0).contains("output_hash_ids"));
}

TEST_F(Recorder, WhatAnAnswerFillsHasTheIdsOfAPromptThatRepeatsIt) {
  open();
  std::vector<TokenId> prompt(40), answer(30);
  std::iota(prompt.begin(), prompt.end(), 0u);
  std::iota(answer.begin(), answer.end(), 40u);
  TraceRequest request = recorder_->begin(prompt, {});
  for (const TokenId& token : answer) request.add_output({&token, 1});
  request.end();
  record(75);
  const std::vector<TraceJson> all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["output_length"], 30);
  ASSERT_EQ(all[0]["output_hash_ids"].size(), 2u) << "blocks 2 and 3 of tokens 32 to 63";
  EXPECT_EQ(all[0]["output_hash_ids"][0], all[1]["hash_ids"][2]);
  EXPECT_EQ(all[0]["output_hash_ids"][1], all[1]["hash_ids"][3]);
  EXPECT_NE(all[0]["hash_ids"][2], all[1]["hash_ids"][2]) << "8 tokens";
  EXPECT_FALSE(all[1].contains("output_hash_ids"));
}

TEST_F(Recorder, WhatIsPrivateSharesWithNobody) {
  open();
  for (const bool is_private : {false, true, true, false}) begin(32, {.is_private = is_private}).end();
  tasks_.run_all();
  const std::vector<TraceJson> all = lines();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["hash_ids"], all[3]["hash_ids"]);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NE(all[i]["hash_ids"][0], all[(i + 1) % 3]["hash_ids"][0]) << i;
}

TEST_F(Recorder, WhoseTokensAreNotKnownAreCounted) {
  open();
  recorder_->note_unknown();
  EXPECT_EQ(dropped("unknown_prompt"), "1");
  EXPECT_TRUE(text().empty());
}

TEST_F(Recorder, NothingIsRecordedWithoutAFile) {
  options_.path.clear();
  const auto none = TraceRecorder::open(options_, files_, clock_, metrics_, &tasks_, limits_);
  ASSERT_TRUE(none.is_ok());
  EXPECT_EQ(*none, nullptr);
  TraceRequest nothing;
  nothing.set_output(1);
  nothing.end();
  nothing.refuse();
}

TEST_F(Recorder, LinesAreInTheOrderOfArrival) {
  open();
  TraceRequest a = begin(1), b = begin(2), c = begin(3), d = begin(4);
  c.set_output(30);
  c.end();
  b.set_output(20);
  b.end();
  tasks_.run_all();
  EXPECT_TRUE(text().empty()) << "the first is open";
  a.set_output(10);
  a.end();
  tasks_.run_all();
  EXPECT_EQ(prompts(), (Numbers{1, 2, 3}));
  EXPECT_EQ(lines()[1]["output_length"], 20);
  d = TraceRequest();
  tasks_.run_all();
  EXPECT_EQ(prompts(), (Numbers{1, 2, 3, 4}));
}

TEST_F(Recorder, ARefusedRequestIsNotThere) {
  open();
  TraceRequest a = begin(1), b = begin(2), c = begin(3);
  b.refuse();
  b.set_output(5);
  b.end();
  c.end();
  a.refuse();
  tasks_.run_all();
  EXPECT_EQ(prompts(), (Numbers{3}));
}

TEST_F(Recorder, OneThatLastsDoesNotHoldUpMoreThanSoMany) {
  open();
  TraceRequest first = begin(7);
  first.set_output(3);
  for (std::size_t i = 0; i + 1 < limits_.waiting; ++i) begin(1).end();
  tasks_.run_all();
  EXPECT_TRUE(text().empty());
  begin(2).end();
  tasks_.run_all();
  ASSERT_EQ(lines().size(), limits_.waiting + 1);
  EXPECT_EQ(lines()[0]["input_length"], 7);
  EXPECT_EQ(lines()[0]["output_length"], 3) << "what was known";
  EXPECT_EQ(metric("larder_trace_early_requests_total"), "1");
  first.set_output(9);
  first.end();
  tasks_.run_all();
  EXPECT_EQ(lines().size(), limits_.waiting + 1);
}

TEST_F(Recorder, LongPromptsDoNotHoldMoreIdsThanSoMany) {
  options_.block_tokens = 1;
  open();
  TraceRequest first = begin(1);
  TraceRequest a = begin(limits_.ids / 2), b = begin(limits_.ids / 2);
  EXPECT_EQ(metric("larder_trace_early_requests_total"), "1");
}

TEST_F(Recorder, WhenTheDiskDoesNotKeepUpLinesAreDropped) {
  open();
  for (std::size_t i = 0; i < limits_.ready + 10; ++i) begin(1).end();
  EXPECT_EQ(dropped("queue"), "10");
  tasks_.run_all();
  record(2);
  EXPECT_EQ(lines().size(), limits_.ready + 1);
}

TEST_F(Recorder, AnExecutorThatRefusesIsAskedAgain) {
  open();
  for (int i = 0; i < 4096; ++i) ASSERT_TRUE(tasks_.post([] {}).is_ok());
  begin(1).end();
  tasks_.run_all();
  EXPECT_TRUE(text().empty());
  record(2);
  EXPECT_EQ(prompts(), (Numbers{1, 2}));
}

// Each operation fails in turn, in each way: lines are whole, those that are missing are counted, and it goes on.
TEST_F(Recorder, AnyFaultCostsLinesAndNothingElse) {
  for (const sim::FileFault fault :
       {sim::FileFault::kIoError, sim::FileFault::kNoSpace, sim::FileFault::kShort, sim::FileFault::kWriteTorn}) {
    for (std::uint64_t n = 1; n < 4; ++n) {
      put("");
      ASSERT_TRUE(files_.remove(kPath).is_ok());
      open();
      const std::string before = metric("larder_trace_requests_total"), lost = dropped("write");
      files_.fail_nth(n, fault, 2);
      for (std::size_t i = 1; i <= 6; ++i) record(i);
      EXPECT_TRUE(files_.fault_fired());
      files_.clear_fault();
      const auto written = std::stoull(metric("larder_trace_requests_total")) - std::stoull(before);
      const auto missing = std::stoull(dropped("write")) - std::stoull(lost);
      EXPECT_EQ(written + missing, 6u);
      // Of a write that was short the rest is written.
      EXPECT_EQ(missing > 0, fault != sim::FileFault::kShort) << n;
      EXPECT_EQ(lines().size(), written);
      EXPECT_EQ(prompts().back(), 6u);
      EXPECT_EQ(logged("are not recorded until"), logged("is written again"));
    }
  }
}

TEST_F(Recorder, AFullDiskIsOneLineInTheLog) {
  sim::SimFileSystem small(1, 300);
  auto opened = TraceRecorder::open(options_, small, clock_, metrics_, &tasks_, limits_);
  ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
  recorder_ = std::move(*opened);
  for (int i = 0; i < 20; ++i) record(1);
  EXPECT_EQ(logged("are not recorded until"), 1u);
  EXPECT_NE(metric("larder_trace_write_errors_total"), "0");
  EXPECT_EQ(std::stoull(metric("larder_trace_requests_total")) + std::stoull(dropped("write")), 20u);
  recorder_.reset();
}

TEST_F(Recorder, AFileThatIsLargeEnoughEnds) {
  options_.max_size = "4Ki";
  open();
  for (int i = 0; i < 100; ++i) record(1);
  EXPECT_LE(text().size(), 4096u);
  EXPECT_GT(text().size(), 3900u);
  EXPECT_EQ(logged("nothing more is recorded"), 1u);
  EXPECT_EQ(lines().size() + std::stoull(dropped("size")), 100u);
}

TEST_F(Recorder, AFullFileIsRefusedAtTheStart) {
  open();
  for (int i = 0; i < 100; ++i) record(1);
  options_.max_size = "4Ki";
  const Status status = error();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("--record-trace-max-size is 4096"), std::string::npos) << status.message();
}

TEST_F(Recorder, WhatIsOpenAtTheEndIsWritten) {
  open();
  TraceRequest open_one = begin(5);
  open_one.set_output(2);
  TraceRequest refused = begin(6);
  refused.refuse();
  TraceRequest ended = begin(7);
  ended.end();
  recorder_.reset();
  EXPECT_EQ(prompts(), (Numbers{5, 7}));
  EXPECT_EQ(lines()[0]["output_length"], 2);
  open_one.set_output(9);
  open_one.end();  // after the recorder: nothing
  tasks_.run_all();
  EXPECT_EQ(prompts(), (Numbers{5, 7}));
}

// ---- files that are there

TEST_F(Recorder, ATraceIsContinuedInTime) {
  open();
  record(1);
  pass(5'000);
  record(2);
  recorder_.reset();
  pass(60'000);
  open();
  record(3);
  ASSERT_EQ(prompts(), (Numbers{1, 2, 3}));
  EXPECT_EQ(lines()[2]["timestamp"], 65'000);
  EXPECT_EQ(logged("is continued with a new key"), 1u);
}

TEST_F(Recorder, TheCalendarMayBeSetBack) {
  put(R"({"timestamp":7000.5,"input_length":3,"output_length":1,"hash_ids":[1],"unix_ms":9000000000000})"
      "\n");
  open();
  record(1);
  EXPECT_EQ(lines()[1]["timestamp"], 7001);
}

TEST_F(Recorder, ATraceOfOthersIsContinuedASecondLater) {
  put("{\"timestamp\": 7000, \"input_length\": 3, \"output_length\": 1, \"hash_ids\": [1]}");  // no end of the line
  open();
  record(1);
  pass(10);
  record(2);
  EXPECT_EQ(prompts(), (Numbers{3, 1, 2}));
  EXPECT_EQ(lines()[1]["timestamp"], 8000);
  EXPECT_EQ(lines()[2]["timestamp"], 8010);
}

TEST_F(Recorder, HalfALineIsCutOff) {
  open();
  record(1);
  const std::string one = text();
  put(one + one.substr(0, one.size() / 2));
  open();
  record(2);
  EXPECT_EQ(prompts(), (Numbers{1, 2}));
  EXPECT_EQ(logged("half a line"), 1u);
}

TEST_F(Recorder, WhatIsNoTraceIsLeftAlone) {
  const std::string line = R"({"timestamp":1,"input_length":3,"output_length":1,"hash_ids":[1]})";
  const auto refused = [&](const std::string& all, const std::string& why) {
    put(all);
    const Status status = error();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << all;
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("'/trace.jsonl'"), std::string::npos) << status.message();
    EXPECT_EQ(text(), all);
  };
  refused("a letter", "its first line is no JSON object");
  refused("a letter\n", "its first line is no JSON object");
  refused("[1]\n", "its first line is no JSON object");
  refused("{}\n", "has no number \"timestamp\"");
  refused(R"({"timestamp":1,"input_length":3,"output_length":1,"hash_ids":7})"
          "\n",
          "has no list \"hash_ids\"");
  refused(R"({"timestamp":-1,"input_length":3,"output_length":1,"hash_ids":[1]})"
          "\n",
          "a \"timestamp\" that is none");
  refused(R"({"timestamp":1,"input_length":40,"output_length":1,"hash_ids":[1]})"
          "\n",
          "other blocks than --record-trace-block 16");
  refused(line.substr(0, line.size() - 1) + ",\"block_tokens\":64}\n",
          "has blocks of 64 tokens, and --record-trace-block is 16");
  refused(line + "\nsomething else\n", "its last line is no JSON object");
  refused(line + "\n\n", "its last line is no JSON object");
  refused("\n", "its first line");
  refused(std::string(200'000, 'x') + "\n", "its first line");
}

TEST_F(Recorder, AFileHasOneWriter) {
  open();
  const auto second = TraceRecorder::open(options_, files_, clock_, metrics_, &tasks_, limits_);
  EXPECT_EQ(second.status().code(), StatusCode::kConflict);
  EXPECT_NE(second.status().message().find("give each a file of its own"), std::string::npos);
}

TEST_F(Recorder, AFaultAtTheStartIsAnError) {
  open();
  record(1);
  for (std::uint64_t n = 1; n <= 4; ++n) {
    files_.clear_fault();
    recorder_.reset();
    files_.fail_nth(n, sim::FileFault::kIoError);
    const auto opened = TraceRecorder::open(options_, files_, clock_, metrics_, &tasks_, limits_);
    ASSERT_TRUE(files_.fault_fired()) << n;
    ASSERT_FALSE(opened.is_ok()) << n;
    EXPECT_TRUE(opened.status().message().starts_with("--record-trace: '/trace.jsonl'")) << opened.status().message();
  }
}

// ---- options

TEST_F(Recorder, OptionsThatDoNotGoTogether) {
  const auto refused = [&](const std::string& why) {
    const Status status = error();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    options_ = {.path = kPath, .key_file = {}, .block_tokens = 16, .max_size = "1Gi"};
  };
  options_.block_tokens = 0;
  refused("--record-trace-block is 0");
  options_.max_size = "many";
  refused("--record-trace-max-size: ");
  options_.max_size = "1Ki";
  refused("--record-trace-max-size is 1Ki: it must be at least 4096 bytes");
  options_.path.clear();
  options_.key_file = "/key";
  refused("--record-trace-key needs --record-trace");
  options_.key_file = "/no/such/key";
  EXPECT_EQ(error().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace larder
