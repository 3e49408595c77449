// SPDX-License-Identifier: Apache-2.0
#include "server/auth.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "base/log.h"

namespace larder {
namespace {

// The key behind "Bearer "; empty if there is none.
std::string_view bearer_of(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return {};
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) != kScheme[i]) return {};
  }
  authorization.remove_prefix(kScheme.size());
  while (authorization.starts_with(' ')) authorization.remove_prefix(1);
  return authorization;
}

// Time depends on the length of `given` only.
bool is_equal_in_constant_time(std::string_view given, std::string_view key) {
  unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ key[i % key.size()]);
  }
  return difference == 0;
}

}  // namespace

bool is_bearer_of(std::string_view key, std::string_view authorization) {
  return is_equal_in_constant_time(bearer_of(authorization), key);
}

bool is_authorized(const Options& options, AuthLevel level, std::string_view authorization) {
  std::string_view key;
  if (level == AuthLevel::kNormal) key = options.api_key;
  if (level == AuthLevel::kAdminOptional) key = options.admin_api_key.empty() ? options.api_key : options.admin_api_key;
  return key.empty() || is_bearer_of(key, authorization);
}

bool is_for_loopback_only(const Options& options, AuthLevel level, bool wants_admin_key) {
  if (level != AuthLevel::kAdminOptional || !options.admin_api_key.empty()) return false;
  return wants_admin_key || options.api_key.empty();
}

void log_audit(const HttpRequest& request, unsigned status, std::uint64_t untold) {
  log_line(status < 400 ? LogLevel::kInfo : LogLevel::kWarning, "server/audit",
           fmt::format("{} {} from {}: {} ({}), request {}{}", request.method, request.path,
                       request.peer.empty() ? "an unknown address" : request.peer, status, http_reason(status),
                       request.id, untold == 0 ? "" : fmt::format("; {} more before it have no line", untold)));
}

bool is_loopback_host(std::string_view host) {
  if (host == "localhost" || host == "::1" || host == "[::1]") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

TlsFiles tls_files(const Options& options) {
  TlsFiles files;
  files.certificate = options.ssl_certfile;
  files.key = options.ssl_keyfile;
  files.client_ca = options.ssl_ca_certs;
  return files;
}

Status check_exposure(std::string_view host, bool has_key, bool is_meant) {
  if (has_key || is_meant || is_loopback_host(host)) return Status::ok();
  return invalid_argument(
      fmt::format("--host {} is no loopback address (127.0.0.1, ::1, localhost): other machines may reach it, and "
                  "without a key whoever does uses the model: give --api-key-file FILE (or the variable "
                  "LARDER_API_KEY), stay on 127.0.0.1, or say --allow-no-key",
                  host));
}

}  // namespace larder
