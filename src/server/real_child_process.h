// SPDX-License-Identifier: Apache-2.0
// A child process whose output is read line by line: how quickstart runs `larder serve`, the proxy a llama-server, and
// `larder bench llama` both.
//
// Threads: confined. Lifetime: the destructor ends the child (SIGTERM, then SIGKILL after a bounded wait); the kernel
// kills the child when the thread that has started it ends, and so when the parent dies.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace larder {

class ChildProcess {
 public:
  ChildProcess() = default;
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // arguments[0] is the executable's path. Standard error goes to `error_path` (appended) unless it is empty. Of our
  // other descriptors it has those that arguments name as /dev/fd/N.
  // kUnavailable: the system refuses.
  [[nodiscard]] Status start(const std::vector<std::string>& arguments, const std::string& error_path);
  // The next line of its standard output. kDeadlineExceeded after `limit`; kUnavailable: it has closed its output.
  [[nodiscard]] Result<std::string> read_line(Nanos limit);
  // Asks it to end and waits. Its exit code; 128 + signal if one ended it. kDeadlineExceeded: it had to be killed.
  [[nodiscard]] Result<int> stop(Nanos limit);
  [[nodiscard]] bool is_running() const { return pid_ > 0; }
  // -1: not running. Valid until stop().
  [[nodiscard]] int pid() const { return pid_; }
  // Ends it at once (SIGKILL), without waiting. Any thread.
  void kill_now() const;
  // Asks it to end (SIGTERM), without waiting. Any thread.
  void terminate_now() const;

 private:
  [[nodiscard]] Status read_more(Nanos limit);  // appends to buffer_
  [[nodiscard]] int reap();

  std::atomic<int> pid_{-1};  // relaxed: kill_now() is for a process that ends anyway
  int output_ = -1;
  std::string buffer_;
};

// For `/bin/sh -c SCRIPT NAME COMMAND...`: what the command prints goes where its errors go. Its standard output stays
// open all the same, so that read_line() tells of its end.
inline constexpr const char* kOutputToErrors = "exec \"$@\" 3>&1 1>&2";
// A port of 127.0.0.1 on which nobody listens now.
[[nodiscard]] Result<std::uint16_t> free_loopback_port();
// The path of the running executable. kUnavailable: the system does not tell.
[[nodiscard]] Result<std::string> own_executable_path();
// A fresh empty directory, of this user alone, under `parent` (empty: $TMPDIR or /tmp), and its removal with everything
// in it.
[[nodiscard]] Result<std::string> make_temporary_directory(const std::string& prefix, std::string parent = {});
void remove_directory_tree(const std::string& path);
// The last `lines` lines of a text file; "" if it cannot be read.
[[nodiscard]] std::string tail_of_file(const std::string& path, std::size_t lines);

}  // namespace larder
