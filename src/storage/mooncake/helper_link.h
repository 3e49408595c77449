// SPDX-License-Identifier: Apache-2.0
// The way to a helper: the process in which Mooncake's client library runs (helper/mooncake_helper.py).
//
// Why a process of its own: the package that Mooncake publishes has its client as a Python module only; the client has
// been seen to end its process (a segmentation fault for a range outside the registered memory); and a call that hangs,
// with buffers of ours in it, can be ended in one way only, with its process. So what goes wrong there costs misses
// here, and nothing else.
//
//   call() ─► an answer ─► done
//          └► none in time ─► late, and who waits is told ─► the answer, or the helper's end ─► done
//
// The real one is real_helper_link.h; tests have others.
// Threads: any. Memory: staging() is the helper's, too. What a call names belongs to it from call() to its `done`, also
// when it is late; when `done` runs, nobody writes there any more.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace larder::mooncake {

class HelperLink {
 public:
  // One code per object of the call, in its order. kUnavailable: no answer, and why.
  using Done = std::function<void(Result<std::vector<std::int64_t>>)>;
  // kDeadlineExceeded: no answer in time.
  using Late = std::function<void(const Status&)>;

  virtual ~HelperLink() = default;  // = close()
  // Sends a body of helper_wire.h. Never blocks. `done` runs exactly once, `late` at most once and before it, both on
  // one thread of the link's, which they must not keep for long. kUnavailable: there is no helper now; one is started
  // again and again, ever more slowly. Then nothing was sent, and both are dropped.
  [[nodiscard]] virtual Status call(std::string body, Done done, Late late) = 0;
  // Memory 0 of Place.
  [[nodiscard]] virtual std::span<std::byte> staging() = 0;
  // Ends the helper. Calls that still wait end kUnavailable. Idempotent. Takes seconds if the helper hangs.
  virtual void close() = 0;
};

}  // namespace larder::mooncake
