// SPDX-License-Identifier: Apache-2.0
#include "server/recent_requests.h"

#include <optional>
#include <utility>
#include <vector>

#include "model/restore_point.h"
#include "server/reply_format.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json json_of(const RecentRequest& request) {
  const CachedTokens& cached = request.cached;
  Json out = {{"id", request.id},
              {"request", cached.request.v},
              {"ended_unix_seconds", request.ended_unix_seconds},
              {"prompt_tokens", cached.prompt},
              {"cached_tokens", {{"device", cached.device}, {"host", cached.host}, {"storage", cached.storage}}},
              {"stop", stop_json(cached)},
              {"miss", miss_json(cached.miss)},
              {"completion_tokens", json_or_null(request.completion_tokens)},
              {"finish", request.finish},
              {"ttft_seconds", json_or_null(request.ttft_seconds)},
              {"e2e_seconds", request.e2e_seconds}};
  if (!request.error.empty()) out["error"] = request.error;
  if (!request.passed_on.empty()) out["passed_on"] = request.passed_on;
  return out;
}

}  // namespace

void RecentRequests::add(RecentRequest request) {
  LockGuard guard(mutex_);
  if (requests_.size() >= most_) requests_.pop_front();
  requests_.push_back(std::move(request));
}

Json RecentRequests::json(std::size_t limit) const {
  std::vector<RecentRequest> latest;
  {
    LockGuard guard(mutex_);
    for (auto at = requests_.rbegin(); at != requests_.rend() && latest.size() < limit; ++at) latest.push_back(*at);
  }
  Json list = Json::array();
  for (const RecentRequest& request : latest) list.push_back(json_of(request));
  return {{"requests", std::move(list)}};
}

}  // namespace larder
