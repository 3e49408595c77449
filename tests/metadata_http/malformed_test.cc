// SPDX-License-Identifier: Apache-2.0
// Broken bodies of every kind: each gets an answer that says so, and the server goes on. Seeded: LARDER_TEST_SEED.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/rng.h"
#include "metadata/metadata_wire.h"
#include "server/json_reader.h"
#include "server/reference_body.h"
#include "tests/metadata_http/http_harness.h"

namespace larder::conformance {
namespace {

using metadata::answer_wire_request;
using metadata::WireOperation;

// One to four changes of the kinds that transports and programmers make.
std::string broken(std::string text, Rng& rng) {
  const std::string_view pieces[] = {"\"",
                                     "\\",
                                     "{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "null",
                                     "-",
                                     "1e999",
                                     "\\ud800",
                                     "\x80",
                                     std::string_view("\0", 1),
                                     "\xff\xff\xff\xff",
                                     "99999999999999999999",
                                     "[[[[[["};
  for (std::uint64_t changes = rng.between(1, 4); changes > 0 && !text.empty(); --changes) {
    const std::size_t at = static_cast<std::size_t>(rng.below(text.size()));
    switch (rng.below(5)) {
      case 0: text.resize(at); break;
      case 1: text[at] = static_cast<char>(rng.below(256)); break;
      case 2: text.erase(at, static_cast<std::size_t>(rng.between(1, 8))); break;
      case 3: text.insert(at, pieces[rng.below(std::size(pieces))]); break;
      default: text.insert(at, text.substr(static_cast<std::size_t>(rng.below(text.size())), 24)); break;
    }
  }
  return text;
}

bool is_clear_answer(unsigned status) {
  return status == 200 || status == 204 || status == 400 || status == 404 || status == 422;
}

TEST(MalformedTest, BrokenJsonBodiesGetClearAnswers) {
  const std::uint64_t seed = metadata_test_seed();
  SCOPED_TRACE(testing::Message() << "LARDER_TEST_SEED=" << seed);
  Rng rng(seed);
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":64})");
  const std::pair<const char*, const char*> bodies[] = {
      {"/0/initialize", R"({"num_pages":64,"namespace":"kv"})"},
      {"/0/exists", R"({"keys":["abc","d\u00e9f","\ud83d\ude00"],"namespace":"kv"})"},
      {"/0/reserve_and_allocate_page_indices", R"({"keys":[["k1",""],["k2","k1"]],"namespace":"kv"})"},
      {"/0/confirm_write", R"({"written_keys_to_confirm":[["k1",0],["k2",1]],"pages_to_release":[2,3]})"},
      {"/0/delete_keys", R"({"keys":["k1"]})"},
      {"/0/get_page_indices", R"({"keys":["k1","k2"]})"},
      {"/0/clear", R"({"namespace":"kv"})"},
  };
  HttpClient client(server.http_url(), std::chrono::seconds(20));
  std::size_t refused = 0;
  for (int round = 0; round < 700; ++round) {
    const auto& [target, body] = bodies[round % std::size(bodies)];
    const std::string text = broken(body, rng);
    const auto reply = client.request("POST", target, text);
    ASSERT_TRUE(reply.is_ok()) << target << ' ' << text << ' ' << reply.status().to_string();
    EXPECT_TRUE(is_clear_answer(reply->status)) << reply->status << ' ' << target << ' ' << text;
    if (reply->status < 300) continue;
    ++refused;
    const auto json = nlohmann::json::parse(reply->body, nullptr, false);
    EXPECT_TRUE(json.is_object() && json.contains("detail")) << reply->body << " for " << text;
  }
  EXPECT_GT(refused, 300u) << "the bodies were hardly broken";
  EXPECT_TRUE(server.service().check().is_ok());
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["fine"]})").status, 200u);
}

std::vector<std::string> whole_messages() {
  const MetadataNamespace kv{0, "kv"}, swa{1, "swa"};
  const std::vector<MetadataKeys> keys{{&kv, {"a", "b"}}, {&swa, {"c"}}};
  const std::vector<ReserveItems> items{{&kv, {{"a", ""}, {"b", "a"}, {"c", "x"}}}};
  ConfirmRequest confirm{session_of(1), {{{&kv, "a", {0, 1}}, {&swa, "c", {1, 2}}}}, {{&kv, "b", {1, 2}}}, true};
  return {*metadata::encode_initialize(kv, 64),
          *metadata::encode_find(keys, kSecond),
          *metadata::encode_reserve(session_of(1), items, kSecond),
          *metadata::encode_confirm(confirm),
          *metadata::encode_remove(confirm.release),
          *metadata::encode_clear(kv, "a"),
          metadata::encode_stats()};
}

TEST(MalformedTest, BrokenBinaryMessagesGetClearAnswers) {
  const std::uint64_t seed = metadata_test_seed();
  SCOPED_TRACE(testing::Message() << "LARDER_TEST_SEED=" << seed);
  Rng rng(seed);
  HttpServerUnderTest server;
  (void)server.client()->initialize({0, "kv"}, 64);
  HttpClient client(server.http_url(), std::chrono::seconds(20));
  const std::vector<std::string> messages = whole_messages();
  std::size_t refused = 0;
  for (std::size_t round = 0; round < 700; ++round) {
    std::string message = broken(messages[round % messages.size()], rng);
    // Half of them with a head that fits, so that the payload is read.
    if (message.size() >= 16 && rng.chance(1, 2)) {
      store_le(message.data() + 8, static_cast<std::uint32_t>(message.size() - 16));
      store_le(message.data() + 12, std::uint32_t{0});
    }
    const auto reply = client.request("POST", "/v1/metadata", message);
    ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
    EXPECT_TRUE(is_clear_answer(reply->status) || reply->status == 501) << reply->status;
    EXPECT_TRUE(metadata::is_wire_answer(reply->body));
    if (reply->status != 200) ++refused;
  }
  EXPECT_GT(refused, 300u) << "the messages were hardly broken";
  EXPECT_TRUE(server.service().check().is_ok());
  EXPECT_TRUE(server.client()->stats().is_ok());
}

