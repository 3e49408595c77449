// SPDX-License-Identifier: Apache-2.0
// `larder store fsck`: finds what is wrong with a store, and mends it.
//
// Finding reads everything and writes nothing. Mending loses nothing that can be read: pages keep keys, parents,
// generations and checksums.
//
// | finding                             | mended by                                                                  |
// |-------------------------------------|----------------------------------------------------------------------------|
// | left-over *.tmp                     | removing it                                                                |
// | damaged CLEARED, another is whole   | writing what the other volumes say                                         |
// | damaged CLEARED, none is whole      | clearing every page, as opening would (docs/formats.md 5.6)                |
// | damaged segment header              | writing it again; removing a file without any whole record                 |
// | segment without anything written    | removing it                                                                |
// | no footer, torn tail, damaged heads | cutting the tail off behind the last whole record, and writing a footer    |
// | pages that only the footer knows    | rewriting the segment                                                      |
// | page with wrong bytes               | rewriting the segment without that page's group                            |
// | FORMAT absent or damaged, a volume missing or dropped, another store's or version's segment,         | a person   |
// | foreign files, I/O errors                                                                           |            |
//
// A segment is rewritten into a temporary file, synced, and renamed over the old one: a crash leaves one of the two.
// All volumes of the store should be given, for what they say of cleared namespaces.
//
// The store is locked meanwhile (LOCK of each volume): kConflict if a server has it open. Without mending, no LOCK is
// made where none is: it would be this user's, and the server may be another's.
// Threads: confined. Calls block on the disk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "storage/file/store_inspect.h"

namespace larder::file_store {

enum class FindingKind : std::uint8_t {
  kFormat,
  kForeignFile,
  kTemporary,
  kCleared,
  kHeader,
  kSegment,  // another store's, another version's, or not readable
  kTail,     // torn tail, damaged records or no footer
  kHeads,    // the footer knows pages that no record head does
  kPage,
};
[[nodiscard]] std::string_view finding_kind_name(FindingKind kind);

struct Finding {
  FindingKind kind = FindingKind::kPage;
  std::string path;
  std::string what;            // what is wrong
  std::string remedy;          // what --repair does, or what a person can do
  bool is_repairable = false;  // by this tool
  bool is_repaired = false;
  bool is_damage = true;     // false: untidy, and mended by the next opening, too (a footer that is missing, ...)
  std::uint32_t volume = 0;  // indexes into the StoreReport of the pass that found it
  std::uint32_t segment = 0;
};

struct CheckOptions {
  bool repair = false;
  ProgressSink progress;
};

struct CheckReport {
  std::vector<Finding> findings;
  std::uint64_t segments = 0, pages = 0, bytes = 0;  // of the last pass; pages and bytes that are right
  std::uint64_t removed_pages = 0, removed_groups = 0;
  [[nodiscard]] bool has_damage() const;  // damage that is not repaired
};

// Locks every volume that has a FORMAT or is to be written. kConflict: "a store has one process". kUnavailable: as the
// file system says (a read-only directory).
[[nodiscard]] Result<std::vector<std::unique_ptr<FileLock>>> lock_volumes(FileSystem& files,
                                                                          std::span<const std::string> directories);

// kConflict: in use. Else as inspect_store(). Damage is in the report.
[[nodiscard]] Result<CheckReport> check_store(FileSystem& files, Clock& clock, std::span<const std::string> directories,
                                              const CheckOptions& options);

}  // namespace larder::file_store
