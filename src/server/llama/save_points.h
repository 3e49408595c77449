// SPDX-License-Identifier: Apache-2.0
// At which tokens of a prompt its pages, and the state that resumes there, are kept.
//
//   tokens  0 ..... resume ....... known ........ mark ......... grid ......... end ... prompt
//                   where the      a fork:        the system     nothing else   the last page that a
//                   computation    others came    prompt ends    for long       same prompt can resume at
//                   begins         this far
//
// A model whose pages alone are restore points (full attention) needs none of this: any page of it will do, and they
// are read once, when the answer is there. For all others each place costs a pass of the engine over its slot.
//
// Threads: pure. Units: tokens; what comes out are multiples of page_size, ascending, behind `resume`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace larder::llama {

struct SavePolicy {
  std::uint32_t page_size = 64;
  std::uint64_t grid = 8192;  // 0: none
  // Two places are at least so far from each other, and the first one from `resume`; the end of the prompt goes before
  // a fork, a fork before a mark, a mark before the grid.
  std::uint64_t spacing = 64;
};

struct PromptFacts {
  std::uint64_t tokens = 0;                // of the prompt
  std::uint64_t resume = 0;                // computed before, and in the slot
  std::uint64_t known = 0;                 // from the start: tokens whose pages others have kept
  std::span<const std::uint64_t> marks{};  // ends of parts that other prompts may share
};

// The last place at which a prompt of so many tokens can be resumed: its last token is always computed.
[[nodiscard]] std::uint64_t last_restore_point(std::uint64_t tokens, std::uint32_t page_size);

[[nodiscard]] std::vector<std::uint64_t> save_points(const SavePolicy& policy, const PromptFacts& prompt);

}  // namespace larder::llama
