// SPDX-License-Identifier: Apache-2.0
// Routes around a model's text, as llama-server has them: no sequence of the engine is used.
//
// Threads: any, several at once. Cost: of a template and a tokenizer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"
#include "server/llama/libllama/llama_calls.h"
#include "server/llama/prefix_explanation.h"

namespace larder::llama {

// POST /tokenize, /detokenize, /apply-template, /v1/messages/count_tokens; GET /v1/models, /models, /props.
// nullopt: another route.
[[nodiscard]] std::optional<HttpResponse> answer_text(const CallParts& parts, const HttpRequest& request);

// Of POST /larder/explain.
class ExplainedModel final : public ExplainedServer {
 public:
  explicit ExplainedModel(const CallParts& parts) : parts_(parts) {}
  Result<std::string> apply_template(std::string_view body) override;
  Result<std::vector<TokenId>> tokenize(std::string_view text) override;
  SlotHit best_slot(std::span<const TokenId> prompt, const std::string& owner) override {
    return parts_.engine.best(prompt, owner);
  }

 private:
  const CallParts& parts_;
};

}  // namespace larder::llama
