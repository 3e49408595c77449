// SPDX-License-Identifier: Apache-2.0
#include "tests/support/real_killed_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace larder::support {
namespace {

Status system_error(const std::string& what) { return unavailable(what + ": " + std::strerror(errno)); }

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(const std::vector<char*>& arguments, int output, int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(output, STDOUT_FILENO);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

}  // namespace

KilledProcess::~KilledProcess() { (void)kill(); }

Status KilledProcess::start(const std::vector<std::string>& arguments) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("pipe");
  std::vector<char*> raw;
  for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  const int parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(raw, ends[1], parent);
  const Status status = pid_ < 0 ? system_error("fork") : Status::ok();
  ::close(ends[1]);
  output_ = ends[0];
  partial_.clear();
  lines_.clear();
  return status;
}

bool KilledProcess::read_some(std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{seconds.count(), (limit - seconds).count()};
  pollfd wanted{output_, POLLIN, 0};
  if (::ppoll(&wanted, 1, &time, nullptr) <= 0) return false;
  char piece[16384];
  const ssize_t got = ::read(output_, piece, sizeof piece);
  if (got <= 0) return false;
  partial_.append(piece, static_cast<std::size_t>(got));
  std::size_t from = 0;
  for (std::size_t end; (end = partial_.find('\n', from)) != std::string::npos; from = end + 1) {
    lines_.push_back(partial_.substr(from, end - from));
  }
  partial_.erase(0, from);
  return true;
}

void KilledProcess::read_lines(std::size_t lines, std::chrono::nanoseconds limit, char kind) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::size_t seen = 0;
  for (std::size_t at = 0;;) {
    for (; at < lines_.size(); ++at) {
      if (kind == kAnyKind || lines_[at].starts_with(kind)) ++seen;
    }
    const auto left = end - std::chrono::steady_clock::now();
    if (seen >= lines || left <= std::chrono::nanoseconds(0) || !read_some(left)) return;
  }
}

Status KilledProcess::kill() {
  if (pid_ <= 0) return conflict("no process");
  ::kill(pid_, SIGKILL);
  int state = 0;
  while (::waitpid(pid_, &state, 0) < 0 && errno == EINTR) {}
  pid_ = -1;
  while (read_some(std::chrono::seconds(1))) {}
  ::close(output_);
  output_ = -1;
  const bool is_killed = WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
  return is_killed ? Status::ok() : conflict("the process ended by itself, with state " + std::to_string(state));
}

Status KilledProcess::stop() {
  if (pid_ <= 0) return conflict("no process");
  ::kill(pid_, SIGSTOP);
  int state = 0;
  while (::waitpid(pid_, &state, WUNTRACED) < 0 && errno == EINTR) {}
  if (WIFSTOPPED(state)) return Status::ok();
  pid_ = -1;
  return conflict("the process ended by itself, with state " + std::to_string(state));
}

void say(const std::string& line) {
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t wrote = ::write(STDOUT_FILENO, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) ::_exit(1);  // nobody listens any more
    done += static_cast<std::size_t>(wrote);
  }
}

}  // namespace larder::support
