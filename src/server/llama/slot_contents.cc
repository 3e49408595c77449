// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_contents.h"

#include <algorithm>
#include <utility>

namespace larder::llama {

void SlotContents::begin(std::optional<std::string> owner) {
  const bool is_empty = !is_unknown() && tokens_.empty() && !has_answer_;
  if (!is_empty && (!owner || owner_ != owner)) disown();
  owner_ = std::move(owner);
}

void SlotContents::computed(std::span<const TokenId> prompt, std::uint64_t resumed, bool has_answer,
                            const EngineHabits& habits) {
  if (checkpoint_ > resumed) checkpoint_ = 0;
  const std::uint64_t offset = habits.checkpoint_offset;
  if (offset > 0 && prompt.size() > resumed + offset) checkpoint_ = prompt.size() - offset;
  tokens_.assign(prompt.begin(), prompt.end());
  has_answer_ = has_answer;
  is_doubted_ = false;
  known_ = Known::kTokens;
}

void SlotContents::restored(std::span<const TokenId> tokens) {
  disown();
  known_ = Known::kTokens;
  tokens_.assign(tokens.begin(), tokens.end());
  composed_ = tokens.size();
}

void SlotContents::filled() {
  disown();
  known_ = Known::kOwner;
  composed_ = 0;
}

void SlotContents::forget() {
  const Known known = std::min(known_, Known::kOwner);
  disown();
  known_ = known;
}

void SlotContents::disown() {
  tokens_.clear();
  has_answer_ = is_doubted_ = false;
  known_ = Known::kNothing;
  checkpoint_ = 0;
}

std::uint64_t SlotContents::common(std::span<const TokenId> prompt) const {
  return static_cast<std::uint64_t>(std::ranges::mismatch(tokens_, prompt).in1 - tokens_.begin());
}

bool SlotContents::is_parted_by(std::span<const TokenId> prompt) const {
  // The last token of a prompt is always computed, for its logits.
  return std::min<std::uint64_t>(common(prompt), prompt.size() - 1) < composed_;
}

std::uint64_t SlotContents::reusable(std::span<const TokenId> prompt, const EngineHabits& habits) const {
  const std::uint64_t same = common(prompt);
  if (habits.rolls_back) return std::min<std::uint64_t>(same, prompt.empty() ? 0 : prompt.size() - 1);
  if (same == tokens_.size() && !has_answer_ && same < prompt.size()) return same;
  return checkpoint_ <= same && checkpoint_ < prompt.size() ? checkpoint_ : 0;
}

}  // namespace larder::llama
