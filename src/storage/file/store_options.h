// SPDX-License-Identifier: Apache-2.0
// What a file store is made with. Option names and defaults as users see them: file_backend.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "storage/file/write_admission.h"

namespace larder::file_store {

enum class FsyncMode : std::uint8_t { kOff, kSegment, kGroup };
enum class Choice : std::uint8_t { kAuto, kOn, kOff };

struct FileStoreOptions {
  std::vector<std::string> directories;  // one volume each
  std::uint64_t max_bytes = 0;           // of all volumes together, physical
  std::uint64_t segment_bytes = 0;
  bool evicts = true;                            // false: a full store declines what is new
  unsigned high_percent = 95, low_percent = 85;  // of max_bytes: when eviction begins, and how far live bytes go down
  FsyncMode fsync = FsyncMode::kSegment;
  Choice direct = Choice::kAuto;  // past the page cache
  Choice uring = Choice::kAuto;
  std::size_t io_depth = 64;  // operations at once per volume
  std::size_t queue_limit = 1024;
  std::size_t open_files = 128;
  std::size_t max_identities = std::size_t{1} << 20;  // with pages at once; no option: the index has no more numbers
  AdmissionOptions admission;
};

}  // namespace larder::file_store
