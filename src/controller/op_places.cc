// SPDX-License-Identifier: Apache-2.0
#include "controller/op_places.h"

#include <numeric>

namespace larder {

std::size_t OpPlaces::live() const {
  return std::reduce(open_.begin(), open_.end()) - std::reduce(abandoned_.begin(), abandoned_.end()) -
         live(OpKind::kTimer);
}

bool OpPlaces::has_room(OpKind kind, std::size_t count) const {
  if (kind == OpKind::kTimer) return true;
  if (kind == OpKind::kExplain) return open(kind) - explains_aside() + count <= most_explains_;
  const std::size_t others = open(OpKind::kTimer) + open(OpKind::kExplain) + stores_aside() + reads_aside();
  if (std::reduce(open_.begin(), open_.end()) - others + count > most_) return false;
  if (kind == OpKind::kStore) return open(kind) - stores_aside() + count <= storage_share();
  if (kind != OpKind::kExists && kind != OpKind::kRead) return true;
  return open(OpKind::kExists) + open(OpKind::kRead) - reads_aside() + count <= storage_share();
}

}  // namespace larder
