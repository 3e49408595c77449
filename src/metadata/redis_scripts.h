// SPDX-License-Identifier: Apache-2.0
// The Lua programs by which RedisMetadata works, and the layout of what they keep.
//
// Purpose: one script is one operation; Redis runs it alone, so nobody sees half of it. All scripts begin with the same
// words (redis_scripts.cc: kPrelude), which know the life of a page.
//
// Layout, version 1. A namespace with the base name B = "<prefix>:1:<rank>:<name>" is these Redis keys:
//   B:m  hash  pages, used (pages from this number on were never used), gen (the next generation), tick (the next
//              recency), run (the Redis process that gave the last generation), evicted, expired, refused
//   B:k  hash  key -> "s<page> <generation>" (stored) or "r<page> <generation>" (reserved)
//   B:p  hash  page -> MessagePack of state (s, r, or c: reserved and cleared), generation, key, parent, session
//   B:f  list  pages that were used and are free; the longest free one is taken first
//   B:r  zset  reserved pages by deadline                B:q  zset  quarantined pages by the end of their rest
//   B:v  zset  stored pages without stored children, by recency: the first is evicted
//   B:i  zset  stored pages with stored children, by recency
//   B:w  zset  stored pages that eviction found leased, by the end of that lease; B:t hash: their recency
//   B:c  hash  key -> number of its stored children; the key itself need not be there
//   B:l  zset  pages by the end of their last lease
// "<prefix>:1" is the set of the namespaces' texts. Times are microseconds since 1970. Every number is below 2^53.
// A page is in exactly one of: f, r, q, v, i, w, or at `used` and above. Nothing is done at a time of its own: what is
// due is settled by the calls that come, at most some per call.
//
// Arguments of every script: KEYS: base names. ARGV: 1 the time or "" (Redis's own), 2 max_io_lifetime, 3 the run id of
// the Redis process or "", then those of the operation. Answers: an array that begins with "ok", or with "unknown" and
// a base name (a namespace that is not there; nothing was done).
// A namespace of which Redis has lost a part (it may not: eviction of keys by maxmemory-policy allkeys-*) is dropped as
// a whole as soon as a script comes across a hole; the call fails with an error that has kLostWord in it.
#pragma once

#include <string>
#include <string_view>

namespace larder::metadata {

enum class RedisOperation : unsigned char { kInitialize, kFind, kReserve, kConfirm, kRemove, kClear, kStats };

inline constexpr std::string_view kLostWord = "LARDER_LOST";

struct RedisScript {
  std::string text;
  std::string sha1;  // 40 lower-case digits, as EVALSHA wants it
};

// Lives forever. Threads: any.
[[nodiscard]] const RedisScript& redis_script(RedisOperation operation);

}  // namespace larder::metadata
