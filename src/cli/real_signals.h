// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP as something to wait for: they end a process in order. A SIGHUP that the process was begun
// to ignore (nohup) stays ignored.
//
// Threads: made in main() before any thread that takes signals (they inherit the blocked set); wait() on one thread at
// a time.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "cli/real_signal_watch.h"

namespace larder {

class StopSignals {
 public:
  // Blocks them, and ignores SIGPIPE.
  StopSignals();
  // One of them has come, and nobody has waited for it yet.
  [[nodiscard]] bool is_pending() const;
  // Waits for one of them; its number. Then calls `begun`, and waits for `delay`, which a second one ends. From then on
  // a further one ends the process at once.
  int wait(Nanos delay = Nanos{0}, const std::function<void()>& begun = {});
  // Makes a wait() on another thread return, as if SIGTERM had come; there is no delay then.
  void wake();

 private:
  std::atomic<bool> is_woken_{false};  // relaxed: the signal comes behind it
};

// Ends the process at once, without destructors and handlers of exit().
[[noreturn]] void end_process(int exit_code);

// While a server starts: a disk may hang, and nothing is served yet, so that a signal ends the process by itself. To
// stores that is a crash, which they survive. Made after StopSignals.
class StartWatch {
 public:
  // grace: so long for a start that is nearly over, and for whoever looks at is_pending() and would end in order.
  explicit StartWatch(Nanos grace = std::chrono::seconds(1));
  // It serves: signals are for wait() from here on.
  void end() { watch_.reset(); }

 private:
  std::optional<SignalWatch> watch_;
};

}  // namespace larder
