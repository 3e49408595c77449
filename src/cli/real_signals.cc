// SPDX-License-Identifier: Apache-2.0
#include "cli/real_signals.h"

#include <unistd.h>

#include <csignal>

namespace larder {
namespace {

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = stop_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

bool StopSignals::is_pending() const {
  sigset_t pending;
  return sigpending(&pending) == 0 && (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1);
}

int StopSignals::wait() {
  const sigset_t set = stop_set();
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {}
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return signal;
}

void StopSignals::wake() { ::kill(::getpid(), SIGTERM); }

}  // namespace larder
