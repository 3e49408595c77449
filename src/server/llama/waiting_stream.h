// SPDX-License-Identifier: Apache-2.0
// A stream of server-sent events to which its answer does not come for long, as its prompt is computed before the
// request is sent on: what stands between it and its client would take it for dead.
//
//   nothing for `every` ─► 200 and its head ─► ":" each `every` ─► stop() ─► the events of the answer, or one that says
//                                                                           why there is none
//
// Threads: the pings are written on one of its own. Between the constructor and stop() nobody else writes to the reply.
// Lifetime: reply and clock outlive it. Limits: the clock is looked at ten times a second.
// Cost: a thread for as long as it lives.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "server/http_message.h"
#include "server/reply_stream.h"

namespace larder::llama {

class WaitingStream {
 public:
  WaitingStream(ReplyStream& reply, Clock& clock, Nanos every);
  ~WaitingStream() { (void)stop(); }
  WaitingStream(const WaitingStream&) = delete;
  WaitingStream& operator=(const WaitingStream&) = delete;

  // The head has these fields, too, if it has not been sent.
  void set_fields(const HttpResponse& from) LARDER_EXCLUDES(mutex_);
  // The reply is the caller's again. True: its head has been sent.
  [[nodiscard]] bool stop() LARDER_EXCLUDES(mutex_);

 private:
  void run();
  // False: it is over.
  [[nodiscard]] bool wait() LARDER_EXCLUDES(mutex_);

  ReplyStream& reply_;
  Clock& clock_;
  const Nanos every_;
  RankedMutex mutex_{LockRank::kServer};
  RankedCondition changed_;
  HttpResponse head_ LARDER_GUARDED_BY(mutex_);
  bool is_over_ LARDER_GUARDED_BY(mutex_) = false;
  TimePoint next_;                            // ping; of the thread
  bool is_begun_ = false;                     // of the thread, and after stop() of who called that
  ThreadPoolExecutor thread_{"pings", 1, 1};  // last: it uses the rest
};

// What a stream that has begun ends with, in place of llama-server's answer of `status` and `body`. is_messages: it is
// one of /v1/messages.
[[nodiscard]] std::string error_event(bool is_messages, unsigned status, std::string_view body);

}  // namespace larder::llama
