// SPDX-License-Identifier: Apache-2.0
#include "bench/plan_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/thread_pool.h"
#include "bench/quantile.h"

namespace larder {
namespace {

PlanCell cell_of(const std::array<double, kPlanTiers>& gib, const ReplayResult& result) {
  PlanCell cell{.gib = gib};
  std::array<std::uint64_t, kPlanTiers> reused{};
  std::vector<double> first;
  for (const ReplayLine& line : result.lines) {
    reused[kPlanDevice] += line.device;
    reused[kPlanHost] += line.host;
    reused[kPlanStorage] += line.storage;
    first.push_back(line.first_token_s);
  }
  const std::uint64_t all = result.prompt_tokens();
  for (std::size_t t = 0; t < kPlanTiers; ++t) cell.hit[t] = static_cast<double>(reused[t]) / static_cast<double>(all);
  cell.computed = all - reused[0] - reused[1] - reused[2];
  cell.first_p50_s = quantile_of(first, 0.5);
  cell.first_p99_s = quantile_of(std::move(first), 0.99);
  return cell;
}

// All replays, on threads: each writes its own cell and status.
Status run_cells(PlanSweep& sweep, const ReplayTrace& trace, const ModelSpec& model) {
  std::vector<Status> done(sweep.cells.size());
  const std::uint32_t processors = std::max(1U, std::thread::hardware_concurrency());
  {
    ThreadPoolExecutor pool("plan", sweep.options.threads > 0 ? sweep.options.threads : processors, done.size());
    for (std::size_t i = 0; i < done.size(); ++i) {
      LARDER_RETURN_IF_ERROR(pool.post([&sweep, &trace, &model, &done, i] {
        const Result<ReplayResult> result = run_replay(replay_of(sweep.options, sweep.cells[i].gib), trace, model);
        done[i] = result.status();
        if (result.is_ok()) sweep.cells[i] = cell_of(sweep.cells[i].gib, *result);
      }));
    }
  }  // the pool's end waits for all
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (done[i].is_ok()) continue;
    const auto& gib = sweep.cells[i].gib;
    return {done[i].code(), fmt::format("{} (device {} GiB, host {} GiB, storage {} GiB)", done[i].message(),
                                        gib[kPlanDevice], gib[kPlanHost], gib[kPlanStorage])};
  }
  return Status::ok();
}

void add_step(PlanSweep& sweep, PlanTier tier, std::size_t from, std::size_t to) {
  const PlanCell& a = sweep.cells[from];
  const PlanCell& b = sweep.cells[to];
  const double hundreds = (b.gib[tier] - a.gib[tier]) / 100;
  const double gained = b.hit_rate() - a.hit_rate(), points = 100 * gained;
  // A step of less than 100 GiB does not go on as it begins: there is no more to gain than a host that keeps everything
  // has, and no more to lose than is hit.
  const double most = std::max(gained, sweep.kept_hit_rate - a.hit_rate());
  const double of_hundred = std::clamp(gained / hundreds, -a.hit_rate(), std::max(most, 0.0));
  PlanStep step{.tier = tier, .from = from, .to = to};
  step.points = 100 * of_hundred;
  step.saved_s = of_hundred * static_cast<double>(sweep.prompt_tokens) / sweep.options.prefill_rate / sweep.hours;
  const double price = sweep.options.price[tier];
  if (price > 0 && points >= kPlanLeastPoints) step.point_price = price * 100 * hundreds / points;
  sweep.steps.push_back(step);
}

// To the next size of each tier at which there is a cell with the same other two.
void find_steps(PlanSweep& sweep) {
  const auto has = [&](std::size_t i, const std::array<double, kPlanTiers>& gib) { return sweep.cells[i].gib == gib; };
  for (std::size_t i = 0; i < sweep.cells.size(); ++i) {
    for (const PlanTier tier : {kPlanDevice, kPlanHost, kPlanStorage}) {
      const auto& sizes = sweep.options.gib[tier];
      std::array<double, kPlanTiers> next = sweep.cells[i].gib;
      const auto larger = std::upper_bound(sizes.begin(), sizes.end(), next[tier]);
      if (larger == sizes.end()) continue;
      next[tier] = *larger;
      for (std::size_t k = i + 1; k < sweep.cells.size(); ++k) {
        if (has(k, next)) add_step(sweep, tier, i, k);
      }
    }
  }
}

void find_knees(PlanSweep& sweep) {
  for (std::size_t begin = 0, end = 0; begin < sweep.cells.size(); begin = end) {
    const auto is_of_line = [&](const PlanCell& cell) {
      const auto &a = sweep.cells[begin].gib, &b = cell.gib;
      return a[kPlanDevice] == b[kPlanDevice] && a[kPlanStorage] == b[kPlanStorage];
    };
    std::vector<double> sizes, rates;
    for (end = begin; end < sweep.cells.size() && is_of_line(sweep.cells[end]); ++end) {
      sizes.push_back(sweep.cells[end].gib[kPlanHost]);
      rates.push_back(sweep.cells[end].hit_rate());
    }
    PlanLine line{begin, end, std::nullopt};
    if (const auto knee = knee_of(sizes, rates, sweep.options.knee_points)) line.knee = begin + *knee;
    sweep.lines.push_back(line);
  }
}

// By device, then storage, then host. Storage has no way to a device without a host: there is no such cell.
Status add_cells(PlanSweep& sweep) {
  const auto& gib = sweep.options.gib;
  for (const double device : gib[kPlanDevice]) {
    for (const double storage : gib[kPlanStorage]) {
      for (const double host : gib[kPlanHost]) {
        if (host > 0 || storage == 0) sweep.cells.push_back({.gib = {device, host, storage}});
      }
    }
  }
  if (sweep.cells.empty()) return invalid_argument("--host: storage needs a host above 0");
  if (sweep.cells.size() <= kPlanCellsMax) return Status::ok();
  return invalid_argument(fmt::format("--device, --host and --storage together are {} sizes; {} is the limit",
                                      sweep.cells.size(), kPlanCellsMax));
}

}  // namespace

