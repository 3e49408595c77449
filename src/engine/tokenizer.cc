// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer.h"

namespace larder {
namespace {

// Bytes of the character that starts with `lead`; 0: no character starts so.
std::size_t character_bytes(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

// May `next` follow the beginning `head` of a character? (Unicode, table 3-7: no overlong forms, no surrogates.)
bool may_follow(std::string_view head, std::uint8_t next) {
  std::uint8_t low = 0x80, high = 0xbf;
  if (head.size() == 1) {
    switch (static_cast<std::uint8_t>(head[0])) {
      case 0xe0: low = 0xa0; break;
      case 0xed: high = 0x9f; break;
      case 0xf0: low = 0x90; break;
      case 0xf4: high = 0x8f; break;
      default: break;
    }
  }
  return next >= low && next <= high;
}

// A whole character of four bytes.
std::uint32_t code_point4(std::string_view c) {
  const auto bits = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<std::uint8_t>(c[i]) & 0x3f); };
  return (static_cast<std::uint32_t>(static_cast<std::uint8_t>(c[0]) & 0x07) << 18) | (bits(1) << 12) | (bits(2) << 6) |
         bits(3);
}

void append_escape(TokenId id, std::string& out) {
  if (id >= kEscapedIdsEnd) return;
  const std::uint32_t point = kEscapeBase + id;
  out += static_cast<char>(0xf0 | (point >> 18));
  out += static_cast<char>(0x80 | ((point >> 12) & 0x3f));
  out += static_cast<char>(0x80 | ((point >> 6) & 0x3f));
  out += static_cast<char>(0x80 | (point & 0x3f));
}

// The escape at the beginning of `text`, if there is one.
bool take_escape(std::string_view text, TokenId& id) {
  if (text.size() < 4 || static_cast<std::uint8_t>(text[0]) != 0xf4) return false;
  for (std::size_t i = 1; i < 4; ++i) {
    if (!may_follow(text.substr(0, i), static_cast<std::uint8_t>(text[i]))) return false;
  }
  const std::uint32_t point = code_point4(text.substr(0, 4));
  if (point < kEscapeBase || point - kEscapeBase >= kEscapedIdsEnd) return false;
  id = point - kEscapeBase;
  return true;
}

bool role_token(std::string_view role, TokenId& id) {
  if (role == "system" || role == "developer")
    id = TokenizerSpec::kSystem;
  else if (role == "user")
    id = TokenizerSpec::kUser;
  else if (role == "assistant")
    id = TokenizerSpec::kAssistant;
  else if (role == "tool")
    id = TokenizerSpec::kTool;
  else
    return false;
  return true;
}

}  // namespace

Status check_tokenizer(const ModelSpec& model) {
  if (model.vocab_size >= TokenizerSpec::kVocabMin) return Status::ok();
  return invalid_argument("model " + model.id + ": vocab_size is " + std::to_string(model.vocab_size) +
                          ", the byte-level tokenizer needs at least " + std::to_string(TokenizerSpec::kVocabMin));
}

std::vector<TokenId> encode(std::string_view text) {
  std::vector<TokenId> tokens;
  tokens.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    TokenId id = 0;
    if (take_escape(text.substr(i), id)) {
      tokens.push_back(id);
      i += 4;
    } else {
      tokens.push_back(static_cast<std::uint8_t>(text[i++]));
    }
  }
  return tokens;
}

std::string decode(std::span<const TokenId> tokens) {
  TextDecoder decoder;
  std::string text = decoder.push(tokens);
  return text + decoder.finish();
}

Result<std::vector<TokenId>> encode_chat(std::span<const ChatMessage> messages) {
  if (messages.empty()) return invalid_argument("messages is empty: send at least one");
  std::vector<TokenId> tokens = {TokenizerSpec::kBos};
  for (const ChatMessage& message : messages) {
    TokenId role = 0;
    if (!role_token(message.role, role)) {
      return invalid_argument("unknown role '" + message.role.substr(0, 40) +
                              "': it must be system, developer, user, assistant or tool");
    }
    tokens.push_back(role);
    std::vector<TokenId> content = encode(message.content);
    // The answer's own end came back as an escape: it is the end of the turn, not followed by another.
    if (!content.empty() && content.back() == TokenizerSpec::kEos) content.pop_back();
    tokens.insert(tokens.end(), content.begin(), content.end());
    tokens.push_back(TokenizerSpec::kEos);
  }
  tokens.push_back(TokenizerSpec::kAssistant);
  return tokens;
}

void TextDecoder::escape_waiting(std::string& out) {
  for (const char byte : waiting_) append_escape(static_cast<std::uint8_t>(byte), out);
  waiting_.clear();
}

void TextDecoder::push_byte(std::uint8_t byte, std::string& out) {
  if (!waiting_.empty() && !may_follow(waiting_, byte)) escape_waiting(out);
  if (waiting_.empty() && character_bytes(byte) == 0) {
    append_escape(byte, out);
    return;
  }
  waiting_ += static_cast<char>(byte);
  if (waiting_.size() < character_bytes(static_cast<std::uint8_t>(waiting_[0]))) return;
  TokenId id = 0;
  if (take_escape(waiting_, id)) {
    escape_waiting(out);  // its plain bytes would read as an escape: escape them, too
  } else {
    out += waiting_;
    waiting_.clear();
  }
}

std::string TextDecoder::push(std::span<const TokenId> tokens) {
  std::string out;
  out.reserve(tokens.size());
  for (const TokenId token : tokens) {
    if (token < TokenizerSpec::kBytes) {
      push_byte(static_cast<std::uint8_t>(token), out);
    } else {
      escape_waiting(out);
      append_escape(token, out);
    }
  }
  return out;
}

std::string TextDecoder::finish() {
  std::string out;
  escape_waiting(out);
  return out;
}

}  // namespace larder
