// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_contents.h"

#include <algorithm>

namespace larder::llama {

void SlotContents::computed(std::span<const TokenId> prompt, std::uint64_t resumed, bool has_answer,
                            const EngineHabits& habits) {
  if (checkpoint_ > resumed) checkpoint_ = 0;
  const std::uint64_t offset = habits.checkpoint_offset;
  if (offset > 0 && prompt.size() > resumed + offset) checkpoint_ = prompt.size() - offset;
  tokens_.assign(prompt.begin(), prompt.end());
  has_answer_ = has_answer;
  is_unknown_ = false;
}

void SlotContents::restored(std::span<const TokenId> tokens) {
  forget();
  is_unknown_ = false;
  tokens_.assign(tokens.begin(), tokens.end());
}

void SlotContents::forget() {
  tokens_.clear();
  has_answer_ = false;
  is_unknown_ = true;
  checkpoint_ = 0;
}

std::uint64_t SlotContents::common(std::span<const TokenId> prompt) const {
  return static_cast<std::uint64_t>(std::ranges::mismatch(tokens_, prompt).in1 - tokens_.begin());
}

std::uint64_t SlotContents::reusable(std::span<const TokenId> prompt, const EngineHabits& habits) const {
  const std::uint64_t same = common(prompt);
  // The last token of a prompt is always computed, for its logits.
  if (habits.rolls_back) return std::min<std::uint64_t>(same, prompt.empty() ? 0 : prompt.size() - 1);
  if (same == tokens_.size() && !has_answer_ && same < prompt.size()) return same;
  return checkpoint_ <= same && checkpoint_ < prompt.size() ? checkpoint_ : 0;
}

}  // namespace larder::llama
