// SPDX-License-Identifier: Apache-2.0
// What a proxy counts: requests, where their prompts came from, restores and saves.
//
// Threads: any. Names: docs/llama_cpp.md.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/metrics.h"
#include "server/llama/completion_front.h"
#include "server/llama/llama_request.h"

namespace larder::llama {

enum class SaveOutcome : std::uint8_t { kSaved, kKnown, kNoRoom, kOtherSlot, kRefused, kDropped };
inline constexpr std::size_t kSaveOutcomeCount = 6;

class ProxyMetrics {
 public:
  explicit ProxyMetrics(MetricsRegistry& registry);

  [[nodiscard]] MetricsRegistry& registry() const { return registry_; }
  Counter& plain(PlainReason reason) { return *plain_[static_cast<std::size_t>(reason)]; }
  Counter& saves(SaveOutcome outcome) { return *saves_[static_cast<std::size_t>(outcome)]; }

 private:
  MetricsRegistry& registry_;
  std::array<Counter*, kPlainReasonCount> plain_{};
  std::array<Counter*, kSaveOutcomeCount> saves_{};

 public:
  Counter& cached;          // requests whose prompt was looked at
  Counter& failed;          // of them: llama-server did not answer, or ended its stream with an error
  Counter& prompt_tokens;   // of them
  Counter& slot_tokens;     // ... that a slot held
  Counter& host_tokens;     // ... restored from host memory
  Counter& storage_tokens;  // ... read from storage for that
  Counter& restores;
  Counter& restores_failed;
  Counter& restores_ignored;  // llama-server computed anew what it had been given
  Counter& lookups_failed;
  Counter& other_prompts;  // requests whose prompt had another number of tokens than was thought
  Counter& other_slots;    // ... that llama-server computed in another slot than the one that had the prompt
  Counter& restarts;       // of llama-server
  MissCounts misses;
  Histogram& restore_seconds;
  Histogram& save_seconds;  // while llama-server writes a slot
};

}  // namespace larder::llama
