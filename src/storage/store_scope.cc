#include "storage/backend.h"

namespace larder {

StoreScope make_store_scope(const ModelSpec& model, const NamespaceScope& scope) {
  StoreScope out;
  out.namespace_digest = namespace_digest(model, scope);
  out.rank = scope.tp_rank;
  out.ranks = scope.tp_size;
  for (const PoolSpec& pool : model.pools) {
    const auto at = static_cast<std::size_t>(pool.name);
    out.is_replicated[at] = pool.scope == RankScope::kReplicated;
    const Digest256 layout = layout_fingerprint(model, pool, scope.layout);
    const bool has_rank = model.is_rank_mixed() && !out.is_replicated[at];
    out.layout_fingerprints[at] = has_rank ? rank_fingerprint(layout, scope) : layout;
  }
  return out;
}

std::size_t payload_bytes(std::span<const Segment> payload) {
  std::size_t sum = 0;
  for (const Segment& piece : payload) sum += piece.size;
  return sum;
}

}  // namespace larder
