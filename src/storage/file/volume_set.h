// SPDX-License-Identifier: Apache-2.0
// Which volumes make a store: each FORMAT of a store with several has the list (docs/formats.md 5.1).
//
// A list that differs from the one before has the next version. The highest version counts, and no two lists of one
// store and version differ: a list is changed only while all volumes of the one before are there, and is written to one
// of those first. So whoever opens the store later needs that one, too, and sees the new list. A crash between two
// volumes leaves the old list in some: they only ask for more volumes than there need be.
//
//    a list is missing a volume  -> the store is not opened: a page cleared meanwhile would come back with the volume
//    a volume is in no list      -> it joins if it holds no segment; else it was dropped, and is refused
//    nobody has a list           -> those that are there (stores of one volume, or of before there were lists)
//
// Threads: pure, but for forget_volumes(), which blocks on the disk.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "storage/file/segment_format.h"

namespace larder::file_store {

// A directory that was named, with its FORMAT. The pointers are not null.
struct VolumeSeen {
  const std::string* directory = nullptr;
  const VolumeFormat* format = nullptr;
  bool has_segments = false;
};

struct VolumeSet {
  std::uint64_t version = 0;           // 0: nobody has a list, and the rest is empty
  std::vector<VolumeMember> members;   // by number
  std::vector<VolumeMember> missing;   // those of them that were not seen
  std::vector<std::size_t> outsiders;  // indexes of the volumes seen that are no members
};

// Precondition: all of one store. kConflict: two lists of the highest version differ.
[[nodiscard]] Result<VolumeSet> join_lists(std::span<const VolumeSeen> seen);

// May the store be used, as far as that goes? kUnavailable: a volume is missing, or all that are there were only
// joining a store when the process ended. kConflict: one was dropped, and is back with its pages. Both say which, and
// what to do.
[[nodiscard]] Status check_set(const VolumeSet& set, std::span<const VolumeSeen> seen);

// Drops volumes that are missing, for good: `larder store forget`. `directories`: all others of the store. Done when it
// returns; after a crash, it was done or not. Gives the volumes that are left. kInvalidArgument: a volume to be dropped
// is there; kNotFound: the store has none of that number, or there is no store. kUnavailable: another one is missing,
// too. kConflict: in use, or as above.
[[nodiscard]] Result<std::vector<VolumeMember>> forget_volumes(FileSystem& files,
                                                               std::span<const std::string> directories,
                                                               std::span<const unsigned> volumes);

}  // namespace larder::file_store
