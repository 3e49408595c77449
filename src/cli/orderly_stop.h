// SPDX-License-Identifier: Apache-2.0
// How the servers stop: the options, the wait for a signal, and the end of what does not end by itself.
//
// Picture, of a stop:
//   SIGTERM ─► /health says 503 ─► the delay ─► nothing new is taken ─► the wait for open requests ─► storage ─► end
//              └ load balancers send their requests elsewhere           └ what is open then is cut off
//
// Threads: main()'s; leave_behind() any.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "cli/real_signals.h"

namespace CLI {
class App;
}

namespace larder {

inline constexpr Nanos kLastWords = std::chrono::seconds(1);    // for the ends of streams that are cut off
inline constexpr Nanos kCloseLimit = std::chrono::seconds(30);  // for what is in flight then, and the close of storage

inline constexpr std::uint64_t kMostStopSeconds = 3600;

struct StopOptions {
  std::uint32_t wait = 10;  // seconds
  std::uint32_t delay = 0;  // seconds
  [[nodiscard]] Nanos wait_limit() const { return std::chrono::seconds(wait); }
};

// Of a limit, as people are told it.
[[nodiscard]] inline std::int64_t whole_seconds(Nanos limit) {
  return std::chrono::duration_cast<std::chrono::seconds>(limit).count();
}

// --stop-wait and --stop-delay, for commands that keep their own table of options. `options` outlives the parsing.
void add_stop_options(CLI::App& app, StopOptions& options);

// Waits for a signal, tells systemd and people that a stop begins, calls `announce`, which makes /health say so, and
// waits for the delay; a second signal ends that. From then on one ends the process at once. then: what has its time
// after open requests, as people are told: ", storage 60 s".
void wait_for_stop(StopSignals& signals, const StopOptions& options, std::string_view then,
                   const std::function<void()>& announce);

// Ends the process with its threads where they are: what a thread that hangs uses stays its own. To stores that is a
// crash, which they survive. what: "a storage has not closed within 30 s".
[[noreturn]] void leave_behind(const char* component, const std::string& what);

void tell_cut_off(const char* component);
// Stops taking requests, waits for the open ones, and cuts off those that have not ended, for which `server` has
// stop_accepting(), wait_drained() and cut_off(). component: of the log, "proxy".
template <class Server>
void end_open_requests(Server& server, const StopOptions& options, const char* component) {
  server.stop_accepting();
  if (server.wait_drained(options.wait_limit())) return;
  tell_cut_off(component);
  server.cut_off();
  (void)server.wait_drained(kLastWords);
}

}  // namespace larder
