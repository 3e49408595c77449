// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <utility>

#include "base/ranked_mutex.h"

namespace larder {
namespace {

std::atomic<LogLevel> minimum_level{LogLevel::kInfo};  // relaxed: a late change of level is harmless

struct SinkHolder {
  RankedMutex mutex{LockRank::kLog};
  LogSink sink LARDER_GUARDED_BY(mutex);
};

// Never destroyed: other static objects may log while the process ends.
SinkHolder& sink_holder() {
  static auto* holder = new SinkHolder;
  return *holder;
}

void write_to_stderr(LogLevel level, std::string_view component, std::string_view message) {
  const std::string_view name = log_level_name(level);
  std::fprintf(stderr, "%.*s %.*s: %.*s\n", static_cast<int>(name.size()), name.data(),
               static_cast<int>(component.size()), component.data(), static_cast<int>(message.size()), message.data());
}

}  // namespace

std::string_view log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
    case LogLevel::kOff: return "off";
  }
  return "unknown";
}

void set_log_sink(LogSink sink) {
  SinkHolder& holder = sink_holder();
  LockGuard guard(holder.mutex);
  std::swap(holder.sink, sink);
}

void set_log_level(LogLevel level) { minimum_level.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) {
  return level != LogLevel::kOff && level >= minimum_level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view component, std::string_view message) {
  if (!log_enabled(level)) return;
  SinkHolder& holder = sink_holder();
  LockGuard guard(holder.mutex);
  if (!holder.sink) {
    write_to_stderr(level, component, message);
    return;
  }
  try {
    holder.sink(level, component, message);
  } catch (...) {  // by contract
  }
}

}  // namespace larder
