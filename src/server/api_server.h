// SPDX-License-Identifier: Apache-2.0
// The HTTP surface: the reference system's routes, and a few of our own, over a Scheduler.
//
// Purpose: parses, authorizes, routes, and answers. No state of its own but counters; everything it says comes from the
// scheduler. Routes and bodies: docs/ARCHITECTURE.md ("HTTP"), errors: docs/errors.md.
// Threads: requests arrive on the listener's I/O threads; what blocks (flush, quiesce, stats, explain) runs on a small
// executor of its own, and /server_info on a thread of its own. create() and all steps of a stop, the destructor
// included, from one thread. Lifetime: scheduler, clock and metrics outlive it. The destructor ends open requests and
// joins its threads: who waits for the scheduler ends within a second (Scheduler::end_waits()), an attach once its
// backend is open or was tried out, a detach once its backend is closed (a minute). A store that hangs in its opening
// or its close keeps the destructor for as long: who must not wait calls end() first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/metrics.h"
#include "base/status.h"
#include "engine/scheduler.h"
#include "server/http_listener.h"
#include "server/trace/trace_recorder.h"

namespace larder {

struct ApiParts {
  Scheduler* scheduler = nullptr;
  Clock* clock = nullptr;
  MetricsRegistry* metrics = nullptr;
  // Host, port, connections and, if it has any, files of TLS are taken from the scheduler's options.
  ListenOptions listen;
  TraceRecorder* trace = nullptr;  // told of every prompt; outlives end()
};

class ApiServer {
 public:
  // Listens from now on. Errors: as HttpListener::create.
  [[nodiscard]] static Result<std::unique_ptr<ApiServer>> create(const ApiParts& parts);
  virtual ~ApiServer() = default;

  [[nodiscard]] virtual std::uint16_t port() const = 0;
  [[nodiscard]] virtual std::string url() const = 0;  // "http://127.0.0.1:30000"
  // Before an orderly stop: /health and /health_generate answer 503 from now on, and all else goes on.
  virtual void announce_stop() = 0;
  // First step of an orderly stop; open requests go on, but for a flush or quiesce that waits.
  virtual void stop_accepting() = 0;
  // Waits until no connection is left; false if `limit` ended first.
  virtual bool wait_drained(Nanos limit) = 0;
  // Ends open completions: streams by an event with an error, the others by 503. Returns at once; who reads is drained.
  virtual void cut_off() = 0;
  // Last step: no connection, port or handler is left, and who waits for the scheduler waits no more. kDeadlineExceeded
  // names the calls that have not come back within `limit`: they use the scheduler still. Afterwards end(), which waits
  // anew, and the destructor are all that may be called.
  [[nodiscard]] virtual Status end(Nanos limit) = 0;
};

}  // namespace larder
