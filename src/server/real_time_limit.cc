// SPDX-License-Identifier: Apache-2.0
#include "server/real_time_limit.h"

#include <utility>

namespace larder {

TimeLimit::TimeLimit(Nanos limit, std::function<void()> over)
    : limit_(limit), over_(std::move(over)), thread_([this] { run(); }) {}

TimeLimit::~TimeLimit() {
  {
    const std::lock_guard guard(mutex_);
    has_ended_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void TimeLimit::run() {
  {
    std::unique_lock lock(mutex_);
    if (ended_.wait_for(lock, limit_, [this] { return has_ended_; })) return;
  }
  over_();
}

}  // namespace larder
