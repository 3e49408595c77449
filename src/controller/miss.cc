// SPDX-License-Identifier: Apache-2.0
#include "controller/miss.h"

#include <fmt/format.h>

#include <array>
#include <chrono>

namespace larder {

std::string_view miss_reason_name(MissReason reason) {
  static constexpr std::array<std::string_view, kMissReasons> kNames = {
      "none",        "never_seen",   "diverged",         "evicted",         "no_checkpoint",  "other_namespace",
      "not_fetched", "storage_late", "storage_declined", "storage_damaged", "storage_failed", "load_failed",
      "flushed"};
  return kNames[static_cast<std::size_t>(reason)];
}

std::string_view lost_from_name(LostFrom from) {
  switch (from) {
    case LostFrom::kDevice: return "device";
    case LostFrom::kHost: return "host";
    case LostFrom::kStorage: return "storage";
  }
  return "";
}

Miss Miss::for_tenant() const {
  Miss told = *this;
  if (reason == MissReason::kOtherNamespace && is_other_salt) told = {MissReason::kNeverSeen, at_token, component};
  told.by = {};
  return told;
}

namespace {

std::string time_of_loss(const Miss& miss) {
  if (!miss.ago) return "too long ago to be known";
  std::string text = fmt::format("{:.1f} s ago", std::chrono::duration<double>(*miss.ago).count());
  if (miss.by.v != 0) text += fmt::format(", to make room for request {}", miss.by.v);
  return text;
}

}  // namespace

std::string miss_sentence(const Miss& miss) {
  const std::string_view component = component_name(miss.component);
  switch (miss.reason) {
    case MissReason::kNone: return "";
    case MissReason::kNeverSeen:
      return miss.at_token == 0 ? "no prompt like it is cached"
                                : fmt::format("nothing is cached after token {}", miss.at_token);
    case MissReason::kDiverged:
      return fmt::format("at token {} what is cached goes on with other tokens", miss.at_token);
    case MissReason::kEvicted:
      if (miss.tier == LostFrom::kStorage) {
        return fmt::format("storage has {} at token {} no more, which left the host {}", component, miss.at_token,
                           time_of_loss(miss));
      }
      return fmt::format("{} at token {} was evicted from {}: {}", component, miss.at_token, lost_from_name(miss.tier),
                         time_of_loss(miss));
    case MissReason::kNoCheckpoint:
      return fmt::format("no {} was kept after token {}, so full attention's KV there is of no use",
                         miss.component == ComponentKind::kSwa ? "window" : "recurrent state", miss.at_token);
    case MissReason::kOtherNamespace:
      return miss.is_other_salt ? "it is cached under another tenant's salt" : "it is cached under another adapter";
    case MissReason::kNotFetched:
      return fmt::format("storage has more after token {}: too little to fetch, or the host has no room for it",
                         miss.at_token);
    case MissReason::kStorageLate:
      return fmt::format("storage had not brought what follows token {} when the wait was over", miss.at_token);
    case MissReason::kStorageDeclined:
      return fmt::format("storage declined to keep what follows token {}, and the host let it go {}", miss.at_token,
                         time_of_loss(miss));
    case MissReason::kStorageDamaged: return fmt::format("what storage has after token {} is damaged", miss.at_token);
    case MissReason::kStorageFailed: return fmt::format("storage failed to bring what follows token {}", miss.at_token);
    case MissReason::kLoadFailed: return "the copy from the host failed";
    case MissReason::kFlushed:
      return fmt::format("a flush dropped {} at token {} from {}: {}", component, miss.at_token,
                         lost_from_name(miss.tier), time_of_loss(miss));
  }
  return "";
}

}  // namespace larder
