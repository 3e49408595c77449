// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace larder::llama {
namespace {

constexpr std::size_t kMostDiscarded = 64;

}  // namespace

SlotSaver::SlotSaver(Parts parts)
    : parts_(std::move(parts)), thread_("saves", 1, parts_.max_queued, OnShutdown::kDrain) {}

SlotSaver::~SlotSaver() {
  thread_.wait_idle();
  remove_discarded();
}

std::string SlotSaver::name() { return fmt::format("larder-{}.slot", next_.fetch_add(1, std::memory_order_relaxed)); }

void SlotSaver::save(std::string name, std::span<const TokenId> prompt, const std::string& salt, bool has_answer) {
  std::string path = join_path(parts_.directory, name);
  const Status posted = thread_.post([this, path, prompt = std::vector<TokenId>(prompt.begin(), prompt.end()), salt,
                                      has_answer] { take_apart(path, prompt, salt, has_answer); });
  if (posted.is_ok()) return;
  parts_.metrics.saves(SaveOutcome::kDropped).increment();
  (void)parts_.files.remove(path);
}

void SlotSaver::discard(const std::string& name) {
  std::string path = join_path(parts_.directory, name);
  const Status posted = thread_.post([this, path] {
    discarded_.push_back(path);
    remove_discarded();
  });
  if (!posted.is_ok()) (void)parts_.files.remove(path);
}

// One that is not there may be written yet: it is tried again.
void SlotSaver::remove_discarded() {
  std::erase_if(discarded_, [&](const std::string& path) { return parts_.files.remove(path).is_ok(); });
  while (discarded_.size() > kMostDiscarded) discarded_.pop_front();
}

void SlotSaver::take_apart(const std::string& path, const std::vector<TokenId>& prompt, const std::string& salt,
                           bool has_answer) {
  const Result<SaveOutcome> outcome = try_to_save(path, prompt, salt, has_answer);
  if (!outcome.is_ok()) log_warning("proxy", "a slot was not kept: " + outcome.status().to_string());
  parts_.metrics.saves(outcome.value_or(SaveOutcome::kRefused)).increment();
  const Status removed = parts_.files.remove(path);
  if (!removed.is_ok()) log_warning("proxy", "a slot file was left behind: " + removed.message());
  remove_discarded();
}

Result<SaveOutcome> SlotSaver::try_to_save(const std::string& path, const std::vector<TokenId>& prompt,
                                           const std::string& salt, bool has_answer) {
  LARDER_ASSIGN_OR_RETURN(auto bytes, read_slot_file(parts_.files, path, parts_.store.buffers()));
  LARDER_ASSIGN_OR_RETURN(const auto slot, SavedSlot::parse(parts_.format, std::move(bytes)));
  const std::span<const TokenId> tokens = slot->tokens();
  const bool is_ours = tokens.size() >= prompt.size() && std::equal(prompt.begin(), prompt.end(), tokens.begin()) &&
                       (has_answer || (slot->end() == prompt.size() && tokens.size() == prompt.size()));
  if (!is_ours) return SaveOutcome::kOtherSlot;
  const std::uint64_t end = slot->end() / parts_.format.page_size() * parts_.format.page_size();
  if (end == 0) return SaveOutcome::kKnown;
  LARDER_ASSIGN_OR_RETURN(const SaveResult saved, parts_.store.save(slot, end, salt));
  if (saved.stop != SaveStop::kNone) return SaveOutcome::kNoRoom;
  return saved.bytes > 0 ? SaveOutcome::kSaved : SaveOutcome::kKnown;
}

}  // namespace larder::llama
