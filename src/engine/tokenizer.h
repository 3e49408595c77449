// SPDX-License-Identifier: Apache-2.0
// The byte-level tokenizer of the reference engine: every byte is a token, and a few specials steer a conversation.
//
// Ids: 0..255 the bytes; 256.. the specials below; the rest of the vocabulary has no text (a model with random weights
// still samples it).
//
// Text of a token sequence encodes back to exactly these tokens: encode(decode(ids)) == ids. So a client that sends the
// answer back as text, in a next turn, meets the prefix that the answer left in the cache. What is no valid UTF-8, and
// ids that are no bytes, appear as escapes: code point kEscapeBase + id, in the last private-use plane, which no other
// text uses (well-formed text decodes to itself).
//
// Picture of a conversation: <bos> <role> bytes <end> <role> bytes <end> ... <assistant>, and the answer ends in <end>,
// which is the end-of-sequence token: a turn's tokens are a prefix of the next turn's.
//
// Threads: pure functions; TextDecoder is confined.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "model/model_spec.h"

namespace larder {

struct TokenizerSpec {
  static constexpr TokenId kBytes = 256;  // ids below are bytes
  static constexpr TokenId kBos = 256;
  static constexpr TokenId kEos = 257;  // end of a turn, end of the answer
  static constexpr TokenId kSystem = 258;
  static constexpr TokenId kUser = 259;
  static constexpr TokenId kAssistant = 260;
  static constexpr TokenId kTool = 261;
  static constexpr std::uint32_t kVocabMin = 262;  // vocab_size of a model must be at least this
};
// kInvalidArgument: the vocabulary has no room for the specials.
[[nodiscard]] Status check_tokenizer(const ModelSpec& model);

inline constexpr std::uint32_t kEscapeBase = 0x100000;   // code point of id 0's escape
inline constexpr std::uint32_t kEscapedIdsEnd = 0xfffe;  // ids from here on have no text and no escape

// One token per byte; an escape is one token. Ill-formed bytes are themselves.
[[nodiscard]] std::vector<TokenId> encode(std::string_view text);
// Well-formed UTF-8.
[[nodiscard]] std::string decode(std::span<const TokenId> tokens);

struct ChatMessage {
  std::string role;  // system (or developer), user, assistant, tool
  std::string content;
};
// The prompt of a conversation; the model goes on as the assistant. kInvalidArgument: no message, unknown role.
[[nodiscard]] Result<std::vector<TokenId>> encode_chat(std::span<const ChatMessage> messages);

// decode() of a stream: the text comes out as soon as it is certain, so that the pieces add up to decode() of the
// whole.
class TextDecoder {
 public:
  // Text that `tokens` make certain; a character that is not whole yet waits (at most 3 bytes).
  [[nodiscard]] std::string push(std::span<const TokenId> tokens);
  // What waited, as escapes. The decoder is empty again.
  [[nodiscard]] std::string finish();

 private:
  void push_byte(std::uint8_t byte, std::string& out);
  void escape_waiting(std::string& out);

  std::string waiting_;  // a proper beginning of a well-formed character
};

}  // namespace larder
