// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "storage/backend.h"

namespace larder {

StoreScope make_store_scope(const ModelSpec& model, const NamespaceScope& scope) {
  StoreScope out;
  out.namespace_digest = namespace_digest(model, scope);
  out.rank = scope.tp_rank;
  out.ranks = scope.tp_size;
  for (const PoolSpec& pool : model.pools) {
    const bool is_replicated = pool.scope == RankScope::kReplicated;
    const Digest256 layout = layout_fingerprint(model, pool, scope.layout);
    const bool has_rank = model.is_rank_mixed() && !is_replicated;
    out.set_pool(pool.name, has_rank ? rank_fingerprint(layout, scope) : layout, is_replicated);
  }
  return out;
}

std::size_t payload_bytes(std::span<const Segment> payload) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  std::size_t sum = 0;
  for (const Segment& piece : payload) sum = piece.size > kMost - sum ? kMost : sum + piece.size;  // never wraps
  return sum;
}

}  // namespace larder
