// SPDX-License-Identifier: Apache-2.0
// One answer for all who ask the same thing: a thread of its own makes it, once for everybody who asked before.
//
// Purpose: a question that may wait, and that many may ask at once, takes one thread and nobody else's.
// Threads: ask() any. The destructor waits for the answer that is being made; who asked since gets none.
// Limits: as many exchanges as the listener has connections.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "server/http_listener.h"

namespace larder {

class SharedAnswer {
 public:
  using Make = std::function<HttpResponse()>;  // may wait; what it throws is a 500

  SharedAnswer(std::string thread_name, Make make);

  // Never an answer whose making had begun before.
  void ask(std::shared_ptr<HttpExchange> exchange) LARDER_EXCLUDES(mutex_);

 private:
  void answer_all() LARDER_EXCLUDES(mutex_);

  const Make make_;
  RankedMutex mutex_{LockRank::kServer};
  std::vector<std::shared_ptr<HttpExchange>> asking_ LARDER_GUARDED_BY(mutex_);
  ThreadPoolExecutor thread_;  // last: it uses the rest
};

}  // namespace larder
