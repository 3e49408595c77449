// Routes around a model's text, as llama-server has them: no sequence of the engine is used.
//
// Threads: any, several at once. Cost: of a template and a tokenizer.
#pragma once

#include <optional>

#include "server/http_message.h"
#include "server/llama/libllama/llama_calls.h"

namespace larder::llama {

// POST /tokenize, /detokenize, /apply-template, /v1/messages/count_tokens; GET /v1/models, /models, /props.
// nullopt: another route.
[[nodiscard]] std::optional<HttpResponse> answer_text(const CallParts& parts, const HttpRequest& request);

}  // namespace larder::llama
