// SPDX-License-Identifier: Apache-2.0
// A process that writes to a file store is killed (SIGKILL) at seeded points: real files, real threads, io_uring.
//
// A chain is several kills on one store: each child opens what the one before it left, perhaps twice in a row without
// anyone looking. After a kill the store is opened here, and promises.h says what must be there. A killed process
// loses nothing that it gave to the system, so what was acknowledged must be there, durable or not. With a budget
// (max_size) nothing that was acknowledged must be there, but what is there is whole, right, and not cleared.
// What kills at the same place in the same run is the same choice of points, not the same instruction: a process under
// a real scheduler does not replay. The seed of a failure gives the same writes and the same number of them.
// Threads: confined. The program's main() must hand its arguments to run_writer() (main.cc).
#pragma once

#include <cstdint>

namespace larder::crash {

inline constexpr std::uint64_t kKillsPerChain = 10;

// Chains first, first + 1, ..., until one fails. Cost: a quarter of a second each; four times that with a sanitizer.
void run_chains(std::uint64_t first, std::uint64_t count);

}  // namespace larder::crash
