// SPDX-License-Identifier: Apache-2.0
// The routes and bodies of the HTTP surface, over a fake scheduler.
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/log.h"
#include "engine/tokenizer.h"
#include "server/http_message.h"
#include "tests/server/server_fixture.h"

namespace larder {
namespace {

using ApiTest = ServerFixture;

TEST_F(ApiTest, GenerateAnswersTokensTextAndMeta) {
  const Json reply = call_json("POST", "/generate", generate_body({60, 5}, 3));
  EXPECT_EQ(reply["output_ids"], Json({65, 66, 67}));
  EXPECT_EQ(reply["text"], "ABC");
  const Json& meta = reply["meta_info"];
  EXPECT_EQ(meta["prompt_tokens"], 2);
  EXPECT_EQ(meta["completion_tokens"], 3);
  EXPECT_EQ(meta["cached_tokens"], 6);
  EXPECT_EQ(meta["cached_tokens_details"],
            Json({{"device", 3}, {"host", 2}, {"storage", 1}, {"storage_backend", "HiCacheFile"}}));
  EXPECT_EQ(meta["finish_reason"], Json({{"type", "length"}, {"length", 3}}));
  EXPECT_GE(meta["e2e_latency"].get<double>(), 0);
  EXPECT_TRUE(meta["cached_tokens_stop"].is_null());
  EXPECT_EQ(meta["ttft"], 0.5);
  EXPECT_FALSE(meta["id"].get<std::string>().empty());
}

TEST_F(ApiTest, GenerateTakesTextAndIdentity) {
  Json body = {{"text", "\x01"},
               {"lora_path", "legal"},
               {"cache_salt", "tenant"},
               {"rid", "mine"},
               {"priority", -3},
               {"will_return", false},
               {"sampling_params",
                {{"max_new_tokens", 1},
                 {"temperature", 0.7},
                 {"top_p", 0.9},
                 {"top_k", 5},
                 {"sampling_seed", 9},
                 {"ignore_eos", true}}}};
  const Json reply = call_json("POST", "/generate", body);
  EXPECT_EQ(reply["output_ids"], Json({1}));
  EXPECT_EQ(reply["meta_info"]["id"], "mine");
  const GenerateRequest seen = scheduler_->last_request();
  EXPECT_EQ(seen.tokens, std::vector<TokenId>{1});
  EXPECT_EQ(seen.adapter, "legal");
  EXPECT_EQ(seen.salt, "tenant");
  EXPECT_EQ(seen.priority, -3);
  EXPECT_EQ(seen.will_return, false);
  EXPECT_EQ(seen.temperature, 0.7);
  EXPECT_EQ(seen.top_p, 0.9);
  EXPECT_EQ(seen.top_k, 5u);
  EXPECT_EQ(seen.seed, 9u);
  EXPECT_TRUE(seen.ignore_eos);
}

TEST_F(ApiTest, NoTwoPairsOfSaltAndExtraKeyMeet) {
  // What the pairs of the others are spelled as is among them.
  const std::string parts[] = {"", "x", "1:xy", "y", "extra_key:", "extra_key:1:xy", "extra_key:0:x", "extra_key:0:"};
  std::map<std::string, std::string> pairs;  // by the salt of the request
  for (const std::string& salt : parts) {
    for (const std::string& key : parts) {
      Json body = generate_body({1}, 1);
      if (!salt.empty()) body["cache_salt"] = salt;
      if (!key.empty()) body["extra_key"] = key;
      (void)call_json("POST", "/generate", body);
      const auto [at, is_new] = pairs.emplace(scheduler_->last_request().salt, salt + " and " + key);
      EXPECT_TRUE(is_new) << "'" << salt << " and " << key << "' meet '" << at->second << "' in " << at->first;
      if (key.empty() && !salt.starts_with("extra_key:")) {
        EXPECT_EQ(at->first, salt) << "pages of a salt alone are stored";
      }
    }
  }
  EXPECT_EQ(pairs.at("extra_key:1:xy"), "x and y");
}

TEST_F(ApiTest, GenerateStreamsCumulativeEvents) {
  scheduler_->hold();
  Json body = generate_body({60, 5}, 3);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body["lora_path"] = "";
  body["return_logprob"] = false;
  body["logprob_start_len"] = -1;
  ThreadPoolExecutor driver("driver", 1, 8);
  ASSERT_TRUE(driver
                  .post([&] {
                    scheduler_->wait_open(1);
                    for (int i = 0; i < 3; ++i) scheduler_->step();
                  })
                  .is_ok());
  const std::vector<Json> events = stream("/generate", body);
  ASSERT_FALSE(events.empty());
  std::size_t before = 0;
  for (const Json& event : events) {
    EXPECT_GT(event["output_ids"].size(), before);
    before = event["output_ids"].size();
    EXPECT_EQ(event["meta_info"]["prompt_tokens"], 2);
    EXPECT_EQ(event["meta_info"]["cached_tokens"], 6);
    EXPECT_EQ(event["meta_info"]["finish_reason"].is_null(), &event != &events.back());
  }
  EXPECT_EQ(events.back()["output_ids"], Json({65, 66, 67}));
  EXPECT_EQ(events.back()["text"], "ABC");
}

// The first `count` characters of valid UTF-8.
std::string first_characters(const std::string& text, std::size_t count) {
  std::size_t end = 0;
  for (; end < text.size(); ++end) {
    const bool is_first = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (is_first && count-- == 0) break;
  }
  return text.substr(0, end);
}

TEST_F(ApiTest, AStreamedLineStaysShort) {
  Json body = generate_body({60, 5}, 40'000);
  const std::string whole = call_json("POST", "/generate", body)["text"];
  ASSERT_EQ(first_characters(whole, whole.size() - 1), whole) << "it has characters of several bytes";
  body["stream"] = true;
  std::vector<TokenId> joined;
  std::string text;
  for (const Json& event : stream("/generate", body)) {
    const std::size_t offset = event.value("output_ids_offset", std::size_t{0});
    ASSERT_LE(offset, joined.size());
    joined.resize(offset);
    for (const Json& id : event["output_ids"]) joined.push_back(id.get<TokenId>());
    text = first_characters(text, event.value("text_offset", std::size_t{0})) + event["text"].get<std::string>();
  }
  EXPECT_EQ(text, whole) << "joined by characters, as clients do";
  ASSERT_EQ(joined.size(), 40'000u);
  for (std::size_t i = 0; i < joined.size(); ++i) ASSERT_EQ(joined[i], (65 + i) % 256);
}

TEST_F(ApiTest, ABatchAnswersInOrder) {
  Json body = generate_body({}, 1);
  body["input_ids"] = {{1}, {2}, {3}};
  const Json reply = call_json("POST", "/generate", body);
  ASSERT_EQ(reply.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reply[i]["index"], i);
    EXPECT_EQ(reply[i]["output_ids"], Json({i + 1}));
  }
  body["stream"] = true;
  std::map<int, Json> last;
  for (const Json& event : stream("/generate", body)) last[event["index"].get<int>()] = event;
  EXPECT_EQ(last.size(), 3u);
}

TEST_F(ApiTest, StopStringsEndTheTextBeforeThem) {
  Json body = generate_body({60, 5}, 100);
  body["sampling_params"]["stop"] = {"zzz", "FG"};
  const Json reply = call_json("POST", "/generate", body);
  EXPECT_EQ(reply["text"], "ABCDE");
  EXPECT_EQ(reply["output_ids"].size(), 7u);
  EXPECT_EQ(reply["meta_info"]["finish_reason"], Json({{"type", "stop"}, {"matched", "FG"}}));
  EXPECT_EQ(scheduler_->finished(), 1u) << "it has all that it wanted: nobody aborted it";
}

TEST_F(ApiTest, StopTokensEndTheRequest) {
  Json body = generate_body({60, 5}, 100);
  body["sampling_params"]["stop_token_ids"] = {67};
  EXPECT_EQ(call_json("POST", "/generate", body)["meta_info"]["finish_reason"],
            Json({{"type", "stop"}, {"matched", 67}}));
}

TEST_F(ApiTest, CompletionsHaveTheirShape) {
  const Json body = {{"model", "fake"}, {"prompt", {60, 5}}, {"max_tokens", 3}, {"temperature", 0}};
  const Json reply = call_json("POST", "/v1/completions", body);
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["choices"][0]["text"], "ABC");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(reply["choices"][0].at("matched_stop").is_null());
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 3);
  EXPECT_EQ(reply["usage"]["total_tokens"], 5);
  EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 6);
}

