// SPDX-License-Identifier: Apache-2.0
#include "metadata/redis_address.h"

#include <optional>
#include <utility>

#include "base/parse_number.h"
#include "base/percent.h"

namespace larder::metadata {
namespace {

constexpr std::string_view kScheme = "redis://", kTlsScheme = "rediss://";

Status bad(std::string_view why) {
  return invalid_argument("a Redis URL is redis://[:password@]host[:port][/database], over TLS rediss://...: " +
                          std::string(why));
}

// In front of the rest of `url`, without the scheme.
Status take_scheme(std::string_view& url, const std::string& ca_file, RedisAddress& address) {
  if (url.starts_with(kTlsScheme)) {
    url.remove_prefix(kTlsScheme.size());
    Result<std::shared_ptr<const TlsTrust>> trust = TlsTrust::create(ca_file);
    if (trust.is_ok()) address.trust = std::move(*trust);
    return trust.status();
  }
  if (!url.starts_with(kScheme)) return bad("it does not begin with redis:// or rediss://");
  url.remove_prefix(kScheme.size());
  return ca_file.empty() ? Status::ok() : bad("certificates of authorities are for rediss:// only");
}

}  // namespace

std::string RedisAddress::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? '[' + host + ']' : host) + ':' + std::to_string(port) + '/' + std::to_string(database);
}

Result<RedisAddress> parse_redis_url(std::string_view url, const std::string& ca_file) {
  RedisAddress address;
  std::string_view rest = url;
  LARDER_RETURN_IF_ERROR(take_scheme(rest, ca_file, address));
  if (const std::size_t at = rest.rfind('@'); at != std::string_view::npos) {
    if (rest[0] != ':') return bad("in front of '@' stands a ':' and the password, no user");
    std::optional<std::string> password = percent_decode(rest.substr(1, at - 1));
    if (!password) return bad("a '%' in the password without two hex digits");
    address.password = std::move(*password);
    rest = rest.substr(at + 1);
  }
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const std::string_view database = rest.substr(slash + 1);
    const auto number = parse_number<std::uint32_t>(database);
    if (!number && !database.empty()) return bad("the database is a number");
    address.database = number.value_or(0);
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  bool has_port = false;
  if (rest.starts_with('[')) {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) return bad("a '[' without ']'");
    address.host = rest.substr(1, end - 1);
    rest = rest.substr(end + 1);
    has_port = rest.starts_with(':');
    if (!rest.empty() && !has_port) return bad("after ']' stands ':' and the port");
    port = has_port ? rest.substr(1) : std::string_view();
  } else {
    const std::size_t colon = rest.find(':');
    has_port = colon != std::string_view::npos;
    address.host = rest.substr(0, colon);
    port = has_port ? rest.substr(colon + 1) : std::string_view();
  }
  if (address.host.empty()) return bad("the host is missing");
  if (address.host.find('\0') != std::string::npos) return bad("a host has no zero bytes");
  if (has_port) {
    const auto number = parse_number<std::uint16_t>(port);
    if (!number || *number == 0) return bad("the port is a number from 1 to 65535");
    address.port = *number;
  }
  return address;
}

}  // namespace larder::metadata
