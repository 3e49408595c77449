// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/rank_session.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "controller/ranks/follower_session.h"
#include "controller/ranks/leader_session.h"

namespace larder::ranks {
namespace {

std::string milliseconds_text(Nanos time) { return std::to_string(time / std::chrono::milliseconds(1)) + " ms"; }

// What one rank has and another has not would end the group only later, and in words that do not say why.
std::vector<Fact> all_facts(const RankSettings& settings) {
  std::vector<Fact> facts = settings.facts;
  facts.push_back({"max_outstanding", std::to_string(settings.max_outstanding)});
  facts.push_back({"alive_interval", milliseconds_text(settings.alive_interval)});
  facts.push_back({"silence_limit", milliseconds_text(settings.silence_limit)});
  return facts;
}

RankSettings with_all_facts(RankSettings settings) {
  settings.facts = all_facts(settings);
  return settings;
}

}  // namespace

RankSession::RankSession(const RankSettings& settings)
    : settings_(with_all_facts(settings)), is_formed_(settings.ranks == 1) {}

Status check_rank_settings(const RankSettings& settings) {
  const auto refuse = [](const std::string& why) { return invalid_argument("rank group: " + why); };
  if (settings.ranks == 0 || settings.ranks > kMaxRanks) {
    return refuse("it has " + std::to_string(settings.ranks) + " ranks; possible are 1 to " +
                  std::to_string(kMaxRanks));
  }
  if (settings.rank >= settings.ranks) {
    return refuse("there is no rank " + std::to_string(settings.rank) + " of " + std::to_string(settings.ranks) +
                  "; they count from 0");
  }
  const std::vector<Fact> facts = all_facts(settings);
  if (facts.size() > kMaxFacts) {
    return refuse("more than " + std::to_string(kMaxFacts - (facts.size() - settings.facts.size())) +
                  " facts to compare");
  }
  std::set<std::string_view> names;
  for (const Fact& fact : facts) {
    if (!names.insert(fact.name).second) return refuse("the fact '" + fact.name + "' is there twice");
    const std::string text = fact.name + fact.value;
    if (std::any_of(text.begin(), text.end(), is_control)) {
      return refuse("a fact has characters that are no text, such as ends of lines");
    }
    if (fact.name.size() > kMaxFactNameBytes || fact.value.size() > kMaxFactValueBytes) {
      return refuse("the fact '" + fact.name.substr(0, kMaxFactNameBytes) + "' is too long to be compared");
    }
  }
  if (settings.max_outstanding == 0) return refuse("max_outstanding is 0: no rank could report anything");
  if (settings.alive_interval <= Nanos(0) || settings.silence_limit / 3 < settings.alive_interval) {
    return refuse("a rank says every " + seconds_text(settings.alive_interval) +
                  " that it is there; it cannot be lost after " + seconds_text(settings.silence_limit) +
                  ": give it three times as long at least");
  }
  if (settings.greeting_limit <= Nanos(0) || settings.forming_limit <= Nanos(0)) {
    return refuse("a limit of 0 s lets no rank come");
  }
  return Status::ok();
}

std::unique_ptr<RankSession> RankSession::make(const RankSettings& settings) {
  if (settings.rank == 0) return std::make_unique<LeaderSession>(settings);
  return std::make_unique<FollowerSession>(settings);
}

Status RankSession::check_outcome(OpId op, const OutcomeBits& bits) const {
  if (bits.size() <= kMaxWords) return Status::ok();
  return invalid_argument("rank group: rank " + std::to_string(settings_.rank) + ": the outcome of operation " +
                          std::to_string(op.v) + " has more than " + std::to_string(kMaxWords * 64) + " bits");
}

std::string seconds_text(Nanos time) {
  constexpr Nanos kTenth = std::chrono::milliseconds(100);
  const std::int64_t tenths = time / kTenth + (time % kTenth >= kTenth / 2 ? 1 : 0);  // std::chrono::round overflows
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace larder::ranks
