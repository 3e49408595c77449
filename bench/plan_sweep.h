// SPDX-License-Identifier: Apache-2.0
// A trace against sizes of the three tiers: what `larder plan --trace` asks `larder replay` again and again.
//
//   trace ─► sizes that matter (or those that were asked for) ─► one replay for each ─► knees, steps
//
// Threads: plan_sweep() runs replays on `threads` threads of its own; all else is pure. The result does not depend on
// their number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/plan_model.h"
#include "bench/replay.h"

namespace larder {

enum PlanTier : std::uint8_t { kPlanDevice, kPlanHost, kPlanStorage };
inline constexpr std::size_t kPlanTiers = 3;
inline constexpr std::array<const char*, kPlanTiers> kPlanTierNames = {"device", "host", "storage"};
inline constexpr std::size_t kPlanCellsMax = 1024;
inline constexpr double kPlanLeastPoints = 0.05;  // of hit rate: a step that gains less has no price for a point

struct PlanSweepOptions {
  std::string trace;
  std::uint64_t block_tokens = 512;
  std::uint64_t limit = ~std::uint64_t{0};
  std::array<std::vector<double>, kPlanTiers> gib;  // sizes by PlanTier; empty: chosen
  std::string policy = "value", write_policy = "write_through";
  bool is_exclusive = false;               // CacheConfig::exclusive_tiers
  std::uint32_t at_once = 0;               // requests; 0: chosen
  double prefill_rate = 0;                 // tokens a second of all prompts together; 0: chosen
  double decode_rate = 30;                 // tokens a second of each answer
  double link_gbps = 50;                   // between device and host, each way: 10^9 bytes a second
  double storage_gbps = 5;                 // each way
  double knee_points = 1;                  // of hit rate for a doubling
  std::array<double, kPlanTiers> price{};  // of a GiB by PlanTier; 0: not known
  std::uint32_t threads = 0;               // 0: as many as there are processors
};

// One replay.
struct PlanCell {
  std::array<double, kPlanTiers> gib{};
  std::array<double, kPlanTiers> hit{};     // of all prompt tokens, reused from this tier
  double first_p50_s = 0, first_p99_s = 0;  // time to first token
  std::uint64_t computed = 0;               // prompt tokens that were not reused
  [[nodiscard]] double hit_rate() const { return hit[0] + hit[1] + hit[2]; }
};

// From one size of a tier to the next, the other two being equal. What 100 GiB more bring of a step of less is no more
// than a host that keeps everything leaves to gain.
struct PlanStep {
  PlanTier tier = kPlanHost;
  std::size_t from = 0, to = 0;         // cells
  double points = 0;                    // of hit rate, for 100 GiB more
  double saved_s = 0;                   // seconds of computing saved in an hour of the trace, for 100 GiB more
  std::optional<double> point_price{};  // money for a point; nullopt: no price is known, or next to nothing is gained
};

// Cells with one device and one storage, in order of the host.
struct PlanLine {
  std::size_t begin = 0, end = 0;
  std::optional<std::size_t> knee;  // a cell
};

struct PlanSweep {
  PlanSweepOptions options;  // with what was chosen
  bool is_rate_chosen = false, is_at_once_chosen = false;
  std::size_t requests = 0;
  std::uint64_t prompt_tokens = 0;
  double hours = 0;  // of the trace
  // With a host that keeps everything: bytes that came to it, and the hit rate.
  std::uint64_t kept_bytes = 0;
  double kept_hit_rate = 0;
  std::vector<PlanCell> cells;  // by device, then storage, then host; none with storage and no host
  std::vector<PlanLine> lines;
  std::vector<PlanStep> steps;
};

// The smallest index from which on no step gains `points` or more of hit rate for a doubling of the size (a step from 0
// counts as one doubling). nullopt: the last step still gains as much, or there is one size alone. Sizes ascend.
[[nodiscard]] std::optional<std::size_t> knee_of(std::span<const double> sizes, std::span<const double> hit_rates,
                                                 double points);

// The options of the replay that a cell is: run_replay() of them gives its numbers.
[[nodiscard]] ReplayOptions replay_of(const PlanSweepOptions& options, const std::array<double, kPlanTiers>& gib);

// The sizes and rates that `options` leaves open, for this trace and model. Runs one replay. Errors: as run_replay().
[[nodiscard]] Result<PlanSweep> choose_sweep(PlanSweepOptions options, const ReplayTrace& trace,
                                             const ModelSpec& model);

// Errors: as run_replay(); kInvalidArgument, too: more than kPlanCellsMax sizes.
[[nodiscard]] Result<PlanSweep> plan_sweep(const PlanSweepOptions& options, const PlanModel& model);

}  // namespace larder
