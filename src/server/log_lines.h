// SPDX-License-Identifier: Apache-2.0
// Lines of a server's log: with their time, for people or as JSON for machines.
//
//   2026-11-26T08:15:30.042Z info server/audit: POST /flush_cache from 127.0.0.1: 200 (OK), request 5d0c7a11-7
//   {"time":"2026-11-26T08:15:30.042Z","level":"info","component":"server/audit","message":"POST /flush_cache ..."}
//
// One line for each message, whatever it holds: what a request or a disk can put into a message begins no line of its
// own. Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/log.h"

namespace larder {

enum class LogFormat : unsigned char { kText, kJson };

// Milliseconds since 1970, UTC. Control characters and what is not UTF-8 become escapes. Ends with a newline.
[[nodiscard]] std::string log_line_text(LogFormat format, std::int64_t unix_milliseconds, LogLevel level,
                                        std::string_view component, std::string_view message);

}  // namespace larder
