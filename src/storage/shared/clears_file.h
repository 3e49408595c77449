// SPDX-License-Identifier: Apache-2.0
// The file "larder-share.clears" of a shared store (docs/formats.md, section 9.1): which clears it has seen, as bytes.
//
// Purpose: processes keep pages to write them again, as of a clear; the one that hosts the store ends, and the next one
// must know what was cleared since. Nothing is lost with the file but that: what others have kept is refused then.
//
// Threads: pure functions. Errors: kCorrupt for any bytes that are no such file; kConflict for one of another store.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"
#include "storage/clear_order.h"

namespace larder::share {

inline constexpr const char* kClearsName = "larder-share.clears";
inline constexpr std::size_t kClearsHeadBytes = 8 + 2 + 32 + 4 * 8 + 4, kClearsEntryBytes = 32 + 8;
inline constexpr std::size_t kMaxClearsBytes =
    kClearsHeadBytes + ClearHistory::kMostNamespaces * kClearsEntryBytes + 16;

// magic u64 | version u16 | store 32 (SharedStoreOptions::store) | clears' store u64 | count u64 | floor u64 | whole
// u64 | namespaces u32: {digest 32, count u64} | XXH3-128 of all before, low half first
[[nodiscard]] std::string encode_clears(const Digest256& store, const ClearHistory& history);
[[nodiscard]] Result<ClearHistory> decode_clears(const Digest256& store, std::string_view bytes);

}  // namespace larder::share
