// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "bench/bench_multiturn.h"
#include "bench/quantile.h"
#include "server/text_table.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

double ratio(std::uint64_t a, std::uint64_t b) { return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b); }

int last_round(const MultiturnResult& result) {
  int last = -1;
  for (const TurnRecord& turn : result.turns) last = std::max(last, static_cast<int>(turn.round));
  return last;
}

std::vector<std::string> row_of(const std::string& name, const RoundSummary& s) {
  return {name,
          count_text(s.prompt_tokens),
          count_text(s.cached),
          fmt::format("{:.6f}", s.hit_rate()),
          fmt::format("{:.6f}", s.ideal_rate()),
          count_text(s.device),
          count_text(s.host),
          count_text(s.storage),
          millis_text(s.ttft_mean),
          millis_text(s.ttft_p50),
          millis_text(s.ttft_p99)};
}

Json summary_json(const RoundSummary& s) {
  return {{"turns", s.turns},
          {"prompt_tokens", s.prompt_tokens},
          {"cached_tokens", s.cached},
          {"cache_hit_rate", s.hit_rate()},
          {"ideal_cached_tokens", s.ideal_cached},
          {"ideal_hit_rate", s.ideal_rate()},
          {"most_tokens_short", s.most_short},
          {"cached_device", s.device},
          {"cached_host", s.host},
          {"cached_storage", s.storage},
          {"ttft_mean_seconds", s.ttft_mean},
          {"ttft_p50_seconds", s.ttft_p50},
          {"ttft_p99_seconds", s.ttft_p99}};
}

// A turn that got less than its ideal, and what the server said about it.
Json short_turn_json(const TurnRecord& turn) {
  return {{"sent", turn.sent},
          {"client", turn.client},
          {"round", turn.round},
          {"ideal_cached_tokens", turn.ideal_cached},
          {"cached_tokens", turn.cached},
          {"stop", turn.stop.empty() ? Json(nullptr) : Json::parse(turn.stop)}};
}

std::string difference(const TurnRecord& turn, const std::vector<TokenId>& other) {
  if (turn.output == other) return {};
  std::size_t at = 0;
  while (at < turn.output.size() && at < other.size() && turn.output[at] == other[at]) ++at;
  const auto shown = [&](const std::vector<TokenId>& ids) {
    return at < ids.size() ? std::to_string(ids[at]) : std::string("nothing");
  };
  return fmt::format("client {}, round {}: output token {} is {}, and {} in the other run", turn.client, turn.round, at,
                     shown(turn.output), shown(other));
}

}  // namespace

double RoundSummary::hit_rate() const { return ratio(cached, prompt_tokens); }
double RoundSummary::ideal_rate() const { return ratio(ideal_cached, prompt_tokens); }

RoundSummary summarize(const MultiturnResult& result, int round) {
  RoundSummary s;
  std::vector<double> ttfts;
  for (const TurnRecord& turn : result.turns) {
    if (round >= 0 && turn.round != static_cast<std::uint32_t>(round)) continue;
    ++s.turns;
    s.prompt_tokens += turn.prompt_tokens;
    s.cached += turn.cached;
    s.device += turn.device;
    s.host += turn.host;
    s.storage += turn.storage;
    s.ideal_cached += turn.ideal_cached;
    s.most_short = std::max(s.most_short, turn.ideal_cached - std::min(turn.ideal_cached, turn.cached));
    ttfts.push_back(turn.ttft);
  }
  std::sort(ttfts.begin(), ttfts.end());
  s.ttft_p50 = quantile_of_sorted(ttfts, 0.5);
  s.ttft_p99 = quantile_of_sorted(ttfts, 0.99);
  if (!ttfts.empty()) {
    s.ttft_mean = std::accumulate(ttfts.begin(), ttfts.end(), 0.0) / static_cast<double>(ttfts.size());
  }
  return s;
}

std::string multiturn_table(const MultiturnResult& result) {
  TextTable table({"round", "prompt tokens", "cached", "hit rate", "ideal", "device", "host", "storage", "TTFT ms mean",
                   "p50", "p99"});
  const int last = last_round(result);
  for (int round = 0; round <= last; ++round) table.add_row(row_of(std::to_string(round), summarize(result, round)));
  table.add_rule();
  table.add_row(row_of("all", summarize(result, -1)));
  return table.text();
}

