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
#include <string>

#include "base/ranked_mutex.h"
#include "controller/cache.h"

namespace larder {

struct RecentRequest {
  std::string id;  // as in the answer
  std::int64_t ended_unix_seconds = 0;
  std::uint64_t completion_tokens = 0;
  CachedTokens cached;  // prompt tokens, too
  std::string finish;   // "stop", "length", "abort"; "error" with the text in `error`
  std::string error;
  double ttft_seconds = 0, e2e_seconds = 0;
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
