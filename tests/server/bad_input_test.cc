// SPDX-License-Identifier: Apache-2.0
// Bad input of every kind: a clear error, and a server that lives on.
#include <fmt/format.h>

#include "server/api_error.h"
#include "server/json_reader.h"
#include "tests/server/server_fixture.h"

namespace larder {
namespace {

using BadInputTest = ServerFixture;

struct BadBody {
  const char* target;
  const char* body;
  const char* must_say;
};

const BadBody kBadBodies[] = {
    {"/generate", "", "the body is empty"},
    {"/generate", "{\"text\": \"a\",}", "malformed JSON at byte 13 (line 1, column 14)"},
    {"/generate", "{\"text\": \"a\"", "malformed JSON at byte"},
    {"/generate", "{\"text\": \"\xff\"}", "malformed JSON at byte"},
    {"/generate", "[1,2]", "the body must be a JSON object, got an array of 2"},
    {"/generate", "{\"x\": 1e999}", "malformed JSON"},
    {"/generate", "{}", "send 'text' (a string) or 'input_ids'"},
    {"/generate", "{\"text\": \"\"}", "'text' is empty"},
    {"/generate", "{\"input_ids\": []}", "'input_ids' is empty"},
    {"/generate", "{\"input_ids\": [[1], []]}", "'input_ids[1]' is empty"},
    {"/generate", "{\"text\": \"a\", \"input_ids\": [1]}", "not both"},
    {"/generate", "{\"text\": 5}", "'text' must be a string or an array of strings, got the number 5"},
    {"/generate", "{\"input_ids\": \"abc\"}", "'input_ids' must be an array of token ids, got the string \"abc\""},
    {"/generate", "{\"input_ids\": [1, 300]}",
     "'input_ids[1]' is out of range: the number 300; token ids are integers in "
     "[0, 299] (vocabulary of 300)"},
    {"/generate", "{\"input_ids\": [1, -1]}", "'input_ids[1]' is out of range"},
    {"/generate", "{\"input_ids\": [1.5]}", "'input_ids[0]' is no token id: the number 1.5"},
    {"/generate", "{\"input_ids\": [99999999999999999999]}", "'input_ids[0]'"},
    {"/generate", "{\"input_ids\": [[1], [2, \"x\"]]}", "'input_ids[1][1]' is no token id: the string \"x\""},
    {"/generate", "{\"text\": \"a\", \"stream\": 1}", "'stream' must be a boolean, got the number 1"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": []}", "'sampling_params' must be an object"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"temperature\": \"hot\"}}",
     "'sampling_params.temperature' must be a number >= 0, got the string \"hot\""},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"temperature\": -1}}", "'sampling_params.temperature'"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"top_p\": 0}}", "must be a number in (0, 1]"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"max_new_tokens\": 0}}", "must be an integer in [1, "},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"max_new_tokens\": 2.5}}", "must be an integer in [1, "},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"max_new_token\": 1}}", "did you mean 'max_new_tokens'?"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"stop\": [1]}}",
     "'sampling_params.stop[0]' must be a string"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"stop\": \"\"}}", "a stop string has 1 to 1024 bytes"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"stop_token_ids\": [300]}}",
     "stop_token_ids[0]' is out of range"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"regex\": \"a\"}}",
     "'sampling_params.regex' is not supported"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"n\": 2}}", "leave it out or send 1"},
    {"/generate", "{\"text\": \"a\", \"return_logprob\": true}", "'return_logprob' is not supported"},
    {"/generate", "{\"text\": \"a\", \"lora_path\": 7}", "'lora_path' must be a string, got the number 7"},
    {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"max_new_tokens\": 200000}}", "beyond the context"},
    {"/v1/completions", "{}", "send 'prompt'"},
    {"/v1/completions", "{\"prompt\": null}", "send 'prompt'"},
    {"/v1/completions", "{\"prompt\": {}}", "'prompt' must be a string or an array of token ids, got an object"},
    {"/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": \"5\"}", "'max_tokens' must be an integer"},
    {"/v1/completions", "{\"prompt\": \"a\", \"stream_options\": 3}", "'stream_options' must be an object"},
    {"/v1/chat/completions", "{}", "no 'messages'"},
    {"/v1/chat/completions", "{\"messages\": []}", "'messages' must be a non-empty array"},
    {"/v1/chat/completions", "{\"messages\": [5]}", "'messages[0]' must be an object, got the number 5"},
    {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", "'messages[0].content' must be"},
    {"/v1/chat/completions", "{\"messages\": [{\"content\": \"x\"}]}", "'messages[0].role' must be"},
    {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\"}]}", "'messages[0].content' is missing"},
    {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": null}]}",
     "'messages[0].content' is missing"},
    {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
     "'messages[0].content[0]' must be {\"type\": \"text\""},
    {"/explain", "{\"input_ids\": [[1],[2]]}", "one prompt"},
};

