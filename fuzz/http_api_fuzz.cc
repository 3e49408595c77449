// SPDX-License-Identifier: Apache-2.0
// Requests to the server: targets (server/http_message.h) and the bodies of /generate, /v1/completions and
// /v1/chat/completions (server/completion_body.h).
//
// Fed: which of them, and a text.
// Checked: refusals are kInvalidArgument and say why, and make an answer that is JSON, whatever bytes they quote. What
// is taken is within every limit that the headers name: prompts, tokens of the vocabulary and of the context, stop
// strings, sampling ranges. Decoding a target and encoding it again gives the same.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz_input.h"
#include "model/presets.h"
#include "server/api_error.h"
#include "server/completion_body.h"
#include "server/http_message.h"

namespace larder::fuzz {
namespace {

const ModelSpec& model() {
  static const ModelSpec kModel = [] {
    Result<ModelSpec> preset = preset_model("gdn-tiny");
    fuzz_check(preset.is_ok(), "no preset");
    return std::move(preset).value();
  }();
  return kModel;
}

void check_refusal(const Status& status) {
  fuzz_check(status.code() == StatusCode::kInvalidArgument, "refused with " + status.to_string());
  check_explains(status, "a request");
  const HttpResponse response = error_response(status);
  fuzz_check(response.status == 400 && nlohmann::json::accept(response.body), "an error that is no JSON");
}

void check_prompt(const PromptRequest& prompt) {
  const GenerateRequest& generate = prompt.generate;
  for (const TokenId token : generate.tokens) fuzz_check(token < model().vocab_size, "a token that there is not");
  for (const TokenId token : generate.stop_tokens) fuzz_check(token < model().vocab_size, "a stop token there is not");
  fuzz_check(generate.temperature >= 0 && generate.top_p > 0 && generate.top_p <= 1, "sampling out of its range");
  fuzz_check(prompt.stop_strings.size() <= kMaxStopStrings, "too many stop strings");
  for (const std::string& stop : prompt.stop_strings) {
    fuzz_check(!stop.empty() && stop.size() <= kMaxStopStringBytes, "an empty or a long stop string");
  }
}

void check_body(const Result<CompletionBody>& body) {
  if (!body.is_ok()) return check_refusal(body.status());
  fuzz_check(!body->prompts.empty() && body->prompts.size() <= kMaxPromptsPerRequest, "no prompts, or too many");
  fuzz_check(body->is_batch || body->prompts.size() == 1, "several prompts that are no batch");
  for (const PromptRequest& prompt : body->prompts) check_prompt(prompt);
}

std::string percent_encode(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    out += '%' + hex_encode({&byte, 1});
  }
  return out;
}

void check_target(std::string_view target) {
  HttpRequest request;
  const Status status = parse_target(target, request);
  if (!status.is_ok()) return check_refusal(status);
  fuzz_check(request.path.starts_with('/') || target.starts_with("/"), "a path without its beginning");
  std::string encoded = "/" + percent_encode(std::string_view(request.path).substr(1)) + "?";
  for (const auto& [name, value] : request.query) encoded += percent_encode(name) + "=" + percent_encode(value) + "&";
  HttpRequest again;
  const Status second = parse_target(encoded, again);
  fuzz_check(second.is_ok() && again.path == request.path, "a path encoded again is another");
  for (const auto& [name, value] : request.query) {
    fuzz_check(name.empty() || (again.query.contains(name) && again.query.at(name) == value), "a query is another");
  }
  for (const auto& [name, value] : request.query) {
    const Result<double> seconds = query_number(request, name, 1, 60);
    if (!seconds.is_ok()) check_refusal(seconds.status());
    if (seconds.is_ok()) fuzz_check(*seconds >= 0 && *seconds <= 60, "seconds out of their range");
  }
}

void run(FuzzInput input) {
  const std::uint64_t kind = input.below(4);
  const std::string_view text = input.rest_text();
  switch (kind) {
    case 0: return check_body(parse_generate_body(text, model()));
    case 1: return check_body(parse_completions_body(text, model()));
    case 2: return check_body(parse_chat_body(text, model()));
    default: return check_target(text);
  }
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
