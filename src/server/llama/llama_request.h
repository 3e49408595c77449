// SPDX-License-Identifier: Apache-2.0
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
#include "server/llama/plain_reason.h"

namespace larder::llama {

// Whether a route makes llama-server use one of its slots, with or without a prompt that is looked at.
enum class RouteUse : std::uint8_t { kNone, kSlot };
[[nodiscard]] RouteUse route_use(std::string_view method, std::string_view path);

// False: llama-server does not look at "id_slot" there, and takes the slot that it likes best.
[[nodiscard]] bool route_takes_slot(std::string_view method, std::string_view path);

struct LlamaRequest {
  nlohmann::ordered_json body;
  // The same request as one for /v1/chat/completions; null: it is one, or no chat.
  nlohmann::ordered_json converted;
  // The prompt: tokens as they are; text; or messages, of which llama-server makes text.
  std::variant<std::vector<TokenId>, std::string, std::monostate> prompt;
  bool takes_slot = true;  // route_takes_slot()
  std::uint32_t answers = 1;
  bool streams = false;
  std::string salt;                          // "cache_salt": who may share
  std::optional<std::uint64_t> most_tokens;  // of the answer; none: as many as there is room for

  [[nodiscard]] bool is_chat() const { return std::holds_alternative<std::monostate>(prompt); }
  [[nodiscard]] bool is_converted() const { return !converted.is_null(); }
  // Of a chat: what /apply-template is asked.
  [[nodiscard]] const nlohmann::ordered_json& chat() const { return is_converted() ? converted : body; }
  // The body for llama-server, in a slot of ours; without the reuse of chunks that stand elsewhere in it, whose rows
  // are moved and not computed. uses_slot: whether it may go on from what is there.
  [[nodiscard]] std::string text_for_slot(std::uint32_t slot, bool uses_slot = true) const;
  // Of a chat: the body of a request for /apply-template with the leading system messages only; empty: it has none, or
  // nothing else.
  [[nodiscard]] std::string system_part() const;
};

// The request, or why it is not looked at.
[[nodiscard]] std::variant<LlamaRequest, PlainReason> parse_llama_request(std::string_view method,
                                                                          std::string_view path, std::string_view body);

// What goes on plainly.
struct PlainRequest {
  nlohmann::ordered_json body;
  std::uint32_t answers = 1;
  bool has_adapters = false;             // of its own: what it leaves in a slot is no other request's
  std::optional<std::string> salt = "";  // nullopt: it shares with nobody
  // In a slot of ours if there is one, and without moved rows: another request may find what it leaves in a slot.
  // uses_slot: whether it may go on from what is there.
  [[nodiscard]] std::string text(std::optional<std::uint32_t> slot, bool uses_slot) const;
};
// nullopt: it is no JSON object that is read, and goes on as it is.
[[nodiscard]] std::optional<PlainRequest> parse_plain_request(std::string_view body);

}  // namespace larder::llama
