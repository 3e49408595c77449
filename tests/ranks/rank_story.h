// SPDX-License-Identifier: Apache-2.0
// Two, four or eight rank processes; at a seeded point one of them is killed (SIGKILL) or stopped (SIGSTOP). The others
// must say which, within their limit; no rank may ever have seen a wrong byte, or have decided otherwise than the
// others. Then all are started anew on the same storage, and run to their end.
//
// A process under a real scheduler does not replay: the seed of a failure gives the same requests and about the same
// point. Threads: confined. Cost: a second, or some on a loaded machine, and 10 where a rank is stopped.
#pragma once

#include <cstdint>

namespace larder::ranks_test {

// Stories first, first + 1, ..., until one fails.
void run_stories(std::uint64_t first, std::uint64_t count);

}  // namespace larder::ranks_test
