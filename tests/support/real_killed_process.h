// SPDX-License-Identifier: Apache-2.0
// A copy of this test program that runs until it is killed. (ChildProcess of src/server is for children that end by
// themselves: it drops what a child said when it stops it.)
//
// Threads: confined. Lifetime: the destructor kills the child; it also dies with its parent.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace larder::support {

class KilledProcess {
 public:
  static constexpr char kAnyKind = '\0';
  KilledProcess() = default;
  ~KilledProcess();
  KilledProcess(const KilledProcess&) = delete;
  KilledProcess& operator=(const KilledProcess&) = delete;

  // Runs this program with these arguments; its standard output is read here.
  [[nodiscard]] Status start(const std::vector<std::string>& arguments);
  // Reads until `lines` lines (that begin with `kind`) are there, or the output ends; at most `limit`.
  void read_lines(std::size_t lines, std::chrono::nanoseconds limit, char kind = kAnyKind);
  // Reads on for that long.
  void read_for(std::chrono::nanoseconds time) { read_lines(1, time, '\n'); }
  // SIGKILL; waits until it is gone and reads what it had said. kConflict: it had ended before.
  [[nodiscard]] Status kill();
  // SIGSTOP; waits until it stands still. kConflict: it had ended before.
  [[nodiscard]] Status stop();
  // All whole lines so far.
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

 private:
  bool read_some(std::chrono::nanoseconds limit);

  int pid_ = -1;
  int output_ = -1;
  std::string partial_;
  std::vector<std::string> lines_;
};

// Writes all of it to standard output in one piece; ends the process if nobody listens.
void say(const std::string& line);

}  // namespace larder::support
