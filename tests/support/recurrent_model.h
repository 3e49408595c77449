// SPDX-License-Identifier: Apache-2.0
// A model of recurrent layers alone: its pages have no bytes.
#pragma once

#include "model/pool_list.h"

namespace larder::test {

// Pages of 4 tokens, a state of 192 bytes.
[[nodiscard]] inline ModelSpec recurrent_model() {
  PoolSpec marker;
  marker.name = PoolName::kKv;
  marker.component = ComponentKind::kFull;
  marker.is_anchor = true;
  PoolSpec state = marker;
  state.name = PoolName::kMamba;
  state.component = ComponentKind::kMamba;
  state.hit_policy = HitPolicy::kTrailingPages;
  state.layers = {0, 1};
  state.planes = {{.name = "s", .dtype = Dtype::kU8, .rows = 1, .heads = 1, .head_dim = 96}};
  return model_of_pools({.id = "recurrent", .page_size = 4, .pools = {marker, state}}).value();
}

}  // namespace larder::test