TEST_F(BadInputTest, EveryBadBodyIsRefusedClearly) {
  auto connection = client();
  for (const BadBody& bad : kBadBodies) {
    const auto reply = connection->request("POST", bad.target, bad.body);
    ASSERT_TRUE(reply.is_ok()) << bad.body << ": " << reply.status().to_string();
    EXPECT_EQ(reply->status, 400u) << bad.body << " -> " << reply->body;
    const Json body = Json::parse(reply->body, nullptr, false);
    ASSERT_FALSE(body.is_discarded()) << reply->body;
    const std::string message = body["error"]["message"];
    EXPECT_NE(message.find(bad.must_say), std::string::npos) << bad.body << "\n  says: " << message;
    EXPECT_EQ(body["error"]["code"], 400);
  }
  EXPECT_EQ(connection->request("GET", "/health")->status, 200u);
}

// An answer is not counted as a body is: it must not be as large as one.
TEST_F(BadInputTest, ARefusalRepeatsLittleOfWhatCame) {
  const std::string plain(1u << 20, 'a'), digits(1u << 20, '1');
  std::string umlauts;
  while (umlauts.size() < 1u << 20) umlauts += "\u00fc";
  const std::pair<const char*, std::string> bodies[] = {
      {"/generate", "\"" + plain},
      {"/generate", "\"" + plain + "\""},
      {"/generate", "{\"" + umlauts + "\" 1}"},
      {"/generate", "{\"" + umlauts + "\xff\": 1}"},
      {"/generate", "{\"text\": " + digits + "}"},
      {"/generate", "{\"text\": -" + digits + "x}"},
      {"/generate", "{\"text\": \"a\", \"stream\": \"" + umlauts + "\"}"},
      {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"" + umlauts + "\": 1}}"},
      {"/generate", "{\"text\": \"a\", \"sampling_params\": {\"n\": \"" + plain + "\"}}"},
      {"/v1/chat/completions", "{\"messages\": [{\"role\": \"" + umlauts + "\", \"content\": \"a\"}]}"},
      {"/hicache/storage-backend", "{\"hicache_storage_backend\": \"" + plain},
  };
  auto connection = client();
  for (const auto& [target, body] : bodies) {
    SCOPED_TRACE(std::string(target) + " " + body.substr(0, 40));
    const char* const method = std::string_view(target).starts_with("/hicache") ? "PUT" : "POST";
    const auto reply = connection->request(method, target, body);
    ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
    EXPECT_EQ(reply->status, 400u);
    EXPECT_LT(reply->body.size(), 4096u);
    EXPECT_FALSE(Json::parse(reply->body, nullptr, false).is_discarded()) << reply->body;
  }
  EXPECT_LT(error_response(400, plain).body.size(), 5000u) << "whatever the message is made of";
  scheduler_->fail_next_attach(invalid_argument("no backend '" + plain + "'"));
  const auto attach = connection->request("PUT", "/hicache/storage-backend", R"({"hicache_storage_backend": "x"})");
  ASSERT_TRUE(attach.is_ok()) << attach.status().to_string();
  EXPECT_EQ(attach->status, 400u);
  EXPECT_TRUE(attach->body.starts_with("Failed to attach HiCache storage backend.\nno backend 'aaa")) << attach->body;
  EXPECT_LT(attach->body.size(), 5000u);
}