TEST_F(ApiTest, WhereCachedTokensWereIsInOpenAiAnswersThatAskForIt) {
  const Json details = {
      {"cached_tokens_details", {{"device", 3}, {"host", 2}, {"storage", 1}, {"storage_backend", "HiCacheFile"}}}};
  Json body = {{"prompt", {60, 5}}, {"max_tokens", 3}, {"temperature", 0}};
  EXPECT_FALSE(call_json("POST", "/v1/completions", body).contains("sglext"));
  body["return_cached_tokens_details"] = true;
  EXPECT_EQ(call_json("POST", "/v1/completions", body)["sglext"], details);
  body["stream"] = true;
  const std::vector<Json> chunks = stream("/v1/completions", body);
  for (const Json& chunk : chunks) {
    ASSERT_FALSE(chunk["choices"].empty());  // SGLang's client reads it in every chunk
    EXPECT_EQ(chunk.contains("sglext"), &chunk == &chunks.back());
  }
  EXPECT_EQ(chunks.back()["sglext"], details);
}

TEST_F(ApiTest, ChatHasItsShape) {
  const Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 2}};
  const Json reply = call_json("POST", "/v1/chat/completions", body);
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["choices"][0]["message"]["role"], "assistant");
  using T = TokenizerSpec;
  EXPECT_EQ(scheduler_->last_request().tokens,
            (std::vector<TokenId>{T::kBos, T::kUser, 'h', 'i', T::kEos, T::kAssistant}));
}

