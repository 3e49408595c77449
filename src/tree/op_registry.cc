// SPDX-License-Identifier: Apache-2.0
#include "tree/op_registry.h"

namespace larder::tree {

void OpRegistry::link(OpId op, Id node, Bits bits) {
  for (std::uint32_t i = nodes_.at(node).first_link; i != kNoLink; i = links_[i].next_of_node) {
    if (links_[i].op == op) {
      links_[i].owned = static_cast<Bits>(links_[i].owned | bits);
      return;
    }
  }
  std::uint32_t index = free_;
  if (index != kNoLink) {
    free_ = links_[index].next_of_node;
  } else {
    index = static_cast<std::uint32_t>(links_.size());
    links_.emplace_back();
  }
  std::uint32_t& first = first_of_op_[op];  // kNoLink for a new op
  links_[index] = Link{op, node, bits, nodes_.at(node).first_link, first};
  first = index;
  nodes_.at(node).first_link = index;
  ++live_;
}

void OpRegistry::split(Id head, Id tail) {
  // link() may move links_, so the list is followed by index.
  for (std::uint32_t i = nodes_.at(tail).first_link; i != kNoLink; i = links_[i].next_of_node) {
    link(links_[i].op, head, clear_bits(links_[i].owned, kMambaBits));
  }
}

std::vector<OpRegistry::Link> OpRegistry::take(OpId op) {
  std::vector<Link> taken;
  const auto found = first_of_op_.find(op);
  if (found == first_of_op_.end()) return taken;
  for (std::uint32_t i = found->second; i != kNoLink;) {
    const std::uint32_t next = links_[i].next_of_op;
    taken.push_back(links_[i]);
    unlink_from_node(i);
    links_[i] = Link{};
    links_[i].next_of_node = free_;
    free_ = i;
    --live_;
    i = next;
  }
  first_of_op_.erase(found);
  return taken;
}

void OpRegistry::unlink_from_node(std::uint32_t index) {
  std::uint32_t* at = &nodes_.at(links_[index].node).first_link;
  while (*at != index) at = &links_[*at].next_of_node;
  *at = links_[index].next_of_node;
}

}  // namespace larder::tree
