// SPDX-License-Identifier: Apache-2.0
// Why a prompt was not reused further: what an answer, the log and the operator's page say of a request (rule 8).
//
// StopReason (model/restore_point.h) says which component ends where. Miss says how that came to be.
// The names are those of the metric larder_misses_total and of all answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/strong.h"
#include "model/pool_spec.h"

namespace larder {

enum class MissReason : std::uint8_t {
  kNone,             // all that may be reused was
  kNeverSeen,        // nothing like it was cached: new tokens follow, or the whole prompt is new
  kDiverged,         // what is cached goes on with other tokens
  kEvicted,          // it was cached, and left `tier` to make room
  kNoCheckpoint,     // full attention's KV is there; no window or state was kept where the next restore point would be
  kOtherNamespace,   // cached under another adapter (or, `is_other_salt`, another tenant's salt)
  kNotFetched,       // storage has it: the gain was below prefetch_threshold, or the host had no room
  kStorageLate,      // storage had not answered, or not brought it, when the wait was over
  kStorageDeclined,  // storage had declined to keep it (its admission policy) before the host let it go
  kStorageDamaged,   // what storage brought failed its checksum
  kStorageFailed,    // storage answered with an error
  kLoadFailed,       // the copy from the host failed, and the request began again without
  kFlushed,          // it was cached, and left `tier` since somebody flushed the cache
};
inline constexpr std::size_t kMissReasons = 13;
[[nodiscard]] std::string_view miss_reason_name(MissReason reason);  // "never_seen"

// Where the last copy was.
enum class LostFrom : std::uint8_t { kDevice, kHost, kStorage };
[[nodiscard]] std::string_view lost_from_name(LostFrom from);  // "device"

struct Miss {
  MissReason reason = MissReason::kNone;
  std::uint64_t at_token = 0;                      // the first that was not reused for this reason
  ComponentKind component = ComponentKind::kFull;  // that is missing there
  LostFrom tier = LostFrom::kDevice;               // is_loss()
  std::optional<Nanos> ago{};                      // the same: how long before; none: too long to be known
  RequestId by{};                                  // the same: whom it made room for; 0: nobody, or not known
  bool is_other_salt = false;                      // kOtherNamespace: of another tenant; not for tenants to know

  // It was cached, and left `tier`.
  [[nodiscard]] bool is_loss() const {
    return reason == MissReason::kEvicted || reason == MissReason::kStorageDeclined || reason == MissReason::kFlushed;
  }
  // What a tenant may know of it: of other tenants nothing.
  [[nodiscard]] Miss for_tenant() const;
};

// "full at token 0 was evicted from host: 12.3 s ago, to make room for request 17". Empty: kNone.
[[nodiscard]] std::string miss_sentence(const Miss& miss);

}  // namespace larder
