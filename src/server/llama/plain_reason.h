// SPDX-License-Identifier: Apache-2.0
// Why a request goes to llama-server without a look at its prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace larder::llama {

enum class PlainReason : std::uint8_t {
  kOtherRoute,      // it completes nothing
  kOtherPrompt,     // /infill, and parts of a prompt of which nobody knows what llama-server makes of them
  kNotUnderstood,   // no JSON object, or fields of other types
  kSeveralPrompts,  // a list of prompts
  kMedia,           // images, sounds
  kAdapters,        // "lora" of its own: other numbers for the same tokens
  kNoCaching,       // "cache_prompt": false
  kTooManyAnswers,  // more than llama-server has slots
  kOtherSlot,       // /v1/messages, before a llama-server that does not take the slot that has the prompt
  kUnknownServer,   // llama-server is not proven, or not yet
};
inline constexpr std::size_t kPlainReasonCount = 10;
[[nodiscard]] std::string_view plain_reason_name(PlainReason reason);  // "several_prompts"

}  // namespace larder::llama
