// SPDX-License-Identifier: Apache-2.0
// Sizes and rates for a trace that nobody gave any for.
#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "bench/bench_cache_world.h"
#include "bench/plan_sweep.h"
#include "pool/host_pools.h"

namespace larder {
namespace {

constexpr double kChoiceGib = 1024.0 * 1024 * 1024;
constexpr double kBusy = 0.7;   // share of the trace's time that computes all prompts, with the rate that is chosen
constexpr double kSlack = 1.5;  // requests at once, above those that run on average
constexpr double kDeviceSlack = 1.25;  // device, above what these need
constexpr std::uint32_t kAtOnceMost = 256;
constexpr int kHostDoublings = 7;  // below the host that keeps everything

struct TraceFacts {
  double tokens = 0, answers = 0, longest = 0, distinct = 0;  // tokens: prompts and answers; distinct: kept once
  double prompts = 0, seconds = 0;
};

TraceFacts facts_of(const ReplayTrace& trace, std::uint64_t block_tokens) {
  TraceFacts facts;
  std::unordered_map<std::string, std::unordered_set<std::uint64_t>> blocks;  // by tenant: they share nothing
  for (const ReplayTrace::Request& request : trace.requests()) {
    const auto prompt = static_cast<double>(request.prompt), answer = static_cast<double>(request.output);
    facts.prompts += prompt;
    facts.answers += answer;
    facts.longest = std::max(facts.longest, prompt + answer);
    blocks[request.tenant].insert(request.blocks.begin(), request.blocks.end());
  }
  facts.tokens = facts.prompts + facts.answers;
  facts.distinct = facts.answers;
  for (const auto& [tenant, ids] : blocks) facts.distinct += static_cast<double>(ids.size() * block_tokens);
  facts.seconds = trace.requests().back().arrival_s - trace.requests().front().arrival_s;
  return facts;
}

double power_of_two_above(double value) { return std::exp2(std::ceil(std::log2(std::max(value, 1e-6)))); }

// Two digits, upwards: 61,234 is 62,000.
double rounded_up(double value) {
  const double unit = std::pow(10, std::floor(std::log10(std::max(value, 1.0))) - 1);
  return std::ceil(value / unit) * unit;
}

struct TokenBytes {
  double kv = 0, state = 0, window = 0;  // of a token; of a checkpoint; of a token's window
};

TokenBytes bytes_of(const ModelSpec& model) {
  TokenBytes bytes;
  const auto slot = [&](ComponentKind c) {
    return model.has(c) ? static_cast<double>(host_slot_bytes(model, c)) : 0.0;
  };
  bytes.kv = slot(ComponentKind::kFull) / model.page_size;
  bytes.window = slot(ComponentKind::kSwa) / model.page_size;
  bytes.state = slot(ComponentKind::kMamba);
  return bytes;
}

// What a replay of at_once requests needs, divided as the replay divides it: a quarter is for states, where there are
// some beside KV or windows.
double smallest_device(const PlanSweepOptions& options, const TraceFacts& facts, double requests,
                       const TokenBytes& bytes, const ModelSpec& model) {
  const double windows_each = window_pages_each(model);
  const double token = bytes.kv + windows_each * bytes.window;
  const double state_share = token > 0 ? 0.25 : 1, share = bytes.state > 0 ? 1 - state_share : 1;
  const double together = facts.tokens / requests * options.at_once;
  double tokens = std::max(together * kDeviceSlack, facts.longest + 4.0 * model.page_size);
  if (windows_each > 0) {
    const auto windows = static_cast<double>(window_pages_for(model, options.at_once));
    tokens = std::max(tokens, windows / windows_each * model.page_size);
  }
  const double kv = token > 0 ? tokens * token / share : 0;
  const double states = std::max(2.0 * options.at_once, 3.0) * bytes.state / state_share;
  return power_of_two_above(std::max(kv, states) / kChoiceGib);
}

void choose_rates(PlanSweep& sweep, const TraceFacts& facts) {
  PlanSweepOptions& options = sweep.options;
  sweep.is_rate_chosen = options.prefill_rate <= 0;
  if (sweep.is_rate_chosen) options.prefill_rate = rounded_up(facts.prompts / std::max(facts.seconds, 1.0) / kBusy);
  sweep.is_at_once_chosen = options.at_once == 0;
  if (!sweep.is_at_once_chosen) return;
  const double busy = facts.prompts / options.prefill_rate + facts.answers / options.decode_rate;
  const double running = busy / std::max(facts.seconds, 1.0) * kSlack;
  options.at_once = static_cast<std::uint32_t>(std::clamp(power_of_two_above(running), 1.0, double{kAtOnceMost}));
}

}  // namespace

Result<PlanSweep> choose_sweep(PlanSweepOptions wanted, const ReplayTrace& trace, const ModelSpec& model) {
  PlanSweep sweep;
  sweep.options = std::move(wanted);
  PlanSweepOptions& options = sweep.options;
  const TraceFacts facts = facts_of(trace, options.block_tokens);
  sweep.requests = trace.requests().size();
  sweep.prompt_tokens = static_cast<std::uint64_t>(facts.prompts);
  sweep.hours = std::max(facts.seconds, 1.0) / 3600;
  choose_rates(sweep, facts);
  const TokenBytes bytes = bytes_of(model);
  const auto requests = static_cast<double>(sweep.requests);
  if (options.gib[kPlanDevice].empty()) {
    const double least = smallest_device(options, facts, requests, bytes, model);
    options.gib[kPlanDevice] = {least, 4 * least};
  }
  for (auto& sizes : options.gib) {
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  }
  // More than can be kept: all tokens once, and six checkpoints of each request. What comes to it must not hang on
  // when the host gets a copy: a device that holds everything writes nothing back.
  const double most = (facts.distinct + 2 * requests * model.page_size) * (bytes.kv + bytes.window) +
                      6 * requests * bytes.state + 64 * (bytes.state + bytes.kv * model.page_size);
  ReplayOptions roomy = replay_of(options, {options.gib[kPlanDevice].front(), most / kChoiceGib * 1.25 + 1.0 / 64, 0});
  LARDER_RETURN_IF_ERROR(check_replay(roomy));
  roomy.write_policy = "write_through";
  const Result<ReplayResult> kept = run_replay(roomy, trace, model);
  if (!kept.is_ok()) return kept.status();
  sweep.kept_bytes = kept->moved_down;
  sweep.kept_hit_rate = kept->hit_rate();
  const double few = 16 * (bytes.state + (bytes.kv + bytes.window) * model.page_size) / kChoiceGib;
  const double all = power_of_two_above(std::max(static_cast<double>(kept->moved_down) / kChoiceGib, few));
  if (options.gib[kPlanHost].empty()) {
    const double least = std::max(std::min(options.gib[kPlanDevice].front() / 4, all / 8), few);
    options.gib[kPlanHost] = {0};
    for (int i = kHostDoublings; i >= 0; --i) {
      const double size = all / std::exp2(i);
      if (size >= least || i == 0) options.gib[kPlanHost].push_back(size);
    }
  }
  if (options.gib[kPlanStorage].empty()) options.gib[kPlanStorage] = {0, all / 4, all};
  return sweep;
}

}  // namespace larder
