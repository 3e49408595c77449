// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "storage/file/page_index.h"

namespace larder::file_store {

// A clear of the namespace, all of it at once; how many pages went.
inline std::uint64_t drop_namespace(PageIndex& index, const Digest256& namespace_digest, std::size_t places = 1000) {
  const std::uint64_t before = index.size();
  index.unlink_namespace(namespace_digest);
  while (index.drop_unlinked(places)) {}
  return before - index.size();
}

}  // namespace larder::file_store
