// SPDX-License-Identifier: Apache-2.0
// What the journal says, byte by byte. Format 1 (docs/formats.md has the table).
//
//   f                          format version, u32
//   n <id>                     a namespace: pages u64, rank i64, name
//   g <id>                     no generation of this one or above was given out: u64
//   p <id> <page> 0            who has or had this page last: generation u64, hash of the parent u64, key
//   p <id> <page> 1            that generation was confirmed: u64
// <id>, <page>: 4 bytes, big-endian, so that they are read back in order. All else little-endian.
//
// One record per page says whose it is, so two keys cannot have one page. A page is stored if its confirmed generation
// is the one it has, and its key is not empty. So
//   reserving (evicting whatever was there) is one record, confirming one short one;
//   removing and clearing write an empty key: a late confirmation of that generation, written again, then means
//   nothing; releasing and expiring write nothing: after a restart such a page rests for a while, as one in use would.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/status.h"
#include "metadata/journal.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::metadata {

using NamespaceId = std::uint32_t;

// Of a batch, for one of these records; `text`: the bytes of its key or name, if it has one.
[[nodiscard]] constexpr std::size_t record_bytes(std::size_t text = 0) { return JournalBatch::kFrameBytes + 26 + text; }

void record_format(JournalBatch& batch);
void record_namespace(JournalBatch& batch, NamespaceId id, const MetadataNamespace& name_space, std::uint64_t pages);
void record_generations(JournalBatch& batch, NamespaceId id, std::uint64_t end);
void record_reserved(JournalBatch& batch, NamespaceId id, const PageRef& ref, std::uint64_t parent_hash,
                     std::string_view key);
void record_confirmed(JournalBatch& batch, NamespaceId id, const PageRef& ref);
void record_forgotten(JournalBatch& batch, NamespaceId id, const PageRef& ref);

struct RecordedPage {
  PageRef ref;
  std::uint64_t parent_hash = 0;
  std::string_view key;  // lives during the call
  bool is_stored = false;
};
struct RecordReader {
  std::function<Status(NamespaceId, const MetadataNamespace&, std::uint64_t pages)> on_namespace;
  std::function<Status(NamespaceId, std::uint64_t end)> on_generations;
  std::function<Status(NamespaceId, const RecordedPage&)> on_page;
};
// Reads everything: generations, then namespaces, then pages. Gives whether there was anything at all. kCorrupt: a
// record that nobody can have written. kUnsupported: another format version.
[[nodiscard]] Result<bool> read_records(Journal& journal, const RecordReader& reader);

}  // namespace larder::metadata
