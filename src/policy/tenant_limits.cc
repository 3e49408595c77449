// SPDX-License-Identifier: Apache-2.0
#include "policy/tenant_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "base/parse_number.h"
#include "key/sha256.h"

namespace larder {
namespace {

constexpr std::array<std::string_view, kTierCount> kTierNames = {"device", "host"};
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;

Status wrong_share(std::string_view text) {
  return invalid_argument(
      fmt::format("\"{}\" is no part of a tier; write a share, \"12.5%\", or bytes, \"4GiB\" or \"512MiB\"", text));
}

bool is_name_byte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-_.@/:").find(c) != std::string_view::npos;
}

Status check_bounds(std::string_view whose, std::string_view tier, const TenantBounds& bounds, std::uint64_t bytes) {
  for (const auto& [part, name] : {std::pair{bounds.floor, "floor"}, std::pair{bounds.ceiling, "ceiling"}}) {
    if (!part) continue;
    if (!(part->share >= 0 && part->share <= 1) || part->bytes > kMostBytes) {
      return invalid_argument(
          fmt::format("tenant limits: {}: the {} on the {} must be 0 % to 100 %", whose, name, tier));
    }
  }
  if (!bounds.floor || !bounds.ceiling) return Status::ok();
  const bool are_alike = (bounds.floor->bytes == 0) == (bounds.ceiling->bytes == 0);
  if (!are_alike && bytes == 0) return Status::ok();  // a share beside bytes, of a tier whose size is not known yet
  const std::uint64_t of =
      bytes != 0 ? bytes : std::max<std::uint64_t>({bounds.floor->bytes, bounds.ceiling->bytes, 1});
  if (share_of(*bounds.floor, of) <= share_of(*bounds.ceiling, of)) return Status::ok();
  return invalid_argument(fmt::format("tenant limits: {}: the floor on the {} is above the ceiling", whose, tier));
}

Status check_names(const TenantLimits& limits) {
  if (limits.tenants.size() > TenantLimits::kMostRules) {
    return invalid_argument(fmt::format("tenant limits: {} tenants have limits, which may be {}", limits.tenants.size(),
                                        TenantLimits::kMostRules));
  }
  std::set<std::string_view> names;
  for (const TenantRule& rule : limits.tenants) {
    const bool is_name = !rule.name.empty() && rule.name.size() <= TenantLimits::kLongestName &&
                         std::all_of(rule.name.begin(), rule.name.end(), is_name_byte);
    if (!is_name) {
      return invalid_argument(
          fmt::format("tenant limits: \"{}\" is no name; it may have {} letters, digits and any of -_.@/:",
                      rule.name.substr(0, TenantLimits::kLongestName), TenantLimits::kLongestName));
    }
    if (!names.insert(rule.name).second) {
      return invalid_argument(fmt::format("tenant limits: two tenants have the name {}", rule.name));
    }
  }
  return Status::ok();
}

}  // namespace

Result<TierShare> parse_tier_share(std::string_view text) {
  const std::size_t end = text.find_first_not_of("0123456789.eE+");
  const std::optional<double> number = parse_number<double>(text.substr(0, end));
  std::string_view unit = end == std::string_view::npos ? std::string_view() : text.substr(end);
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  if (!number || !std::isfinite(*number)) return wrong_share(text);
  if (unit == "%") {
    if (*number > 100) return wrong_share(text);
    return TierShare{.share = *number / 100};
  }
  constexpr std::array<std::pair<std::string_view, int>, 5> kUnits = {
      {{"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
  const auto* const known = std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& u) { return u.first == unit; });
  if (known == kUnits.end()) return wrong_share(text);
  const double bytes = std::ldexp(*number, known->second);
  if (bytes > static_cast<double>(kMostBytes)) return wrong_share(text);
  // No bytes are no share; as `bytes`, 0 would say that a share is given.
  return TierShare{.bytes = static_cast<std::uint64_t>(bytes)};
}

bool TenantRule::fits(std::string_view text) const {
  switch (by) {
    case By::kSalt: return text == salt;
    case By::kSaltPrefix: return text.starts_with(salt);
    case By::kSaltHash: return sha256(text) == salt_hash;
  }
  return false;
}

bool TenantLimits::empty() const {
  return tenants.empty() &&
         std::all_of(others.begin(), others.end(), [](const TenantBounds& of) { return !of.floor && !of.ceiling; });
}

double share_of(const TierShare& share, std::uint64_t tier_bytes) {
  if (share.bytes == 0) return share.share;
  if (tier_bytes == 0) return 0;
  return std::min(1.0, static_cast<double>(share.bytes) / static_cast<double>(tier_bytes));
}

Status check_tenant_limits(const TenantLimits& limits, const std::array<std::uint64_t, kTierCount>& tier_bytes) {
  LARDER_RETURN_IF_ERROR(check_names(limits));
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    const std::uint64_t bytes = tier_bytes[tier];
    double floors = 0;
    for (const TenantRule& rule : limits.tenants) {
      LARDER_RETURN_IF_ERROR(check_bounds(rule.name, kTierNames[tier], rule.bounds[tier], bytes));
      const std::optional<TierShare>& floor = rule.bounds[tier].floor;
      if (floor && bytes != 0 && floor->bytes > bytes) {
        return invalid_argument(fmt::format("tenant limits: {}: the floor on the {} is {} bytes, and the tier has {}",
                                            rule.name, kTierNames[tier], floor->bytes, bytes));
      }
      if (floor) floors += share_of(*floor, bytes);
    }
    if (floors > 1 + 1e-9) {
      return invalid_argument(
          fmt::format("tenant limits: the floors on the {} are {:.1f} % of it together; lower some, to 100 % at most",
                      kTierNames[tier], 100 * floors));
    }
    if (limits.others[tier].floor) {
      return invalid_argument(
          "tenant limits: others have no floor, for nobody knows how many they are; give it to "
          "tenants by name");
    }
    LARDER_RETURN_IF_ERROR(check_bounds("others", kTierNames[tier], limits.others[tier], bytes));
  }
  return Status::ok();
}

}  // namespace larder
