// SPDX-License-Identifier: Apache-2.0
// Pages that a backend claims to have and could not deliver: masked as absent for a while.
//
// Purpose: without it, a page that exists() promises and read() does not return sends the same request into the same
// hole again and again, each time after a wait.
// What it remembers: any page whose read came back missing, corrupt or failed, whether or not an exists() had been
// asked; a page that is written again counts as present again. But where the backend failed, it may hold the page all
// the same, and take the write for one of what it has: such a page gets one try. If it cannot be read after that
// either, writes of it change nothing until the ttl is over. Masking is always safe: the page is computed instead.
// Threads: any. Takes rank kStorage, never calls out.
// Limits: `limit` entries of about 100 bytes, those on trial included; when full the oldest leaves. A ttl or limit of
// zero turns it off.
// Cost: ~0.1 us per page looked up or changed; an exists() costs nothing while the table is empty.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "storage/backend.h"
#include "storage/envelope.h"

namespace larder {

class NegativeCache {
 public:
  NegativeCache(Nanos ttl, std::size_t limit) : ttl_(ttl), limit_(limit) {}

  [[nodiscard]] bool is_enabled() const { return ttl_ > Nanos(0) && limit_ > 0; }
  // Taken when a read begins and given to add(): a page written since then is not added.
  [[nodiscard]] std::uint64_t stamp() const { return writes_.load(std::memory_order_acquire); }
  // `is_failure`: the backend failed; else it said what it knows of the page (missing, corrupt).
  void add(const StoreScope& scope, PoolName pool, const PageKey& key, std::uint64_t stamp, TimePoint now,
           bool is_failure);
  // The page was written.
  void remove(const StoreScope& scope, PoolName pool, const PageKey& key, TimePoint now);
  // Drops the entries of a scope's namespace; null: all.
  void clear(const StoreScope* scope);
  // Drops what is older than the ttl; add() and mask() do that, too.
  void expire(TimePoint now);
  // Turns `present` into absent for what is in the table. keys[i] <-> present[i] of each pool. How many it turned.
  std::size_t mask(const StoreScope& scope, std::span<const PageKey> keys, std::vector<PoolPresence>& presence,
                   TimePoint now);
  // Pages that mask() turned, ever.
  [[nodiscard]] std::uint64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  // Pages that are masked now.
  [[nodiscard]] std::size_t size() const { return size_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    Checksum128 id;
    std::uint64_t namespace_prefix = 0;
    TimePoint expires;
    bool is_failure = false;   // as add() was told
    bool is_on_trial = false;  // written since: not masked, and if it fails again, then whatever is written
    bool is_lasting = false;   // has failed so
  };
  using Entries = std::list<Entry>;  // oldest first, which is also the order of expiry
  struct IdHash {
    std::size_t operator()(const Checksum128& id) const noexcept { return id.low; }
  };
  static constexpr std::size_t kWriteStamps = 1024;

  // A digest of the page's whole identity. Two pages that met in it would only be masked together.
  [[nodiscard]] static Checksum128 id_of(const StoreScope& scope, PoolName pool, const PageKey& key);
  void drop_oldest() LARDER_REQUIRES(mutex_);
  void drop_expired(TimePoint now) LARDER_REQUIRES(mutex_);
  void renew(Entries::iterator entry, TimePoint now) LARDER_REQUIRES(mutex_);
  void erase(Entries::iterator entry) LARDER_REQUIRES(mutex_);
  void set_masked(std::size_t masked) LARDER_REQUIRES(mutex_);

  const Nanos ttl_;
  const std::size_t limit_;
  std::atomic<std::uint64_t> writes_{0};  // pages written; changed under mutex_
  std::atomic<std::uint64_t> hits_{0};
  std::atomic<std::size_t> size_{0};  // entries that mask; changed under mutex_, read without it as a shortcut

  mutable RankedMutex mutex_{LockRank::kStorage};
  Entries entries_ LARDER_GUARDED_BY(mutex_);
  std::unordered_map<Checksum128, Entries::iterator, IdHash> by_id_ LARDER_GUARDED_BY(mutex_);
  // writes_ at the last write of any page that falls into the bucket: coarse, but never too small.
  std::array<std::uint64_t, kWriteStamps> last_write_ LARDER_GUARDED_BY(mutex_){};
};

}  // namespace larder
