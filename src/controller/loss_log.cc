// SPDX-License-Identifier: Apache-2.0
#include "controller/loss_log.h"

#include <algorithm>
#include <span>

namespace larder {

std::uint64_t LossLog::key_of(ComponentKind c, PathHash path) {
  const std::uint64_t key = path.spread() + index_of(c);
  return key == 0 ? 1 : key;
}

std::optional<Loss> LossLog::find(ComponentKind c, PathHash path) const {
  const std::uint64_t key = key_of(c, path);
  const std::span row = std::span(entries_).subspan(row_of(key), kWays);
  const auto at = std::find_if(row.begin(), row.end(), [&](const Entry& entry) { return entry.key == key; });
  return at == row.end() ? std::nullopt : std::optional(at->loss);
}

void LossLog::lost(const TreeChange& change, PathHash path) {
  if (change.component == ComponentKind::kFull) {
    path.append(change.tokens.first(change.tokens.size() / (change.end - change.begin)));
  }
  const std::uint64_t key = key_of(change.component, path);
  const std::span row = std::span(entries_).subspan(row_of(key), kWays);
  auto at = std::find_if(row.begin(), row.end(), [&](const Entry& entry) { return entry.key == key; });
  if (at == row.end()) {
    at = std::min_element(row.begin(), row.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.key != 0, a.loss.when) < std::pair(b.key != 0, b.loss.when);
    });
  }
  *at = {key, {change.tier, for_.is_flush, clock_.now(), for_.by, change.stored_epoch, change.declined_epoch}};
}

}  // namespace larder
