// SPDX-License-Identifier: Apache-2.0
// The namespaces of a RadixTree: RadixTree::spaces(). Each is a tree of its own beneath a root of its own, whose key
// chain begins with its seed (key/page_key.h), so that namespaces share no page.
//
// Ownership: part of its tree, which it must not outlive. Threads: the cache thread. Cost: O(1) unless it says more.
// Limits: each takes a root and an entry until it is closed.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "base/strong.h"
#include "key/page_key.h"
#include "key/path_hash.h"
#include "model/pool_spec.h"
#include "pool/tier.h"
#include "tree/tenant_book.h"

namespace larder {

namespace tree {
struct TreeRooms;
}

class TreeSpaces {
 public:
  explicit TreeSpaces(tree::TreeRooms& rooms) : rooms_(rooms) {}
  TreeSpaces(const TreeSpaces&) = delete;
  TreeSpaces& operator=(const TreeSpaces&) = delete;

  // Interns a namespace; `seed` starts its key chain (nullopt: the reference's unseeded chain). Same seed, same id.
  // tenant: whose a new one is; one that is known stays whose it was. path: where the hashes of its paths begin, of the
  // same value on all ranks (while their seeds differ).
  [[nodiscard]] NamespaceId open(const std::optional<PageKey>& seed, TenantId tenant, PathHash path);
  // Forgets a namespace without nodes; its id may name another one later. The caller holds no LockHandle, position or
  // NodeId of it any more, not even of its root. kNotFound: no such namespace; kConflict: it has nodes.
  [[nodiscard]] Status close(NamespaceId space);
  // From here on its seed opens another one. What it has stays as long as somebody holds it, and goes on being a tree:
  // but page observers are told that it went, and the backlog has none of it. O(nodes and pages of it).
  void retire(NamespaceId space);
  // Drops everything of it that is neither locked nor covered, nor needed by what is. Returns the nodes that are left,
  // without the root. O(nodes and pages of it).
  std::uint64_t flush(NamespaceId space);

  [[nodiscard]] NodeId root(NamespaceId space) const;  // NodeId{} of one that is not open
  // A lock is held in it, or data of it (its root included) is covered or pending.
  [[nodiscard]] bool is_claimed(NamespaceId space) const;
  [[nodiscard]] TenantId tenant_of(NamespaceId space) const;  // 0 of one that is not open
  [[nodiscard]] bool is_retired(NamespaceId space) const;
  // Published ones (or states) of all that are retired. O(their nodes).
  [[nodiscard]] std::uint64_t retired_pages(ComponentKind c, Tier t) const;

 private:
  tree::TreeRooms& rooms_;
};

}  // namespace larder
