// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata/crash_promises.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>

#include "metadata/real_rocksdb_journal.h"
#include "tests/metadata/metadata_harness.h"

namespace larder::conformance {
namespace {

constexpr std::uint64_t kProbeProcess = 9;

bool evicts(char letter) {
  const auto& all = crash_spaces();
  return std::find_if(all.begin(), all.end(), [&](const CrashSpace& s) { return s.letter == letter; })->evicts;
}

// Clients of the reference's calls know the page only.
bool is_same(PageRef a, PageRef b) {
  return a.page == b.page && (a.generation == b.generation || a.generation == 0 || b.generation == 0);
}

std::string text_of(char space, const std::string& key, PageRef ref) {
  return fmt::format("{} of {} (page {}, generation {})", key, crash_space(space).text(), ref.page, ref.generation);
}

}  // namespace

const std::vector<CrashSpace>& crash_spaces() {
  static const std::vector<CrashSpace> kSpaces = {{'b', {0, "big"}, 2 * kCrashClients * kCrashKeys, false},
                                                  {'s', {0, "small"}, 24, true},
                                                  {'r', {0, "kv"}, 16, true}};
  return kSpaces;
}

const MetadataNamespace& crash_space(char letter) {
  for (const CrashSpace& space : crash_spaces()) {
    if (space.letter == letter) return space.name;
  }
  return crash_spaces().front().name;
}

Result<std::unique_ptr<EmbeddedMetadata>> open_crash_service(const std::string& directory, Clock& clock, Nanos rest) {
  auto journal = metadata::open_rocksdb_journal(directory);
  if (!journal) return journal.status();
  EmbeddedMetadataOptions options;
  options.max_lease = options.max_io_lifetime = rest;
  auto service = EmbeddedMetadata::create(options, clock, std::move(*journal));
  if (!service) return service;
  for (const CrashSpace& space : crash_spaces()) {
    const auto given = (*service)->initialize(space.name, space.pages);
    if (!given) return given.status();
  }
  return service;
}

std::string to_line(const CrashEvent& event) {
  return fmt::format("{} {} {} {} {}\n", static_cast<char>(event.word), event.space, event.ref.page,
                     event.ref.generation, event.key);
}

CrashEvent event_of(const std::string& line) {
  std::istringstream words(line);
  CrashEvent event;
  char word = 0;
  if (!(words >> word >> event.space >> event.ref.page >> event.ref.generation >> std::ws)) {
    return {CrashWord::kWrong, 'b', "the child said: " + line, {}};
  }
  event.word = static_cast<CrashWord>(word);
  std::getline(words, event.key);
  return event;
}

void CrashPromises::note(const CrashEvent& event) {
  Known& known = known_[{event.space, event.key}];
  switch (event.word) {
    case CrashWord::kReserved: note_reserved(event, known); return;
    case CrashWord::kConfirming: known = {Fate::kMaybe, event.ref}; return;
    case CrashWord::kConfirmed:
      EXPECT_NE(known.fate, Fate::kAbsent)
          << text_of(event.space, event.key, event.ref) << " was not there after the restart, and counts as confirmed";
      known = {Fate::kStored, event.ref};
      ++confirmed_;
      return;
    case CrashWord::kRefused:
      EXPECT_NE(known.fate, Fate::kStored)
          << text_of(event.space, event.key, event.ref) << " is stored, and to confirm it again is refused";
      known.fate = Fate::kAbsent;
      return;
    case CrashWord::kWithheld:
      if (known.fate != Fate::kStored) known.fate = Fate::kAbsent;  // else another of the group was evicted meanwhile
      return;
    case CrashWord::kForgetting:
      if (known.fate == Fate::kStored) known.fate = Fate::kMaybe;
      return;
    case CrashWord::kReleased:
    case CrashWord::kForgotten: known.fate = Fate::kAbsent; return;
    case CrashWord::kFound: note_found(event, known); return;
    case CrashWord::kMissed:
      EXPECT_TRUE(evicts(event.space) || known.fate != Fate::kStored) << event.key << " is not found";
      return;
    case CrashWord::kWrong: break;
  }
  ADD_FAILURE() << event.key;
}

void CrashPromises::note_reserved(const CrashEvent& event, Known& known) {
  EXPECT_TRUE(evicts(event.space) || known.fate != Fate::kStored)
      << text_of(event.space, event.key, known.ref) << " is to be written again";
  Owner& owner = owners_[{event.space, event.ref.page}];
  if (event.ref.generation == 0 || event.ref.generation > owner.generation) owner = {event.key, event.ref.generation};
  last_generation_[event.space] = std::max(last_generation_[event.space], event.ref.generation);
  known = {Fate::kReserved, event.ref};
}

void CrashPromises::note_found(const CrashEvent& event, Known& known) {
  EXPECT_GE(known.fate, Fate::kMaybe) << text_of(event.space, event.key, event.ref) << " should not be there";
  EXPECT_TRUE(is_same(known.ref, event.ref))
      << text_of(event.space, event.key, event.ref) << " is not at page " << known.ref.page;
  known.fate = Fate::kStored;
}

void CrashPromises::verify(MetadataService& service, std::uint64_t unanswered,
                           const std::function<void()>& let_pages_rest) {
  unexplained_ = 0;
  for (const CrashSpace& space : crash_spaces()) {
    const std::uint64_t found = verify_keys(service, space);
    const NamespaceStats stats = Talker(service, space.name).stats();
    EXPECT_EQ(stats.pages, space.pages);
    EXPECT_EQ(stats.free + stats.reserved + stats.stored + stats.quarantined, stats.pages) << space.name.text();
    EXPECT_EQ(stats.stored, found) << "keys of " << space.name.text() << " that nobody stored";
    EXPECT_EQ(stats.reserved, 0u) << "a reservation does not outlive a restart";
  }
  EXPECT_LE(unexplained_, unanswered) << "confirmed keys were evicted, and nobody has their pages";
  let_pages_rest();
  for (const CrashSpace& space : crash_spaces()) verify_usable(service, space);
}

std::uint64_t CrashPromises::verify_keys(MetadataService& service, const CrashSpace& space) {
  std::vector<std::string> keys;
  for (std::uint64_t client = 0; client <= kCrashClients; ++client) {
    for (std::uint64_t number = 0; number < kCrashKeys; ++number) keys.push_back(crash_key(client, number));
  }
  const auto found = Talker(service, space.name).find(keys);
  std::set<std::uint64_t> pages;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!found[i]) {
      verify_missing(space, keys[i]);
      continue;
    }
    EXPECT_TRUE(pages.insert(found[i]->page).second) << "two keys have page " << found[i]->page;
    verify_present(space, keys[i], *found[i]);
  }
  return pages.size();
}

