// SPDX-License-Identifier: Apache-2.0
#include "bench/real_storage_machine.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/file_system.h"

extern char** environ;

namespace larder {
namespace {

using UsageBuffer = struct ::rusage;
using NameBuffer = struct ::utsname;

// Both ends close on exec; the child gets copies.
struct Pipe {
  int ends[2] = {-1, -1};
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int which) {
    if (ends[which] >= 0) ::close(ends[which]);
    ends[which] = -1;
  }
};

// Reads both pipes to their ends, so that neither fills up while the other is waited for.
void read_both(Pipe& out, Pipe& error, ProcessOutput& result) {
  pollfd waits[2] = {{out.ends[0], POLLIN, 0}, {error.ends[0], POLLIN, 0}};
  std::string* const texts[2] = {&result.out, &result.error};
  char piece[65536];
  while (waits[0].fd >= 0 || waits[1].fd >= 0) {
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
    for (int i = 0; i < 2; ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      const ssize_t got = ::read(waits[i].fd, piece, sizeof piece);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        waits[i].fd = -1;  // poll() passes over it
      } else {
        texts[i]->append(piece, static_cast<std::size_t>(got));
      }
    }
  }
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name") && !line.starts_with("Model")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// The type of the mount whose path is the longest prefix of the directory's.
std::string file_system_type(const std::string& directory) {
  std::error_code failed;
  const std::string path = std::filesystem::weakly_canonical(directory, failed).string();
  std::ifstream in("/proc/self/mountinfo");
  std::string best_mount, best_type = "unknown";
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word, mount, type;
    for (int i = 0; i < 5 && words >> word; ++i) mount = word;  // the fifth: the mount point
    while (words >> word && word != "-") {}
    words >> type;
    const bool is_above = mount == "/" || path == mount || path.starts_with(mount + "/");
    if (is_above && mount.size() >= best_mount.size()) {
      best_mount = mount;
      best_type = type;
    }
  }
  return best_type;
}

}  // namespace

Result<ProcessOutput> run_process(const std::vector<std::string>& arguments,
                                  const std::vector<std::string>& environment) {
  Pipe out, error;
  if (::pipe2(out.ends, O_CLOEXEC) != 0 || ::pipe2(error.ends, O_CLOEXEC) != 0) {
    return status_from_errno(errno, "pipe for", arguments[0]);
  }
  std::vector<char*> raw, raw_environment;
  for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  for (const std::string& entry : environment) raw_environment.push_back(const_cast<char*>(entry.c_str()));
  for (char** entry = environ; *entry != nullptr; ++entry) raw_environment.push_back(*entry);
  raw_environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error.ends[1], STDERR_FILENO);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, raw[0], &actions, nullptr, raw.data(), raw_environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return status_from_errno(failed, "run", arguments[0]);
  out.close_end(1);
  error.close_end(1);
  ProcessOutput result;
  read_both(out, error, result);
  int state = 0;
  while (::waitpid(pid, &state, 0) < 0 && errno == EINTR) {}
  result.exit_code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
  return result;
}

double process_cpu_seconds() {
  UsageBuffer usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

std::uint64_t process_resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::uint64_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

Status drop_page_cache(const std::string& directory) {
  const Result<std::vector<std::string>> names = real_file_system().list(directory);
  if (!names.is_ok()) return names.status();
  for (const std::string& name : *names) {
    const std::string path = join_path(directory, name);
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return status_from_errno(errno, "open", path);
    int failed = ::fdatasync(descriptor) == 0 ? 0 : errno;  // dirty pages would stay
    if (failed == EINVAL) failed = 0;                       // a directory
    if (failed == 0) failed = ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
    if (failed != 0) return status_from_errno(failed, "drop from the page cache", path);
  }
  return Status::ok();
}

MachineInfo machine_info(const std::string& directory) {
  MachineInfo info;
  info.cpu = cpu_model();
  info.cores = std::thread::hardware_concurrency();
  NameBuffer names{};
  info.kernel = ::uname(&names) == 0 ? std::string(names.sysname) + " " + names.release : "unknown";
  info.file_system = file_system_type(directory);
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char text[32] = "unknown";
  if (::gmtime_r(&now, &parts) != nullptr) (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts);
  info.date = text;
  return info;
}

void remove_bench_directory(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace larder
