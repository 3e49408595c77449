// SPDX-License-Identifier: Apache-2.0
// The helper as a child process, started again when it ends or hangs.
//
//   starting ─ setup ok ─► up ─ the helper ends, says nonsense, or is stuck ─► down
//       ▲                                                                       │
//       └──────────── 1 s later, then 2, 4 ... 30 s ────────────────────────────┘
//
// A call that is late costs a lane until its answer comes: with the helper goes all that it has lent, and another
// machine that hangs must not cost that. The helper is stuck when a call is late and no other was answered for
// answer_limit; or when one is not answered for lanes x answer_limit: calls wait for each other inside the library, so
// each may take as long as all that were there before it.
//
// The child has no file of this process but its sockets, the memory, and a pipe for what it prints, of which the last
// words are kept for messages. It ends with its sockets, so it does not outlive this process. Each socket is a lane:
// one of the child's threads reads it, and it has one call at a time; calls wait where all lanes are busy. A call is
// sent by who calls, if a lane is free; one thread of the link's does all other I/O, and runs all `late` and `done`.
#pragma once

#include <memory>

#include "base/clock.h"
#include "storage/mooncake/helper_link.h"
#include "storage/mooncake/helper_wire.h"

namespace larder::mooncake {

struct HelperOptions {
  std::string python = "python3";
  SetupRequest setup;
  std::size_t lanes = 8;
  std::size_t staging_bytes = std::size_t{64} << 20;
  Nanos start_limit = std::chrono::seconds(30);   // from the start of the process to the end of its setup
  Nanos answer_limit = std::chrono::seconds(40);  // of a call with a lane; then it is late. In line: so long at most
};

// Returns when the first setup has ended. Errors: what the helper says of it, in words; kUnavailable: the interpreter
// does not start, or the setup takes longer than start_limit.
[[nodiscard]] Result<std::unique_ptr<HelperLink>> start_helper(const HelperOptions& options);

}  // namespace larder::mooncake
