// SPDX-License-Identifier: Apache-2.0
// Requests of other interfaces as requests for /v1/chat/completions: the same prompt as llama-server makes of them by
// itself, through /apply-template.
//
//   /v1/responses   "input", "instructions", "tools", "reasoning" are rewritten; all else stays as it is
//   /v1/messages    "system", "messages", "tools", "tool_choice" are rewritten; of the rest only
//                   "chat_template_kwargs" counts for the prompt
//
// What is not certain to give the same prompt is not converted: kMedia for images, sounds and files; kOtherPrompt for
// parts of kinds that are not known here; kNotUnderstood for what llama-server refuses.
// Of the llama.cpp that tools/llama_env.sh has. Another version may convert otherwise: then its answer counts other
// tokens (answer_count.h), which costs time and no wrong token.
//
// Threads: pure. Cost: a copy of the request.
#pragma once

#include <nlohmann/json.hpp>
#include <variant>

#include "server/llama/plain_reason.h"

namespace larder::llama {

using ConvertedChat = std::variant<nlohmann::ordered_json, PlainReason>;

// body: a JSON object.
[[nodiscard]] ConvertedChat chat_of_responses(const nlohmann::ordered_json& body);
[[nodiscard]] ConvertedChat chat_of_messages(const nlohmann::ordered_json& body);

}  // namespace larder::llama