std::string multiturn_total_line(const MultiturnResult& result) {
  const RoundSummary all = summarize(result, -1);
  const std::uint64_t page = std::max<std::uint64_t>(result.page_size, 1);
  std::uint64_t pages = all.ideal_cached / page;
  std::uint64_t of = all.prompt_tokens / page;
  const std::uint64_t divisor = std::max<std::uint64_t>(std::gcd(pages, of), 1);
  std::string line = fmt::format("hit rate {:.6f}, ideal {:.6f}", all.hit_rate(), all.ideal_rate());
  if (all.prompt_tokens % page == 0 && pages > 0) line += fmt::format(" ({}/{})", pages / divisor, of / divisor);
  line += fmt::format(", no turn more than {} tokens short", count_text(all.most_short));
  return line + fmt::format("; {} turns in {:.1f} s; cached from device {}, host {}, storage {} tokens", all.turns,
                            result.wall_seconds, count_text(all.device), count_text(all.host), count_text(all.storage));
}

Json multiturn_json(const MultiturnOptions& options, const MultiturnResult& result) {
  Json rounds = Json::array();
  for (int round = 0; round <= last_round(result); ++round) rounds.push_back(summary_json(summarize(result, round)));
  Json settings = {{"num_clients", options.num_clients},
                   {"num_rounds", options.num_rounds},
                   {"request_length", options.request_length},
                   {"output_length", options.output_length},
                   {"max_parallel", options.max_parallel},
                   {"order", options.order == TurnOrder::kRandom ? "random" : "fifo"},
                   {"seed", options.seed},
                   {"page_size", result.page_size}};
  Json short_turns = Json::array();  // in the order in which they were sent: what one lost another may have pushed out
  std::vector<const TurnRecord*> sent;
  for (const TurnRecord& turn : result.turns) sent.push_back(&turn);
  std::sort(sent.begin(), sent.end(), [](const TurnRecord* a, const TurnRecord* b) { return a->sent < b->sent; });
  for (const TurnRecord* turn : sent) {
    if (turn->cached < turn->ideal_cached) short_turns.push_back(short_turn_json(*turn));
  }
  Json summary = summary_json(summarize(result, -1));
  summary["wall_seconds"] = result.wall_seconds;
  return {{"settings", std::move(settings)},
          {"summary", std::move(summary)},
          {"rounds", std::move(rounds)},
          {"short_turns", std::move(short_turns)}};
}

Json outputs_json(const MultiturnResult& result) {
  Json turns = Json::array();
  for (const TurnRecord& turn : result.turns) {
    turns.push_back({{"client", turn.client}, {"round", turn.round}, {"output_ids", turn.output}});
  }
  return {{"turns", std::move(turns)}};
}

std::string first_difference(const MultiturnResult& a, const MultiturnResult& b) {
  if (a.turns.size() != b.turns.size()) {
    return fmt::format("{} turns here, {} in the other run", a.turns.size(), b.turns.size());
  }
  for (std::size_t i = 0; i < a.turns.size(); ++i) {
    const TurnRecord& other = b.turns[i];
    if (a.turns[i].client != other.client || a.turns[i].round != other.round) return "the runs have different turns";
    std::string found = difference(a.turns[i], other.output);
    if (!found.empty()) return found;
  }
  return {};
}

std::string first_difference(const MultiturnResult& result, const nlohmann::json& saved) {
  MultiturnResult other;
  try {
    for (const nlohmann::json& turn : saved.at("turns")) {
      TurnRecord record;
      record.client = turn.at("client").get<std::uint32_t>();
      record.round = turn.at("round").get<std::uint32_t>();
      record.output = turn.at("output_ids").get<std::vector<TokenId>>();
      other.turns.push_back(std::move(record));
    }
  } catch (const nlohmann::json::exception& error) {
    return fmt::format("the saved outputs cannot be read: {}", error.what());
  }
  return first_difference(result, other);
}

}  // namespace larder
