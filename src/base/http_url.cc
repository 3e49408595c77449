// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/http_client.h"
#include "base/parse_number.h"

namespace larder {
namespace {

// Reads whom to believe, where the URL needs it.
Status take_trust(HttpUrl& url, bool is_secure, const std::string& ca_file) {
  if (!is_secure) {  // who names authorities believes to be safe
    return ca_file.empty() ? Status::ok() : invalid_argument("certificates of authorities are for https:// URLs only");
  }
  Result<std::shared_ptr<const TlsTrust>> trust = TlsTrust::create(ca_file);
  if (trust.is_ok()) url.trust = std::move(*trust);
  return trust.status();
}

}  // namespace

Result<HttpUrl> parse_http_url(std::string_view text, const std::string& ca_file) {
  // In front of an '@' may stand a key: no error shows it.
  const std::string_view shown = text.substr(text.rfind('@') + 1);  // all of it, if there is no '@'
  std::string_view rest = text;
  const bool is_secure = rest.starts_with("https://");
  if (is_secure || rest.starts_with("http://")) {
    rest.remove_prefix(rest.find("://") + 3);
  } else if (const std::size_t scheme = rest.find("://"); scheme != std::string_view::npos && scheme < rest.find('/')) {
    return invalid_argument(
        fmt::format("'{}': {} is not supported; write http://host:port, or https://", shown, rest.substr(0, scheme)));
  }
  HttpUrl url;
  if (is_secure) url.port = 443;
  const std::size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    url.base = std::string(rest.substr(slash));
    while (!url.base.empty() && url.base.back() == '/') url.base.pop_back();
    rest = rest.substr(0, slash);
  }
  if (rest.find('@') != std::string_view::npos) {
    return invalid_argument(fmt::format("'{}': a host has no '@'; user and key do not belong in front of it", shown));
  }
  const std::size_t colon = rest.rfind(':');
  if (colon != std::string_view::npos && !rest.ends_with(']')) {
    const auto port = parse_number<std::uint16_t>(rest.substr(colon + 1));
    if (!port || *port == 0) return invalid_argument(fmt::format("'{}': the port must be 1..65535", shown));
    url.port = *port;
    rest = rest.substr(0, colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);  // IPv6
  if (rest.empty()) return invalid_argument(fmt::format("'{}': no host; write http://host:port", shown));
  url.host = std::string(rest);
  LARDER_RETURN_IF_ERROR(take_trust(url, is_secure, ca_file));
  return url;
}

}  // namespace larder
