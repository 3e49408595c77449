// SPDX-License-Identifier: Apache-2.0
// Deliberate defects: bugs that the field has had, or that this code could have, each in one line, to show that a test
// sees it.
//
// Only a build with -DLARDER_DEFECTS=ON has them; there, the environment's LARDER_DEFECT names the one that is switched
// on (without the k; an unknown name aborts). `tools/defects.py` makes that build, runs the simulator and the suites
// against each, and prints the table of docs/test_results.md. In every other build defect() is false at compile time.
//
// Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace larder {

// Name; what it is; whose it was: a system, and where it has one, the number of the report. "": nobody's that we know.
#define LARDER_DEFECT_LIST(X)                                                                                       \
  X(kCopyErrorIgnored, "a failed copy counts as done", "Dynamo 15079")                                              \
  X(kSidecarNotCopied, "copies to and from the host leave the sidecars out", "SGLang 38031")                        \
  X(kSidecarMissIgnored, "a page of which a sidecar did not arrive counts as restored", "SGLang 30057")             \
  X(kPartialFetchIsWhole, "a prefetch of which a part arrived is adopted as a whole", "LMCache 3022")               \
  X(kSlotFreedUnderCopy, "a freed slot is given out again while a copy uses it", "SGLang 31427, TensorRT-LLM 8274") \
  X(kSlotFreedUnderStep, "what a request lets go is free at once, though an open step may touch it", "")            \
  X(kEventIgnored, "copies do not wait for the engine's event", "vLLM 45704")                                       \
  X(kReadWithoutLease, "host slots are not leased while storage writes into them", "TensorRT-LLM 8813")             \
  X(kWriteWithoutLease, "host slots are not leased while storage reads from them", "SGLang 31427")                  \
  X(kWindowOffByOne, "a window that lacks a page counts as whole", "SGLang 27291")                                  \
  X(kStateHoleIgnored, "a state anywhere before a page serves the page", "SGLang 39147")                            \
  X(kSidecarHoleIgnored, "restore points look at anchors only", "SGLang 27010")                                     \
  X(kTenantIgnored, "storage keys do not know the tenant", "SGLang 37160, LMCache 2878")                            \
  X(kRankIgnored, "storage keys do not know the rank", "SGLang 26670")                                              \
  X(kRankInPaths, "ranks name the paths of their trees differently", "")                                            \
  X(kChainRestarted, "the key chain begins anew where a prefix is extended", "SGLang 35269")                        \
  X(kRanksDecideAlone, "a rank's outcome counts without those of the others", "SGLang 30760")                       \
  X(kFailedWriteVisible, "file store: pages of a failed write are visible", "LMCache 4991")                         \
  X(kChecksumSkipped, "file store: payloads are not verified when they are read", "LMCache 4385")                   \
  X(kDurableWithoutSync, "file store: durable writes are acknowledged before the sync", "")                         \
  X(kTornRecordTaken, "file store: payloads of unsynced records are not verified at open", "llama.cpp 26004")       \
  X(kFailedSyncForgotten, "file store: a segment counts on after a sync of it has failed", "")                      \
  X(kEnvelopeSkipped, "hf3fs: the envelope of a page is not verified", "LMCache 4385")                              \
  X(kGenerationIgnored, "hf3fs: a page of another generation is taken", "")                                         \
  X(kFailedTransferConfirmed, "hf3fs: a group is confirmed whose pages were not written", "Dynamo 15079")           \
  X(kGatherFailureIgnored, "hf3fs: neighbours that failed as one I/O count as moved", "")                           \
  X(kLateWriteReleased, "hf3fs: a page is given back while a write may still land in it", "")                       \
  X(kOldReservationWritten, "hf3fs: a page is written, however old its reservation is", "")                         \
  X(kConfirmOfOthers, "metadata: a confirmation counts, whoever holds the reservation", "LMCache 1810")             \
  X(kClearForgotten, "after a clear, prefixes still count as stored", "")                                           \
  X(kOutrunStateStored, "a state that came while its node was written counts as stored", "")                        \
  X(kChildBeforeParent, "a page is written to storage while the one before it is not there", "")                    \
  X(kRestForgotten, "what storage could not take is never tried again", "SGLang hicache_storage")                   \
  X(kBatchHoleIgnored, "a batch of a prefetch is used although a page before it did not arrive", "")                \
  X(kPrefetchLeaks, "host slots of pages that did not arrive are not given back", "")                               \
  X(kLoadedSlotsLeak, "device slots of a request that ends are not given back", "")                                 \
  X(kFlushDropsInUse, "a flush drops pages that a request holds", "vLLM 47282")                                     \
  X(kBreakerStaysOpen, "a breaker does not close after a good probe", "")                                           \
  X(kNegativeForever, "a page that was missing counts as missing after it was stored", "")                          \
  X(kPresenceHoleIgnored, "a page that is there counts, whatever is missing before it", "InfiniStore")              \
  X(kAllOrNothingHit, "a hit is all that was asked for, or nothing", "SGLang 26448")                                \
  X(kEvictedCountsAsCached, "storage is not asked for what the tree knows and no tier has", "SGLang 38452")         \
  X(kPrefetchMisanchored, "keys of a prefetch do not continue those of the path", "SGLang 38348")                   \
  X(kModelIgnored, "storage keys do not know the name of the model", "SGLang 31920")                                \
  X(kLayoutIgnored, "storage keys do not know the layout", "LMCache 4463")                                          \
  X(kGateOpenEarly, "with the first layer of a load, all count as loaded", "SGLang 39830")                          \
  X(kStoredBeforeCopied, "storage reads host slots while they are being written", "vLLM 45704")                     \
  X(kEvictsLocked, "windows and states go, though a request reads them", "vLLM 47282")                              \
  X(kStateInBothHalves, "where a node is cut, the head claims its state as well", "FlexKV")                         \
  X(kStagingReused, "hf3fs: staging memory is used again while an I/O may use it", "TensorRT-LLM 15546")            \
  X(kReadLeaseIgnored, "metadata: pages that are being read are evicted", "Mooncake")                               \
  X(kCloseDoesNotDrain, "a detached backend ends before its operations do", "SGLang")                               \
  X(kPhysicalBytesUncounted, "file store: dead bytes do not count towards max_size", "Mooncake")                    \
  X(kSavedBeforeCopied, "connector: pages of a save are visible before their bytes are there", "vLLM 45704")        \
  X(kLeaseIgnored, "connector: the lease of a lookup keeps nothing", "vLLM 47282")                                  \
  X(kLoadWithoutLease, "connector: host slots are not leased while a load reads them", "SGLang 31427")              \
  X(kHostNotTold, "KV events: pages that come to the host are not told", "SGLang, July 2026")                       \
  X(kFailedGateCounts, "what was computed after a failed load is given to the tree", "vLLM 35092, LMCache 3388")

