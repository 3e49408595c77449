// A copy of this test program that runs until it is killed. (ChildProcess of src/cli is for children that end by
// themselves: it belongs to no library, and it drops what a child said when it stops it.)
//
// Threads: confined. Lifetime: the destructor kills the child; it also dies with its parent.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace larder::crash {

class KilledProcess {
 public:
  KilledProcess() = default;
  ~KilledProcess();
  KilledProcess(const KilledProcess&) = delete;
  KilledProcess& operator=(const KilledProcess&) = delete;

  // Runs this program with these arguments; its standard output is read here.
  [[nodiscard]] Status start(const std::vector<std::string>& arguments);
  // Reads until `lines` lines that begin with `kind` are there, or the output ends; at most `limit`.
  void read_lines(char kind, std::size_t lines, std::chrono::nanoseconds limit);
  // Reads on for that long.
  void read_for(std::chrono::nanoseconds time) { read_lines('\n', 1, time); }
  // SIGKILL; waits until it is gone and reads what it had said. kConflict: it had ended before.
  [[nodiscard]] Status kill();
  // All whole lines so far.
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

 private:
  bool read_some(std::chrono::nanoseconds limit);

  int pid_ = -1;
  int output_ = -1;
  std::string partial_;
  std::vector<std::string> lines_;
};

// A fresh empty directory, and its removal with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Writes all of it to standard output in one piece.
void say(const std::string& line);

}  // namespace larder::crash
