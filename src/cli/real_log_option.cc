// SPDX-License-Identifier: Apache-2.0
#include "cli/real_log_option.h"

#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "server/command_line.h"
#include "server/log_lines.h"
#include "server/real_log_writer.h"

namespace larder {
namespace {

constexpr auto kEndLimit = std::chrono::seconds(1);
constexpr int kLooks = 100;  // of a signal handler, within kEndLimit

// Made once, and never destroyed: their threads may wait for whoever reads stderr and stdout.
LogWriter* writer = nullptr;
LogWriter* speaker = nullptr;

bool all_is_written() { return writer->is_written() && speaker->is_written(); }

constexpr std::array kFatalSignals = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
using SignalAction = struct sigaction;
std::array<SignalAction, kFatalSignals.size()> actions_before;

// What has gone wrong may stand in the last line. Then the signal comes again, to who had it before: a fault when its
// instruction is tried again. Nothing but time can be waited for in a handler.
void let_log_end(int signal, siginfo_t* info, void*) {
  for (std::size_t i = 0; i < kFatalSignals.size(); ++i) {
    if (kFatalSignals[i] == signal) ::sigaction(signal, &actions_before[i], nullptr);
  }
  for (int look = 0; look < kLooks && !all_is_written(); ++look) {
    (void)::poll(nullptr, 0, static_cast<int>(std::chrono::milliseconds(kEndLimit).count()) / kLooks);
  }
  if (info->si_code <= 0) (void)::raise(signal);  // it was sent: by abort(), or by somebody else
}

void finish_log_at_fatal_signals() {
  SignalAction action{};
  action.sa_sigaction = let_log_end;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kFatalSignals.size(); ++i) {
    ::sigaction(kFatalSignals[i], &action, &actions_before[i]);
  }
}

std::string left_out_text(std::uint64_t lines, const char* where) {
  return std::to_string(lines) + " lines were left out here: whoever reads " + where + " did not keep up";
}

std::string line_of(LogFormat format, LogLevel level, std::string_view component, std::string_view message) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return log_line_text(format, std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count(), level,
                       component, message);
}

Status set_level(const std::string& name) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    if (log_level_name(level) != name) continue;
    set_log_level(level);
    return Status::ok();
  }
  return invalid_argument("--log-level is '" + name + "': it must be debug, info, warning, error or off");
}

}  // namespace

void add_log_options(CLI::App& app, LogOptions& options) {
  app.add_option("--log-level", options.level, "debug, info, warning, error or off")
      ->capture_default_str()
      ->type_name("LEVEL");
  app.add_option("--log-format", options.format, "text, or json: an object a line")
      ->capture_default_str()
      ->type_name("FORMAT");
}

Status set_log_options(const LogOptions& options) {
  LARDER_RETURN_IF_ERROR(set_level(options.level));
  if (options.format != "text" && options.format != "json") {
    return invalid_argument("--log-format is '" + options.format + "': it must be text or json");
  }
  const LogFormat format = options.format == "json" ? LogFormat::kJson : LogFormat::kText;
  std::atexit(finish_log);
  try {
    writer = new LogWriter(STDERR_FILENO, [format](std::uint64_t lines) {
      return line_of(format, LogLevel::kWarning, "log", left_out_text(lines, "stderr"));
    });
    speaker = new LogWriter(STDOUT_FILENO, [](std::uint64_t lines) { return left_out_text(lines, "stdout") + "\n"; });
  } catch (const std::system_error& error) {
    return unavailable(std::string("the log has no thread: ") + error.what());
  }
  set_log_sink([format](LogLevel level, std::string_view component, std::string_view message) {
    writer->add(line_of(format, level, component, message));
  });
  finish_log_at_fatal_signals();
  return Status::ok();
}

int fail_server(const char* command, const Status& status) {
  if (writer == nullptr) return fail_command(command, status);
  writer->add(failure_line(command, status));
  return failure_exit_code(status);
}

void tell_people(std::string lines) { speaker->add(std::move(lines)); }

void finish_log() {
  using Steady = std::chrono::steady_clock;  // real_clock() may be gone by now
  const Steady::time_point end = Steady::now() + kEndLimit;
  for (LogWriter* const one : {writer, speaker}) {
    if (one != nullptr) (void)one->wait_written(std::max<Nanos>(end - Steady::now(), Nanos{0}));
  }
}

}  // namespace larder
