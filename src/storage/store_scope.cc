#include "storage/backend.h"

namespace larder {

StoreScope make_store_scope(const ModelSpec& model, const NamespaceScope& scope) {
  StoreScope out;
  out.namespace_digest = namespace_digest(model, scope);
  for (const PoolSpec& pool : model.pools) {
    out.layout_fingerprints[static_cast<std::size_t>(pool.name)] = layout_fingerprint(model, pool, scope.layout);
  }
  return out;
}

std::size_t payload_bytes(std::span<const Segment> payload) {
  std::size_t sum = 0;
  for (const Segment& piece : payload) sum += piece.size;
  return sum;
}

}  // namespace larder
