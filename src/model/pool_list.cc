// SPDX-License-Identifier: Apache-2.0
#include "model/pool_list.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "model/model_limits.h"

namespace larder {
namespace {

std::string named(const PoolSpec& pool) { return "pool '" + std::string(pool.label()) + "'"; }

Status check_shape(const PoolSpec& pool) {
  if (static_cast<std::size_t>(pool.name) >= kPoolNameCount) {
    return unsupported(named(pool) + " has a number of storage alone; both tiers of memory have places for the " +
                       std::to_string(kPoolNameCount) + " names of model/pool_spec.h");
  }
  if (pool.layers.empty() && pool.planes.empty()) return Status::ok();  // a marker
  if (pool.layers.empty()) return invalid_argument(named(pool) + " has no layers: list those that own a part of it");
  if (std::adjacent_find(pool.layers.begin(), pool.layers.end(), std::greater_equal<>()) != pool.layers.end()) {
    return invalid_argument(named(pool) + " lists layers that do not ascend");
  }
  if (pool.layers.back() >= kLayersMax) {
    return invalid_argument(named(pool) + " has layer " + std::to_string(pool.layers.back()) + "; the last is " +
                            std::to_string(kLayersMax - 1));
  }
  std::uint64_t bytes = 0;
  for (const PlaneSpec& plane : pool.planes) {
    if (plane.rows == 0 || plane.heads == 0 || plane.head_dim == 0) {
      return invalid_argument(named(pool) + ": plane '" + plane.name + "' has 0 rows, heads or elements");
    }
    // Each of the two products fits: 32 bits times 32 bits, and 4 GiB times 1,024 layers.
    const std::uint64_t heads = std::uint64_t{plane.heads} * plane.head_dim;
    const bool is_large = heads > kPageBytesMax || heads * dtype_bytes(plane.dtype) > kPageBytesMax / plane.rows;
    if (!is_large) bytes += heads * dtype_bytes(plane.dtype) * plane.rows;
    if (is_large || bytes * pool.layers.size() > kPageBytesMax) {
      return invalid_argument(named(pool) + ": a page would have 4 GiB or more: make it of fewer tokens");
    }
  }
  return Status::ok();
}

Status check_component(const PoolList& list, const PoolSpec& pool) {
  const bool is_full = pool.component == ComponentKind::kFull;
  if (is_full != (pool.hit_policy == HitPolicy::kAllPages)) {
    return invalid_argument(named(pool) + " is of component " + std::string(component_name(pool.component)) +
                            " and has hit policy " + std::string(hit_policy_name(pool.hit_policy)) +
                            ": all_pages is that of component full, trailing_pages that of the others");
  }
  if (pool.component == ComponentKind::kSwa && list.window == 0) {
    return invalid_argument(named(pool) + " is of component swa, and the model has no window");
  }
  return Status::ok();
}

// One anchor in each component that has a pool.
Status check_anchors(const PoolList& list) {
  for (const ComponentKind c : kAllComponents) {
    std::size_t pools = 0, anchors = 0;
    for (const PoolSpec& pool : list.pools) {
      pools += pool.component == c ? 1 : 0;
      anchors += pool.component == c && pool.is_anchor ? 1 : 0;
    }
    const std::string name(component_name(c));
    if (pools > 0 && anchors != 1) {
      return invalid_argument("component " + name + " has " + std::to_string(anchors) +
                              " anchors: mark one of its pools, whose pages the others follow");
    }
    if (pools == 0 && c == ComponentKind::kFull) {
      return invalid_argument(
          "no pool is of component full: a prefix needs something for each of its pages (a pool "
          "without planes will do)");
    }
    if (pools == 0 && c == ComponentKind::kSwa && list.window > 0) {
      return invalid_argument("window is " + std::to_string(list.window) + ", and no pool is of component swa");
    }
  }
  return Status::ok();
}

Status check(const PoolList& list) {
  if (list.id.empty() || list.id.size() > kIdBytesMax || list.revision.size() > kIdBytesMax) {
    return invalid_argument("id and revision have 1 to " + std::to_string(kIdBytesMax) +
                            " bytes: they are part of "
                            "every page key");
  }
  if (list.page_size == 0 || list.page_size > kPageSizeMax) {
    return invalid_argument("page_size is " + std::to_string(list.page_size) + ": it must be 1 to " +
                            std::to_string(kPageSizeMax));
  }
  if (list.window > kContextLengthMax) {
    return invalid_argument("window is " + std::to_string(list.window) + ": it must be at most " +
                            std::to_string(kContextLengthMax));
  }
  for (std::size_t i = 0; i < list.pools.size(); ++i) {
    LARDER_RETURN_IF_ERROR(check_shape(list.pools[i]));
    LARDER_RETURN_IF_ERROR(check_component(list, list.pools[i]));
    for (std::size_t k = 0; k < i; ++k) {
      if (list.pools[k].name == list.pools[i].name) return invalid_argument(named(list.pools[i]) + " is there twice");
    }
  }
  return check_anchors(list);
}

}  // namespace

Result<ModelSpec> model_of_pools(PoolList list) {
  if (Status status = check(list); !status.is_ok()) {
    return Status(status.code(), "model '" + list.id.substr(0, kIdBytesMax) + "': " + status.message());
  }
  ModelSpec model;
  model.id = std::move(list.id);
  model.revision = std::move(list.revision);
  model.page_size = list.page_size;
  model.dims.window = list.window;
  model.pools = std::move(list.pools);
  // Storage order: by component, and its sidecars before its anchor.
  std::stable_sort(model.pools.begin(), model.pools.end(), [](const PoolSpec& a, const PoolSpec& b) {
    return std::pair(a.component, a.is_anchor) < std::pair(b.component, b.is_anchor);
  });
  return model;
}

}  // namespace larder
