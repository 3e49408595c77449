// SPDX-License-Identifier: Apache-2.0
#include "server/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/percent.h"

namespace larder {
namespace {

Status parse_query(std::string_view text, std::map<std::string, std::string>& out) {
  while (!text.empty()) {
    const std::size_t end = text.find('&');
    const std::string_view pair = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    const auto name = percent_decode(pair.substr(0, equals), true);
    const auto value =
        percent_decode(equals == std::string_view::npos ? std::string_view{} : pair.substr(equals + 1), true);
    if (!name || !value) return invalid_argument("the query has a '%' without two hex digits");
    out[*name] = *value;
  }
  return Status::ok();
}

// "name:80" -> "name", "[::1]:80" -> "[::1]".
std::string_view without_port(std::string_view authority) {
  const std::size_t colon = authority.rfind(':');
  const std::size_t bracket = authority.rfind(']');
  const bool has_port = colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  return has_port ? authority.substr(0, colon) : authority;
}

// An address, or a name that no other machine can have. Not 0.0.0.0 and [::], which lead here too: browsers have let
// pages of other sites ask them.
bool is_own_name(std::string_view host) {
  const std::string_view last = host.substr(host.rfind('.') + 1);  // all of it, without a dot
  if (is_same_field_name(last, "localhost")) return true;
  if (host.find_first_not_of("[:0.]") == std::string_view::npos) return false;
  return host.starts_with('[') || host.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool has_field(const HttpResponse& answer, std::string_view name) {
  return std::any_of(answer.headers.begin(), answer.headers.end(),
                     [&](const auto& header) { return is_same_field_name(header.first, name); });
}

}  // namespace

HttpResponse json_response(std::string body, unsigned status) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

HttpResponse text_response(unsigned status, std::string_view text) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::string(text);
  return response;
}

bool is_from_web_page(std::span<const HttpField> fields) {
  const std::string* const site = find_field(fields, "Sec-Fetch-Site");
  if (site && *site != "same-origin" && *site != "none") return true;
  const std::string* const host = find_field(fields, "Host");
  if (host && !is_own_name(without_port(*host))) return true;
  const std::string* const origin = find_field(fields, "Origin");
  if (!origin) return false;
  const std::size_t scheme = origin->find("://");
  return !host || scheme == std::string::npos ||
         !is_same_field_name(std::string_view(*origin).substr(scheme + 3), *host);
}

bool is_forwarded(std::span<const HttpField> fields) {
  for (const char* name : {"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"}) {
    if (find_field(fields, name)) return true;
  }
  return false;
}

bool is_request_id(std::string_view text) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
  return !text.empty() && text.size() <= 128 && text.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::string_view http_reason(unsigned status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 301: return "Moved Permanently";
    case 302: return "Found";
    case 303: return "See Other";
    case 304: return "Not Modified";
    case 307: return "Temporary Redirect";
    case 308: return "Permanent Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 406: return "Not Acceptable";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 412: return "Precondition Failed";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 416: return "Range Not Satisfiable";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Entity";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Status";
  }
}

bool is_bodyless_status(unsigned status) { return status == 204 || status == 304; }

std::string http_head_text(const HttpResponse& answer, bool keep_alive, std::string_view id) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", answer.status, http_reason(answer.status));
  if (!has_field(answer, "server")) text += "Server: larder\r\n";
  text += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  const bool has_type = !answer.content_type.empty() && !is_bodyless_status(answer.status);
  if (has_type) text += fmt::format("Content-Type: {}\r\n", answer.content_type);
  if (!id.empty() && !has_field(answer, "x-request-id")) text += fmt::format("X-Request-Id: {}\r\n", id);
  for (const auto& [name, value] : answer.headers) text += fmt::format("{}: {}\r\n", name, value);
  return text;
}

std::string http_answer_text(const HttpResponse& answer, bool keep_alive, std::string_view id, bool is_head) {
  std::string text = http_head_text(answer, keep_alive, id);
  const bool has_body = !is_bodyless_status(answer.status);  // otherwise it has no length either (RFC 9110)
  if (has_body) text += fmt::format("Content-Length: {}\r\n", answer.body.size());
  text += "\r\n";
  if (has_body && !is_head) text += answer.body;
  return text;
}

HttpResponse passed_head(unsigned status, std::vector<HttpField> fields) {
  HttpResponse head;
  head.status = status;
  const std::string* content_type = find_field(fields, "content-type");
  head.content_type = content_type ? *content_type : std::string{};
  remove_hop_by_hop(fields);
  remove_field(fields, "content-type");
  remove_field(fields, "content-length");
  for (HttpField& field : fields) head.headers.emplace_back(std::move(field.name), std::move(field.value));
  return head;
}

std::string origin_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!is_same_field_name(target.substr(0, scheme.size()), scheme)) continue;
    const std::size_t path = target.find_first_of("/?#", scheme.size());
    if (path == std::string_view::npos) return "/";
    return (target[path] == '/' ? "" : "/") + std::string(target.substr(path));
  }
  return std::string(target);
}

Status parse_target(std::string_view target, HttpRequest& out) {
  if (target.empty() || target.front() != '/') return invalid_argument("the request target must begin with '/'");
  // Servers behind us would cut it off, and take the path for another one.
  if (target.find('#') != std::string_view::npos) return invalid_argument("a request target has no '#'");
  const std::size_t question = target.find('?');
  const auto path = percent_decode(target.substr(0, question));
  if (!path) return invalid_argument("the path has a '%' without two hex digits");
  out.path = *path;
  if (question == std::string_view::npos) return Status::ok();
  return parse_query(target.substr(question + 1), out.query);
}

Result<double> query_number(const HttpRequest& request, const std::string& name, double fallback, double most) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return fallback;
  const std::string& text = found->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc{} && end == text.data() + text.size() && std::isfinite(value);
  if (!is_number || value < 0 || value > most) {
    return invalid_argument(
        fmt::format("query parameter '{}' must be a number in [0, {}], got '{}'", name, most, text));
  }
  return value;
}

}  // namespace larder