TEST_F(ApiTest, AChatStreamHasUsageInEveryChunk) {
  const Json body = {{"messages", {{{"role", "user"}, {"content", Json::array({{{"type", "text"}, {"text", "hi"}}})}}}},
                     {"max_tokens", 2},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
  const std::vector<Json> chunks = stream("/v1/chat/completions", body);
  ASSERT_GE(chunks.size(), 3u);
  for (const Json& chunk : chunks) {
    EXPECT_TRUE(chunk.contains("usage"));
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    EXPECT_EQ(chunk["usage"].is_null(), &chunk != &chunks.back());
  }
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks[chunks.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(chunks.back()["choices"].empty());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 2);
}

TEST_F(ApiTest, TheServerDescribesItself) {
  EXPECT_EQ(call_json("GET", "/v1/models", {})["data"][0]["id"], "fake");
  EXPECT_EQ(call_json("GET", "/model_info", {})["vocab_size"], 300);
  const Json info = call_json("GET", "/server_info", {});
  EXPECT_EQ(info["page_size"], 64);
  EXPECT_EQ(info["hicache_write_policy"], "write_through");
  EXPECT_TRUE(info["kv_events"].is_null());
  EXPECT_EQ(info["internal_states"][0]["tiers"].size(), 2u);
  EXPECT_EQ(call("GET", "/health").status, 200u);
  EXPECT_EQ(call("GET", "/health_generate").status, 200u);
}

TEST_F(ApiTest, MetricsCountRequestsAndAnswers) {
  (void)call_json("POST", "/generate", generate_body({60, 5}, 3));
  const HttpReply reply = call("GET", "/metrics");
  EXPECT_EQ(reply.status, 200u);
  for (const char* line :
       {"larder_http_requests_total{route=\"/generate\"} 1\n", "larder_http_responses_total{code=\"200\"} 1\n"}) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line << "\n" << reply.body;
  }
  const HttpReply json = call("GET", "/metrics?format=json");
  EXPECT_EQ(json.status, 200u);
  const auto families = nlohmann::json::parse(json.body);
  EXPECT_EQ(families.at("larder_http_requests_total").at("series").at(0).at("value"), 1);
  EXPECT_EQ(call("GET", "/metrics?format=yaml").status, 400u);
}

TEST_F(ApiTest, FlushSpeaksTheTextsOfSglang) {
  HttpReply reply = call("POST", "/flush_cache");
  EXPECT_EQ(reply.status, 200u);
  EXPECT_TRUE(reply.body.starts_with("Cache flushed.\nPlease check backend logs")) << reply.body;
  scheduler_->set_flush_status(deadline_exceeded("busy"));
  reply = call("POST", "/flush_cache");
  EXPECT_EQ(reply.status, 400u);
  EXPECT_EQ(reply.body, "Flush cache failed.\n");
  EXPECT_EQ(call("POST", "/flush_cache?timeout=0.01").body, "Timed out waiting for idle state.");
  EXPECT_EQ(call("POST", "/flush_cache?timeout=-1").status, 400u);
  EXPECT_EQ(call("POST", "/flush_cache?timeout=soon").status, 400u);
}

