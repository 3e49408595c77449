// SPDX-License-Identifier: Apache-2.0
#include "cli/orderly_stop.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/real_log_option.h"
#include "cli/real_service_notify.h"
#include "server/command_line.h"

namespace larder {

void add_stop_options(CLI::App& app, StopOptions& o) {
  app.add_option("--stop-wait", o.wait, "seconds that open requests have to end at a stop; then they are cut off")
      ->check(whole_number(0, kMostStopSeconds))
      ->capture_default_str()
      ->type_name("SECONDS");
  app.add_option("--stop-delay", o.delay,
                 "seconds of notice before that: /health answers 503 and requests are taken still, so that load "
                 "balancers go elsewhere first")
      ->check(whole_number(0, kMostStopSeconds))
      ->capture_default_str()
      ->type_name("SECONDS");
}

void wait_for_stop(StopSignals& signals, const StopOptions& options, std::string_view then,
                   const std::function<void()>& announce) {
  const bool has_delay = options.delay > 0;
  (void)signals.wait(std::chrono::seconds(options.delay), [&] {
    tell_service_is_stopping();
    announce();
    if (!has_delay) return;
    tell_people(
        fmt::format("stopping in {} s: /health says so, and requests are taken still; a second signal ends this "
                    "delay\n",
                    options.delay));
  });
  tell_people(fmt::format("stopping: open requests have {} s{}; {} signal ends at once\n", options.wait, then,
                          has_delay ? "another" : "a second"));
}

void tell_cut_off(const char* component) { log_warning(component, "open requests were cut off"); }

void leave_behind(const char* component, const std::string& what) {
  log_error(component, what + ": it is left behind as a crash would leave it, which stores survive");
  finish_log();
  end_process(1);
}

}  // namespace larder
