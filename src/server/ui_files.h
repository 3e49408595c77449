// SPDX-License-Identifier: Apache-2.0
// The operator's page: files that are part of the program. See src/server/ui.
//
// The page asks the server's own routes (/server_info, /recent_requests, /explain, /hicache/storage-backend), with the
// keys that its reader enters; it loads nothing from elsewhere, and its Content-Security-Policy says so.
// Threads: pure.
#pragma once

#include <optional>
#include <string_view>

#include "server/http_message.h"

namespace larder {

// "/ui", "/ui/app.js", "/ui/style.css". nullopt: no such file.
[[nodiscard]] std::optional<HttpResponse> ui_file(std::string_view path);

}  // namespace larder
