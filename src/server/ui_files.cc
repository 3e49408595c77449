// SPDX-License-Identifier: Apache-2.0
#include "server/ui_files.h"

#include <larder_ui_text.h>  // kUiIndex, kUiScript, kUiStyle: src/server/ui, made into text by CMake

#include <string>

namespace larder {
namespace {

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

HttpResponse file_response(std::string_view type, std::string_view text) {
  HttpResponse response;
  response.content_type = std::string(type);
  response.body = std::string(text);
  response.headers = {{"Content-Security-Policy", std::string(kPolicy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}};
  return response;
}

}  // namespace

std::optional<HttpResponse> ui_file(std::string_view path) {
  if (path == "/ui") return file_response("text/html; charset=utf-8", kUiIndex);
  if (path == "/ui/app.js") return file_response("text/javascript; charset=utf-8", kUiScript);
  if (path == "/ui/style.css") return file_response("text/css; charset=utf-8", kUiStyle);
  return std::nullopt;
}

}  // namespace larder
