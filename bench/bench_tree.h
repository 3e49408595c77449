// SPDX-License-Identifier: Apache-2.0
// Benchmark of the radix tree: `larder bench tree`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace larder {

struct TreeBenchOptions {
  std::size_t sequences = 5000;
  std::uint64_t seed = 1;
  std::string shape;            // full, full+swa or full+mamba; empty: all
  std::uint32_t page_size = 0;  // a divisor of 64; 0: 1 and 64
  bool as_json = false;
};

// Prints a table, or one JSON object.
void run_tree_bench(const TreeBenchOptions& options);

// The command: 0, or 2 on wrong arguments.
int bench_tree(int argc, char** argv);

}  // namespace larder
