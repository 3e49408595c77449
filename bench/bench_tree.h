// Benchmark of the radix tree: `larder bench tree`.
#pragma once

namespace larder {

// Options: --sequences N (5000), --shape full|full+swa|full+mamba (all), --page-size N (1 and 64), --seed N, --json.
// Prints a table, or one JSON object. Returns 0, or 2 on wrong arguments.
int bench_tree(int argc, char** argv);

}  // namespace larder
