// SPDX-License-Identifier: Apache-2.0
#include "server/real_child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace larder {
namespace {

constexpr auto kKillAfter = std::chrono::seconds(20);

Status system_error(std::string_view what) { return unavailable(fmt::format("{}: {}", what, std::strerror(errno))); }

#ifdef SYS_close_range
constexpr long kCloseRange = SYS_close_range;
#else
constexpr long kCloseRange = -1;  // ENOSYS, as of a kernel before 5.11
#endif
constexpr unsigned kCloseRangeCloexec = 1u << 2;
constexpr rlim_t kMostTried = 1u << 20;  // where the limit is next to none, this stays short of a second

// Of the descriptors that arguments name: a shell hands over /dev/fd/63 for `<(command)`.
std::vector<int> named_descriptors(const std::vector<std::string>& arguments) {
  std::vector<int> named;
  for (const std::string& argument : arguments) {
    for (const std::string_view place : {"/dev/fd/", "/proc/self/fd/"}) {
      for (std::size_t at = argument.find(place); at != std::string::npos; at = argument.find(place, at)) {
        at += place.size();
        int number = -1;
        (void)std::from_chars(argument.data() + at, argument.data() + argument.size(), number);
        if (number > STDERR_FILENO) named.push_back(number);
      }
    }
  }
  return named;
}

// What the exec keeps open: 0 to 2, and `kept`. A socket that listens would keep its port taken while the child lives.
// Async-signal-safe.
void close_rest_on_exec(const std::vector<int>& kept) {
  if (::syscall(kCloseRange, STDERR_FILENO + 1, ~0u, kCloseRangeCloexec) != 0) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = kMostTried;
    const int end = static_cast<int>(std::min(limit.rlim_cur, kMostTried));
    for (int descriptor = STDERR_FILENO + 1; descriptor < end; ++descriptor) {
      (void)::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    }
  }
  for (const int descriptor : kept) (void)::fcntl(descriptor, F_SETFD, 0);
}

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(const std::vector<char*>& arguments, const std::vector<int>& kept, int output,
                         const char* error_path, int parent) {
  // A group of its own: what the keyboard sends to the terminal's group is for the parent, which ends its child itself.
  ::setpgid(0, 0);
  // Not SIGTERM: a llama-server that was ending by itself has been seen to hang, with all its memory.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before prctl
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(output, STDOUT_FILENO);
  if (error_path != nullptr) {
    const int errors = ::open(error_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (errors >= 0) ::dup2(errors, STDERR_FILENO);
  }
  close_rest_on_exec(kept);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

ChildProcess::~ChildProcess() {
  if (is_running()) (void)stop(kKillAfter);
}

Status ChildProcess::start(const std::vector<std::string>& arguments, const std::string& error_path) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("pipe");
  std::vector<char*> raw;
  for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  const std::vector<int> kept = named_descriptors(arguments);
  const int parent = ::getpid();
  const int pid = ::fork();
  if (pid < 0) {
    const Status status = system_error("fork");
    ::close(ends[0]);
    ::close(ends[1]);
    return status;
  }
  if (pid == 0) become(raw, kept, ends[1], error_path.empty() ? nullptr : error_path.c_str(), parent);
  ::close(ends[1]);
  pid_ = pid;
  output_ = ends[0];
  buffer_.clear();
  return Status::ok();
}

Status ChildProcess::read_more(Nanos limit) {
  if (output_ < 0) return unavailable("the process has no open output");
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  pollfd wanted{output_, POLLIN, 0};
  const int ready = ::poll(&wanted, 1, static_cast<int>(std::clamp<long long>(millis, 0, 1'000'000)));
  if (ready < 0 && errno == EINTR) return Status::ok();
  if (ready < 0) return system_error("poll");
  if (ready == 0) return deadline_exceeded("the process said nothing in time");
  char piece[4096];
  const ssize_t got = ::read(output_, piece, sizeof piece);
  if (got < 0 && errno == EINTR) return Status::ok();
  if (got <= 0) {
    ::close(output_);
    output_ = -1;
    return unavailable("the process has closed its output");
  }
  buffer_.append(piece, static_cast<std::size_t>(got));
  return Status::ok();
}

Result<std::string> ChildProcess::read_line(Nanos limit) {
  const TimePoint end = real_clock().now() + limit;
  for (;;) {
    const std::size_t newline = buffer_.find('\n');
    if (newline != std::string::npos) {
      std::string line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      return line;
    }
    const Nanos left = end - real_clock().now();
    LARDER_RETURN_IF_ERROR(left > Nanos{0} ? read_more(left) : deadline_exceeded("the process said nothing in time"));
  }
}

void ChildProcess::kill_now() const {
  const int pid = pid_;
  if (pid > 0) ::kill(pid, SIGKILL);
}

void ChildProcess::terminate_now() const {
  const int pid = pid_;
  if (pid > 0) ::kill(pid, SIGTERM);
}

int ChildProcess::reap() {
  int state = 0;
  while (::waitpid(pid_, &state, 0) < 0 && errno == EINTR) {}
  pid_ = -1;
  if (output_ >= 0) ::close(output_);
  output_ = -1;
  return WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
}

Result<int> ChildProcess::stop(Nanos limit) {
  if (!is_running()) return unavailable("the process is not running");
  ::kill(pid_, SIGTERM);
  const TimePoint end = real_clock().now() + limit;
  for (;;) {  // its output closes when it ends
    const Nanos left = end - real_clock().now();
    const Status status = read_more(std::max(left, Nanos{0}));
    buffer_.clear();
    if (status.code() == StatusCode::kUnavailable) return reap();
    if (left > Nanos{0} && status.is_ok()) continue;
    ::kill(pid_, SIGKILL);
    (void)reap();
    return deadline_exceeded("the process did not end in time and was killed");
  }
}

Result<std::uint16_t> free_loopback_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return unavailable("no socket for a free port");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool is_bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                        ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(socket);
  if (!is_bound) return unavailable("no free port on 127.0.0.1");
  return ntohs(address.sin_port);
}

Result<std::string> own_executable_path() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return system_error("readlink /proc/self/exe");
  return std::string(path, static_cast<std::size_t>(length));
}

Result<std::string> make_temporary_directory(const std::string& prefix, std::string parent) {
  const char* base = std::getenv("TMPDIR");
  if (parent.empty()) parent = base != nullptr && *base != '\0' ? base : "/tmp";
  std::string path = fmt::format("{}/{}XXXXXX", parent, prefix);
  if (::mkdtemp(path.data()) == nullptr) return system_error("making a directory " + path);
  return path;
}

void remove_directory_tree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::string tail_of_file(const std::string& path, std::size_t lines) {
  std::ifstream in(path);
  std::vector<std::string> all;
  std::string line;
  while (std::getline(in, line)) {
    all.push_back(line);
    if (all.size() > lines) all.erase(all.begin());
  }
  std::string out;
  for (const std::string& kept : all) out += "  " + kept + "\n";
  return out;
}

}  // namespace larder
