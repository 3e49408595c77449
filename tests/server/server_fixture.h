// SPDX-License-Identifier: Apache-2.0
// A server on a free port over a FakeScheduler, and a client for it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/http_client.h"
#include "server/api_server.h"
#include "tests/server/fake_scheduler.h"

namespace larder {

using Json = nlohmann::json;

inline Json generate_body(std::vector<int> ids, int new_tokens) {
  return {{"input_ids", std::move(ids)}, {"sampling_params", {{"max_new_tokens", new_tokens}, {"temperature", 0.0}}}};
}

class ServerFixture : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }
  void TearDown() override {
    api_.reset();
    scheduler_.reset();
  }

  void start(Options options, ListenOptions listen = {}) {
    options.port = 0;
    options.hicache_storage_backend = "file";
    api_.reset();
    scheduler_ = std::make_unique<FakeScheduler>(options);
    auto api = ApiServer::create({scheduler_.get(), &real_clock(), &metrics_, listen, trace_});
    ASSERT_TRUE(api.is_ok()) << api.status().to_string();
    api_ = std::move(*api);
  }

  HttpUrl url() const {
    const Result<HttpUrl> url = parse_http_url(api_->url(), ca_file_);
    EXPECT_TRUE(url.is_ok()) << url.status().to_string();
    return *url;
  }
  std::unique_ptr<HttpClient> client(const std::string& bearer = {}) const {
    return std::make_unique<HttpClient>(url(), std::chrono::seconds(20), bearer);
  }
  HttpReply call(std::string_view method, std::string_view target, std::string_view body = {}) const {
    Result<HttpReply> reply = client()->request(method, target, body);
    EXPECT_TRUE(reply.is_ok()) << reply.status().to_string();
    return reply.is_ok() ? *reply : HttpReply{};
  }
  Json call_json(std::string_view method, std::string_view target, const Json& body) const {
    const HttpReply reply = call(method, target, body.dump());
    EXPECT_EQ(reply.status, 200u) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  // Payloads of the "data: " lines, the last of which must be [DONE] and is left out.
  std::vector<Json> stream(std::string_view target, const Json& body) const {
    std::vector<Json> events;
    bool is_done = false;
    std::size_t longest = 0;
    Result<HttpReply> reply = client()->stream("POST", target, body.dump(), [&](std::string_view line) {
      longest = std::max(longest, line.size());
      if (line.empty()) return true;
      EXPECT_TRUE(line.starts_with("data: ")) << line;
      EXPECT_FALSE(is_done) << "a line after [DONE]";
      is_done = line == "data: [DONE]";
      if (!is_done) events.push_back(Json::parse(line.substr(6), nullptr, false));
      return true;
    });
    EXPECT_TRUE(reply.is_ok()) << reply.status().to_string();
    if (!reply.is_ok()) return events;
    EXPECT_EQ(reply->status, 200u) << reply->body;
    EXPECT_EQ(reply->content_type, "text/event-stream");
    EXPECT_TRUE(is_done);
    EXPECT_LT(longest, 128u << 10);
    return events;
  }

  MetricsRegistry metrics_;
  TraceRecorder* trace_ = nullptr;  // null: nothing is recorded
  std::string ca_file_;             // who has issued the server's certificate, if it has one
  std::unique_ptr<FakeScheduler> scheduler_;
  std::unique_ptr<ApiServer> api_;
};

}  // namespace larder
