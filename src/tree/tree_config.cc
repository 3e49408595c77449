// SPDX-License-Identifier: Apache-2.0
#include "tree/tree.h"

#include <utility>

namespace larder {

TreeConfig tree_config_for(const ModelSpec& model, EvictionPolicy policy, bool write_back,
                           std::shared_ptr<const EvictionOrder> order) {
  TreeConfig config;
  config.page_size = model.page_size;
  config.window_tokens = model.has(ComponentKind::kSwa) ? model.dims.window : 0;
  config.has_mamba = model.has(ComponentKind::kMamba);
  config.policy = policy;
  config.order = std::move(order);
  config.allow_host_gaps = write_back;
  for (const PoolSpec& pool : model.pools) config.slot_bytes[index_of(pool.component)] += pool.page_bytes();
  return config;
}

}  // namespace larder
