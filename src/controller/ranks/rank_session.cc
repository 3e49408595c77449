// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/rank_session.h"

#include <algorithm>

#include "controller/ranks/follower_session.h"
#include "controller/ranks/leader_session.h"

namespace larder::ranks {

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
  if (settings.facts.size() > kMaxFacts) return refuse("more than " + std::to_string(kMaxFacts) + " facts to compare");
  for (const Fact& fact : settings.facts) {
    if (fact.name.size() > kMaxFactNameBytes || fact.value.size() > kMaxFactValueBytes) {
      return refuse("the fact '" + fact.name.substr(0, kMaxFactNameBytes) + "' is too long to be compared");
    }
  }
  if (settings.alive_interval <= Nanos(0) || settings.silence_limit < 3 * settings.alive_interval) {
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

std::string seconds_text(Nanos time) {
  const auto tenths = std::chrono::round<std::chrono::duration<std::int64_t, std::deci>>(time).count();
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace larder::ranks
