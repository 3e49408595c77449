// SPDX-License-Identifier: Apache-2.0
// Writes a server's lines, of its log or for people, from a thread of its own: who reads them may stall, and nobody
// waits for that.
//
//   any thread ── add ──► queue (1 MiB) ── writer thread ──► descriptor
//                           └─ full: the line is left out, and a line says how many were, where they would stand
//
// Threads: add(), wait_written() and is_written() any. Its thread takes no signals.
// Lifetime: the destructor waits until all is written, for as long as the reader stalls; a process that ends must not,
// so its log writer lives forever (cli/real_log_option.cc).
// Limits: the queue, and as much again that is being written. A line that is longer has the queue to itself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace larder {

class LogWriter {
 public:
  // left_out: the line that says that so many were left out; called on the writer's thread. Throws std::system_error
  // where the system has no thread left.
  LogWriter(int descriptor, std::function<std::string(std::uint64_t lines)> left_out);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Takes a line with its end, or several that belong together. Does not wait. What cannot be written (nobody reads, a
  // full disk) is lost.
  void add(std::string line);
  // Waits until all that was added is written or lost. False: `limit` was over first.
  [[nodiscard]] bool wait_written(Nanos limit);
  // For signal handlers, too.
  [[nodiscard]] bool is_written() const noexcept { return unwritten_.load(std::memory_order_acquire) == 0; }

 private:
  void run();
  void write_batch(std::vector<std::string>& lines, std::uint64_t left_out);

  // constant after construction
  const int descriptor_;
  const std::function<std::string(std::uint64_t)> left_out_line_;

  // Leaf lock: nothing is called under it. No RankedMutex: add() runs under the log's, which has the highest rank.
  std::mutex mutex_;
  std::condition_variable added_, written_;
  // guarded by mutex_
  std::vector<std::string> lines_;
  std::size_t bytes_ = 0;       // of lines_
  std::uint64_t left_out_ = 0;  // behind lines_
  bool is_ending_ = false;

  std::atomic<std::uint64_t> unwritten_{0};  // lines; changed under mutex_, and read by signal handlers without it
  std::thread thread_;                       // last: it uses the rest
};

}  // namespace larder
