// SPDX-License-Identifier: Apache-2.0
#include "cli/real_signals.h"

#include <unistd.h>

#include <csignal>

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

int StopSignals::wait() {
  const sigset_t set = stop_set();
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {}
  if (::getpid() == 1) {  // the first process of a container: the kernel drops what it has no handler for
    for (const int second : {SIGINT, SIGTERM, SIGHUP}) {
      if (sigismember(&set, second) == 1) std::signal(second, end_at_once);
    }
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return signal;
}

void StopSignals::wake() { ::kill(::getpid(), SIGTERM); }

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
