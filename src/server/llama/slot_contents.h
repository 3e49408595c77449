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
#include <span>
#include <string>
#include <utility>
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
};

class SlotContents {
 public:
  // A prompt was computed, from `resumed` on, and an answer of unknown tokens perhaps.
  void computed(std::span<const TokenId> prompt, std::uint64_t resumed, bool has_answer, const EngineHabits& habits);
  // A slot file was restored; or none: it was emptied.
  void restored(std::span<const TokenId> tokens);
  // Somebody else has used it, or nobody knows. What it holds may not be what its tokens alone would give (other
  // adapters, images, a context that was shifted), so it is emptied before it is used.
  void forget();
  [[nodiscard]] bool is_unknown() const { return is_unknown_; }

  // Who may use what it holds: a tenant's salt.
  [[nodiscard]] const std::string& owner() const { return owner_; }
  void set_owner(std::string owner) { owner_ = std::move(owner); }

  // How much of `prompt` need not be computed.
  [[nodiscard]] std::uint64_t reusable(std::span<const TokenId> prompt, const EngineHabits& habits) const;
  // How long its beginning is the same, whether that can be used or not.
  [[nodiscard]] std::uint64_t common(std::span<const TokenId> prompt) const;
  [[nodiscard]] std::uint64_t size() const { return tokens_.size(); }

 private:
  std::vector<TokenId> tokens_;  // certain; an answer may follow
  bool has_answer_ = false;
  bool is_unknown_ = true;
  std::uint64_t checkpoint_ = 0;  // 0: none
  std::string owner_;
};

}  // namespace larder::llama
