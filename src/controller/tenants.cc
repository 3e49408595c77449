// SPDX-License-Identifier: Apache-2.0
#include "controller/tenants.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "key/sha256.h"

namespace larder {
namespace {

constexpr Nanos kBetweenNotes = std::chrono::milliseconds(100);
constexpr std::array<const char*, kTierCount> kTierNames = {"device", "host"};

std::uint64_t page_bytes(const ModelSpec& model, ComponentKind c) {
  std::uint64_t bytes = 0;
  for (const PoolSpec& pool : model.pools) bytes += pool.component == c ? pool.page_bytes() : 0;
  return bytes;
}

std::uint64_t device_bytes(const ModelSpec& model, const DevicePools& device) {
  std::uint64_t bytes = 0;
  for (const ComponentKind c : kAllComponents) bytes += device.slots(c).capacity() * page_bytes(model, c);
  return bytes;
}

std::uint64_t host_bytes(const HostPools& host) { return host.total().blocks * host.block_bytes(); }

TenantBook::Bounds bounds_in(const TenantBounds& bounds, std::uint64_t tier_bytes, std::uint64_t capacity) {
  TenantBook::Bounds out;
  // 29% of 100 is 29, although 0.29 * 100 is a little less.
  const auto part = [&](const TierShare& share) {
    return static_cast<std::uint64_t>(share_of(share, tier_bytes) * static_cast<double>(capacity) * (1 + 1e-12));
  };
  if (bounds.floor) out.floor = std::min(part(*bounds.floor), capacity);
  if (bounds.ceiling) out.ceiling = std::max(part(*bounds.ceiling), out.floor);
  return out;
}

}  // namespace

Status check_tenant_limits(const TenantLimits& limits, const ModelSpec& model, const DevicePools* device,
                           const HostPools* host) {
  return check_tenant_limits(limits, std::array{device != nullptr ? device_bytes(model, *device) : 0,
                                                host != nullptr ? host_bytes(*host) : 0});
}

Tenants::Tenants(const TenantLimits& limits, const Parts& parts) : limits_(limits), parts_(parts) {
  has_others_ = !TenantLimits{{}, limits_.others}.empty();
  for (const TenantRule& rule : limits_.tenants) {
    ruled_.push_back(parts_.tree.tenants().open(bounds_of(rule.bounds)));
    if (parts_.metrics == nullptr) continue;
    std::array<Gauge*, kTierCount>& gauges = gauges_.emplace_back();
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      gauges[tier] = &parts_.metrics->gauge("larder_tenant_bytes", "Bytes that a tenant with limits holds in a tier.",
                                            {{"tenant", rule.name}, {"tier", kTierNames[tier]}});
    }
  }
}

TenantBook::AllBounds Tenants::bounds_of(const TierBounds& bounds) const {
  TenantBook::AllBounds out{};
  if (parts_.device != nullptr) {
    const std::uint64_t bytes = device_bytes(parts_.model, *parts_.device);
    for (const ComponentKind c : kAllComponents) {
      out[index_of(c)] = bounds_in(bounds[0], bytes, parts_.device->slots(c).capacity());
    }
  }
  if (parts_.host != nullptr) {
    out[TenantBook::kHostBudget] = bounds_in(bounds[1], host_bytes(*parts_.host), parts_.host->total().blocks);
  }
  return out;
}

const TenantRule* Tenants::rule_of(const std::string& salt, TenantId& id) const {
  if (limits_.tenants.empty()) return nullptr;
  const Digest256 hash = sha256(salt);  // once, however many rules name a hash
  const auto fits = [&](const TenantRule& of) {
    return of.by == TenantRule::By::kSaltHash ? of.salt_hash == hash : of.fits(salt);
  };
  const auto rule = std::find_if(limits_.tenants.begin(), limits_.tenants.end(), fits);
  if (rule == limits_.tenants.end()) return nullptr;
  id = ruled_[static_cast<std::size_t>(rule - limits_.tenants.begin())];
  return &*rule;
}

TenantId Tenants::enter(const std::string& salt) {
  TenantId id;
  if (rule_of(salt, id) != nullptr || !has_others_) return id;
  Other& other = others_[salt];
  if (other.spaces++ == 0) other.id = parts_.tree.tenants().open(bounds_of(limits_.others));
  return other.id;
}

void Tenants::leave(const std::string& salt) {
  const auto at = others_.find(salt);
  if (at == others_.end() || --at->second.spaces > 0) return;
  parts_.tree.tenants().close(at->second.id);
  others_.erase(at);
}

bool Tenants::has_floor(TenantId id) const {
  if (id.v == 0) return false;
  for (std::size_t budget = 0; budget < TenantBook::kBudgets; ++budget) {
    if (parts_.tree.tenants().bounds(id, budget).floor > 0) return true;
  }
  return false;
}

std::vector<TenantUse> Tenants::uses() const {
  std::vector<TenantUse> uses;
  for (std::size_t i = 0; i < ruled_.size(); ++i) {
    TenantUse& use = uses.emplace_back(TenantUse{limits_.tenants[i].name});
    for (const ComponentKind c : kAllComponents) {
      const std::uint64_t bytes = page_bytes(parts_.model, c);
      for (const Tier t : {Tier::kDevice, Tier::kHost}) {
        use.bytes[static_cast<std::size_t>(t)] += parts_.tree.tenants().counts(ruled_[i], c, t).held() * bytes;
      }
    }
  }
  return uses;
}

void Tenants::note_uses() {
  if (gauges_.empty()) return;
  const TimePoint now = parts_.clock.now();
  if (noted_ != TimePoint{} && now - noted_ < kBetweenNotes) return;
  noted_ = now;
  const std::vector<TenantUse> now_used = uses();
  for (std::size_t i = 0; i < gauges_.size(); ++i) {
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      gauges_[i][tier]->set(static_cast<double>(now_used[i].bytes[tier]));
    }
  }
}

}  // namespace larder
