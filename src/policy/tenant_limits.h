// SPDX-License-Identifier: Apache-2.0
// How much of a tier is a tenant's: floors and ceilings, as they are configured. What they mean is in
// tree/tenant_book.h, and for users in docs/eviction.md.
//
// A tenant is whoever brings its salt (BeginRequest::salt), with all adapters. Salts may be secrets: a rule may name
// the SHA-256 of one instead. The first rule that fits a salt is its tenant's; a salt that no rule fits is a tenant of
// its own, under the bounds `others`, also the empty salt of requests that bring none.
//
// Threads: values. Errors: as said. Cost: negligible, at the start.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "pool/tier.h"

namespace larder {

// A part of a tier: of the host's bytes, and of the pages, window pages and states of the device each.
struct TierShare {
  double share = 0;         // 0 to 1
  std::uint64_t bytes = 0;  // not 0: so many instead; on the device that share of all its bytes
};
// "12.5%"; or bytes: "4GiB", "512 MiB" (B, KiB, MiB, GiB, TiB). kInvalidArgument says what may stand there.
[[nodiscard]] Result<TierShare> parse_tier_share(std::string_view text);

struct TenantBounds {
  std::optional<TierShare> floor;    // none: 0
  std::optional<TierShare> ceiling;  // none: all
};
using TierBounds = std::array<TenantBounds, kTierCount>;

struct TenantRule {
  enum class By : std::uint8_t { kSalt, kSaltHash, kSaltPrefix };
  std::string name;  // of the tenant, in metrics and messages
  By by = By::kSalt;
  std::string salt;       // or its beginning
  Digest256 salt_hash{};  // SHA-256 of the salt's bytes, for kSaltHash
  TierBounds bounds{};
  [[nodiscard]] bool fits(std::string_view text) const;
};

struct TenantLimits {
  static constexpr std::size_t kMostRules = 1024, kLongestName = 64;
  std::vector<TenantRule> tenants;
  TierBounds others{};  // of each salt that no rule fits

  // No tenant is told from another.
  [[nodiscard]] bool empty() const;
};

// kInvalidArgument names the tenant: a name that is empty, longer than 64 bytes, there twice, or has other bytes than
// letters, digits and "-_.@/:" (names are labels of metrics); more than 1,024 rules; shares outside 0 to 1; a floor
// above its ceiling; floors of `others`, whose number nobody knows; floors that together exceed a tier.
// tier_bytes: of device and host, where bytes are given; 0: not known, or no such tier, and nothing is checked there.
[[nodiscard]] Status check_tenant_limits(const TenantLimits& limits,
                                         const std::array<std::uint64_t, kTierCount>& tier_bytes);

// Of a tier of so many bytes, in [0, 1].
[[nodiscard]] double share_of(const TierShare& share, std::uint64_t tier_bytes);

}  // namespace larder
