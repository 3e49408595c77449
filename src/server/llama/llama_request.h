// What a client of llama-server asks for: where its prompt is, or why its prompt is not looked at.
//
// Nothing is refused here: a request that is not understood goes on as it is, and llama-server says what it thinks.
// Threads: pure. Cost: the body is parsed once and written once.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/strong.h"

namespace larder::llama {

// Why a request goes to llama-server without a look at its prompt.
enum class PlainReason : std::uint8_t {
  kOtherRoute,      // it completes nothing
  kOtherPrompt,     // /infill, /v1/responses, /v1/messages: the prompt is made inside llama-server
  kNotUnderstood,   // no JSON object, or fields of other types
  kSeveralPrompts,  // a list of prompts
  kMedia,           // images, sounds
  kAdapters,        // "lora" of its own: other numbers for the same tokens
  kNoCaching,       // "cache_prompt": false
  kTooManyAnswers,  // more than llama-server has slots
};
inline constexpr std::size_t kPlainReasonCount = 8;
[[nodiscard]] std::string_view plain_reason_name(PlainReason reason);  // "several_prompts"

// Whether a route makes llama-server use one of its slots, with or without a prompt that is looked at.
enum class RouteUse : std::uint8_t { kNone, kSlot };
[[nodiscard]] RouteUse route_use(std::string_view method, std::string_view path);

struct LlamaRequest {
  nlohmann::ordered_json body;
  // The prompt: tokens as they are; text; or messages, of which llama-server makes text.
  std::variant<std::vector<TokenId>, std::string, std::monostate> prompt;
  std::uint32_t answers = 1;
  bool streams = false;
  std::string salt;                          // "cache_salt": who may share
  std::optional<std::uint64_t> most_tokens;  // of the answer; none: as many as there is room for

  [[nodiscard]] bool is_chat() const { return std::holds_alternative<std::monostate>(prompt); }
  // The body for llama-server, in a slot of ours; without the reuse of chunks that stand elsewhere in it, whose rows
  // are moved and not computed.
  [[nodiscard]] std::string text_for_slot(std::uint32_t slot) const;
  // Of a chat: the body of a request for /apply-template with the leading system messages only; empty: it has none, or
  // nothing else.
  [[nodiscard]] std::string system_part() const;
};

// The request, or why it is not looked at.
[[nodiscard]] std::variant<LlamaRequest, PlainReason> parse_llama_request(std::string_view method,
                                                                          std::string_view path, std::string_view body);

// A body that goes on plainly, in a slot of ours; nullopt: leave it as it is.
[[nodiscard]] std::optional<std::string> pinned_body(std::string_view body, std::uint32_t slot);

}  // namespace larder::llama
