// SPDX-License-Identifier: Apache-2.0
#include "cli/real_interval.h"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

namespace larder {
namespace {

sigset_t end_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Interval::Interval(std::function<void()> stop) {
  const sigset_t set = end_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  if (stop) watch_.emplace(set, Nanos{0}, std::move(stop));
}

bool Interval::is_over() const {
  sigset_t pending;
  if (sigpending(&pending) != 0) return false;
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

bool Interval::wait(Nanos duration) {
  const sigset_t set = end_set();
  const TimePoint end = real_clock().now() + duration;
  for (;;) {
    const Nanos left = end - real_clock().now();
    if (left <= Nanos{0}) return true;
    const timespec limit{static_cast<std::time_t>(left.count() / 1'000'000'000),
                         static_cast<long>(left.count() % 1'000'000'000)};
    if (::sigtimedwait(&set, nullptr, &limit) > 0) return false;
    if (errno != EAGAIN && errno != EINTR) return false;
  }
}

}  // namespace larder
