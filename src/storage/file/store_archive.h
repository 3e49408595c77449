// SPDX-License-Identifier: Apache-2.0
// Archives: pages of a store in one portable file (docs/formats.md section 6). Versioned, checksummed, streamed.
//
// An archive holds groups; a group holds the pages of one key in one namespace, sidecars and all, with their payloads.
// Parents come before children. Nothing in it depends on the store it came from: no place, no generation.
//
// Reading believes nothing: every length is bounded before memory is taken, every byte is under a checksum.
// Threads: confined. Memory: one group (writing), and what ArchiveReader::next() gives back.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "storage/backend.h"
#include "storage/file/store_inspect.h"

namespace larder::file_store {

inline constexpr std::uint16_t kArchiveVersion = 1;
inline constexpr std::size_t kArchiveHeaderBytes = 128;  // of the file, of a group, and of the end
inline constexpr std::size_t kArchivePageBytes = 128;
inline constexpr std::size_t kMaxArchiveGroupPages = 256;

struct ArchiveHeader {
  StoreId store{};  // where it came from; for people
  std::uint64_t created_unix_seconds = 0;
};
struct ArchivePage {
  PoolName pool = PoolName::kKv;
  Digest256 layout_fingerprint;
  PageKey key, parent;
  Checksum128 checksum;
  std::uint32_t payload_bytes = 0;
};
struct ArchiveGroup {
  std::uint64_t number = 0;  // 0, 1, ...
  Digest256 namespace_digest;
  std::vector<ArchivePage> pages;  // sidecars before their anchor
};
struct ArchiveEnd {
  std::uint64_t groups = 0, pages = 0, payload_bytes = 0;
  std::uint64_t heads_checksum = 0;  // XXH3-64 over the checksums of the heads of all groups, in order
};

[[nodiscard]] std::array<std::byte, kArchiveHeaderBytes> encode_archive_header(const ArchiveHeader& header);
[[nodiscard]] Result<ArchiveHeader> decode_archive_header(std::span<const std::byte> bytes);
[[nodiscard]] std::vector<std::byte> encode_archive_group(const ArchiveGroup& group);
// Bytes of the whole head from its first kArchiveHeaderBytes; 0: this is the end, not a group. kCorrupt: neither.
[[nodiscard]] Result<std::uint64_t> archive_group_bytes(std::span<const std::byte> start);
[[nodiscard]] Result<ArchiveGroup> decode_archive_group(std::span<const std::byte> bytes);
[[nodiscard]] std::array<std::byte, kArchiveHeaderBytes> encode_archive_end(const ArchiveEnd& end);
[[nodiscard]] Result<ArchiveEnd> decode_archive_end(std::span<const std::byte> bytes);

// What the selection chooses of the live pages, in the order of an archive: one entry per group, indexes into
// report.pages. A chosen key brings all keys before it in its chain: a prefix with a hole is of no use.
struct ExportPlan {
  std::vector<std::vector<std::uint32_t>> groups;
  std::uint64_t pages = 0, payload_bytes = 0;
};
[[nodiscard]] ExportPlan plan_export(const StoreReport& report, const PageSelection& selection);

struct ExportResult {
  std::uint64_t groups = 0, pages = 0, payload_bytes = 0, archive_bytes = 0;
  std::uint64_t left_out_groups = 0;  // damaged, or gone with their segment meanwhile
  Status first_problem;               // of what was left out
};
// Writes the archive and syncs it. Pages are verified on the way. Errors: of `out` only.
[[nodiscard]] Result<ExportResult> export_archive(FileSystem& files, const StoreReport& report, const ExportPlan& plan,
                                                  std::uint64_t now, File& out, const ProgressSink& progress);

// Reads an archive from the start to the end.
class ArchiveReader {
 public:
  struct Group {
    ArchiveGroup head;
    std::vector<std::vector<std::byte>> payloads;  // one per page
    Status status;                                 // kCorrupt: a payload is damaged; the next group may be whole
  };
  // kCorrupt: not an archive. kUnsupported: another version.
  [[nodiscard]] static Result<ArchiveReader> open(File& file);
  // The next group; nullopt: the end came, and it fits what was read. kCorrupt: damaged or cut off; reading is over.
  [[nodiscard]] Result<std::optional<Group>> next();
  [[nodiscard]] const ArchiveHeader& header() const { return header_; }
  [[nodiscard]] std::uint64_t position() const { return at_; }
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }

 private:
  explicit ArchiveReader(File& file) : file_(&file) {}
  [[nodiscard]] Status check_end(std::span<const std::byte> bytes) const;
  [[nodiscard]] Status read_payloads(Group& group);

  File* file_;
  ArchiveHeader header_;
  ArchiveEnd seen_;  // counts so far
  std::vector<std::uint64_t> head_checksums_;
  std::uint64_t at_ = 0, file_bytes_ = 0;
};

struct ImportOptions {
  PageSelection selection;
  bool dry_run = false;  // only reads and checks the archive
  bool evicts = false;   // the backend does: what it declines says nothing of what follows
  ProgressSink progress;
};
struct ImportResult {
  std::uint64_t groups = 0, pages = 0, payload_bytes = 0;  // taken, or there already
  std::uint64_t damaged_groups = 0;                        // in the archive
  std::uint64_t refused_groups = 0;                        // by the backend
  std::uint64_t unselected_groups = 0;
  std::uint64_t evicted_pages = 0;  // by the backend meanwhile, perhaps of those that had just been imported
  Status first_problem;
  // Not ok: there the archive is damaged or cut off, or (kOverloaded, kUnsupported) the backend is full: it refused the
  // last group of a request, too. What came before has been imported.
  Status end;
};
// Writes the groups through the storage port, durably. `backend` may be null with dry_run. Errors: the archive cannot
// be opened, or the backend refuses everything.
[[nodiscard]] Result<ImportResult> import_archive(File& file, StorageBackend* backend, const ImportOptions& options);

}  // namespace larder::file_store
