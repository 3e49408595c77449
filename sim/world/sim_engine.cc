// SPDX-License-Identifier: Apache-2.0
#include "sim/world/sim_engine.h"

#include <algorithm>
#include <utility>

namespace larder::sim {
namespace {

constexpr std::size_t kMostHistory = 40;
constexpr std::uint64_t kKeepsAll = 1000;  // `keep` of a conversation that goes on where it ended

}  // namespace

void SimTotals::add(const SimTotals& other) {
  stories += other.stories, events += other.events;
  begun += other.begun, finished += other.finished, aborted += other.aborted, dropped += other.dropped;
  prompt_tokens += other.prompt_tokens, device_tokens += other.device_tokens;
  host_tokens += other.host_tokens, storage_tokens += other.storage_tokens;
  retracts += other.retracts, starved += other.starved, steps_left += other.steps_left;
  late_steps += other.late_steps, late_loads += other.late_loads;
  forks += other.forks, cancelled += other.cancelled, refused += other.refused, parted += other.parted;
  restarts += other.restarts, crashes += other.crashes;
  attaches += other.attaches, failed_attaches += other.failed_attaches, checked_pages += other.checked_pages;
  loads += other.loads, saves += other.saves;
}

std::vector<TokenId> SimEngine::prompt_of(const EventArguments& a) const {
  const ModelSpec& model = world_.model;
  const std::uint64_t unit = std::max<std::uint64_t>(model.page_size / 4, 1);
  std::vector<TokenId> prompt;
  if (a[1] > 0 && !history_.empty()) {
    prompt = history_[a[0] % history_.size()];
    if (a[1] < kKeepsAll) prompt.resize(a[1] * unit % (prompt.size() + 1));
  }
  // The same words begin alike: shared system prompts, and branches where a conversation is continued differently.
  for (std::uint64_t i = 0; i < a[2] * unit; ++i) {
    prompt.push_back(static_cast<TokenId>((a[3] * 7 + i * (a[3] + 1) + i / 5) % std::min(model.vocab_size, 64u)));
  }
  prompt.resize(std::clamp<std::size_t>(prompt.size(), 1, world_.spec.prompt_pages * model.page_size));
  return prompt;
}

void SimEngine::remember(std::vector<TokenId> conversation) {
  const std::size_t place = history_.size() < kMostHistory ? history_.size() : world_.totals.finished % kMostHistory;
  if (place == history_.size()) history_.emplace_back();
  history_[place] = std::move(conversation);
}

void SimEngine::check_page(std::size_t rank, ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens,
                           const std::string& tenant, DeviceSlot slot) {
  ++world_.totals.checked_pages;
  if (!slot.valid()) return fail("a restored page of " + std::string(component_name(c)) + " has no slot");
  const std::string wrong = world_.ranks[rank]->pattern().check(c, content, tokens, tenant, slot);
  if (!wrong.empty()) fail(wrong);
}

}  // namespace larder::sim
