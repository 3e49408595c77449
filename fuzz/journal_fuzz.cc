// SPDX-License-Identifier: Apache-2.0
// The journal of the page-index service (metadata/journal_records.h), and the service that recovers from it.
//
// Fed: a row of records, some as the service writes them (any order, any numbers), some of any bytes.
// Checked: reading ends with ok, or with kCorrupt or kUnsupported and a reason. What was read, written again with the
// record_ functions, is read as the same. A batch gives back what was put into it. A service recovers from what can be
// read, or says kCorrupt; recovered, its invariants hold, it holds exactly the stored pages that were read (of two with
// one key the newer), gives out no generation that the journal has seen, and a second recovery finds the same. What is
// stored in a new namespace then is there after a third.
#include <algorithm>
#include <map>

#include "fuzz/fuzz_input.h"
#include "metadata/embedded_metadata.h"
#include "metadata/memory_journal.h"

namespace larder::fuzz {
namespace {

using metadata::JournalBatch;
using metadata::MemoryDisk;
using RecordId = metadata::NamespaceId;

constexpr std::uint64_t kPages = 40;  // of namespaces that are written as they should be

struct Page {
  PageRef ref;
  std::uint64_t parent_hash = 0;
  std::string key;
  bool is_stored = false;
  friend bool operator==(const Page&, const Page&) = default;
};
// All that a reader is told.
struct Heard {
  std::map<RecordId, std::pair<MetadataNamespace, std::uint64_t>> spaces;
  std::map<RecordId, std::uint64_t> ends;
  std::vector<std::pair<RecordId, Page>> pages;
  friend bool operator==(const Heard&, const Heard&) = default;
};

Result<bool> listen(const std::shared_ptr<MemoryDisk>& disk, Heard& heard) {
  metadata::RecordReader reader;
  reader.on_namespace = [&](RecordId id, const MetadataNamespace& name, std::uint64_t pages) {
    heard.spaces[id] = {name, pages};
    return Status::ok();
  };
  reader.on_generations = [&](RecordId id, std::uint64_t end) {
    heard.ends[id] = end;
    return Status::ok();
  };
  reader.on_page = [&](RecordId id, const metadata::RecordedPage& page) {
    fuzz_check(page.key.size() <= kMaxKeyBytes, "a key beyond the limit");
    fuzz_check(!page.is_stored || !page.key.empty(), "a stored page without a key");
    heard.pages.push_back({id, {page.ref, page.parent_hash, std::string(page.key), page.is_stored}});
    return Status::ok();
  };
  return metadata::read_records(*metadata::open_memory_journal(disk), reader);
}

std::string key_of(std::uint64_t number) { return "key " + std::to_string(number); }

// How far the records are from what a service writes.
struct Manner {
  std::uint64_t first = 0, spaces = 0;  // namespaces [first, spaces) are written down as they should be
  bool is_honest = false;               // everything else is, too
};

RecordId read_id(FuzzInput& input, const Manner& manner) {
  const bool is_any = manner.spaces <= manner.first || (!manner.is_honest && input.below(16) == 0);
  return static_cast<RecordId>(is_any ? input.below(4) : manner.first + input.below(manner.spaces - manner.first));
}

void record_page(JournalBatch& batch, FuzzInput& input, const Manner& manner) {
  const RecordId id = read_id(input, manner);
  const PageRef ref{input.below(kPages), 1 + input.below(12)};
  switch (input.below(4)) {
    case 0: return metadata::record_confirmed(batch, id, ref);
    case 1: return metadata::record_forgotten(batch, id, ref);
    default: break;
  }
  metadata::record_reserved(batch, id, ref, input.below(3), key_of(input.below(16)));
  if (input.flag()) metadata::record_confirmed(batch, id, ref);
}

void add_record(JournalBatch& batch, FuzzInput& input, const Manner& manner) {
  const RecordId id = read_id(input, manner);
  switch (manner.is_honest ? 1 + 3 * input.below(4) : input.below(16)) {
    case 0: {  // any bytes
      const std::string_view key = input.text(static_cast<std::size_t>(input.below(16)));
      return batch.put(key, input.text(static_cast<std::size_t>(input.below(40))));
    }
    case 1: return metadata::record_generations(batch, id, input.below(20));
    case 2: {
      const std::int64_t rank = input.flag() ? static_cast<std::int64_t>(input.number<std::uint64_t>()) : id;
      return metadata::record_namespace(batch, id, {rank, input.flag() ? "kv" : "swa"}, 1 + input.below(kPages));
    }
    case 3: return batch.erase(input.text(static_cast<std::size_t>(input.below(11))));
    default: return record_page(batch, input, manner);
  }
}

// The batch holds what was put into it, and applying it in pieces is the same.
void check_batch(const JournalBatch& batch) {
  JournalBatch again;
  batch.for_each([&](std::string_view key, std::string_view value) { again.put(key, value); },
                 [&](std::string_view key) { again.erase(key); });
  fuzz_check(again.bytes() == batch.bytes() && again.empty() == batch.empty(), "a batch gives back something else");
}

void check_rewritten(const Heard& heard) {
  JournalBatch batch;
  metadata::record_format(batch);
  for (const auto& [id, space] : heard.spaces) {
    if (space.first.name.size() > kMaxNamespaceBytes) return;  // longer than record_namespace() takes
    metadata::record_namespace(batch, id, space.first, space.second);
  }
  for (const auto& [id, end] : heard.ends) metadata::record_generations(batch, id, end);
  for (const auto& [id, page] : heard.pages) {
    metadata::record_reserved(batch, id, page.ref, page.parent_hash, page.key);
    if (page.is_stored) metadata::record_confirmed(batch, id, page.ref);
  }
  auto disk = std::make_shared<MemoryDisk>();
  fuzz_check(disk->write(batch, true).is_ok(), "the memory disk refuses");
  Heard again;
  fuzz_check(listen(disk, again).is_ok() && again == heard, "records written again are read as others");
}

// Stored keys of one namespace and where they are: of two pages with one key the newer generation.
std::map<std::string, PageRef> stored_in(const Heard& heard, RecordId id) {
  std::map<std::string, PageRef> stored;
  for (const auto& [owner, page] : heard.pages) {
    if (owner != id || !page.is_stored) continue;
    const auto found = stored.find(page.key);
    if (found == stored.end() || found->second.generation < page.ref.generation) stored[page.key] = page.ref;
  }
  return stored;
}

void check_space(EmbeddedMetadata& service, const MetadataNamespace& name, std::uint64_t pages, const Heard& heard,
                 RecordId id) {
  const std::map<std::string, PageRef> stored = stored_in(heard, id);
  std::vector<std::string_view> keys;
  for (const auto& [key, ref] : stored) keys.push_back(key);
  const MetadataKeys wanted{&name, keys};
  const auto found = service.find({&wanted, 1}, Nanos(0));
  fuzz_check(found.is_ok(), "a recovered namespace is not found");
  for (std::size_t i = 0; i < keys.size(); ++i) {
    fuzz_check((*found)[0][i].has_value(), "a stored page is not found after recovery");
  }
  const auto stats = service.stats();
  fuzz_check(stats.is_ok(), "no statistics");
  const NamespaceStats& s = stats->at(name);
  fuzz_check(s.pages == pages && s.free + s.reserved + s.stored + s.quarantined == pages, "pages are not conserved");
  fuzz_check(s.stored == stored.size(), "another number of pages is stored than was read");
}

// A reservation gets a generation above all that the namespace ever gave.
void check_generation(EmbeddedMetadata& service, const MetadataNamespace& name, const Heard& heard, RecordId id) {
  ReserveItems wanted{&name, {{"a key of its own"}}};
  const auto given = service.reserve({{7, 7}, 7}, {&wanted, 1}, std::chrono::seconds(1));
  fuzz_check(given.is_ok(), "a recovered service refuses to reserve");
  if ((*given)[0][0].outcome != ReserveOutcome::kReserved) return;
  const std::uint64_t generation = (*given)[0][0].ref.generation;
  for (const auto& [owner, page] : heard.pages) {
    fuzz_check(owner != id || page.ref.generation < generation, "a generation is given out again");
  }
  fuzz_check(!heard.ends.contains(id) || heard.ends.at(id) <= generation, "a promised generation is given out again");
}

// What is made and stored after a recovery is there after the next one, beside all that was there before.
void check_going_on(const std::shared_ptr<MemoryDisk>& disk, Clock& clock) {
  const MetadataNamespace name{99, "new"};
  std::size_t spaces = 0;
  {
    auto service = EmbeddedMetadata::create({}, clock, metadata::open_memory_journal(disk));
    fuzz_check(service.is_ok() && (*service)->initialize(name, 3).is_ok(), "a recovered service takes no namespace");
    ReserveItems wanted{&name, {{"a"}}};
    const auto given = (*service)->reserve({{8, 8}, 8}, {&wanted, 1}, std::chrono::seconds(1));
    fuzz_check(given.is_ok() && (*given)[0][0].outcome == ReserveOutcome::kReserved, "a new namespace has no page");
    const auto done = (*service)->confirm({{{8, 8}, 8}, {{{&name, "a", (*given)[0][0].ref}}}, {}, true});
    fuzz_check(done.is_ok() && done->front().is_ok(), "a page is not confirmed");
    spaces = (*service)->stats()->size();
  }
  auto service = EmbeddedMetadata::create({}, clock, metadata::open_memory_journal(disk));
  fuzz_check(service.is_ok(), "what a service wrote is refused: " + service.status().to_string());
  const MetadataKeys wanted{&name, {"a"}};
  const auto found = (*service)->find({&wanted, 1}, Nanos(0));
  fuzz_check(found.is_ok() && (*found)[0][0].has_value(), "a confirmed page is forgotten");
  fuzz_check((*service)->stats()->size() == spaces && (*service)->check().is_ok(), "a namespace is forgotten");
}

void check_recovery(const std::shared_ptr<MemoryDisk>& disk, const Heard& heard) {
  // Memory follows the highest page in use, which a made-up record can put anywhere.
  for (const auto& [id, page] : heard.pages) {
    if (page.ref.page > 4096) return;
  }
  ManualClock clock;
  std::map<MetadataNamespace, NamespaceStats> first_stats;
  for (int round = 0; round < 2; ++round) {
    auto service = EmbeddedMetadata::create({}, clock, metadata::open_memory_journal(disk));
    if (!service.is_ok()) {
      fuzz_check(round == 0 && service.status().code() == StatusCode::kCorrupt, "recovery fails strangely");
      return check_explains(service.status(), "recovery");
    }
    fuzz_check((*service)->check().is_ok(), "invariants are broken after recovery: " + (*service)->check().message());
    for (const auto& [id, space] : heard.spaces) {
      check_space(**service, space.first, space.second, heard, id);
      if (round == 1) check_generation(**service, space.first, heard, id);
    }
    fuzz_check((*service)->check().is_ok(), "invariants are broken by use");
  }
  check_going_on(disk, clock);
}

void run(FuzzInput input) {
  auto disk = std::make_shared<MemoryDisk>();
  JournalBatch batch;
  if (input.below(8) != 0) metadata::record_format(batch);
  // Anything; or as a service writes it, but for a namespace that is not named; or just so.
  const std::uint64_t kind = input.below(4);
  const Manner manner{kind == 1 ? 1u : 0u, input.below(4), kind != 0};
  for (std::uint64_t id = manner.first; id < manner.spaces; ++id) {
    metadata::record_namespace(batch, static_cast<RecordId>(id), {static_cast<std::int64_t>(id), "kv"}, kPages);
  }
  for (int i = 0; i < 200 && !input.empty(); ++i) add_record(batch, input, manner);
  check_batch(batch);
  fuzz_check(disk->write(batch, true).is_ok(), "the memory disk refuses");
  Heard heard;
  const Result<bool> read = listen(disk, heard);
  if (!read.is_ok()) {
    const StatusCode code = read.status().code();
    fuzz_check(code == StatusCode::kCorrupt || code == StatusCode::kUnsupported, "reading fails strangely");
    return check_explains(read.status(), "read_records");
  }
  if (*read) check_rewritten(heard);
  check_recovery(disk, heard);
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
