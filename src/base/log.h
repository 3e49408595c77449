// SPDX-License-Identifier: Apache-2.0
// A minimal log: levelled lines to a sink, stderr by default.
//
// The data path does not log: it counts (base/metrics.h) and returns a Status. Logging is for start, stop, attach,
// detach and broken invariants. Callers format; use log_enabled() to skip costly formatting.
// Threads: all functions, any thread. The sink runs under the log's own lock (rank kLog), one line at a time; it must
// not log. Errors: a sink that throws is ignored.
#pragma once

#include <functional>
#include <string_view>

namespace larder {

enum class LogLevel : unsigned char { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off".
[[nodiscard]] std::string_view log_level_name(LogLevel level);

using LogSink = std::function<void(LogLevel level, std::string_view component, std::string_view message)>;

// Replaces the sink; an empty one restores stderr ("level component: message").
void set_log_sink(LogSink sink);
// Lines under `level` are dropped. kInfo at start.
void set_log_level(LogLevel level);
[[nodiscard]] bool log_enabled(LogLevel level);

// Writes one line. `component` is the folder or backend that speaks ("storage/file").
void log_line(LogLevel level, std::string_view component, std::string_view message);

inline void log_debug(std::string_view component, std::string_view m) { log_line(LogLevel::kDebug, component, m); }
inline void log_info(std::string_view component, std::string_view m) { log_line(LogLevel::kInfo, component, m); }
inline void log_warning(std::string_view component, std::string_view m) { log_line(LogLevel::kWarning, component, m); }
inline void log_error(std::string_view component, std::string_view m) { log_line(LogLevel::kError, component, m); }

}  // namespace larder
