// SPDX-License-Identifier: Apache-2.0
#include "cli/real_llama_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/log.h"
#include "engine/text_file.h"

namespace larder {
namespace {

constexpr Nanos kLook = std::chrono::seconds(1);  // one wait for its end; then a stop is looked for
constexpr Nanos kKillAfter = std::chrono::seconds(20);
constexpr Nanos kSoon = std::chrono::seconds(10);  // a life shorter than this is a failed start
constexpr Nanos kPause = std::chrono::seconds(1);  // before it is started again
constexpr int kMostFailedStarts = 5;
constexpr int kNotExecutable = 126, kNoProgram = 127;  // exit codes of the shell; 127 is the dynamic linker's, too
constexpr std::array<std::string_view, 4> kOurs = {"--host", "--port", "--slot-save-path", "--reuse-port"};
constexpr std::array<std::string_view, 6> kNumeric = {"--rope",           "--yarn", "--override-kv",
                                                      "--control-vector", "--lora", "--kv-overrides"};

// llama-server takes these from the environment, too; it has none for LoRA, control vectors and overrides.
constexpr std::array<std::string_view, 2> kNumericVariables = {"LLAMA_ARG_ROPE_", "LLAMA_ARG_YARN_"};
constexpr std::array<std::string_view, 4> kTruths = {"on", "enabled", "true", "1"};  // as llama.cpp reads variables

// As llama.cpp reads it: "--override_kv" is "--override-kv".
std::string option_of(std::string word) {
  if (!word.starts_with("--")) return word;
  const auto end = word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
  std::replace(word.begin(), end, '_', '-');
  return word;
}

// The last value of "--name VALUE" or "--name=VALUE"; empty: there is none.
std::string value_of(const std::vector<std::string>& command, const std::string& name) {
  std::string value;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string option = option_of(command[i]);
    if (option == name && i + 1 < command.size()) value = command[i + 1];
    if (option.starts_with(name + "=")) value = option.substr(name.size() + 1);
  }
  return value;
}

}  // namespace

bool has_option(const std::vector<std::string>& command, std::string_view name) {
  return std::ranges::any_of(command, [&](const std::string& word) {
    const std::string option = option_of(word);
    return option == name || option.starts_with(std::string(name) + "=");
  });
}

std::string numeric_options(const std::vector<std::string>& command) {
  std::string out;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string option = option_of(command[i]);
    if (std::ranges::none_of(kNumeric, [&](std::string_view name) { return option.starts_with(name); })) continue;
    out += option + " ";
    for (++i; i < command.size() && !command[i].starts_with("-"); ++i) out += command[i] + " ";
    --i;
  }
  std::vector<std::string> variables;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (std::ranges::any_of(kNumericVariables, [&](std::string_view name) { return text.starts_with(name); })) {
      variables.emplace_back(text);
    }
  }
  std::ranges::sort(variables);
  for (const std::string& variable : variables) out += variable + " ";
  return out;
}

bool caps_slots(const std::vector<std::string>& command) {
  return has_option(command, "--kv-unified-per-slot") || std::getenv("LLAMA_ARG_KV_UNIFIED_PER_SLOT") != nullptr;
}

bool shifts_context(const std::vector<std::string>& command) {
  const char* const variable = std::getenv("LLAMA_ARG_CONTEXT_SHIFT");
  return has_option(command, "--context-shift") ||
         (variable != nullptr && std::ranges::find(kTruths, std::string_view(variable)) != kTruths.end());
}

Result<std::string> key_of(const std::vector<std::string>& command) {
  std::string keys = value_of(command, "--api-key");
  const std::string path = value_of(command, "--api-key-file");
  if (keys.empty() && !path.empty()) {
    const Result<std::string> text = read_text_file(real_file_system(), path);
    if (!text.is_ok()) return invalid_argument("--api-key-file behind --: " + text.status().message());
    const std::size_t begin = std::min(text->find_first_not_of("\r\n"), text->size());
    return text->substr(begin, text->find_first_of("\r\n", begin) - begin);
  }
  if (const char* const variable = std::getenv("LLAMA_API_KEY"); keys.empty() && variable != nullptr) keys = variable;
  return keys.substr(0, keys.find(','));
}

LlamaServerProcess::LlamaServerProcess() : thread_("llama-server", 1, 1) {}

LlamaServerProcess::~LlamaServerProcess() { stop(); }

Status LlamaServerProcess::start(const std::vector<std::string>& command, const std::string& slot_directory) {
  if (command.empty()) return invalid_argument("no llama-server is named behind --");
  for (const std::string_view option : kOurs) {
    if (!has_option(command, option)) continue;
    return invalid_argument(fmt::format("{} behind --: the proxy gives llama-server its own; leave it out", option));
  }
  const Result<std::uint16_t> port = free_loopback_port();
  if (!port.is_ok()) return port.status();
  port_ = *port;
  arguments_ = {"/bin/sh", "-c", kOutputToErrors};
  program_ = command.front();
  arguments_.push_back(program_);
  arguments_.insert(arguments_.end(), command.begin(), command.end());
  for (const std::string& word : {std::string("--host"), std::string("127.0.0.1"), std::string("--port"),
                                  std::to_string(port_), std::string("--slot-save-path"), slot_directory}) {
    arguments_.push_back(word);
  }
  // Rows that are moved are not those that a prompt gives, and no page may have them; the last value counts.
  arguments_.insert(arguments_.end(), {"--cache-reuse", "0"});
  // What it would keep in memory of prompts the proxy keeps.
  if (!has_option(command, "--cache-ram") && !has_option(command, "-cram")) {
    arguments_.insert(arguments_.end(), {"--cache-ram", "0"});
  }
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

Status LlamaServerProcess::start_once() { return child_.start(arguments_, {}); }

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
      return log_error("proxy", "llama-server is not started again: it ended several times in a row");
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
