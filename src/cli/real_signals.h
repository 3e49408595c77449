// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP as something to wait for: they end a process in order. A SIGHUP that the process was begun
// to ignore (nohup) stays ignored.
//
// Threads: made in main() before any other thread (they inherit the blocked set); wait() on one thread at a time.
#pragma once

namespace larder {

class StopSignals {
 public:
  // Blocks them, and ignores SIGPIPE.
  StopSignals();
  // One of them has come, and nobody has waited for it yet.
  [[nodiscard]] bool is_pending() const;
  // Waits for one of them; its number. From then on a second one ends the process at once.
  int wait();
  // Makes a wait() on another thread return, as if SIGTERM had come.
  void wake();
};

}  // namespace larder
