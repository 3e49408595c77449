// SPDX-License-Identifier: Apache-2.0
// What pages are called in Mooncake Store, where all clients of a master share one space of names.
//
//   larder1-<namespace, 32 digits>-<pool>.<layout, 32 digits>-<page key, 64 digits>
//
// SGLang's names end, behind their last "_", in a word without "-" ("..._0_k", "..._swa"); ours have two "-" there. So
// neither finds, overwrites or clears what is the other's. The digits shorten digests: what an object is, is proven by
// its envelope (storage/envelope.h).
// Threads: pure.
#pragma once

#include <string>

#include "key/page_key.h"
#include "storage/backend.h"

namespace larder::mooncake {

// Length at most kMaxNameBytes.
[[nodiscard]] std::string object_name(const StoreScope& scope, PoolName pool, const PageKey& key);
inline constexpr std::size_t kMaxNameBytes = 200;

// A regular expression for exactly the objects of a scope; null: for all that this backend has ever written.
[[nodiscard]] std::string pattern_of(const StoreScope* scope);

// The master evicts the objects of one group together. Named after its anchor; unlike any object.
[[nodiscard]] std::string group_name(const std::string& anchor_name);

}  // namespace larder::mooncake
