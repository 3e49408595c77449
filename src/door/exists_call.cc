// SPDX-License-Identifier: Apache-2.0
#include "door/exists_call.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "model/restorable_lengths.h"

namespace larder {
namespace {

// Where the answer meets the thread that waits; outlives it.
struct Answer {
  RankedMutex mutex{LockRank::kController};
  RankedCondition posted;
  std::optional<ExistsResult> result LARDER_GUARDED_BY(mutex);
};

Result<ExistsResult> ask(StoreCore& core, ExistsRequest request, TimePoint deadline, const CallTerms& terms) {
  const auto answer = std::make_shared<Answer>();
  const Status submitted = core.pipeline->submit_exists(std::move(request), [answer](ExistsResult result) {
    LockGuard guard(answer->mutex);
    answer->result = std::move(result);
    answer->posted.notify_one();
  });
  if (!submitted.is_ok()) return submitted;
  LockGuard guard(answer->mutex);
  while (!answer->result) {
    (void)answer->posted.wait_for(answer->mutex, kCallSlice);
    if (answer->result) break;
    const Status patience = check_patience(core, deadline, terms);
    if (!patience.is_ok()) {
      ++(patience.code() == StatusCode::kCancelled ? core.counters.calls_cancelled : core.counters.calls_late);
      return patience;
    }
  }
  return std::move(*answer->result);
}

void to_words(const Presence& present, std::size_t pages, std::span<std::uint64_t> words) {
  const std::size_t known = std::min(pages, present.size());
  for (std::size_t i = 0; i < known; ++i) {
    if (present[i]) words[i / 64] |= std::uint64_t{1} << (i % 64);
  }
}

}  // namespace

Status run_exists(StoreCore& core, const PageSpace& space, std::vector<PageKey> keys, std::span<const PoolNeed> needs,
                  const CallTerms& terms, std::span<std::uint64_t> restorable, std::span<std::uint64_t> present) {
  ++core.counters.exists_calls;
  core.counters.pages_asked += keys.size();
  std::fill(restorable.begin(), restorable.end(), 0);
  std::fill(present.begin(), present.end(), 0);
  if (keys.empty()) return Status::ok();
  const TimePoint deadline = core.deadline_of(terms);
  const std::size_t pages = keys.size(), words = words_for(pages);

  ExistsRequest request;
  request.scope = space.scope();
  request.keys = std::move(keys);
  for (const PoolNeed& need : needs) request.pools.push_back(space.number_of(need.pool));
  const bool has_anchor = std::any_of(needs.begin(), needs.end(), [](const PoolNeed& need) { return need.pool == 0; });
  if (!has_anchor) request.pools.push_back(space.number_of(0));
  request.terms.deadline = deadline;
  request.terms.cancel = terms.cancel;
  const std::size_t pools = request.pools.size();
  LARDER_ASSIGN_OR_RETURN(ExistsResult result, ask(core, std::move(request), deadline, terms));
  LARDER_RETURN_IF_ERROR(result.status);
  if (result.presence.size() != pools) return internal_error("exists: the backend answered for other pools");

  std::vector<JointNeed> joint;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    joint.push_back({&result.presence[i].present, needs[i].policy, needs[i].trailing_pages});
    if (!present.empty()) to_words(result.presence[i].present, pages, present.subspan(i * words, words));
  }
  const std::size_t anchor = has_anchor ? 0 : needs.size();
  for (std::size_t i = 0; has_anchor && i < needs.size(); ++i) {
    // Whatever a query says of it, a prefix without its anchors is none: they commit its pages.
    if (needs[i].pool == 0) joint.push_back({&result.presence[i].present, HitPolicy::kAllPages, 0});
  }
  if (!has_anchor) joint.push_back({&result.presence[anchor].present, HitPolicy::kAllPages, 0});
  restorable_lengths(joint, pages, restorable.first(words));
  for (std::size_t i = words; i-- > 0;) {
    if (restorable[i] == 0) continue;
    core.counters.pages_restorable += i * 64 + static_cast<std::size_t>(std::bit_width(restorable[i]));
    break;
  }
  return Status::ok();
}

}  // namespace larder
