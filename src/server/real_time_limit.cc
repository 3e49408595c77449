// SPDX-License-Identifier: Apache-2.0
#include "server/real_time_limit.h"

#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace larder {

TimeLimit::TimeLimit(Nanos limit, std::function<void()> over) : limit_(limit), over_(std::move(over)) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    log_warning("server", std::string("no thread for a limit of time, so there is none: ") + error.what());
  }
}

TimeLimit::~TimeLimit() {
  {
    const std::lock_guard guard(mutex_);
    has_ended_ = true;
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TimeLimit::run() {
  {
    std::unique_lock lock(mutex_);
    if (ended_.wait_for(lock, limit_, [this] { return has_ended_; })) return;
  }
  over_();
}

}  // namespace larder
