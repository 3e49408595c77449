// SPDX-License-Identifier: Apache-2.0
// The one shape of a failed answer: {"error": {"message", "type", "param", "code"}}. docs/errors.md has the mapping.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http_message.h"

namespace larder {

// The HTTP status that tells an HTTP client the same next step as `code` tells a caller.
[[nodiscard]] unsigned http_status_of(StatusCode code);

// Of a message; the rest is cut. A backstop: it may show pieces of a request, and answers are not counted as bodies
// are.
inline constexpr std::size_t kMostErrorBytes = 4096;

// Of /health, once a stop is announced.
inline constexpr std::string_view kIsStopping =
    "the server is stopping: requests are taken still, but new ones belong elsewhere";

// JSON text of the error object; any bytes in `message` become valid UTF-8.
[[nodiscard]] std::string error_body(unsigned status, std::string_view message, std::string_view param = {});
[[nodiscard]] HttpResponse error_response(unsigned status, std::string_view message, std::string_view param = {});
[[nodiscard]] HttpResponse error_response(const Status& status);

}  // namespace larder
