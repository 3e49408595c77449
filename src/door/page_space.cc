// SPDX-License-Identifier: Apache-2.0
#include "door/page_space.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "controller/config.h"
#include "key/field_hasher.h"

namespace larder {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

Status check_pool(const PoolDescription& pool, std::size_t index) {
  const std::string place = "pool " + std::to_string(index) + " ('" + pool.name.substr(0, kMaxPoolNameBytes) + "'): ";
  if (pool.name.empty() || pool.name.size() > kMaxPoolNameBytes ||
      !std::all_of(pool.name.begin(), pool.name.end(), is_name_character)) {
    return invalid_argument(place + "a name has 1 to 63 characters of a-z, 0-9, '_', '.' and '-'");
  }
  if (pool.page_bytes > std::numeric_limits<std::uint32_t>::max()) {
    return invalid_argument(place + "page_bytes is " + std::to_string(pool.page_bytes) +
                            "; a page has less than 4 GiB");
  }
  if (pool.layout.size() > kMaxSpaceTextBytes) return invalid_argument(place + "the layout text is longer than 1 MiB");
  if (pool.policy == HitPolicy::kTrailingPages && pool.trailing_pages == 0) {
    return invalid_argument(place + "TRAILING_PAGES needs trailing_pages of 1 or more");
  }
  // A policy of ALL_PAGES is what a struct of zeros has, so that it may have been forgotten.
  if (pool.policy == HitPolicy::kAllPages && pool.trailing_pages != 0) {
    return invalid_argument(place + "trailing_pages is " + std::to_string(pool.trailing_pages) +
                            ", and the hit policy is ALL_PAGES; say TRAILING_PAGES, or 0");
  }
  return Status::ok();
}

Status check(const SpaceDescription& space) {
  if (space.page_size == 0) return invalid_argument("page_size is 0; say how many tokens a page key covers");
  if (space.identity.empty()) {
    return invalid_argument("identity is empty; give the text that tells this model from all others");
  }
  if (std::max({space.identity.size(), space.adapter.size(), space.salt.size()}) > kMaxSpaceTextBytes) {
    return invalid_argument("identity, adapter or salt is longer than 1 MiB");
  }
  LARDER_RETURN_IF_ERROR(validate_scope({.tp_rank = space.tp_rank,
                                         .tp_size = space.tp_size,
                                         .pp_rank = space.pp_rank,
                                         .pp_size = space.pp_size,
                                         .cp_rank = space.cp_rank,
                                         .cp_size = space.cp_size}));
  if (space.pools.empty() || space.pools.size() > kMaxSpacePools) {
    return invalid_argument("a namespace has 1 to " + std::to_string(kMaxSpacePools) + " pools, not " +
                            std::to_string(space.pools.size()));
  }
  for (std::size_t i = 0; i < space.pools.size(); ++i) {
    LARDER_RETURN_IF_ERROR(check_pool(space.pools[i], i));
    for (std::size_t j = 0; j < i; ++j) {
      if (space.pools[j].name == space.pools[i].name) {
        return invalid_argument("two pools are called '" + space.pools[i].name + "'");
      }
    }
  }
  if (space.pools.front().policy != HitPolicy::kAllPages) {
    return invalid_argument("the first pool ('" + space.pools.front().name +
                            "') is the anchor, and needs the hit policy ALL_PAGES");
  }
  return Status::ok();
}

Digest256 digest_of(const SpaceDescription& space) {
  FieldHasher hash;
  hash.text("larder.space.v1");
  hash.text(space.identity);
  hash.number(space.page_size);
  for (const std::uint32_t rank : {space.pp_rank, space.pp_size, space.cp_rank, space.cp_size}) hash.number(rank);
  hash.text(space.adapter);
  hash.text(space.salt);
  return hash.finish();
}

Digest256 fingerprint_of(const SpaceDescription& space, const PoolDescription& pool) {
  FieldHasher hash;
  hash.text("larder.pool.v1");
  hash.text(pool.name);
  hash.number(pool.page_bytes);
  hash.text(pool.layout);
  hash.text(pool.is_replicated ? "replicated" : "per_rank");
  hash.number(pool.is_replicated ? 0 : space.tp_rank);
  hash.number(pool.is_replicated ? 0 : space.tp_size);
  return hash.finish();
}

// Numbers of names without one: by a hash, then the next free one.
std::vector<PoolName> number_pools(const std::vector<PoolDescription>& pools) {
  constexpr std::size_t kOpen = kPoolNumberCount - kFirstOpenPool;
  std::array<bool, kOpen> is_taken{};
  std::vector<PoolName> numbers;
  for (const PoolDescription& pool : pools) {
    if (const std::optional<PoolName> known = parse_pool_name(pool.name)) {
      numbers.push_back(*known);
      continue;
    }
    std::size_t at = sha256(pool.name).prefix64() % kOpen;
    for (std::size_t tries = 0; tries < kOpen && is_taken[at]; ++tries) at = (at + 1) % kOpen;
    is_taken[at] = true;
    numbers.push_back(static_cast<PoolName>(kFirstOpenPool + at));
  }
  return numbers;
}

}  // namespace

Result<PageSpace> PageSpace::create(SpaceDescription description) {
  LARDER_RETURN_IF_ERROR(check(description));
  const auto open_names = std::count_if(description.pools.begin(), description.pools.end(),
                                        [](const PoolDescription& pool) { return !parse_pool_name(pool.name); });
  if (static_cast<std::size_t>(open_names) > kPoolNumberCount - kFirstOpenPool) {
    return invalid_argument("a namespace has at most " + std::to_string(kPoolNumberCount - kFirstOpenPool) +
                            " pools whose names Larder does not know, not " + std::to_string(open_names));
  }
  PageSpace out;
  auto scope = std::make_shared<StoreScope>();
  scope->namespace_digest = digest_of(description);
  // An engine decides which of its ranks put a replicated page, so that whoever puts one writes it: scope->ranks
  // stays 1.
  out.numbers_ = number_pools(description.pools);
  for (std::size_t i = 0; i < description.pools.size(); ++i) {
    const PoolDescription& pool = description.pools[i];
    scope->set_pool(out.numbers_[i], fingerprint_of(description, pool), pool.is_replicated);
  }
  out.scope_ = std::move(scope);
  out.pools_ = std::move(description.pools);
  return out;
}

}  // namespace larder
