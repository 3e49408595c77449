// SPDX-License-Identifier: Apache-2.0
// What `larder proxy` and `larder serve` of a GGUF file have in common: how the process that runs one sees it, and what
// both tell of their tiers.
//
// Threads: the methods of a front from one thread; the functions from any.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "controller/miss.h"
#include "server/http_message.h"
#include "server/llama/prefix_store.h"
#include "server/llama/slot_pages.h"

namespace larder::llama {

inline constexpr std::string_view kOnlyFromHere =
    "this is for programs on this machine, which call it 127.0.0.1 or localhost; not for web pages of other sites";

class CompletionFront {
 public:
  virtual ~CompletionFront() = default;
  [[nodiscard]] virtual std::string url() const = 0;
  // One line about the model: slots, pages, restore points.
  [[nodiscard]] virtual std::string summary() const = 0;
  virtual void stop_accepting() = 0;
  [[nodiscard]] virtual bool wait_drained(Nanos limit) = 0;
  // Waits until storage has what was saved.
  [[nodiscard]] virtual Status drain_storage(Nanos limit) = 0;
};

[[nodiscard]] HttpResponse json_response(std::string body);
// "pages of 64 tokens (33536 bytes), windows of 32 tokens, states of 38980 bytes"
[[nodiscard]] std::string describe_pages(const SlotFormat& format);
// "host", "storage" and "backend" of /larder/status.
void add_tiers(nlohmann::ordered_json& status, const PrefixStoreCounters& counters);
// Gauges <prefix>_host_bytes, _host_free_bytes, _host_pages; counters <prefix>_stored_pages_total,
// _corrupt_pages_total, _host_evicted_pages_total.
void export_tiers(MetricsRegistry& registry, std::string_view prefix, const PrefixStoreCounters& counters);
// Why no more of a prompt was reused than `reused` tokens. kNone: nothing of what the lookup missed lies behind them (a
// slot had more than host memory and storage).
[[nodiscard]] Miss miss_beyond(const Miss& found, std::uint64_t reused);
// X-Larder-Reused-Tokens and X-Larder-Reused-From; and X-Larder-Miss: "evicted; at_token=512; tier=host", of what a
// tenant may know.
void add_reuse(HttpResponse& answer, std::uint64_t tokens, std::string_view from, const Miss& miss);

// larder_misses_total{reason}, and a line in the log: at info, or at debug where new tokens alone explain it.
class MissCounts {
 public:
  explicit MissCounts(MetricsRegistry& registry);
  // component: of the log.
  void count(std::string_view component, const Miss& miss, std::uint64_t reused, std::uint64_t prompt);

 private:
  std::array<Counter*, kMissReasons> counters_{};
};

// The metrics of the store, but for the family that each registry has.
[[nodiscard]] std::string storage_metrics(const PrefixStoreCounters& counters);

}  // namespace larder::llama
