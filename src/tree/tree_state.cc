// SPDX-License-Identifier: Apache-2.0
#include "tree/tree_state.h"

namespace larder::tree {

namespace {

Bits host_bits(const std::array<bool, kComponentCount>& components) {
  Bits out = 0;
  for (const ComponentKind c : kAllComponents) {
    if (components[index_of(c)]) out = static_cast<Bits>(out | bit_of(c, Tier::kHost));
  }
  return out;
}

}  // namespace

TreeState::TreeState(const TreeConfig& given)
    : config(given),
      page_size(std::max(1u, given.page_size)),
      window_pages((given.window_tokens + std::uint64_t{page_size} - 1) / page_size),
      given_order(given.order ? given.order : eviction_order(given.policy)),
      order(given.has_mamba || given_order->without_states() == nullptr ? given_order.get()
                                                                        : given_order->without_states()),
      weighs(order->weighs() && given.has_mamba && given.window_tokens == 0),
      host_keeps(host_bits(given.host_keeps)),
      chooses(order->chooses() && !given.has_mamba),
      stats(order->checkpoint_parameters()),
      ops(nodes),
      backlog(nodes, spaces),
      tenants(given.host_blocks) {
  config.allow_host_gaps = given.allow_host_gaps || given.is_exclusive;
}

}  // namespace larder::tree
