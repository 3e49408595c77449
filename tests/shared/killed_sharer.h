// SPDX-License-Identifier: Apache-2.0
// The process that tests kill: a host or a client of a shared store. It says a line for each thing that happened.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace larder::shared_tests {

inline constexpr std::string_view kSharerArgument = "--share";

// Arguments: program, --share, share directory, then
//   host, store directory, N   hosts a file store that holds back all operations after the first N.
//                              Says "host", then "op" for each operation that has come.
//   client, N                  connects, and starts N writes and N reads. Says "client", then "done" for each answer.
// Runs until it is killed, or cannot start.
[[nodiscard]] int run_sharer(const std::vector<std::string>& arguments);

}  // namespace larder::shared_tests
