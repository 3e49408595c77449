// SPDX-License-Identifier: Apache-2.0
// From the JSON of /generate, /v1/completions and /v1/chat/completions to prompts.
//
// Errors (kInvalidArgument) name the field, what was expected and what came. Fields we do not know are ignored at the
// top level, as the reference does; inside sampling_params they are refused, with the nearest known name. Fields we
// know and do not implement are accepted only with the value that changes nothing. Threads: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/model_spec.h"
#include "server/completion.h"

namespace larder {

inline constexpr std::size_t kMaxPromptsPerRequest = 256;
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopStringBytes = 1024;
inline constexpr std::size_t kMaxStopTokens = 1024;
inline constexpr std::size_t kMaxRequestNameBytes = 256;  // rid: in logs, in each event, and among the recent requests
inline constexpr std::size_t kMaxCacheNameBytes = 4096;   // adapter, salt and extra key, each: the cache takes no more
inline constexpr std::uint64_t kDefaultNewTokens = 128;   // /generate and chat, when the context has room
inline constexpr std::uint64_t kDefaultCompletionTokens = 16;  // /v1/completions

struct CompletionBody {
  std::vector<PromptRequest> prompts;  // at least one
  bool is_batch = false;               // prompts came as a list
  bool is_stream = false;
  bool include_usage = false;
  bool wants_cached_details = false;  // "return_cached_tokens_details" of the OpenAI forms
};

[[nodiscard]] Result<CompletionBody> parse_generate_body(std::string_view text, const ModelSpec& model);
[[nodiscard]] Result<CompletionBody> parse_completions_body(std::string_view text, const ModelSpec& model);
[[nodiscard]] Result<CompletionBody> parse_chat_body(std::string_view text, const ModelSpec& model);

}  // namespace larder
