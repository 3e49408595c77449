// SPDX-License-Identifier: Apache-2.0
// Lines for the log, written when the collection ends. What has something to say under a lock says it to one that was
// made before the lock was taken: the sink, which may be an engine's and may block, runs when the lock is free.
//
//   LogLines lines;
//   LockGuard guard(mutex_);
//   note_failure(why, lines);
//
// Threads: confined to one thread. Errors: a line for which there is no memory is left out.
#pragma once

#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"

namespace larder {

class LogLines {
 public:
  LogLines() = default;
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  ~LogLines() {
    for (const Line& line : lines_) log_line(line.level, line.component, line.message);
  }

  // `component` outlives this.
  void add(LogLevel level, std::string_view component, std::string message) noexcept {
    try {
      lines_.push_back({level, component, std::move(message)});
    } catch (const std::bad_alloc&) {  // by contract
    }
  }
  void warning(std::string_view component, std::string message) noexcept {
    add(LogLevel::kWarning, component, std::move(message));
  }
  void error(std::string_view component, std::string message) noexcept {
    add(LogLevel::kError, component, std::move(message));
  }
  void info(std::string_view component, std::string message) noexcept {
    add(LogLevel::kInfo, component, std::move(message));
  }

 private:
  struct Line {
    LogLevel level;
    std::string_view component;
    std::string message;
  };
  std::vector<Line> lines_;
};

}  // namespace larder