// They are kept, told and hashed, each with all prompts of its request: one body must not take many times its size.
TEST_F(BadInputTest, NamesAndListsOfARequestHaveALimit) {
  const auto message_of = [&](const char* target, const Json& body) {
    const HttpReply reply = call("POST", target, body.dump());
    EXPECT_EQ(reply.status, 400u) << reply.body.substr(0, 200);
    const Json answer = Json::parse(reply.body, nullptr, false);
    return reply.status == 400 ? answer["error"]["message"].get<std::string>() : "";
  };
  Json most = generate_body({1}, 1);
  most["rid"] = std::string(256, 'r');
  for (const char* name : {"cache_salt", "lora_path"}) most[name] = std::string(4096, 'n');
  most["sampling_params"]["stop_token_ids"] = std::vector<int>(1024, 299);
  EXPECT_EQ(call("POST", "/generate", most.dump()).status, 200u);
  Json body = most;
  body["rid"] = std::string(1 << 20, 'r');
  EXPECT_EQ(message_of("/generate", body), "'rid' has 1048576 bytes: at most 256 are taken");
  for (const char* name : {"cache_salt", "extra_key", "lora_path"}) {
    body = most;
    body[name] = std::string(5000, 'n');
    EXPECT_EQ(message_of("/generate", body), fmt::format("'{}' has 5000 bytes: at most 4096 are taken", name));
  }
  body = most;
  body["extra_key"] = "k";
  EXPECT_EQ(message_of("/generate", body),
            "'cache_salt' and 'extra_key' make one name of 4112 bytes: at most 4096 are taken");
  body = most;
  body["sampling_params"]["stop_token_ids"] = std::vector<int>(100'000, 299);
  EXPECT_EQ(message_of("/generate", body), "'sampling_params.stop_token_ids' has more than 1024 token ids");
  const Json prompt = {{"prompt", "a"}, {"rid", std::string(257, 'r')}};
  EXPECT_EQ(message_of("/v1/completions", prompt), "'rid' has 257 bytes: at most 256 are taken");
}

TEST_F(BadInputTest, UnknownFieldsAreIgnoredAtTheTop) {
  EXPECT_EQ(call("POST", "/generate", R"({"text":"a","best_of":1,"bootstrap_room":5,"logprob_start_len":-1})").status,
            200u);
}

TEST_F(BadInputTest, DeepJsonIsRefusedWithoutMemory) {
  const HttpReply reply = call("POST", "/generate", std::string(1u << 20, '['));
  EXPECT_EQ(reply.status, 400u);
  EXPECT_NE(reply.body.find("nested deeper than 64"), std::string::npos);
}

TEST_F(BadInputTest, RoutesAndMethods) {
  HttpReply reply = call("GET", "/nope");
  EXPECT_EQ(reply.status, 404u);
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "NotFoundError");
  reply = call("GET", "/generate");
  EXPECT_EQ(reply.status, 405u);
  EXPECT_EQ(Json::parse(reply.body)["error"]["message"], "/generate takes POST");
  EXPECT_EQ(call("DELETE", "/health").status, 405u);
  for (const char* method : {"OST", "P", "POST|", "|", "post"}) {
    const auto part = client()->raw(std::string(method) + " /quiesce HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_TRUE(!part.is_ok() || part->status >= 400) << method;
  }
  EXPECT_EQ(call("OPTIONS", "/generate").status, 204u);
  EXPECT_EQ(call("GET", "/health?x=%zz").status, 400u);
}

TEST_F(BadInputTest, ADocumentOfTooManyValuesIsNotRead) {
  for (const auto& [piece, weight] : {std::pair{",1", 1}, {",[]", 5}, {",{}", 11}}) {
    std::string body = "{\"input_ids\":[1";
    for (std::size_t i = 0; i < kMostJsonValues / weight + 1; ++i) body += piece;
    const HttpReply reply = call("POST", "/generate", body + "]}");
    EXPECT_EQ(reply.status, 400u);
    EXPECT_NE(reply.body.find("too many values"), std::string::npos) << reply.body.substr(0, 200);
  }
}

TEST_F(BadInputTest, OversizedBodiesAndHeads) {
  ListenOptions listen;
  listen.max_body_bytes = 1000;
  listen.max_header_bytes = 2000;
  start({}, listen);
  const HttpReply reply = call("POST", "/generate", std::string(5000, ' '));
  EXPECT_EQ(reply.status, 413u);
  EXPECT_NE(reply.body.find("larger than 1000 bytes"), std::string::npos);
  const auto head = client()->raw("GET /health HTTP/1.1\r\nX: " + std::string(5000, 'x') + "\r\n\r\n");
  ASSERT_TRUE(head.is_ok());
  EXPECT_EQ(head->status, 431u);
  const auto chunked = client()->raw("POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
                                     std::string(2000, ' '));
  ASSERT_TRUE(chunked.is_ok());
  EXPECT_EQ(chunked->status, 413u);
  EXPECT_EQ(call("GET", "/health").status, 200u);
}

// No key is asked for before they are over, so they must not fill the memory.
TEST_F(BadInputTest, ChunkExtensionsAndTrailersHaveALimit) {
  const std::string head = "GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(client()->raw(head + "5;a=" + std::string(1000, 'a') + "\r\n12345\r\n0\r\nA: b\r\n\r\n")->status, 200u);
  ListenOptions listen;
  listen.read_limit = std::chrono::seconds(2);
  start({}, listen);
  for (const std::string begin : {"5;", "5;a=", "0\r\nA: "}) {
    const auto reply = client()->raw(head + begin + std::string(4 << 20, 'a'));
    ASSERT_TRUE(reply.is_ok()) << begin << ": " << reply.status().to_string();
    EXPECT_EQ(reply->status, 431u) << begin;
  }
  EXPECT_EQ(call("GET", "/health").status, 200u);
}

TEST_F(BadInputTest, BrokenHttpIsAnswered) {
  for (const char* bytes :
       {"HELLO\r\n\r\n", "GET /health\r\n\r\n", "GET /health HTTP/9.9\r\n\r\n", "GET /h HTTP/1.1\r\nbad header\r\n\r\n",
        "POST /generate HTTP/1.1\r\nContent-Length: x\r\n\r\n"}) {
    const auto reply = client()->raw(bytes);
    ASSERT_TRUE(reply.is_ok()) << bytes << ": " << reply.status().to_string();
    EXPECT_EQ(reply->status, 400u) << bytes;
  }
  EXPECT_EQ(call("GET", "/health").status, 200u);
}

// Where its body ends is not known: it is no empty one, and what is behind the head is no request.
TEST_F(BadInputTest, ABodyInAnotherCodingEndsTheConnection) {
  for (const char* coding : {"gzip", "identity", "chunked, gzip", "gzip, chunked", "xchunked",
                             "gzip\r\nTransfer-Encoding: "
                             "chunked"}) {
    const auto connection = client();
    const auto reply = connection->raw(std::string("POST /quiesce HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: ") +
                                       coding + "\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(reply.is_ok()) << coding;
    EXPECT_EQ(reply->status, 400u) << coding;
    EXPECT_NE(reply->body.find("Transfer-Encoding"), std::string::npos) << reply->body;
  }
}

TEST_F(BadInputTest, ExpectContinueIsAnswered) {
  const auto reply =
      client()->raw("POST /quiesce HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}");
  ASSERT_TRUE(reply.is_ok());
  EXPECT_EQ(reply->status, 200u);
}

// What needs no key from this machine needs one from a page that a browser on this machine shows.
TEST_F(BadInputTest, AWebPageOfAnotherSiteIsNotThisMachine) {
  const auto status_of = [&](const std::string& fields) {
    const auto reply = client()->raw("POST /quiesce HTTP/1.1\r\n" + fields + "Content-Length: 2\r\n\r\n{}");
    return reply.is_ok() ? reply->status : 0u;
  };
  EXPECT_EQ(status_of("Host: 127.0.0.1\r\n"), 200u);
  EXPECT_EQ(status_of("Host: localhost\r\nOrigin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n"), 200u);
  for (const char* fields :
       {"Host: rebound.example\r\n", "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n",
        "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n", "Host: localhost\r\nOrigin: null\r\n",
        "Host: 127.0.0.1\r\nX-Forwarded-For: 10.0.0.7\r\n", "Host: localhost\r\nVia: 1.1 proxy\r\n"}) {
    EXPECT_EQ(status_of(fields), 400u) << fields;
  }
}

TEST_F(BadInputTest, PipelinedRequestsAreAnsweredInOrder) {
  auto connection = client();
  const auto first = connection->raw("GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /nope HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(first->status, 200u);
  const auto second = connection->raw("");
  ASSERT_TRUE(second.is_ok());
  EXPECT_EQ(second->status, 404u);
}

TEST_F(BadInputTest, AHalfSentRequestIsDroppedInTime) {
  ListenOptions listen;
  listen.idle_limit = std::chrono::milliseconds(30);
  listen.read_limit = std::chrono::milliseconds(30);
  start({}, listen);
  for (const char* bytes : {"GET /hea", "POST /generate HTTP/1.1\r\nContent-Length: 10\r\n\r\n{"}) {
    const auto reply = client()->raw(bytes);
    EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable) << bytes;  // closed, without an answer
  }
  EXPECT_EQ(call("GET", "/health").status, 200u);
}

}  // namespace
}  // namespace larder