std::optional<std::size_t> knee_of(std::span<const double> sizes, std::span<const double> hit_rates, double points) {
  if (sizes.size() < 2) return std::nullopt;
  std::size_t knee = sizes.size() - 1;
  while (knee > 0) {
    const double gained = 100 * (hit_rates[knee] - hit_rates[knee - 1]);
    const double doublings = sizes[knee - 1] > 0 ? std::log2(sizes[knee] / sizes[knee - 1]) : 1;
    if (gained / doublings >= points) break;
    --knee;
  }
  return knee == sizes.size() - 1 ? std::nullopt : std::optional(knee);
}

ReplayOptions replay_of(const PlanSweepOptions& options, const std::array<double, kPlanTiers>& gib) {
  ReplayOptions replay;
  replay.trace = options.trace;
  replay.block_tokens = options.block_tokens;
  replay.limit = options.limit;
  replay.device_gib = gib[kPlanDevice];
  replay.host_gib = gib[kPlanHost];
  replay.storage_gib = gib[kPlanStorage];
  replay.policy = options.policy;
  replay.write_policy = options.write_policy;
  replay.is_exclusive = options.is_exclusive;
  replay.at_once = options.at_once;
  replay.prefill_rate = options.prefill_rate;
  replay.decode_rate = options.decode_rate;
  replay.link_gbps = options.link_gbps;
  replay.storage_gbps = options.storage_gbps;
  return replay;
}

Result<PlanSweep> plan_sweep(const PlanSweepOptions& options, const PlanModel& model) {
  const Result<ReplayTrace> trace = ReplayTrace::read(options.trace, options.block_tokens, options.limit);
  if (!trace.is_ok()) return trace.status();
  Result<PlanSweep> chosen = choose_sweep(options, *trace, model.spec);
  if (!chosen.is_ok()) return chosen.status();
  PlanSweep sweep = std::move(*chosen);
  LARDER_RETURN_IF_ERROR(add_cells(sweep));
  LARDER_RETURN_IF_ERROR(run_cells(sweep, *trace, model.spec));
  find_steps(sweep);
  find_knees(sweep);
  return sweep;
}

}  // namespace larder
