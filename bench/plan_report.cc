// SPDX-License-Identifier: Apache-2.0
#include "bench/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/terminal_text.h"
#include "server/text_table.h"

namespace larder {
namespace {

constexpr std::uint64_t kPlanGib = std::uint64_t{1} << 30;
// Distances between restore points: of a busy chat, of long documents, of what servers take today.
constexpr std::uint64_t kDistances[] = {512, 2048, 8192};
constexpr std::uint64_t kPrefixTokens = 32768;

// Those that the model's pages allow, each once.
std::vector<std::uint64_t> distances_of(const llama::ModelPlan& plan) {
  std::vector<std::uint64_t> distances;
  for (const std::uint64_t wanted : kDistances) {
    const std::uint64_t distance = plan.distance_of(wanted);
    if (distances.empty() || distances.back() != distance) distances.push_back(distance);
  }
  return distances;
}

std::string tokens_text(std::uint64_t tokens) {
  return tokens == std::numeric_limits<std::uint64_t>::max() ? "any number" : count_text(tokens);
}

// "none", "64 GiB", "1.5 GiB".
std::string gib_text(double gib) {
  return gib == 0                 ? "none"
         : gib == std::floor(gib) ? count_text(static_cast<std::uint64_t>(gib)) + " GiB"
                                  : fmt::format("{:.3g} GiB", gib);
}

std::string percent_text(double part) { return fmt::format("{:.2f}", 100 * part); }

// Seconds of computing in an hour of the trace.
double computing_s(const PlanSweep& sweep, const PlanCell& cell) {
  return static_cast<double>(cell.computed) / sweep.options.prefill_rate / sweep.hours;
}

const PlanStep* step_from(const PlanSweep& sweep, PlanTier tier, std::size_t cell) {
  const auto at = std::find_if(sweep.steps.begin(), sweep.steps.end(),
                               [&](const PlanStep& s) { return s.tier == tier && s.from == cell; });
  return at == sweep.steps.end() ? nullptr : &*at;
}

std::string price_text(const PlanStep& step) {
  return step.point_price ? fmt::format("{:.2f}", *step.point_price) : "-";
}

std::string assumptions_text(const PlanSweep& sweep) {
  const PlanSweepOptions& o = sweep.options;
  const auto chosen = [](bool is_chosen) { return is_chosen ? " (chosen)" : ""; };
  return fmt::format(
      "{} requests of {}: {} tokens of prompts in {:.2f} hours\n"
      "assumed: prompts at {} tokens/s in all{}, answers at {} tokens/s each, {} requests at once{};\n"
      "         device to host {} GB/s, storage {} GB/s; policy {}, {}{}\n"
      "a host that keeps everything would hold {}, and {}% of the prompts' tokens would be reused\n\n",
      count_text(sweep.requests), o.trace, count_text(sweep.prompt_tokens), sweep.hours,
      count_text(static_cast<std::uint64_t>(o.prefill_rate)), chosen(sweep.is_rate_chosen), o.decode_rate, o.at_once,
      chosen(sweep.is_at_once_chosen), o.link_gbps, o.storage_gbps, o.policy, o.write_policy,
      o.is_exclusive ? ", exclusive tiers" : "", bytes_text(sweep.kept_bytes), percent_text(sweep.kept_hit_rate));
}

// A size is printed where it changes.
std::string cells_text(const PlanSweep& sweep) {
  std::vector<std::string> head = {"device",
                                   "storage",
                                   "host",
                                   "hit %",
                                   "device %",
                                   "host %",
                                   "storage %",
                                   "first p50 s",
                                   "p99 s",
                                   "computing s/h",
                                   "next 100 GiB: points",
                                   "saves s/h"};
  const bool has_price = sweep.options.price[kPlanHost] > 0;
  if (has_price) head.emplace_back("a point costs");
  head.emplace_back("");
  TextTable table(head);
  for (const PlanLine& line : sweep.lines) {
    if (line.begin > 0) table.add_rule();
    for (std::size_t i = line.begin; i < line.end; ++i) {
      const PlanCell& cell = sweep.cells[i];
      const bool is_first = i == line.begin;
      std::vector<std::string> row = {is_first ? gib_text(cell.gib[kPlanDevice]) : "",
                                      is_first ? gib_text(cell.gib[kPlanStorage]) : "",
                                      gib_text(cell.gib[kPlanHost]),
                                      percent_text(cell.hit_rate()),
                                      percent_text(cell.hit[kPlanDevice]),
                                      percent_text(cell.hit[kPlanHost]),
                                      percent_text(cell.hit[kPlanStorage]),
                                      fmt::format("{:.2f}", cell.first_p50_s),
                                      fmt::format("{:.2f}", cell.first_p99_s),
                                      fmt::format("{:.0f}", computing_s(sweep, cell))};
      const PlanStep* const step = step_from(sweep, kPlanHost, i);
      row.push_back(step == nullptr ? "" : signed_text(step->points, 2));
      row.push_back(step == nullptr ? "" : signed_text(step->saved_s, 1));
      if (has_price) row.push_back(step == nullptr ? "" : price_text(*step));
      row.emplace_back(line.knee == i ? "knee" : "");
      table.add_row(std::move(row));
    }
  }
  return table.text();
}

std::string knees_text(const PlanSweep& sweep) {
  std::string text = fmt::format("\nknee: from this host on, no doubling gains {} {} of hit rate (--knee-points)\n",
                                 sweep.options.knee_points, sweep.options.knee_points == 1 ? "point" : "points");
  if (sweep.options.gib[kPlanHost].size() < 2) return {};
  for (const PlanLine& line : sweep.lines) {
    const PlanCell& first = sweep.cells[line.begin];
    const std::string where = line.end - line.begin < 2 ? "one size alone: give several with --host"
                              : line.knee               ? "host " + gib_text(sweep.cells[*line.knee].gib[kPlanHost])
                                          : "none up to " + gib_text(sweep.cells[line.end - 1].gib[kPlanHost]) +
                                                ": the last step still gains";
    text += fmt::format("  device {}, storage {}: {}\n", gib_text(first.gib[kPlanDevice]),
                        gib_text(first.gib[kPlanStorage]), where);
  }
  return text;
}

std::vector<std::string> other_step_row(const PlanSweep& sweep, const PlanStep& step) {
  const PlanCell& from = sweep.cells[step.from];
  const PlanTier other = step.tier == kPlanDevice ? kPlanStorage : kPlanDevice;
  return {
      kPlanTierNames[step.tier],
      gib_text(from.gib[step.tier]),
      gib_text(sweep.cells[step.to].gib[step.tier]),
      fmt::format("host {}, {} {}", gib_text(from.gib[kPlanHost]), kPlanTierNames[other], gib_text(from.gib[other])),
      signed_text(step.points, 2),
      signed_text(step.saved_s, 1),
      price_text(step)};
}

// Of device and storage: beside the smallest host of each line, and at its knee.
std::string other_steps_text(const PlanSweep& sweep) {
  const bool has_price = sweep.options.price[kPlanDevice] > 0 || sweep.options.price[kPlanStorage] > 0;
  std::vector<std::string> head = {"next 100 GiB of", "from", "to", "beside", "points", "saves s/h"};
  if (has_price) head.emplace_back("a point costs");
  TextTable table(head);
  bool has_rows = false;
  for (const PlanTier tier : {kPlanDevice, kPlanStorage}) {
    for (const PlanLine& line : sweep.lines) {
      std::size_t least = line.begin;
      while (least + 1 < line.end && sweep.cells[least].gib[kPlanHost] == 0) ++least;
      const PlanStep* const first = step_from(sweep, tier, least);
      const PlanStep* const at_knee = line.knee && *line.knee != least ? step_from(sweep, tier, *line.knee) : nullptr;
      for (const PlanStep* const step : {first, at_knee}) {
        if (step == nullptr) continue;
        table.add_row(other_step_row(sweep, *step));
        has_rows = true;
      }
    }
  }
  return has_rows ? "\nthe other tiers, beside the smallest host and at the knee:\n" + table.text() : "";
}

}  // namespace

std::string plan_model_text(const PlanModel& model) {
  const llama::ModelPlan& plan = model.plan;
  std::string text = fmt::format(
      "{}, {}: {} layers, context of {} tokens; {}\n\n", terminal_text(model.name), terminal_text(model.architecture),
      model.layers, model.context_length == 0 ? "unknown" : count_text(model.context_length), model.origin);
  TextTable pools({"what is kept", "layers", "bytes", "when"});
  if (plan.page_bytes > 0) {
    pools.add_row({fmt::format("page of {} tokens", plan.page_size), count_text(model.full_layers),
                   bytes_text(plan.page_bytes), "always"});
  }
  if (plan.window_bytes() > 0) {
    pools.add_row({fmt::format("window of {} tokens", count_text(model.window_tokens)), count_text(model.window_layers),
                   bytes_text(plan.window_bytes()), "restore point"});
  }
  if (plan.checkpoint_bytes > 0) {
    pools.add_row(
        {"recurrent state", count_text(model.recurrent_layers), bytes_text(plan.checkpoint_bytes), "restore point"});
  }
  text += pools.text() + "\n";
  if (plan.restore_point_tokens() > 0) {
    text += fmt::format("a restore point weighs as much as the pages of {} tokens\n\n",
                        count_text(plan.restore_point_tokens()));
  }
  TextTable sizes({"a restore point every", "tokens in 1 GiB", "in 16 GiB", "in 100 GiB", "bytes of 32,768 tokens"});
  for (const std::uint64_t distance : distances_of(plan)) {
    const bool is_any = plan.restore_point_bytes() == 0;  // of a dense model each page is one
    sizes.add_row({is_any ? "page" : count_text(distance) + " tokens", tokens_text(plan.tokens_in(kPlanGib, distance)),
                   tokens_text(plan.tokens_in(16 * kPlanGib, distance)),
                   tokens_text(plan.tokens_in(100 * kPlanGib, distance)),
                   bytes_text(plan.prefix_bytes(kPrefixTokens, (kPrefixTokens + distance - 1) / distance))});
    if (is_any) break;
  }
  return text + sizes.text();
}

nlohmann::ordered_json plan_model_json(const PlanModel& model) {
  const llama::ModelPlan& plan = model.plan;
  nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
  for (const std::uint64_t distance : distances_of(plan)) {
    tokens.push_back({{"restore_point_every", distance},
                      {"in_1_gib", plan.tokens_in(kPlanGib, distance)},
                      {"in_16_gib", plan.tokens_in(16 * kPlanGib, distance)},
                      {"in_100_gib", plan.tokens_in(100 * kPlanGib, distance)}});
  }
  nlohmann::ordered_json json = {{"name", model.name},
                                 {"architecture", model.architecture},
                                 {"origin", model.origin},
                                 {"layers", model.layers},
                                 {"context_length", model.context_length}};
  if (!model.identity.empty()) json["identity"] = model.identity;
  json["page_size"] = plan.page_size;
  json["page_bytes"] = plan.page_bytes;
  json["window_tokens"] = model.window_tokens;
  json["window_bytes"] = plan.window_bytes();
  json["checkpoint_bytes"] = plan.checkpoint_bytes;
  json["restore_point_tokens"] = plan.restore_point_tokens();
  json["tokens"] = std::move(tokens);
  return json;
}

std::string plan_sweep_text(const PlanSweep& sweep) {
  return assumptions_text(sweep) + cells_text(sweep) + knees_text(sweep) + other_steps_text(sweep);
}

nlohmann::ordered_json plan_sweep_json(const PlanSweep& sweep) {
  const PlanSweepOptions& o = sweep.options;
  const auto gib_json = [](const PlanCell& cell) {
    nlohmann::ordered_json sizes;
    for (std::size_t t = 0; t < kPlanTiers; ++t) sizes[std::string(kPlanTierNames[t]) + "_gib"] = cell.gib[t];
    return sizes;
  };
  nlohmann::ordered_json cells = nlohmann::ordered_json::array(), knees = cells, steps = cells;
  for (const PlanCell& cell : sweep.cells) {
    nlohmann::ordered_json one = gib_json(cell);
    one["hit_rate"] = cell.hit_rate();
    for (std::size_t t = 0; t < kPlanTiers; ++t) one[std::string(kPlanTierNames[t]) + "_hit_rate"] = cell.hit[t];
    one["first_token_p50_s"] = cell.first_p50_s;
    one["first_token_p99_s"] = cell.first_p99_s;
    one["computed_tokens"] = cell.computed;
    one["computing_s_per_hour"] = computing_s(sweep, cell);
    cells.push_back(std::move(one));
  }
  for (const PlanLine& line : sweep.lines) {
    nlohmann::ordered_json one = gib_json(sweep.cells[line.begin]);
    one["host_gib"] = line.knee ? nlohmann::ordered_json(sweep.cells[*line.knee].gib[kPlanHost]) : nullptr;
    knees.push_back(std::move(one));
  }
  for (const PlanStep& step : sweep.steps) {
    nlohmann::ordered_json one = {{"tier", kPlanTierNames[step.tier]}};
    one.update(gib_json(sweep.cells[step.from]));
    one["to_gib"] = sweep.cells[step.to].gib[step.tier];
    one["points_per_100_gib"] = step.points;
    one["saved_s_per_hour_per_100_gib"] = step.saved_s;
    one["price_per_point"] = step.point_price ? nlohmann::ordered_json(*step.point_price) : nullptr;
    steps.push_back(std::move(one));
  }
  return {{"trace", o.trace},
          {"requests", sweep.requests},
          {"prompt_tokens", sweep.prompt_tokens},
          {"hours", sweep.hours},
          {"policy", o.policy},
          {"write_policy", o.write_policy},
          {"exclusive_tiers", o.is_exclusive},
          {"at_once", o.at_once},
          {"prefill_rate", o.prefill_rate},
          {"decode_rate", o.decode_rate},
          {"link_gb_per_s", o.link_gbps},
          {"storage_gb_per_s", o.storage_gbps},
          {"kept_bytes", sweep.kept_bytes},
          {"kept_hit_rate", sweep.kept_hit_rate},
          {"knee_points", o.knee_points},
          {"cells", std::move(cells)},
          {"knees", std::move(knees)},
          {"steps", std::move(steps)}};
}

std::string plan_sweep_csv(const PlanSweep& sweep) {
  std::string text =
      "device_gib,host_gib,storage_gib,hit_rate,device_hit_rate,host_hit_rate,storage_hit_rate,first_token_p50_s,"
      "first_token_p99_s,computed_tokens,computing_s_per_hour,is_knee";
  for (const char* const tier : kPlanTierNames) {
    text +=
        fmt::format(",next_{0}_gib,{0}_points_per_100_gib,{0}_saved_s_per_hour_per_100_gib,{0}_price_per_point", tier);
  }
  text += "\n";
  for (std::size_t i = 0; i < sweep.cells.size(); ++i) {
    const PlanCell& cell = sweep.cells[i];
    const bool is_knee =
        std::any_of(sweep.lines.begin(), sweep.lines.end(), [&](const PlanLine& line) { return line.knee == i; });
    text += fmt::format("{},{},{},{:.6f},{:.6f},{:.6f},{:.6f},{:.6f},{:.6f},{},{:.3f},{}", cell.gib[kPlanDevice],
                        cell.gib[kPlanHost], cell.gib[kPlanStorage], cell.hit_rate(), cell.hit[kPlanDevice],
                        cell.hit[kPlanHost], cell.hit[kPlanStorage], cell.first_p50_s, cell.first_p99_s, cell.computed,
                        computing_s(sweep, cell), is_knee ? 1 : 0);
    for (const PlanTier tier : {kPlanDevice, kPlanHost, kPlanStorage}) {
      const PlanStep* const step = step_from(sweep, tier, i);
      text += step == nullptr
                  ? ",,,,"
                  : fmt::format(",{},{:.6f},{:.6f},{}", sweep.cells[step->to].gib[tier], step->points, step->saved_s,
                                step->point_price ? fmt::format("{:.6f}", *step->point_price) : "");
    }
    text += "\n";
  }
  return text;
}

}  // namespace larder
