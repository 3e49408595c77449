// A copy of this test program that runs until it is killed.
//
// Threads: confined. Lifetime: the destructor kills the child; it also dies with its parent.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/status.h"

namespace larder::conformance {

class KilledChild {
 public:
  KilledChild() = default;
  ~KilledChild();
  KilledChild(const KilledChild&) = delete;
  KilledChild& operator=(const KilledChild&) = delete;

  // Runs this program with these arguments (the first is its name); its standard output is read here.
  [[nodiscard]] Status start(const std::vector<std::string>& arguments);
  // Reads until `count` whole lines are there or the output ends, at most `limit`.
  void read_lines(std::size_t count, std::chrono::seconds limit);
  // SIGKILL; waits until it is gone and reads what it had said. kConflict: it had ended before.
  [[nodiscard]] Status kill();
  // All whole lines so far.
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

 private:
  // False: nothing came within `limit`, or nothing will.
  bool read_some(std::chrono::milliseconds limit);

  int pid_ = -1;
  int output_ = -1;
  std::string partial_;
  std::vector<std::string> lines_;
};

// Writes all of it to standard output in one piece; ends the process if nobody listens.
void say(const std::string& text);

}  // namespace larder::conformance
