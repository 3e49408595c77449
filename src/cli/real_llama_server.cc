// SPDX-License-Identifier: Apache-2.0
#include "cli/real_llama_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "base/clock.h"
#include "base/log.h"
#include "server/llama/llama_command.h"

namespace larder {

using llama::has_option;

namespace {

constexpr Nanos kLook = std::chrono::seconds(1);  // one wait for its end; then a stop is looked for
constexpr Nanos kKillAfter = std::chrono::seconds(20);
constexpr Nanos kSoon = std::chrono::seconds(10);  // a life shorter than this is a failed start
constexpr Nanos kPause = std::chrono::seconds(1);  // before it is started again
constexpr int kMostFailedStarts = 5;
constexpr int kNotExecutable = 126, kNoProgram = 127;  // exit codes of the shell; 127 is the dynamic linker's, too
}  // namespace

LlamaServerProcess::LlamaServerProcess(std::function<void()> given_up)
    : given_up_(std::move(given_up)), thread_("llama-server", 1, 1) {}

LlamaServerProcess::~LlamaServerProcess() { stop(); }

Status LlamaServerProcess::start(const std::vector<std::string>& command, const std::string& slot_directory) {
  LARDER_ASSIGN_OR_RETURN(port_, free_loopback_port());
  LARDER_ASSIGN_OR_RETURN(const std::vector<std::string> ours, llama::proxied_command(command, port_, slot_directory));
  if (has_option(command, "--cache-ram") || has_option(command, "-cram")) {
    log_info("proxy", "--cache-ram behind -- does not count: it is 0, as the proxy keeps the prompts");
  }
  program_ = command.front();
  arguments_ = {"/bin/sh", "-c", kOutputToErrors, program_};
  arguments_.insert(arguments_.end(), ours.begin(), ours.end());
  LARDER_RETURN_IF_ERROR(start_once());
  return thread_.post([this] { watch(); });
}

Status LlamaServerProcess::check_start() const {
  const int code = early_end_.load();
  if (code == kNone) return Status::ok();
  if (code == kNoProgram || code == kNotExecutable) {
    return invalid_argument(fmt::format(
        "{} behind --: {}", program_,
        code == kNoProgram ? "it, or a library that it needs, is not there: give its path" : "it cannot be executed"));
  }
  return unavailable(fmt::format("llama-server ended before it served (exit code {}): start it alone, and look", code));
}

std::string LlamaServerProcess::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

Status LlamaServerProcess::start_once() {
  starts_.fetch_add(1);
  return child_.start(arguments_, {});
}

void LlamaServerProcess::watch() {
  int failed_starts = 0;
  TimePoint begun = real_clock().now();
  while (!is_stopping_.load()) {
    const Result<std::string> line = child_.read_line(kLook);
    if (line.is_ok() || line.status().code() == StatusCode::kDeadlineExceeded) continue;
    if (is_stopping_.load()) return;
    const int code = child_.stop(kKillAfter).value_or(128 + SIGKILL);  // an error: it had to be killed
    failed_starts = real_clock().now() - begun < kSoon ? failed_starts + 1 : 0;
    log_error("proxy", fmt::format("llama-server has ended (exit code {})", code));
    if (!has_served_.load()) return early_end_.store(code);
    if (failed_starts >= kMostFailedStarts) {
      log_error("proxy", "llama-server is not started again: it ended several times in a row");
      has_given_up_.store(true);
      return given_up_();
    }
    {
      LockGuard guard(mutex_);
      if (!is_stopping_.load()) stopped_.wait_for(mutex_, kPause * failed_starts);
    }
    if (is_stopping_.load()) return;
    begun = real_clock().now();
    const Status started = start_once();
    if (!started.is_ok()) log_error("proxy", "llama-server was not started again: " + started.message());
  }
}

void LlamaServerProcess::stop() {
  if (is_stopping_.exchange(true)) return;
  {
    LockGuard guard(mutex_);
    stopped_.notify_all();
  }
  child_.terminate_now();
  thread_.wait_idle();
  if (child_.is_running()) (void)child_.stop(kKillAfter);
}

}  // namespace larder