void CrashPromises::verify_present(const CrashSpace& space, const std::string& key, PageRef found) {
  Known& known = known_[{space.letter, key}];
  const Owner& owner = owners_[{space.letter, found.page}];
  EXPECT_EQ(owner.key, key) << text_of(space.letter, key, found) << " has another key's page";
  EXPECT_TRUE(is_same({found.page, owner.generation}, found)) << text_of(space.letter, key, found);
  note_found({CrashWord::kFound, space.letter, key, found}, known);
  known.ref = found;
}

void CrashPromises::verify_missing(const CrashSpace& space, const std::string& key) {
  Known& known = known_[{space.letter, key}];
  if (known.fate == Fate::kStored) {
    EXPECT_TRUE(space.evicts) << text_of(space.letter, key, known.ref) << " was confirmed, and is gone";
    if (owners_[{space.letter, known.ref.page}].key == key) ++unexplained_;
  }
  known.fate = Fate::kAbsent;
}

// All pages are, and a new one has a new generation.
void CrashPromises::verify_usable(MetadataService& service, const CrashSpace& space) {
  Talker talker(service, space.name);
  const NamespaceStats stats = talker.stats();
  EXPECT_EQ(stats.free + stats.stored, stats.pages) << "everything is usable again";
  const MetadataSession session = session_of(kProbeProcess);
  const std::vector<Reserved> next = talker.reserve(session, {"next"});
  EXPECT_EQ(outcomes(next), "R");
  EXPECT_GT(next[0].ref.generation, last_generation_[space.letter]) << "a generation came again";
  note({CrashWord::kReserved, space.letter, "next", next[0].ref});
  talker.release(session, {"next"}, next);
}

}  // namespace larder::conformance
