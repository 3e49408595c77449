// SPDX-License-Identifier: Apache-2.0
// Audit lines (server/auth.h) of administrative requests that are refused before anything is done for them: one a
// second for each status. Anybody can send such requests, and the log is for other things, too. The next line of that
// status, or the destructor, says how many had none.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "server/http_message.h"

namespace larder {

class RefusalLog {
 public:
  explicit RefusalLog(const Clock& clock) : clock_(clock) {}
  ~RefusalLog();
  RefusalLog(const RefusalLog&) = delete;
  RefusalLog& operator=(const RefusalLog&) = delete;

  void add(const HttpRequest& request, unsigned status) LARDER_EXCLUDES(mutex_);

 private:
  struct Kind {
    std::optional<TimePoint> told;  // the last line
    std::uint64_t untold = 0;       // since then
  };
  const Clock& clock_;
  RankedMutex mutex_{LockRank::kServer};
  std::map<unsigned, Kind> kinds_ LARDER_GUARDED_BY(mutex_);  // by status: the server's own few
};

}  // namespace larder