// A link or an image of a page is a GET: it changes nothing, unless the operator wants SGLang's forms.
TEST_F(ApiTest, GetChangesNothingUnlessItIsSwitchedOn) {
  for (const char* target : {"/flush_cache", "/clear_hicache_storage_backend"}) {
    const HttpReply refused = call("GET", target);
    EXPECT_EQ(refused.status, 405u) << target;
    EXPECT_NE(refused.body.find("--enable-get-state-changes"), std::string::npos) << refused.body;
  }
  EXPECT_EQ(call("GET", "/quiesce").status, 405u);
  const std::string cleared = call("POST", "/clear_hicache_storage_backend").body;
  EXPECT_TRUE(cleared.starts_with("Hierarchical cache storage backend cleared.\n")) << "as SGLang: " << cleared;
  EXPECT_NE(cleared.find("of all models, adapters and tenants, also what other servers"), std::string::npos) << cleared;
  Options options;
  options.enable_get_state_changes = true;
  start(options);
  EXPECT_EQ(call("GET", "/flush_cache?timeout=0.5").status, 200u);
  EXPECT_NE(call("GET", "/clear_hicache_storage_backend").status, 405u);
  EXPECT_EQ(call("GET", "/quiesce").status, 405u) << "SGLang has no such route";
}

TEST_F(ApiTest, AnswersCarryTheIdOfTheirRequest) {
  const auto id_of_answer = [&](const std::string& target, const std::string& id) {
    const std::vector<HttpField> fields = {{"X-Request-Id", id}};
    std::string answered;
    const auto head = [&](const HttpReplyHead& reply) {
      const std::string* const field = find_field(reply.fields, "X-Request-Id");
      if (field) answered = *field;
      return true;
    };
    EXPECT_TRUE(client()->relay({"GET", target, fields, ""}, head, [](std::string_view) { return true; }).is_ok());
    return answered;
  };
  EXPECT_EQ(id_of_answer("/health", "abc-1.2"), "abc-1.2");
  const std::string made = id_of_answer("/health", "a b<c>");
  EXPECT_TRUE(is_request_id(made)) << made;
  const std::string other = id_of_answer("/nope", std::string(129, 'x'));
  EXPECT_TRUE(is_request_id(other)) << other;
  EXPECT_NE(other, made);
}

TEST_F(ApiTest, WhatAdministratorsDoIsLogged) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view component, std::string_view message) {
    const std::lock_guard guard(mutex);
    if (component == "server/audit") lines.push_back(fmt::format("{} {}", log_level_name(level), message));
  });
  Options options;
  options.admin_api_key = "admin";
  start(options);
  EXPECT_EQ(call("POST", "/flush_cache").status, 401u);
  EXPECT_EQ(client("admin")->request("POST", "/flush_cache")->status, 200u);
  EXPECT_EQ(client("admin")->request("GET", "/hicache/storage-backend")->status, 200u);
  EXPECT_EQ(client("admin")->request("DELETE", "/hicache/storage-backend")->status, 200u);
  api_.reset();
  set_log_sink({});
  ASSERT_EQ(lines.size(), 3u) << "looking is no change";
  EXPECT_TRUE(lines[0].starts_with("warning POST /flush_cache from 127.0.0.1: 401 (Unauthorized), request "))
      << lines[0];
  EXPECT_TRUE(lines[1].starts_with("info POST /flush_cache from 127.0.0.1: 200 (OK), request ")) << lines[1];
  EXPECT_TRUE(lines[2].starts_with("info DELETE /hicache/storage-backend from 127.0.0.1: 200 (OK)")) << lines[2];
}

