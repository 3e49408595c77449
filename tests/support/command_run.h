// SPDX-License-Identifier: Apache-2.0
// Runs a command of `larder` in the test's process.
// Threads: the test's. Header only.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace larder::support {

// How a command ended, and what it printed.
struct CommandRun {
  int code = 0;
  std::string out, errors;
  [[nodiscard]] std::string text() const { return out + errors; }
};

// `words`: its name first, as main() gets them.
inline CommandRun run_command(int (*command)(int, char**), std::vector<std::string> words) {
  std::vector<char*> line;
  for (std::string& word : words) line.push_back(word.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  CommandRun run;
  run.code = command(static_cast<int>(line.size()), line.data());
  run.out = testing::internal::GetCapturedStdout();
  run.errors = testing::internal::GetCapturedStderr();
  return run;
}

}  // namespace larder::support
