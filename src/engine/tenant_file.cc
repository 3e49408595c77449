// SPDX-License-Identifier: Apache-2.0
#include "engine/tenant_file.h"

#include <fmt/format.h>

#include "engine/text_file.h"

namespace larder {
namespace {

constexpr std::string_view kTenantKeys =
    "name, salt or salt_sha256 or salt_prefix, floor, ceiling, device {floor, ceiling}, host {floor, ceiling}";

Status unknown_key(std::string_view place, std::string_view key, std::string_view known) {
  return invalid_argument(fmt::format("{}: there is no \"{}\" here; known are {}", place, key.substr(0, 60), known));
}

Result<std::string> text_at(const Tree& value, std::string_view place, std::string_view key) {
  if (const auto* text = value.as<std::string>()) return *text;
  return invalid_argument(fmt::format("{}: \"{}\" must be text, as in \"10%\" or \"4GiB\"", place, key));
}

// floor or ceiling; false: it is neither.
Result<bool> read_bound(const TreeEntry& entry, std::string_view place, TenantBounds& out) {
  if (entry.first != "floor" && entry.first != "ceiling") return false;
  LARDER_ASSIGN_OR_RETURN(const std::string text, text_at(entry.second, place, entry.first));
  const Result<TierShare> share = parse_tier_share(text);
  if (!share.is_ok()) return invalid_argument(fmt::format("{}: {}: {}", place, entry.first, share.status().message()));
  (entry.first == "floor" ? out.floor : out.ceiling) = *share;
  return true;
}

Status read_tier(const Tree& tree, const std::string& place, TenantBounds& out) {
  const auto* table = tree.as<Tree::Table>();
  if (table == nullptr) return invalid_argument(place + " must be an object with floor and ceiling");
  for (const TreeEntry& entry : *table) {
    LARDER_ASSIGN_OR_RETURN(const bool is_bound, read_bound(entry, place, out));
    if (!is_bound) return unknown_key(place, entry.first, "floor, ceiling");
  }
  return Status::ok();
}

// floor, ceiling, device, host; false: it is none of them. What a tier says stands above what counts for both.
Result<bool> read_bounds(const TreeEntry& entry, const std::string& place, TenantBounds& both, TierBounds& tiers) {
  const bool is_device = entry.first == "device";
  if (!is_device && entry.first != "host") return read_bound(entry, place, both);
  LARDER_RETURN_IF_ERROR(read_tier(entry.second, place + "." + entry.first, tiers[is_device ? 0 : 1]));
  return true;
}

void fill_in(const TenantBounds& both, TierBounds& tiers) {
  for (TenantBounds& tier : tiers) {
    if (!tier.floor) tier.floor = both.floor;
    if (!tier.ceiling) tier.ceiling = both.ceiling;
  }
}

// salt, salt_sha256, salt_prefix or name; false: it is none of them.
Result<bool> read_identity(const TreeEntry& entry, std::string_view place, TenantRule& rule, int& salts) {
  const bool is_hash = entry.first == "salt_sha256", is_prefix = entry.first == "salt_prefix";
  const bool is_salt = is_hash || is_prefix || entry.first == "salt";
  if (!is_salt && entry.first != "name") return false;
  const auto* text = entry.second.as<std::string>();
  if (text == nullptr) return invalid_argument(fmt::format("{}: \"{}\" must be text", place, entry.first));
  if (!is_salt) {
    rule.name = *text;
    return true;
  }
  ++salts;
  rule.by = is_hash ? TenantRule::By::kSaltHash : is_prefix ? TenantRule::By::kSaltPrefix : TenantRule::By::kSalt;
  if (!is_hash) {
    rule.salt = *text;
    return true;
  }
  const Result<Digest256> hash = Digest256::from_hex(*text);
  if (!hash.is_ok()) {
    return invalid_argument(fmt::format("{}: salt_sha256 must be the 64 hexadecimal digits of SHA-256", place));
  }
  rule.salt_hash = *hash;
  return true;
}

Result<TenantRule> read_rule(const Tree& tree, const std::string& place) {
  const auto* table = tree.as<Tree::Table>();
  if (table == nullptr) return invalid_argument(place + " must be an object with " + std::string(kTenantKeys));
  TenantRule rule;
  TenantBounds both;
  int salts = 0;
  for (const TreeEntry& entry : *table) {
    LARDER_ASSIGN_OR_RETURN(const bool is_identity, read_identity(entry, place, rule, salts));
    if (is_identity) continue;
    LARDER_ASSIGN_OR_RETURN(const bool is_bound, read_bounds(entry, place, both, rule.bounds));
    if (!is_bound) return unknown_key(place, entry.first, kTenantKeys);
  }
  if (salts != 1) {
    return invalid_argument(fmt::format("{} ({}) needs one of salt, salt_sha256 and salt_prefix, and has {}", place,
                                        rule.name.substr(0, TenantLimits::kLongestName), salts));
  }
  fill_in(both, rule.bounds);
  return rule;
}

}  // namespace

Result<TenantLimits> read_tenant_limits(const Tree& tree, std::string_view source) {
  const std::string name(source);
  const auto* table = tree.as<Tree::Table>();
  if (table == nullptr) return invalid_argument(name + " must be an object with tenants and others");
  TenantLimits limits;
  for (const auto& [key, value] : *table) {
    if (key == "tenants") {
      const auto* list = value.as<Tree::List>();
      if (list == nullptr) return invalid_argument(name + ": tenants must be a list");
      for (std::size_t i = 0; i < list->size(); ++i) {
        Result<TenantRule> rule = read_rule((*list)[i], fmt::format("{}: tenants[{}]", name, i));
        if (!rule.is_ok()) return rule.status();
        limits.tenants.push_back(std::move(*rule));
      }
    } else if (key == "others") {
      const auto* bounds = value.as<Tree::Table>();
      if (bounds == nullptr) return invalid_argument(name + ": others must be an object with a ceiling");
      TenantBounds both;
      for (const TreeEntry& entry : *bounds) {
        LARDER_ASSIGN_OR_RETURN(const bool is_bound, read_bounds(entry, name + ": others", both, limits.others));
        if (!is_bound) return unknown_key(name + ": others", entry.first, "ceiling, device, host");
      }
      fill_in(both, limits.others);
    } else {
      return unknown_key(name, key, "tenants, others");
    }
  }
  const Status checked = check_tenant_limits(limits, {});
  if (!checked.is_ok()) return invalid_argument(name + ": " + checked.message());
  return limits;
}

Result<TenantLimits> load_tenant_limits(const std::string& path, FileSystem& files) {
  LARDER_ASSIGN_OR_RETURN(const std::string text, read_text_file(files, path));
  LARDER_ASSIGN_OR_RETURN(const Tree tree, parse_config_text(text, path));
  return read_tenant_limits(tree, path);
}

}  // namespace larder