TEST_F(ApiTest, TheAnswerTheLogAndTheOperatorsPageNameOneReasonForAMiss) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view component, std::string_view message) {
    const std::lock_guard guard(mutex);
    if (component == "cache") lines.push_back(fmt::format("{} {}", log_level_name(level), message));
  });
  for (std::size_t i = 0; i < kMissReasons; ++i) {
    Miss miss{.reason = static_cast<MissReason>(i), .at_token = 40, .tier = LostFrom::kHost};
    miss.ago = std::chrono::seconds(3);
    miss.by = RequestId(7);
    scheduler_->set_miss(miss);
    lines.clear();
    const std::string name(miss_reason_name(miss.reason));
    const Json answer = call_json("POST", "/generate", generate_body({60, 5}, 1))["meta_info"]["cached_tokens_miss"];
    const Json page = Json::parse(call("GET", "/recent_requests?limit=1").body)["requests"][0];
    EXPECT_EQ(page["request"], 12);
    if (miss.reason == MissReason::kNone) {
      EXPECT_TRUE(answer.is_null());
      EXPECT_TRUE(page["miss"].is_null());
      EXPECT_TRUE(lines.empty());
      continue;
    }
    EXPECT_EQ(answer["reason"], name);
    EXPECT_EQ(page["miss"]["reason"], name);
    EXPECT_EQ(answer["at_token"], 40);
    const bool is_loss = name == "evicted" || name == "storage_declined" || name == "flushed";
    EXPECT_EQ(page["miss"].value("for_request", 0), is_loss ? 7 : 0);
    EXPECT_EQ(page["miss"].value("seconds_ago", 0.0), is_loss ? 3.0 : 0.0);
    EXPECT_FALSE(answer.contains("for_request")) << "other requests are not a tenant's business";
    const std::lock_guard guard(mutex);
    if (miss.reason == MissReason::kNeverSeen) {  // new tokens are no news: a debug line
      EXPECT_TRUE(lines.empty());
      continue;
    }
    ASSERT_EQ(lines.size(), 1u) << name;
    EXPECT_NE(lines[0].find(name + ": " + page["miss"]["text"].get<std::string>()), std::string::npos) << lines[0];
  }
  set_log_sink({});
}

TEST_F(ApiTest, ATenantDoesNotLearnWhatOthersAskFor) {
  scheduler_->set_miss({.reason = MissReason::kOtherNamespace, .is_other_salt = true});
  const Json meta = call_json("POST", "/generate", generate_body({60, 5}, 1))["meta_info"];
  EXPECT_EQ(meta["cached_tokens_miss"]["reason"], "never_seen");
  const Json page = Json::parse(call("GET", "/recent_requests?limit=1").body)["requests"][0];
  EXPECT_EQ(page["miss"]["reason"], "other_namespace");
}

TEST_F(ApiTest, TheLastRequestsAreKeptWithoutTheirText) {
  for (int i = 0; i < 3; ++i) (void)call_json("POST", "/generate", generate_body({60, 5}, 3 + i));
  const Json recent = Json::parse(call("GET", "/recent_requests?limit=2").body)["requests"];
  ASSERT_EQ(recent.size(), 2u);
  EXPECT_EQ(recent[0]["completion_tokens"], 5) << "the latest first";
  EXPECT_EQ(recent[0]["prompt_tokens"], 2);
  EXPECT_EQ(recent[0]["cached_tokens"], Json({{"device", 3}, {"host", 2}, {"storage", 1}}));
  EXPECT_EQ(recent[0]["finish"], "length");
  EXPECT_TRUE(recent[0].contains("stop"));
  EXPECT_EQ(recent[0].dump().find("ABC"), std::string::npos);
  EXPECT_EQ(call("GET", "/recent_requests?limit=many").status, 400u);
  Options options;
  options.api_key = "user";
  options.admin_api_key = "admin";
  start(options);
  EXPECT_EQ(client("user")->request("GET", "/recent_requests")->status, 401u);
  EXPECT_EQ(client("admin")->request("GET", "/recent_requests")->status, 200u);
}

// Without a key, because it holds nothing; what it shows needs one.
TEST_F(ApiTest, TheOperatorsPageLoadsNothingFromElsewhere) {
  Options options;
  options.api_key = "user";
  start(options);
  for (const char* target : {"/ui", "/ui/app.js", "/ui/style.css"}) {
    std::string policy;
    std::string body;
    const auto head = [&](const HttpReplyHead& reply) {
      EXPECT_EQ(reply.status, 200u) << target;
      const std::string* const field = find_field(reply.fields, "Content-Security-Policy");
      if (field) policy = *field;
      return true;
    };
    const auto piece = [&](std::string_view bytes) {
      body += bytes;
      return true;
    };
    EXPECT_TRUE(client()->relay({"GET", target, {}, ""}, head, piece).is_ok());
    EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self';")) << policy;
    EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
    EXPECT_GT(body.size(), 1000u);
    for (const char* foreign : {"http:", "https:", "//cdn", "innerHTML", "eval("}) {
      const std::size_t at = body.find(foreign);
      const bool is_name = at != std::string::npos && body.compare(at, 22, "http://www.w3.org/2000") == 0;
      EXPECT_TRUE(at == std::string::npos || is_name) << target << ": " << foreign;
    }
  }
  EXPECT_EQ(call("GET", "/ui/../app.js").status, 404u);
  EXPECT_EQ(call("POST", "/ui").status, 405u);
}

