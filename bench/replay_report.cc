// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "bench/quantile.h"
#include "bench/replay.h"
#include "bench/terminal_text.h"
#include "server/text_table.h"

namespace larder {
namespace {

double percent(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(all);
}

struct Totals {
  std::uint64_t prompt = 0, device = 0, host = 0, storage = 0;
  std::array<std::uint64_t, kMissReasons> missed{};    // tokens that were computed, by reason
  std::array<std::uint64_t, kMissReasons> requests{};  // that missed for it
};

Totals totals_of(const ReplayResult& result) {
  Totals totals;
  for (const ReplayLine& line : result.lines) {
    totals.prompt += line.prompt;
    totals.device += line.device;
    totals.host += line.host;
    totals.storage += line.storage;
    const auto reason = static_cast<std::size_t>(line.miss.reason);
    totals.missed[reason] += line.prompt - line.device - line.host - line.storage;
    ++totals.requests[reason];
  }
  return totals;
}

template <class Value>
double quantile(const ReplayResult& result, double q, Value value) {
  std::vector<double> all;
  for (const ReplayLine& line : result.lines) all.push_back(value(line));
  return quantile_of(std::move(all), q);
}

double first_token(const ReplayLine& line) { return line.first_token_s; }
double cache_us(const ReplayLine& line) { return line.cache_us; }

constexpr std::size_t kMostTenantsShown = 64;

std::string tenants_text(const ReplayResult& result) {
  const std::map<std::string, double> rates = result.hit_rates_of_tenants();
  if (rates.size() < 2) return "";
  TextTable table({"tenant", "hit rate %"});
  auto at = rates.begin();
  for (std::size_t i = 0; i < kMostTenantsShown && at != rates.end(); ++i, ++at) {
    table.add_row({at->first.empty() ? "(none)" : terminal_text(at->first), fmt::format("{:.2f}", 100 * at->second)});
  }
  std::string text = table.text();
  if (at != rates.end()) text += fmt::format("and {} more: --json has all\n", rates.size() - kMostTenantsShown);
  return text + fmt::format("floors broken: {} slots of the device\n\n", result.floors_broken);
}

}  // namespace

std::string replay_text(const ReplayOptions& options, const ReplayResult& result) {
  const Totals totals = totals_of(result);
  std::string text = fmt::format(
      "{} requests of {}, {} tokens of prompts; a page of {} tokens has {}, a checkpoint {}\n"
      "device {}, host {}, storage {}; {} and {}{}; {} at once\n\n",
      count_text(result.lines.size()), options.trace, count_text(totals.prompt), options.page_size,
      bytes_text(result.page_bytes), bytes_text(result.checkpoint_bytes), bytes_text(result.tier_bytes[0]),
      bytes_text(result.tier_bytes[1]), bytes_text(result.tier_bytes[2]), options.policy, options.write_policy,
      options.is_exclusive ? ", exclusive tiers" : "", options.at_once);
  TextTable tiers({"reused from", "tokens", "% of all"});
  const auto tier = [&](const char* name, std::uint64_t tokens) {
    tiers.add_row({name, count_text(tokens), fmt::format("{:.2f}", percent(tokens, totals.prompt))});
  };
  tier("device", totals.device);
  tier("host", totals.host);
  tier("storage", totals.storage);
  tiers.add_rule();
  tier("all tiers", totals.device + totals.host + totals.storage);
  text += tiers.text() + "\n";
  TextTable misses({"computed, because", "requests", "tokens", "% of all"});
  for (std::size_t i = 0; i < kMissReasons; ++i) {
    if (totals.requests[i] == 0) continue;
    const auto reason = static_cast<MissReason>(i);
    misses.add_row({reason == MissReason::kNone ? "the last page of a prompt is always computed"
                                                : std::string(miss_reason_name(reason)),
                    count_text(totals.requests[i]), count_text(totals.missed[i]),
                    fmt::format("{:.2f}", percent(totals.missed[i], totals.prompt))});
  }
  text += misses.text() + "\n" + tenants_text(result);
  text += fmt::format("moved: {} to the host, {} back; {} to storage, {} back\n", bytes_text(result.moved_down),
                      bytes_text(result.moved_up), bytes_text(result.stored), bytes_text(result.fetched));
  text += fmt::format("waits: {} calls that found no room yet, {} requests retracted\n", count_text(result.waits),
                      count_text(result.retracts));
  text += fmt::format("time to first token: p50 {} ms, p90 {} ms, p99 {} ms\n",
                      millis_text(quantile(result, 0.5, first_token)), millis_text(quantile(result, 0.9, first_token)),
                      millis_text(quantile(result, 0.99, first_token)));
  text += fmt::format(
      "the cache's thread: p50 {:.1f} us, p99 {:.1f} us a request, and {:.1f} us of polls; {:.1f} s in all\n",
      quantile(result, 0.5, cache_us), quantile(result, 0.99, cache_us),
      result.lines.empty() ? 0 : result.poll_us / static_cast<double>(result.lines.size()), result.seconds);
  return text;
}

std::string sensitivity_text(double hit_rate, const std::vector<ReplaySensitivity>& rows) {
  TextTable table({"parameter of value", "halved: hit rate %", "change %", "doubled: hit rate %", "change %"});
  const auto change = [&](double other) {
    return hit_rate > 0 ? signed_text(100 * (other / hit_rate - 1), 1) : std::string("-");
  };
  for (const ReplaySensitivity& row : rows) {
    table.add_row({row.parameter, fmt::format("{:.2f}", 100 * row.halved), change(row.halved),
                   fmt::format("{:.2f}", 100 * row.doubled), change(row.doubled)});
  }
  return "\n" + table.text();
}

nlohmann::ordered_json replay_json(const ReplayOptions& options, const ReplayResult& result,
                                   std::span<const ReplaySensitivity> rows) {
  const Totals totals = totals_of(result);
  nlohmann::ordered_json misses = nlohmann::ordered_json::object();
  for (std::size_t i = 1; i < kMissReasons; ++i) {
    if (totals.requests[i] == 0) continue;
    misses[std::string(miss_reason_name(static_cast<MissReason>(i)))] = {{"requests", totals.requests[i]},
                                                                         {"tokens", totals.missed[i]}};
  }
  nlohmann::ordered_json json = {{"trace", options.trace},
                                 {"requests", result.lines.size()},
                                 {"prompt_tokens", totals.prompt},
                                 {"policy", options.policy},
                                 {"write_policy", options.write_policy},
                                 {"exclusive_tiers", options.is_exclusive},
                                 {"device_bytes", result.tier_bytes[0]},
                                 {"host_bytes", result.tier_bytes[1]},
                                 {"storage_bytes", result.tier_bytes[2]},
                                 {"page_bytes", result.page_bytes},
                                 {"checkpoint_bytes", result.checkpoint_bytes},
                                 {"hit_rate", result.hit_rate()},
                                 {"tenant_hit_rates", result.hit_rates_of_tenants()},
                                 {"floors_broken", result.floors_broken},
                                 {"device_tokens", totals.device},
                                 {"host_tokens", totals.host},
                                 {"storage_tokens", totals.storage},
                                 {"misses", misses},
                                 {"moved_to_host_bytes", result.moved_down},
                                 {"moved_to_device_bytes", result.moved_up},
                                 {"stored_bytes", result.stored},
                                 {"fetched_bytes", result.fetched},
                                 {"waits", result.waits},
                                 {"retracts", result.retracts},
                                 {"first_token_p50_s", quantile(result, 0.5, first_token)},
                                 {"first_token_p99_s", quantile(result, 0.99, first_token)},
                                 {"cache_p50_us", quantile(result, 0.5, cache_us)},
                                 {"cache_p99_us", quantile(result, 0.99, cache_us)},
                                 {"seconds", result.seconds}};
  for (const ReplaySensitivity& row : rows) {
    json["sensitivity"][row.parameter] = {{"halved", row.halved}, {"doubled", row.doubled}};
  }
  return json;
}

std::string replay_csv(const ReplayResult& result) {
  std::string text =
      "request,arrival_s,prompt_tokens,output_tokens,device_tokens,host_tokens,storage_tokens,miss_reason,"
      "miss_at_token,first_token_s,cache_us\n";
  for (std::size_t i = 0; i < result.lines.size(); ++i) {
    const ReplayLine& line = result.lines[i];
    text += fmt::format("{},{:.3f},{},{},{},{},{},{},{},{:.6f},{:.1f}\n", i, line.arrival_s, line.prompt, line.output,
                        line.device, line.host, line.storage, miss_reason_name(line.miss.reason), line.miss.at_token,
                        line.first_token_s, line.cache_us);
  }
  return text;
}

}  // namespace larder
