// SPDX-License-Identifier: Apache-2.0
#include "door/real_event_bell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace larder {

EventBell::~EventBell() {
  if (const int event = event_.load(); event >= 0) ::close(event);
}

// What arrived before has rung nothing: the descriptor is readable from the start.
Result<int> EventBell::descriptor() {
  if (const int event = event_.load(); event >= 0) return event;
  const int event = ::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) {
    return overloaded("eventfd: " + std::generic_category().message(errno) + ": a limit of open files (ulimit -n)?");
  }
  event_.store(event);
  return event;
}

void EventBell::ring() noexcept {
  const std::uint64_t one = 1;
  if (const int event = event_.load(); event >= 0) (void)!::write(event, &one, sizeof one);  // full: it is readable
}

void EventBell::silence() noexcept {
  std::uint64_t count = 0;
  if (const int event = event_.load(); event >= 0) (void)!::read(event, &count, sizeof count);
}

}  // namespace larder
