// SPDX-License-Identifier: Apache-2.0
// The answers of /generate, /v1/completions and /v1/chat/completions.
//
// A line of an event stream stays under 128 KiB (clients' line buffers): cumulative events of /generate that would grow
// beyond it carry only their tail, with "output_ids_offset" and "text_offset" (characters: code points) saying where it
// belongs.
// Threads: strand only, as their Completion.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/completion.h"

namespace larder {

inline constexpr std::size_t kMaxCumulativeBytes = 96u << 10;  // of output_ids and text in one event
inline constexpr std::size_t kTailTokens = 8192;               // of one event beyond that
inline constexpr std::size_t kTailTextBytes = 10u << 10;       // at most six times that in JSON

struct GenerateFormatOptions {
  std::string storage_backend;  // class name for cached_tokens_details; "": no storage tier
  bool is_batch = false;        // the answer is an array, events carry "index"
};
[[nodiscard]] std::unique_ptr<ReplyFormat> make_generate_format(GenerateFormatOptions options);

struct OpenAiFormatOptions {
  std::string model;
  std::int64_t created_unix_seconds = 0;
  bool is_chat = false;
  bool include_usage = false;  // a last chunk with usage; the others carry null
  // "sglext": {"cached_tokens_details": ...} in the answer, of a stream in the chunk with its "finish_reason"; of the
  // first prompt.
  bool wants_cached_details = false;
  std::string storage_backend;  // as above
};
[[nodiscard]] std::unique_ptr<ReplyFormat> make_openai_format(OpenAiFormatOptions options);

// Why not more was cached: null, or {"reason", "component"}.
[[nodiscard]] nlohmann::ordered_json stop_json(const CachedTokens& cached);
// {"reason": "evicted", "at_token": 128, "component": "full", "tier": "host", "seconds_ago": 3.1, "for_request": 17,
// "text": a sentence}; null: all that may be reused was. A tenant gets Miss::for_tenant().
[[nodiscard]] nlohmann::ordered_json miss_json(const Miss& miss);
// "stop", "length", "abort", ...; "" while it runs.
[[nodiscard]] std::string_view finish_name(FinishReason reason);

}  // namespace larder
