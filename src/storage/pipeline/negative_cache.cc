// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/negative_cache.h"

#include <algorithm>
#include <cstring>

#include "base/defect.h"

namespace larder {

Checksum128 NegativeCache::id_of(const StoreScope& scope, PoolName pool, const PageKey& key) {
  std::array<std::byte, 3 * 32 + 1> bytes;
  std::memcpy(bytes.data(), scope.namespace_digest.bytes.data(), 32);
  std::memcpy(bytes.data() + 32, scope.fingerprint(pool).bytes.data(), 32);
  std::memcpy(bytes.data() + 64, key.bytes.data(), 32);
  bytes[96] = static_cast<std::byte>(pool);
  const Segment whole{bytes.data(), bytes.size()};
  return payload_checksum({&whole, 1});
}

void NegativeCache::add(const StoreScope& scope, PoolName pool, const PageKey& key, std::uint64_t stamp, TimePoint now,
                        bool is_failure) {
  if (!is_enabled()) return;
  const Checksum128 id = id_of(scope, pool, key);
  LockGuard guard(mutex_);
  drop_expired(now);
  if (last_write_[id.high % kWriteStamps] > stamp) return;
  if (const auto at = by_id_.find(id); at != by_id_.end()) {
    Entry& entry = *at->second;
    if (!entry.is_on_trial) return;
    entry.is_on_trial = false;
    entry.is_failure = entry.is_lasting = is_failure;
    renew(at->second, now);
    return set_masked(size() + 1);
  }
  if (entries_.size() >= limit_) drop_oldest();
  entries_.push_back({id, scope.namespace_digest.prefix64(), now + ttl_, is_failure});
  by_id_.emplace(id, std::prev(entries_.end()));
  set_masked(size() + 1);
}

void NegativeCache::remove(const StoreScope& scope, PoolName pool, const PageKey& key, TimePoint now) {
  if (!is_enabled() || defect(Defect::kNegativeForever)) return;
  const Checksum128 id = id_of(scope, pool, key);
  LockGuard guard(mutex_);
  last_write_[id.high % kWriteStamps] = writes_.fetch_add(1, std::memory_order_acq_rel) + 1;
  drop_expired(now);
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->is_on_trial || at->second->is_lasting) return;
  if (!at->second->is_failure) return erase(at->second);
  at->second->is_on_trial = true;
  renew(at->second, now);
  set_masked(size() - 1);
}

void NegativeCache::clear(const StoreScope* scope) {
  LockGuard guard(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (scope == nullptr || entry->namespace_prefix == scope->namespace_digest.prefix64()) {
      erase(entry);
    }
    entry = next;
  }
}

std::size_t NegativeCache::mask(const StoreScope& scope, std::span<const PageKey> keys,
                                std::vector<PoolPresence>& presence, TimePoint now) {
  if (size() == 0) return 0;
  struct Candidate {
    Checksum128 id;
    std::size_t pool, page;
  };
  std::vector<Candidate> candidates;
  for (std::size_t pool = 0; pool < presence.size(); ++pool) {
    const std::size_t pages = std::min(keys.size(), presence[pool].present.size());
    for (std::size_t page = 0; page < pages; ++page) {
      if (!presence[pool].present[page]) continue;
      candidates.push_back({id_of(scope, presence[pool].pool, keys[page]), pool, page});
    }
  }
  std::size_t masked = 0;
  LockGuard guard(mutex_);
  drop_expired(now);
  for (const Candidate& candidate : candidates) {
    const auto at = by_id_.find(candidate.id);
    if (at == by_id_.end() || at->second->is_on_trial) continue;
    presence[candidate.pool].present[candidate.page] = false;
    ++masked;
  }
  hits_.fetch_add(masked, std::memory_order_relaxed);
  return masked;
}

void NegativeCache::expire(TimePoint now) {
  LockGuard guard(mutex_);
  drop_expired(now);
}

void NegativeCache::drop_oldest() { erase(entries_.begin()); }

// The youngest from now on.
void NegativeCache::renew(Entries::iterator entry, TimePoint now) {
  entry->expires = now + ttl_;
  entries_.splice(entries_.end(), entries_, entry);
}

void NegativeCache::erase(Entries::iterator entry) {
  if (!entry->is_on_trial) set_masked(size() - 1);
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

void NegativeCache::set_masked(std::size_t masked) { size_.store(masked, std::memory_order_relaxed); }

void NegativeCache::drop_expired(TimePoint now) {
  while (!entries_.empty() && entries_.front().expires <= now) drop_oldest();
}

}  // namespace larder
