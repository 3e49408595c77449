// SPDX-License-Identifier: Apache-2.0
// Probes: rare branches that a test run must have reached, or it has shown nothing about them.
//
// A branch that only a fault, a race or a full tier leads to carries a line: probe(Probe::kRecordGathered). The
// simulator (larder sim) prints how often each was reached, and a run that is long enough fails if one never was.
// A new probe: a line in the list below, with words for the table, and a call in the branch.
//
// Threads: any. Cost: one relaxed increment; the branches are rare.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace larder {

// name, words
#define LARDER_PROBES(X)                                                               \
  X(kEvictedToHost, "cache: device pages were evicted")                                \
  X(kBackupNoRoom, "cache: a host copy found no room")                                 \
  X(kBackupWaits, "cache: room refused so that storage can take what would go")        \
  X(kBackupRetried, "cache: a storage write failed and is tried again")                \
  X(kBackupLost, "cache: a storage write failed for good")                             \
  X(kBackupDeclined, "cache: storage did not want a page")                             \
  X(kBackupOutrun, "cache: a state came to the host while its node was being written") \
  X(kFullReadAgain, "cache: full of the device was read, for a window or a state")     \
  X(kLoadBackFailed, "cache: a load-back failed, and its request began again")         \
  X(kPrefetchAdopted, "cache: a prefetch was adopted")                                 \
  X(kPrefetchPartial, "cache: a part of a prefetch arrived, and was used")             \
  X(kPrefetchLate, "cache: a prefetch came after its request had stopped waiting")     \
  X(kPrefetchRefused, "cache: a prefetch was refused")                                 \
  X(kPrefetchWaits, "cache: a prefetch waited until storage took what would go")       \
  X(kPrefetchShared, "cache: a request waited for another's prefetch")                 \
  X(kPrefetchCorrupt, "cache: storage said a page is corrupt")                         \
  X(kDetachedInFlight, "cache: storage was detached with operations in flight")        \
  X(kAbortedInFlight, "cache: a request was aborted while it waited or loaded")        \
  X(kFlushedInFlight, "cache: a flush with operations in flight")                      \
  X(kPipelineRefused, "pipeline: the queue was full")                                  \
  X(kBreakerOpened, "pipeline: a breaker opened")                                      \
  X(kBreakerProbed, "pipeline: an open breaker let a probe through")                   \
  X(kBreakerClosed, "pipeline: a breaker closed again")                                \
  X(kNegativeHit, "pipeline: a page was known to be missing")                          \
  X(kFileGathered, "file store: small writes went together")                           \
  X(kFileRolled, "file store: a segment was sealed and a new one begun")               \
  X(kFileWaitedForRoom, "file store: a write waited for room")                         \
  X(kFileEvicted, "file store: pages evicted")                                         \
  X(kFileCleaned, "file store: a segment was cleaned, its live pages moved")           \
  X(kFileSuspended, "file store: writing was suspended after an error")                \
  X(kFileTornTail, "file store: an unfinished record was cut off at open")             \
  X(kFileChecksum, "file store: a page did not have its checksum")                     \
  X(kFileCleared, "file store: a write met a clear")                                   \
  X(kFileSplitRead, "file store: a failed read was tried page by page")                \
  X(kHf3fsLateWrite, "hf3fs: a write may land after it was given up")                  \
  X(kHf3fsWrongPage, "hf3fs: a slot did not hold what the service said")               \
  X(kHf3fsGroupFailed, "hf3fs: a group failed, and its reservations were released")    \
  X(kHf3fsOldReservation, "hf3fs: a reservation came too late to be used")             \
  X(kMetadataEvicted, "metadata: a page was taken from its key")                       \
  X(kMetadataQuarantined, "metadata: a page rests until a late write cannot land")     \
  X(kMetadataBusy, "metadata: a key was being written by another")

enum class Probe : std::uint8_t {
#define LARDER_PROBE_NAME(name, words) name,
  LARDER_PROBES(LARDER_PROBE_NAME)
#undef LARDER_PROBE_NAME
      kCount
};
inline constexpr std::size_t kProbeCount = static_cast<std::size_t>(Probe::kCount);

inline constexpr std::array<std::string_view, kProbeCount> kProbeWords = {
#define LARDER_PROBE_WORDS(name, words) words,
    LARDER_PROBES(LARDER_PROBE_WORDS)
#undef LARDER_PROBE_WORDS
};

// Relaxed: statistics.
inline std::array<std::atomic<std::uint64_t>, kProbeCount> probe_counts{};

inline void probe(Probe which) {
  probe_counts[static_cast<std::size_t>(which)].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace larder
