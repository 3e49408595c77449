// Deliberate defects: each is one of the field's bugs, in one line of this code, to show that a test sees it.
//
// Only a build with -DLARDER_DEFECTS=ON has them; there, the environment's LARDER_DEFECT names the one that is switched
// on. `tools/defects.py` makes that build, runs the simulator and the suites against each, and prints the table of
// docs/testing.md. In every other build defect() is false at compile time.
//
// Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace larder {

// name, words
#define LARDER_DEFECT_LIST(X)                                                              \
  X(kCopyErrorIgnored, "a failed copy counts as done")                                     \
  X(kSidecarNotCopied, "copies to and from the host leave the sidecars out")               \
  X(kSidecarMissIgnored, "a page of which a sidecar did not arrive counts as restored")    \
  X(kPartialFetchIsWhole, "a prefetch of which a part arrived is adopted as a whole")      \
  X(kSlotFreedUnderCopy, "a freed slot is given out again while a copy uses it")           \
  X(kReadWithoutLease, "host slots are not leased while storage writes into them")         \
  X(kWriteWithoutLease, "host slots are not leased while storage reads from them")         \
  X(kWindowOffByOne, "a window that lacks a page counts as whole")                         \
  X(kStateHoleIgnored, "a state anywhere before a page serves the page")                   \
  X(kSidecarHoleIgnored, "restore points look at anchors only")                            \
  X(kTenantIgnored, "storage keys do not know the tenant")                                 \
  X(kRankIgnored, "storage keys do not know the rank")                                     \
  X(kChainRestarted, "the key chain begins anew where a prefix is extended")               \
  X(kRanksDecideAlone, "a rank's outcome counts without those of the others")              \
  X(kFailedWriteVisible, "file store: pages of a failed write are visible")                \
  X(kChecksumSkipped, "file store: payloads are not verified when they are read")          \
  X(kDurableWithoutSync, "file store: durable writes are acknowledged before the sync")    \
  X(kTornRecordTaken, "file store: payloads of unsynced records are not verified at open") \
  X(kFailedSyncForgotten, "file store: a segment counts on after a sync of it has failed") \
  X(kEnvelopeSkipped, "hf3fs: the envelope of a page is not verified")                     \
  X(kGenerationIgnored, "hf3fs: a page of another generation is taken")                    \
  X(kFailedTransferConfirmed, "hf3fs: a group is confirmed whose pages were not written")  \
  X(kGatherFailureIgnored, "hf3fs: neighbours that failed as one I/O count as moved")      \
  X(kLateWriteReleased, "hf3fs: a page is given back while a write may still land in it")  \
  X(kOldReservationWritten, "hf3fs: a page is written, however old its reservation is")    \
  X(kConfirmOfOthers, "metadata: a confirmation counts, whoever holds the reservation")    \
  X(kClearForgotten, "after a clear, prefixes still count as stored")                      \
  X(kOutrunStateStored, "a state that came while its node was written counts as stored")   \
  X(kPrefetchLeaks, "host slots of pages that did not arrive are not given back")          \
  X(kLoadedSlotsLeak, "device slots of a request that ends are not given back")            \
  X(kFlushDropsInUse, "a flush drops pages that a request holds")                          \
  X(kBreakerStaysOpen, "a breaker does not close after a good probe")                      \
  X(kNegativeForever, "a page that was missing counts as missing after it was stored")

enum class Defect : std::uint8_t {
  kNone,
#define LARDER_DEFECT_NAME(name, words) name,
  LARDER_DEFECT_LIST(LARDER_DEFECT_NAME)
#undef LARDER_DEFECT_NAME
};

struct DefectInfo {
  std::string_view name, words;
};
inline constexpr std::array kDefects = {
#define LARDER_DEFECT_INFO(name, words) DefectInfo{#name, words},
    LARDER_DEFECT_LIST(LARDER_DEFECT_INFO)
#undef LARDER_DEFECT_INFO
};

#if LARDER_DEFECTS
[[nodiscard]] inline Defect active_defect() {
  static const Defect active = [] {
    const char* const wanted = std::getenv("LARDER_DEFECT");
    for (std::size_t i = 0; wanted != nullptr && i < kDefects.size(); ++i) {
      if (kDefects[i].name == wanted) return static_cast<Defect>(i + 1);
    }
    return Defect::kNone;
  }();
  return active;
}
[[nodiscard]] inline bool defect(Defect which) { return active_defect() == which; }
#else
[[nodiscard]] constexpr bool defect(Defect) { return false; }
#endif

}  // namespace larder
