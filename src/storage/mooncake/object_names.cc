// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/object_names.h"

#include <span>

namespace larder::mooncake {
namespace {

constexpr const char* kFirst = "larder1-";  // the number goes up with the envelope's format
constexpr std::size_t kShortBytes = 16;

std::string short_hex(const Digest256& digest) {
  return hex_encode(std::span<const std::uint8_t>(digest.bytes).first(kShortBytes));
}

std::string name_of_namespace(const StoreScope& scope) { return kFirst + short_hex(scope.namespace_digest) + '-'; }

}  // namespace

std::string object_name(const StoreScope& scope, PoolName pool, const PageKey& key) {
  std::string out = name_of_namespace(scope);
  out += pool_name(pool);
  out += '.';
  out += short_hex(scope.fingerprint(pool));
  out += '-';
  out += key.hex();
  return out;
}

std::string pattern_of(const StoreScope* scope) {
  return '^' + (scope == nullptr ? std::string(kFirst) : name_of_namespace(*scope)) + ".*$";
}

std::string group_name(const std::string& anchor_name) { return "group-" + anchor_name; }

}  // namespace larder::mooncake