TEST_F(ApiTest, QuiesceAndExplainAnswer) {
  EXPECT_EQ(call_json("POST", "/quiesce?timeout=1", Json::object())["status"], "ok");
  std::vector<int> ids(200, 7);
  const Json reply = call_json("POST", "/explain", {{"input_ids", ids}});
  EXPECT_EQ(reply["prompt_pages"], 3);
  EXPECT_EQ(reply["restore"]["host"]["pages"], 2);
  EXPECT_EQ(
      reply["why"],
      "128 of 200 prompt tokens can be reused: 64 from the device, 64 more from the host, 0 more from storage. It "
      "ends there because page 2 of kv is absent on the host.");
  EXPECT_EQ(reply["pools"][0]["pool"], "kv");
}

TEST_F(ApiTest, FailuresBecomeStatusCodes) {
  scheduler_->fail_next_submit(overloaded("1024 requests wait already"));
  HttpReply reply = call("POST", "/generate", generate_body({1}, 1).dump());
  EXPECT_EQ(reply.status, 503u);
  EXPECT_EQ(Json::parse(reply.body)["error"]["message"], "1024 requests wait already");
  scheduler_->fail_next_request(internal_error("a broken invariant"));
  EXPECT_EQ(call("POST", "/generate", generate_body({1}, 1).dump()).status, 500u);
  scheduler_->fail_next_request(unavailable("gone"));
  Json body = generate_body({1}, 1);
  body["stream"] = true;  // nothing has been sent yet: a proper status is still possible
  EXPECT_EQ(call("POST", "/generate", body.dump()).status, 503u);
}

TEST_F(ApiTest, AClientThatLeavesCancelsItsRequest) {
  scheduler_->hold();
  Json body = generate_body({1}, 100);
  body["stream"] = true;
  for (const bool is_stream : {false, true}) {
    body["stream"] = is_stream;
    auto leaver = client();
    ThreadPoolExecutor driver("driver", 1, 8);
    ASSERT_TRUE(driver
                    .post([&] {
                      scheduler_->wait_open(1);
                      scheduler_->step();
                    })
                    .is_ok());
    if (is_stream) {
      const auto reply = leaver->stream("POST", "/generate", body.dump(), [](std::string_view) { return false; });
      EXPECT_EQ(reply.status().code(), StatusCode::kCancelled);
      scheduler_->wait_cancelled(2);
    } else {
      HttpClient impatient(url(), std::chrono::milliseconds(50));
      EXPECT_EQ(impatient.request("POST", "/generate", body.dump()).status().code(), StatusCode::kDeadlineExceeded);
      impatient.disconnect();
      scheduler_->wait_cancelled(1);
    }
  }
  scheduler_->release();
  EXPECT_EQ(call("GET", "/health").status, 200u);
}

TEST_F(ApiTest, ManyClientsAreServedAtOnce) {
  std::atomic<int> right{0};
  {
    ThreadPoolExecutor clients("clients", 16, 64);
    for (int c = 0; c < 16; ++c) {
      ASSERT_TRUE(clients
                      .post([&, c] {
                        auto connection = client();
                        for (int i = 0; i < 20; ++i) {
                          const auto reply = connection->request("POST", "/generate", generate_body({c, i}, 4).dump());
                          if (!reply.is_ok() || reply->status != 200) continue;
                          const Json answer = Json::parse(reply->body);
                          if (answer["output_ids"] == Json({c + i, c + i + 1, c + i + 2, c + i + 3})) ++right;
                        }
                      })
                      .is_ok());
    }
  }
  EXPECT_EQ(right.load(), 16 * 20);
}

