// SPDX-License-Identifier: Apache-2.0
#include "cli/real_signal_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

namespace larder {
namespace {

int poll_again(pollfd* all, nfds_t count, int milliseconds) {
  for (;;) {
    const int ready = ::poll(all, count, milliseconds);
    if (ready >= 0 || errno != EINTR) return ready;
  }
}

}  // namespace

SignalWatch::SignalWatch(const sigset_t& set, Nanos grace, std::function<void()> came)
    : grace_(grace),
      came_(std::move(came)),
      signals_(::signalfd(-1, &set, SFD_CLOEXEC)),
      end_(::eventfd(0, EFD_CLOEXEC)) {
  if (signals_ >= 0 && end_ >= 0) thread_ = std::thread([this] { run(); });
}

SignalWatch::~SignalWatch() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    while (::write(end_, &one, sizeof one) < 0 && errno == EINTR) {}
    thread_.join();
  }
  if (signals_ >= 0) ::close(signals_);
  if (end_ >= 0) ::close(end_);
}

void SignalWatch::run() const {
  pollfd both[] = {{end_, POLLIN, 0}, {signals_, POLLIN, 0}};
  if (poll_again(both, 2, -1) < 0 || both[0].revents != 0) return;
  const auto grace = std::chrono::duration_cast<std::chrono::milliseconds>(grace_).count();
  if (poll_again(both, 1, static_cast<int>(grace)) == 0) came_();
}

}  // namespace larder
