// SPDX-License-Identifier: Apache-2.0
#include "server/refusal_log.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/log_lines.h"
#include "server/auth.h"

namespace larder {
namespace {

constexpr auto kBetweenLines = std::chrono::seconds(1);

}  // namespace

RefusalLog::~RefusalLog() {
  LogLines lines;
  LockGuard guard(mutex_);
  for (const auto& [status, kind] : kinds_) {
    if (kind.untold == 0) continue;
    lines.warning("server/audit",
                  fmt::format("{} ({}): {} more have no line", status, http_reason(status), kind.untold));
  }
}

void RefusalLog::add(const HttpRequest& request, unsigned status) {
  std::uint64_t untold = 0;
  {
    const TimePoint now = clock_.now();
    LockGuard guard(mutex_);
    Kind& kind = kinds_[status];
    if (kind.told && now < *kind.told + kBetweenLines) {
      ++kind.untold;
      return;
    }
    kind.told = now;
    untold = std::exchange(kind.untold, 0);
  }
  log_audit(request, status, untold);
}

}  // namespace larder
