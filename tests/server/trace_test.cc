// SPDX-License-Identifier: Apache-2.0
// --record-trace of a server: many clients at once, those who leave, tenants, and requests that are refused.
#include <algorithm>
#include <set>
#include <sstream>

#include "sim/sim_file_system.h"
#include "tests/server/server_fixture.h"

namespace larder {
namespace {

class ServerTrace : public ServerFixture {
 protected:
  void SetUp() override {
    TraceOptions options;
    options.path = "/trace";
    options.block_tokens = 2;
    auto opened = TraceRecorder::open(options, files_, real_clock(), metrics_);
    ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
    recorder_ = std::move(*opened);
    trace_ = recorder_.get();
    start({});
  }
  void TearDown() override {
    ServerFixture::TearDown();
    recorder_.reset();
  }
  // The server stops, and the file is whole.
  std::vector<Json> lines() {
    TearDown();
    const auto file = files_.open("/trace", {});
    EXPECT_TRUE(file.is_ok());
    std::string all(static_cast<std::size_t>(*(*file)->size_bytes()), '\0');
    EXPECT_TRUE(read_exactly(**file, std::as_writable_bytes(std::span(all)), 0).is_ok());
    std::vector<Json> out;
    std::istringstream text(all);
    for (std::string line; std::getline(text, line);) out.push_back(Json::parse(line));
    return out;
  }
  Json with_salt(const std::string& salt) const {
    Json body = generate_body({1, 2, 3, 4, 5}, 1);
    body["cache_salt"] = salt;
    return body;
  }

  sim::SimFileSystem files_{1};
  std::unique_ptr<TraceRecorder> recorder_;
};

TEST_F(ServerTrace, ManyClientsAtOnce) {
  constexpr int kRecorded = 16, kEach = 20;
  {
    ThreadPoolExecutor clients("clients", kRecorded, kRecorded);
    for (int c = 0; c < kRecorded; ++c) {
      ASSERT_TRUE(clients
                      .post([&, c] {
                        auto connection = client();
                        for (int i = 0; i < kEach; ++i) {
                          const Json body = generate_body(std::vector<int>(static_cast<std::size_t>(i + 1), c), i + 1);
                          (void)connection->request("POST", "/generate", body.dump());
                        }
                      })
                      .is_ok());
    }
  }
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), static_cast<std::size_t>(kRecorded * kEach));
  std::multiset<int> prompts;
  std::set<Json> firsts;
  std::int64_t before = 0;
  for (const Json& line : all) {
    prompts.insert(line["input_length"].get<int>());
    EXPECT_EQ(line["output_length"], line["input_length"]);
    EXPECT_EQ(line["hash_ids"].size(), (line["input_length"].get<std::size_t>() + 1) / 2);
    if (line["input_length"] != 1) firsts.insert(line["hash_ids"][0]);
    EXPECT_GE(line["timestamp"].get<std::int64_t>(), before);
    before = line["timestamp"].get<std::int64_t>();
  }
  for (int i = 1; i <= kEach; ++i) EXPECT_EQ(prompts.count(i), static_cast<std::size_t>(kRecorded)) << i;
  EXPECT_EQ(firsts.size(), static_cast<std::size_t>(kRecorded)) << "what each client's prompts begin with";
}

TEST_F(ServerTrace, ClientsThatLeaveAreThereWithTheAnswerSoFar) {
  scheduler_->hold();
  Json body = generate_body({1, 2, 3}, 100);
  body["stream"] = true;
  ThreadPoolExecutor driver("driver", 1, 8);
  ASSERT_TRUE(driver
                  .post([&] {
                    scheduler_->wait_open(1);
                    scheduler_->step();
                  })
                  .is_ok());
  EXPECT_EQ(client()->stream("POST", "/generate", body.dump(), [](std::string_view) { return false; }).status().code(),
            StatusCode::kCancelled);
  scheduler_->wait_cancelled(1);
  scheduler_->release();
  EXPECT_EQ(call("POST", "/generate", generate_body({4}, 2).dump()).status, 200u);
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["input_length"], 3);
  EXPECT_EQ(all[0]["output_length"], 1);
  EXPECT_EQ(all[1]["input_length"], 1);
}

TEST_F(ServerTrace, OnesThatFailAreThereAndRefusedOnesAreNot) {
  scheduler_->fail_next_submit(overloaded("full"));
  EXPECT_EQ(call("POST", "/generate", generate_body({1}, 1).dump()).status, 503u);
  EXPECT_EQ(call("POST", "/generate", generate_body({1}, 200'000).dump()).status, 400u);
  EXPECT_EQ(call("POST", "/generate", "{").status, 400u);
  scheduler_->fail_next_request(unavailable("lost"));
  EXPECT_NE(call("POST", "/generate", generate_body({1, 2}, 1).dump()).status, 200u);
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["input_length"], 2);
  EXPECT_EQ(all[0]["output_length"], 0);
}

TEST_F(ServerTrace, ProbesOfHealthAreNoUsersRequests) {
  EXPECT_EQ(call("GET", "/health_generate").status, 200u);
  EXPECT_TRUE(scheduler_->last_request().is_probe);
  EXPECT_EQ(call_json("GET", "/recent_requests", {})["requests"], Json::array());
  (void)call_json("POST", "/generate", generate_body({1, 2}, 1));
  EXPECT_FALSE(scheduler_->last_request().is_probe);
  EXPECT_EQ(call_json("GET", "/recent_requests", {})["requests"].size(), 1u);
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["input_length"], 2);
}

TEST_F(ServerTrace, WhatAStopStringCutsOffIsPartOfTheAnswer) {
  Json body = generate_body({'a' - 1}, 10);  // the answer: `abcd...
  body["sampling_params"]["stop"] = "c";
  const Json answer = call_json("POST", "/generate", body);
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["output_length"], answer["output_ids"].size());
  EXPECT_EQ(all[0]["output_length"], 4);
}

TEST_F(ServerTrace, TenantsAreNotSeenToShare) {
  for (const char* salt : {"", "one", "two", "one"}) (void)call_json("POST", "/generate", with_salt(salt));
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 4u);
  std::set<Json> ids;
  for (std::size_t i = 0; i < 3; ++i) {
    for (const Json& id : all[i]["hash_ids"]) EXPECT_TRUE(ids.insert(id).second) << i;
  }
  EXPECT_EQ(all[3]["hash_ids"], all[1]["hash_ids"]);
}

TEST_F(ServerTrace, AStopWritesWhatIsOpen) {
  scheduler_->hold();
  ThreadPoolExecutor clients("clients", 1, 8);
  ASSERT_TRUE(
      clients.post([&] { (void)client()->request("POST", "/generate", generate_body({1}, 4).dump()); }).is_ok());
  scheduler_->wait_open(1);
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(ServerTrace, IsInTheMetrics) {
  (void)call_json("POST", "/generate", generate_body({1}, 1));
  const std::string text = call("GET", "/metrics").body;
  EXPECT_NE(text.find("\nlarder_trace_requests_total "), std::string::npos);
  EXPECT_NE(text.find("\nlarder_trace_dropped_requests_total{reason=\"queue\"} 0\n"), std::string::npos);
}

}  // namespace
}  // namespace larder
