// SPDX-License-Identifier: Apache-2.0
// Parts of EmbeddedMetadata that its sources share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "metadata/embedded_metadata.h"

namespace larder {

inline constexpr std::size_t kKeysPerLock = 1024;  // or pages: a long call lets others in between

// What one lock is taken for.
template <class Row>
[[nodiscard]] auto part_of(Row& all, std::size_t from) {
  return std::span(all).subspan(from, std::min(kKeysPerLock, all.size() - from));
}

struct EmbeddedMetadata::Space {
  Space(metadata::NamespaceId number, const MetadataNamespace& named, std::uint64_t pages_given,
        const metadata::PageTableLimits& limits)
      : id(number), name(named), pages(pages_given), table(pages_given, limits) {}

  const metadata::NamespaceId id;
  const MetadataNamespace name;
  const std::uint64_t pages;
  metadata::Ticket defined = 0;  // constant once it is in the registry

  std::atomic<std::uint64_t> publications{0};  // changed under `mutex` and those of all namespaces of the groups

  RankedMutex mutex{LockRank::kMetadata};
  metadata::PageTable table LARDER_GUARDED_BY(mutex);
  std::uint64_t generation_end LARDER_GUARDED_BY(mutex) = 0;        // the journal allows those below it
  metadata::Ticket generation_ticket LARDER_GUARDED_BY(mutex) = 0;  // must be synced before they are given out
};

// One confirm(): its items in one row, those of the groups first.
struct EmbeddedMetadata::ConfirmWork {
  struct Item {
    const ConfirmItem* item = nullptr;
    std::size_t space = 0;
    std::size_t group = 0;
    PageRef ref;
    metadata::Marked marked = metadata::Marked::kRefused;
  };
  std::vector<Space*> spaces;         // each once
  std::vector<RankedMutex*> mutexes;  // theirs, as LockAll wants them
  std::vector<Item> items;
  std::vector<Item> releases;
  std::vector<bool> refused;  // per group
};

// The end of a call that was given no memory; short enough to need none.
[[nodiscard]] inline Status out_of_memory() { return unavailable("out of memory"); }

}  // namespace larder
