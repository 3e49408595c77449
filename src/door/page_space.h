// SPDX-License-Identifier: Apache-2.0
// A model as an engine describes it to a store: a list of pools of any name, and an identity.
//
//   namespace digest = digest of (identity text, page size, pipeline and context rank, adapter, salt)
//   pool fingerprint = digest of (name, page bytes, layout text, tensor rank unless replicated)
//   page             = namespace digest + pool fingerprint + page key (rule 4)
//
// A pool's pages depend on nothing of the other pools: whoever adds a draft pool keeps the KV that is stored.
//
// Pool numbers. Storage tells pools apart by number and fingerprint. A name that model/pool_spec.h has keeps its
// number; others take one from kFirstOpenPool on, by a hash of the name, or the next free one. Two namespaces may give
// one name two numbers only if they differ in other open names that collide: that costs a miss.
//
// Threads: immutable. Cost of create(): microseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/pool_spec.h"
#include "storage/backend.h"

namespace larder {

inline constexpr std::size_t kMaxPoolNameBytes = 63;
inline constexpr std::size_t kMaxSpacePools = kPoolNameCount + (kPoolNumberCount - kFirstOpenPool);
inline constexpr std::size_t kMaxSpaceTextBytes = std::size_t{1} << 20;  // of identity, layout, adapter, salt each

struct PoolDescription {
  std::string name;              // 1 to kMaxPoolNameBytes of [a-z0-9_.-]
  std::uint64_t page_bytes = 0;  // 0: a marker; below 4 GiB
  std::string layout;            // all that gives the bytes their meaning
  HitPolicy policy = HitPolicy::kAllPages;
  std::uint32_t trailing_pages = 0;  // kTrailingPages: 1 or more
  bool is_replicated = false;        // the same bytes on all tensor-parallel ranks
};

struct SpaceDescription {
  std::uint32_t page_size = 0;  // tokens
  std::string identity, adapter, salt;
  std::uint32_t tp_rank = 0, tp_size = 1, pp_rank = 0, pp_size = 1, cp_rank = 0, cp_size = 1;
  std::vector<PoolDescription> pools;  // the first is the anchor
};

class PageSpace {
 public:
  // kInvalidArgument names the field, what it is and what would be right.
  [[nodiscard]] static Result<PageSpace> create(SpaceDescription description);

  [[nodiscard]] const std::shared_ptr<const StoreScope>& scope() const { return scope_; }
  [[nodiscard]] const Digest256& digest() const { return scope_->namespace_digest; }
  [[nodiscard]] const std::vector<PoolDescription>& pools() const { return pools_; }
  // Precondition: pool < pools().size().
  [[nodiscard]] PoolName number_of(std::size_t pool) const { return numbers_[pool]; }

 private:
  std::shared_ptr<const StoreScope> scope_;
  std::vector<PoolDescription> pools_;
  std::vector<PoolName> numbers_;  // by index in pools_
};

}  // namespace larder