TEST(MalformedTest, EveryTruncationOfAMessageIsRefused) {
  HttpServerUnderTest server;
  (void)server.service().initialize({0, "kv"}, 64);
  for (const std::string& message : whole_messages()) {
    for (std::size_t size = 0; size < message.size(); ++size) {
      std::string part = message.substr(0, size);
      EXPECT_EQ(answer_wire_request(server.service(), part).code, StatusCode::kInvalidArgument);
      if (size < 16) continue;
      store_le(part.data() + 8, static_cast<std::uint32_t>(size - 16));
      EXPECT_EQ(answer_wire_request(server.service(), part).code, StatusCode::kInvalidArgument);
    }
  }
}

TEST(MalformedTest, CountsThatCannotBeAreRefusedBeforeMemoryIsTaken) {
  HttpServerUnderTest server;
  const MetadataNamespace kv{0, "kv"};
  const std::vector<MetadataKeys> keys{{&kv, {"a"}}};
  std::string message = *metadata::encode_find(keys, kSecond);
  store_le(message.data() + 16 + 8, std::uint32_t{0xFFFFFFFF});  // groups
  EXPECT_EQ(answer_wire_request(server.service(), message).code, StatusCode::kInvalidArgument);
  message = *metadata::encode_find(keys, kSecond);
  store_le(message.data() + 16 + 12 + 11, std::uint32_t{0xFFFFFFFF});  // keys
  EXPECT_EQ(answer_wire_request(server.service(), message).code, StatusCode::kInvalidArgument);
  message = *metadata::encode_find(keys, kSecond);
  store_le(message.data() + 4, std::uint16_t{2});
  EXPECT_EQ(answer_wire_request(server.service(), message).code, StatusCode::kUnsupported);
}

TEST(MalformedTest, BrokenAnswersAreCorruptAndNeverShorter) {
  HttpServerUnderTest server;
  (void)server.service().initialize({0, "kv"}, 64);
  const MetadataNamespace kv{0, "kv"};
  const std::vector<MetadataKeys> keys{{&kv, {"a", "b", "c"}}};
  const std::string answer = answer_wire_request(server.service(), *metadata::encode_find(keys, kSecond)).bytes;
  ASSERT_TRUE(metadata::open_answer(WireOperation::kFind, answer).is_ok());
  EXPECT_FALSE(metadata::open_answer(WireOperation::kReserve, answer).is_ok());
  for (std::size_t size = 0; size < answer.size(); ++size) {
    EXPECT_FALSE(metadata::open_answer(WireOperation::kFind, std::string_view(answer).substr(0, size)).is_ok());
  }
  const std::string_view payload = std::string_view(answer).substr(16);
  EXPECT_TRUE(metadata::decode_find(payload, keys).is_ok());
  EXPECT_EQ(metadata::decode_find(payload.substr(1), keys).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(metadata::decode_find(std::string(payload) + "x", keys).status().code(), StatusCode::kCorrupt);
}

// The metadata calls accept what the parser of the rest of the server accepts.
TEST(MalformedTest, BothParsersAgree) {
  const std::uint64_t seed = metadata_test_seed();
  SCOPED_TRACE(testing::Message() << "LARDER_TEST_SEED=" << seed);
  Rng rng(seed);
  const std::string whole =
      R"({"a":[1,-2.5e+3,0.1,true,false,null,{"b":"\u00e9\ud83d\ude00\n\"","c":[]}],"é€😀":"x\/y","d":{} , "e": [ ] })";
  std::size_t accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string text = round == 0 ? whole : broken(whole, rng);
    ReferenceBody body;
    const Status read = body.read(ReferenceRoutes::Call::kClear, text);
    bool is_json = true;
    try {
      const nlohmann::json parsed = nlohmann::json::parse(text);
      accepted += parsed.is_object() ? 1 : 0;
    } catch (const nlohmann::json::parse_error&) {
      is_json = false;
    } catch (const nlohmann::json::out_of_range&) {
      continue;  // a number beyond double's range: it stops there, and says nothing of the rest
    }
    EXPECT_EQ(!body.is_malformed, is_json) << text << "\n" << read.to_string();
    EXPECT_TRUE(!body.is_malformed || !read.is_ok());
  }
  EXPECT_GT(accepted, 100u);
}

// What a parser makes of a body takes many times its bytes: so many values are not parsed at all.
TEST(MalformedTest, ABodyOfTooManyValuesIsRefused) {
  std::string text = R"({"keys":[1)";
  for (std::size_t i = 0; i < kMostJsonValues; ++i) text += ",1";
  ReferenceBody body;
  const Status read = body.read(ReferenceRoutes::Call::kGet, text + "]}");
  EXPECT_EQ(read.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(read.message().find("too many values"), std::string::npos) << read.to_string();
  EXPECT_FALSE(body.is_malformed);
}

TEST(MalformedTest, TheListenersOwnLimitsHold) {
  HttpServerUnderTest server;
  HttpClient client(server.http_url(), std::chrono::seconds(20));
  const auto too_large = client.raw("POST /0/exists HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{");
  ASSERT_TRUE(too_large.is_ok());
  EXPECT_EQ(too_large->status, 413u);
  client.disconnect();
  const auto no_http = client.raw("nonsense\r\n\r\n");
  ASSERT_TRUE(no_http.is_ok());
  EXPECT_EQ(no_http->status, 400u);
}

}  // namespace
}  // namespace larder::conformance
