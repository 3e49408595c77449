// SPDX-License-Identifier: Apache-2.0
// The requests that ended last: how much of each came from which tier, and why not more (rule 8).
//
// Holds no text and no tokens.
// Threads: any. Limits: `most` requests; the oldest goes. Cost: a lock and a move for each request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/ranked_mutex.h"
#include "controller/cache.h"

namespace larder {

struct RecentRequest {
  std::string id;  // as in the answer
  std::int64_t ended_unix_seconds = 0;
  std::optional<std::uint64_t> completion_tokens;  // nullopt: nobody counted
  CachedTokens cached;                             // prompt tokens, too
  // "stop", "length", "abort"; of another server's answer "ok", "left" (the client); "error" with the text in `error`.
  std::string finish;
  std::string error;
  std::string passed_on;               // why nobody looked for the prompt, say "no_caching"; empty: somebody did
  std::optional<double> ttft_seconds;  // nullopt: not known of an answer that came at once
  double e2e_seconds = 0;
};

class RecentRequests {
 public:
  explicit RecentRequests(std::size_t most) : most_(most) {}

  void add(RecentRequest request) LARDER_EXCLUDES(mutex_);
  // {"requests": [{"id": ..., "prompt_tokens": ..., "stop": {"reason": ..., "component": ...}, ...}]}: the latest
  // first, at most `limit` of them.
  [[nodiscard]] nlohmann::ordered_json json(std::size_t limit) const LARDER_EXCLUDES(mutex_);

 private:
  const std::size_t most_;
  mutable RankedMutex mutex_{LockRank::kServer};
  std::deque<RecentRequest> requests_ LARDER_GUARDED_BY(mutex_);  // the latest is the last
};

}  // namespace larder
