// SPDX-License-Identifier: Apache-2.0
// The process that is killed: it opens a file store, writes, reads and clears, and says on standard output what it does
// and what was acknowledged, one line each:
//
//   O                                       the store is open
//   W <write> <durable> <scope> <number>..  a write begins
//   A <write> <index>                       a group of it was acknowledged
//   F <write> <index>                       a group of it was not
//   B <scope>                               a clear begins (0: of all)
//   C <scope> <ok>                          it ended
//   ! <text>                                something that must not happen; it ends then
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/factory.h"
#include "tests/crash/promises.h"

namespace larder::crash {

inline constexpr std::uint64_t kMostAtOnce = 12;  // operations under way
inline constexpr const char* kWriterArgument = "--write-until-killed";

// What a run does follows from its seed; the command line carries all of it.
struct WriterPlan {
  std::uint64_t seed = 0;
  BackendOptions options;
  [[nodiscard]] std::vector<std::string> arguments(const std::string& program) const;
};
// The child's main(). Does not come back while it is not killed.
int run_writer(const std::vector<std::string>& arguments);

// Tells `promises` what a line says. False: a line of "!", or none that is known.
[[nodiscard]] bool note_line(const std::string& line, Promises& promises);

}  // namespace larder::crash
