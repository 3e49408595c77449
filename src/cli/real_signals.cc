// SPDX-License-Identifier: Apache-2.0
#include "cli/real_signals.h"

#include <unistd.h>

#include <csignal>
#include <ctime>

#include "cli/real_log_option.h"

namespace larder {
namespace {

// SIGHUP ends a process whose terminal is gone, unless it was told to stay (nohup).
bool ends_by_hangup() {
  struct sigaction now;
  return sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler != SIG_IGN;
}

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (ends_by_hangup()) sigaddset(&set, SIGHUP);
  return set;
}

void end_at_once(int signal) { ::_exit(128 + signal); }

// One of `set`, which is blocked; at most for `limit`.
void wait_for(const sigset_t& set, Nanos limit) {
  const TimePoint end = real_clock().now() + limit;
  for (Nanos left = limit; left > Nanos{0}; left = end - real_clock().now()) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec span{static_cast<std::time_t>(seconds.count()), static_cast<long>((left - seconds).count())};
    if (::sigtimedwait(&set, nullptr, &span) > 0) return;  // else it is over, or a handler ran in between
  }
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = stop_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

bool StopSignals::is_pending() const {
  sigset_t pending;
  if (sigpending(&pending) != 0) return false;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&pending, signal) == 1) return true;
  }
  return false;
}

int StopSignals::wait(Nanos delay, const std::function<void()>& begun) {
  const sigset_t set = stop_set();
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {}
  if (begun) begun();
  if (!is_woken_.load(std::memory_order_relaxed)) wait_for(set, delay);
  if (::getpid() == 1) {  // the first process of a container: the kernel drops what it has no handler for
    for (const int second : {SIGINT, SIGTERM, SIGHUP}) {
      if (sigismember(&set, second) == 1) std::signal(second, end_at_once);
    }
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return signal;
}

void StopSignals::wake() {
  is_woken_.store(true, std::memory_order_relaxed);
  ::kill(::getpid(), SIGTERM);
}

void end_process(int exit_code) { ::_exit(exit_code); }

StartWatch::StartWatch(Nanos grace) {
  const sigset_t set = stop_set();
  watch_.emplace(set, grace, [set] {
    finish_log();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      if (sigismember(&set, signal) == 1) std::signal(signal, SIG_DFL);
    }
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);  // the one that is pending ends the process
    ::_exit(128 + SIGTERM);                       // but for the first one of a container, where the kernel drops it
  });
}

}  // namespace larder
