// SPDX-License-Identifier: Apache-2.0
// Speed of page copies between device and host on the CPU device, per host layout and direction.
#pragma once

#include <cstddef>

namespace larder {

// `mebibytes` of device pages, 16 to 128: device twice, host and memcpy once each, 512 MiB in all. Prints one line per
// layout and direction: GiB/s of the best of several runs, and its ratio to memcpy of the same bytes in the same run.
// Returns 0, or 1 if memory was not to be had or a copy was wrong.
int run_transfer_bench(std::size_t mebibytes);

// The command: also 2 on wrong arguments.
int bench_transfer(int argc, char** argv);

}  // namespace larder
