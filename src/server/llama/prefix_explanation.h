// SPDX-License-Identifier: Apache-2.0
// What a prompt would be given now, from a slot, from host memory and from storage, and why not more: the answer of
// /larder/explain, in the shape of /explain (`larder explain` prints it).
//
// Nothing is read or restored: storage is asked which pages it has. Host memory and storage are each looked at alone; a
// request may get further with both.
// Threads: any. Errors: kInvalidArgument: neither "text", "input_ids" nor "messages".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/llama/prefix_store.h"
#include "server/llama/slot_contents.h"

namespace larder::llama {

// The server whose prompts are explained: its model's text and its slots.
class ExplainedServer {
 public:
  virtual ~ExplainedServer() = default;
  // The text that a body for /v1/chat/completions becomes.
  [[nodiscard]] virtual Result<std::string> apply_template(std::string_view body) = 0;
  // As of a prompt that is text.
  [[nodiscard]] virtual Result<std::vector<TokenId>> tokenize(std::string_view text) = 0;
  // The slot that could use most of a prompt.
  [[nodiscard]] virtual SlotHit best_slot(std::span<const TokenId> prompt, const std::string& owner) = 0;
};

struct ExplainParts {
  const SlotFormat& format;
  PrefixStore& store;
  std::uint64_t ask_storage_tokens = 0;  // RelayParts, ServeSettings
};

// body: {"text"} or {"input_ids"}, or a request for /v1/chat/completions; and "cache_salt".
[[nodiscard]] Result<std::string> explain_prefix(const ExplainParts& parts, ExplainedServer& server,
                                                 std::string_view body);

}  // namespace larder::llama
