// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/real_helper_process.h"

#include <fcntl.h>
#include <larder_mooncake_helper.h>  // kHelperScript: helper/mooncake_helper.py, made into text by CMake
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

extern char** environ;

namespace larder::mooncake {
namespace {

using share::Descriptor;

// Where the child finds what it gets. Above 2, and below what this process's copies are moved to.
constexpr int kChildScript = 4, kChildMemory = 5, kChildSocket = 6, kAboveAll = 128;
constexpr std::size_t kWordsKept = 1500;
// Not "python FILE": the folder of a file is where Python looks for modules first. With -c that is the working folder,
// which may have one of that name, too.
constexpr const char* kBootstrap =
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "exec(compile(open(4, 'rb').read(), 'mooncake_helper.py', 'exec'))";

Status system_failure(const std::string& what, int error) {
  return unavailable("mooncake: " + what + ": " + std::strerror(error));
}

Descriptor moved_up(int fd) { return Descriptor(::fcntl(fd, F_DUPFD_CLOEXEC, kAboveAll)); }

Result<Descriptor> script_file() {
  Descriptor file(::memfd_create("larder-mooncake-helper", MFD_CLOEXEC));
  const std::string_view text = kHelperScript;
  if (!file.is_open() || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::lseek(file.get(), 0, SEEK_SET) != 0) {
    return system_failure("writing the helper's program", errno);
  }
  return file;
}

// What the child has instead of this process's files and signals.
class SpawnPlan {
 public:
  SpawnPlan() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setpgroup(&attributes_, 0);  // a Ctrl-C is this process's
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  void give(const Descriptor& own, int as) { ::posix_spawn_file_actions_adddup2(&actions_, own.get(), as); }
  // Its number; below 0: errno's negative.
  [[nodiscard]] pid_t run(char* const* arguments, int first_closed) {
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, first_closed);
    pid_t pid = -1;
    const int error = ::posix_spawnp(&pid, arguments[0], &actions_, &attributes_, arguments, environ);
    return error == 0 ? pid : -error;
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

std::string words_of_end(int state) {
  if (WIFSIGNALED(state)) return "it was ended by signal " + std::to_string(WTERMSIG(state));
  return "it ended with exit code " + std::to_string(WEXITSTATUS(state));
}

}  // namespace

Status HelperProcess::start(const std::string& python, int memory, std::size_t lanes) {
  sockets_.clear();
  std::vector<Descriptor> theirs;
  for (std::size_t i = 0; i < lanes; ++i) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      return system_failure("a socket for the helper", errno);
    }
    sockets_.push_back(std::make_shared<Descriptor>(ends[0]));
    theirs.push_back(moved_up(ends[1]));
    ::close(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return system_failure("a pipe for the helper", errno);
  output_ = Descriptor(pipe[0]);
  const Descriptor their_output(pipe[1]);
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  words_.clear();
  return spawn(python, memory, theirs, their_output.get());
}

Status HelperProcess::spawn(const std::string& python, int memory, const std::vector<Descriptor>& theirs, int output) {
  LARDER_ASSIGN_OR_RETURN(const Descriptor script, script_file());
  const Descriptor own_output = moved_up(output), own_memory = moved_up(memory), own_script = moved_up(script.get());
  bool is_open = own_output.is_open() && own_memory.is_open() && own_script.is_open();
  for (const Descriptor& socket : theirs) is_open = is_open && socket.is_open();
  if (!is_open) return system_failure("descriptors for the helper", errno);
  SpawnPlan plan;
  plan.give(own_output, STDOUT_FILENO);
  plan.give(own_output, STDERR_FILENO);
  plan.give(own_script, kChildScript);
  plan.give(own_memory, kChildMemory);
  std::vector<std::string> texts = {python, "-c", kBootstrap, std::to_string(kChildMemory)};
  int next = kChildSocket;
  for (const Descriptor& socket : theirs) {
    plan.give(socket, next);
    texts.push_back(std::to_string(next++));
  }
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  const pid_t pid = plan.run(arguments.data(), next);
  if (pid < 0) {
    return system_failure("the interpreter '" + python + "' does not start (option 'python')", -pid);
  }
  pid_ = pid;
  return Status::ok();
}

bool HelperProcess::read_output() {
  std::array<char, 4096> piece{};
  const ssize_t got = ::read(output_.get(), piece.data(), piece.size());
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  words_.append(piece.data(), static_cast<std::size_t>(got));
  if (words_.size() > kWordsKept) words_.erase(0, words_.size() - kWordsKept);
  return got > 0;
}

// Its output closes when it ends; what else it says meanwhile is kept.
bool HelperProcess::has_ended_within(Nanos patience) {
  const TimePoint end = real_clock().now() + patience;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - real_clock().now()).count();
    pollfd wanted{output_.get(), POLLIN, 0};
    if (::poll(&wanted, 1, static_cast<int>(std::clamp<long long>(left, 0, 60'000))) > 0 && !read_output()) return true;
    if (left <= 0) return false;
  }
}

std::string HelperProcess::end(Nanos patience) {
  if (pid_ <= 0) return "it did not run";
  for (const auto& socket : sockets_) ::shutdown(socket->get(), SHUT_RDWR);
  const bool is_killed = patience <= Nanos(0) || !has_ended_within(patience);
  if (is_killed) {
    while (output_.is_open() && read_output()) {
      pollfd wanted{output_.get(), POLLIN, 0};
      if (::poll(&wanted, 1, 0) <= 0) break;
    }
  }
  ::kill(pid_, SIGKILL);  // of one that has ended, it changes nothing
  int state = 0;
  pid_t got = -1;
  while ((got = ::waitpid(pid_, &state, 0)) < 0 && errno == EINTR) {}
  pid_ = -1;
  sockets_.clear();
  output_.reset();
  std::string out = got < 0 ? "it ended" : words_of_end(state);
  std::replace(words_.begin(), words_.end(), '\n', ' ');
  if (!words_.empty()) out += "; its last words: " + words_;
  return out;
}

}  // namespace larder::mooncake
