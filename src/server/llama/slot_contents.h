// SPDX-License-Identifier: Apache-2.0
// What a slot of llama-server holds, as far as it is known without asking, and how much of a prompt it can use of that.
//
// llama-server decides for itself, from the same tokens: a guess that is wrong costs time and changes no answer.
//   a model that rolls back      all tokens that are the same
//   one that does not            all of the slot, if the prompt continues it; else the last state that llama-server
//                                keeps of it (--ctx-checkpoints): some tokens before the end of each prompt
// Threads: values. Units: tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/strong.h"

namespace larder::llama {

struct SlotHit {
  std::uint32_t slot = 0;
  std::uint64_t tokens = 0;  // of a prompt that need not be computed there

  bool operator==(const SlotHit&) const = default;
};

struct EngineHabits {
  bool rolls_back = false;
  // States are kept so many tokens before the end of each prompt; 0: none (--ctx-checkpoints 0).
  std::uint32_t checkpoint_offset = 0;
  // Tokens, at least, that fit into the one context of all slots (--kv-unified): when it is full, llama-server empties
  // slots that compute nothing, and does not tell. 0: each slot has its own.
  std::uint64_t shared_context = 0;
};

class SlotContents {
 public:
  // A request of `owner` (a tenant's salt) has it from now on; nullopt: one that shares with nobody, itself included.
  void begin(std::optional<std::string> owner);
  // A prompt was computed, from `resumed` on, and an answer of unknown tokens perhaps.
  void computed(std::span<const TokenId> prompt, std::uint64_t resumed, bool has_answer, const EngineHabits& habits);
  // A slot file was restored; or none: it was emptied.
  void restored(std::span<const TokenId> tokens);
  // Its owner's request was computed in it, and nobody looked at its tokens.
  void filled();
  // Its owner's tokens are not known any more. What it holds may not be what these alone would give (images, a context
  // that was shifted), so it is emptied before a prompt that is looked at.
  void forget();
  // Nor is it known whose they are, and with which adapters they were computed.
  void disown();
  // llama-server may have emptied it meanwhile. Its tokens stay known: it has these, or none.
  void doubt() { is_doubted_ = true; }
  [[nodiscard]] bool is_doubted() const { return is_doubted_; }
  [[nodiscard]] bool is_unknown() const { return known_ != Known::kTokens; }
  // Nothing in it is another's, or of adapters that a request had for itself.
  [[nodiscard]] bool is_owners() const { return known_ != Known::kNothing; }

  [[nodiscard]] const std::optional<std::string>& owner() const { return owner_; }

  // How much of `prompt` need not be computed.
  [[nodiscard]] std::uint64_t reusable(std::span<const TokenId> prompt, const EngineHabits& habits) const;
  // How long its beginning is the same, whether that can be used or not.
  [[nodiscard]] std::uint64_t common(std::span<const TokenId> prompt) const;
  // How much of it came from a slot file. Of a sliding window such a file has only what is seen from its end: who goes
  // back behind that computes without most of the window.
  [[nodiscard]] std::uint64_t composed() const { return composed_; }
  // Whether the computation of `prompt` would begin within composed().
  [[nodiscard]] bool is_parted_by(std::span<const TokenId> prompt) const;
  [[nodiscard]] std::uint64_t size() const { return tokens_.size(); }

 private:
  enum class Known : std::uint8_t { kNothing, kOwner, kTokens };

  std::vector<TokenId> tokens_;  // certain; an answer may follow
  bool has_answer_ = false;
  bool is_doubted_ = false;
  Known known_ = Known::kNothing;
  std::uint64_t checkpoint_ = 0;  // 0: none
  std::uint64_t composed_ = 0;    // stays until llama-server is known to have dropped it
  std::optional<std::string> owner_;
};

}  // namespace larder::llama