enum class Defect : std::uint8_t {
  kNone,
#define LARDER_DEFECT_NAME(name, words, field) name,
  LARDER_DEFECT_LIST(LARDER_DEFECT_NAME)
#undef LARDER_DEFECT_NAME
};

struct DefectInfo {
  std::string_view name, words, field;
};
inline constexpr std::array kDefects = {
#define LARDER_DEFECT_INFO(name, words, field) DefectInfo{#name, words, field},
    LARDER_DEFECT_LIST(LARDER_DEFECT_INFO)
#undef LARDER_DEFECT_INFO
};

#if LARDER_DEFECTS
[[nodiscard]] inline Defect active_defect() {
  static const Defect active = [] {
    const char* const wanted = std::getenv("LARDER_DEFECT");
    for (std::size_t i = 0; wanted != nullptr && i < kDefects.size(); ++i) {
      if (kDefects[i].name.substr(1) == wanted) return static_cast<Defect>(i + 1);
    }
    return wanted == nullptr || std::string_view(wanted) == "none" ? Defect::kNone : (std::abort(), Defect::kNone);
  }();
  return active;
}
[[nodiscard]] inline bool defect(Defect which) { return active_defect() == which; }
#else
[[nodiscard]] constexpr bool defect(Defect) { return false; }
#endif

}  // namespace larder