TEST_F(ApiTest, AStopEndsOpenRequests) {
  scheduler_->hold();
  ThreadPoolExecutor clients("clients", 1, 8);
  ASSERT_TRUE(
      clients.post([&] { EXPECT_FALSE(client()->request("POST", "/generate", generate_body({1}, 4).dump()).is_ok()); })
          .is_ok());
  scheduler_->wait_open(1);
  api_->stop_accepting();
  EXPECT_FALSE(api_->wait_drained(std::chrono::milliseconds(10)));
  api_.reset();
  scheduler_->wait_cancelled(1);
}

TEST_F(ApiTest, KeysGuardTheRoutes) {
  Options options;
  options.api_key = "user-key";
  start(options);
  const std::string body = generate_body({1}, 1).dump();
  EXPECT_EQ(call("GET", "/health").status, 200u);
  EXPECT_EQ(call("GET", "/metrics").status, 200u);
  HttpReply reply = call("POST", "/generate", body);
  EXPECT_EQ(reply.status, 401u);
  EXPECT_EQ(reply.body, "{\"error\":\"Unauthorized\"}");
  EXPECT_EQ(client("wrong")->request("POST", "/generate", body)->status, 401u);
  EXPECT_EQ(client("user-key")->request("POST", "/generate", body)->status, 200u);
  EXPECT_EQ(client("user-key")->request("POST", "/flush_cache")->status, 200u);
  options.admin_api_key = "admin-key";
  start(options);
  EXPECT_EQ(client("user-key")->request("POST", "/flush_cache")->status, 401u);
  EXPECT_EQ(client("user-key")->request("POST", "/explain", body)->status, 401u) << "tells what others have asked";
  EXPECT_EQ(client("admin-key")->request("POST", "/explain", body)->status, 200u);
  EXPECT_EQ(client("admin-key")->request("POST", "/flush_cache")->status, 200u);
  EXPECT_EQ(client("admin-key")->request("GET", "/v1/models")->status, 401u);
}

TEST_F(ApiTest, StorageIsAttachedAndDetachedAtRunTime) {
  EXPECT_EQ(call("GET", "/hicache/storage-backend").status, 200u) << "no key, but from this machine";
  Options options;
  options.admin_api_key = "admin";
  start(options);
  EXPECT_EQ(call("GET", "/hicache/storage-backend").status, 401u);
  auto admin = client("admin");
  EXPECT_EQ(Json::parse(admin->request("GET", "/hicache/storage-backend")->body)["hicache_storage_backend"], "file");
  const auto refused = admin->request("PUT", "/hicache/storage-backend", R"({"hicache_storage_backend":"memory"})");
  EXPECT_EQ(refused->status, 400u);
  EXPECT_EQ(refused->body, "Failed to attach HiCache storage backend.\nDetach first.\n");
  EXPECT_EQ(admin->request("DELETE", "/hicache/storage-backend")->status, 200u);
  EXPECT_FALSE(
      call_json("POST", "/generate", generate_body({1}, 1))["meta_info"]["cached_tokens_details"].contains("storage"));
  EXPECT_EQ(admin->request("POST", "/hicache/storage-backend/clear")->status, 400u);
  EXPECT_EQ(admin->request("PUT", "/hicache/storage-backend", "{}")->status, 400u);
  EXPECT_EQ(admin->request("PUT", "/hicache/storage-backend", R"({"hicache_storage_backend":"memory"})")->status, 200u);
  EXPECT_EQ(
      call_json("POST", "/generate", generate_body({1}, 1))["meta_info"]["cached_tokens_details"]["storage_backend"],
      "memory");
  EXPECT_EQ(admin->request("POST", "/hicache/storage-backend/clear")->status, 200u);
}

TEST_F(ApiTest, APortInUseIsAClearConflict) {
  Options options;
  options.port = api_->port();
  FakeScheduler other(options);
  const auto second = ApiServer::create({&other, &real_clock(), &metrics_, {}});
  ASSERT_FALSE(second.is_ok());
  EXPECT_EQ(second.status().code(), StatusCode::kConflict);
  EXPECT_NE(second.status().message().find("the port is in use"), std::string::npos);
  options.host = "256.1.1.1";
  options.port = 0;
  FakeScheduler nowhere(options);
  EXPECT_FALSE(ApiServer::create({&nowhere, &real_clock(), &metrics_, {}}).is_ok());
}

}  // namespace
}  // namespace larder
