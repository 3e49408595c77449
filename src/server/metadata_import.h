// SPDX-License-Identifier: Apache-2.0
// The reference metadata server's persisted state as the beginning of our journal.
//
// Purpose: a fleet that changes servers keeps its keys: the file (docs/metadata_server.md) names every
// namespace with its pages and keys in the order of their last use, which stays the order of eviction. Keys of
// namespaces without ':' are of before there were namespaces and get ":kv", as the reference does it.
// Pages that were neither free nor mapped (reserved when it was written, or leaked) become free after the usual rest;
// free ones below the last of them, or below the last mapped one, rest with them.
// Imported pages hold data without our envelopes: clients of the reference read them, ours treat them as misses.
// Threads: pure.
// Errors: kInvalidArgument names the namespace and what is inconsistent; nothing is imported then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "metadata/journal.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder {

struct ImportedNamespace {
  MetadataNamespace name;
  std::uint64_t pages = 0;
  std::uint64_t free_pages = 0;                             // that the file says are free
  std::optional<std::uint64_t> last_unknown;                // the last page that is neither free nor mapped
  std::vector<std::pair<std::string, std::uint64_t>> keys;  // key as stored, page; least recently used first
};

[[nodiscard]] Result<std::vector<ImportedNamespace>> parse_reference_state(std::string_view json);

// Everything as journal records, in one batch. For an empty journal only.
void record_import(const std::vector<ImportedNamespace>& imported, metadata::JournalBatch& batch);

// A journal that begins with `batch` and writes nothing down: for a service in memory.
[[nodiscard]] std::unique_ptr<metadata::Journal> make_imported_journal(const metadata::JournalBatch& batch);

// Writes `batch` into an empty journal, synced. kConflict: it is not empty.
[[nodiscard]] Status import_into(metadata::Journal& journal, const metadata::JournalBatch& batch);

// "0:kv: 3 keys in 8 pages", a line each.
[[nodiscard]] std::string import_report(const std::vector<ImportedNamespace>& imported);

}  // namespace larder
