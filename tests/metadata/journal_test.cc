// SPDX-License-Identifier: Apache-2.0
// What outlives the service, and what happens when the journal refuses.
#include <algorithm>
#include <filesystem>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "metadata/journal_records.h"
#include "tests/metadata/embedded_harness.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

using metadata::MemoryDisk;

class OnDisk : public EmbeddedHarness {
 public:
  OnDisk() { (void)restart(); }
  [[nodiscard]] bool restart() override {
    open(metadata::open_memory_journal(disk));
    return true;
  }
  Talker talk(std::uint64_t pages = 4) {
    EXPECT_EQ(service().initialize({0, "kv"}, pages).value_or(0), pages);
    return Talker(service(), {0, "kv"});
  }
  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
};

Result<std::unique_ptr<EmbeddedMetadata>> open_on(const std::shared_ptr<MemoryDisk>& disk, Clock& clock) {
  return EmbeddedMetadata::create(embedded_test_options(), clock, metadata::open_memory_journal(disk));
}

TEST(MetadataJournalTest, StoredKeysOutliveTheServiceAndCountAsLeased) {
  OnDisk rig;
  const auto pages = rig.talk().store(session_of(1), {"a", "b"});
  (void)rig.restart();
  Talker kv(rig.service(), {0, "kv"});
  EXPECT_EQ(kv.find({"a"})[0], pages[0].ref);
  EXPECT_EQ(kv.find({"b"})[0], pages[1].ref);
  EXPECT_EQ(kv.stats().leased, 2u) << "somebody may be reading them";
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"c", "d", "e"})), "RRF");
  rig.advance(kMaxLease);
  const auto next = kv.reserve(session_of(2), {"e"});
  ASSERT_EQ(outcomes(next), "R");
  EXPECT_EQ(kv.presence({"a", "b"}), "10") << "tails first, also after a restart";
  EXPECT_TRUE(rig.check().is_ok()) << rig.check().to_string();
}

TEST(MetadataJournalTest, ReservationsFoundRestAndAreNobodys) {
  OnDisk rig;
  const auto pages = rig.talk(1).reserve(session_of(1), {"a"});
  (void)rig.restart();
  Talker kv(rig.service(), {0, "kv"});
  EXPECT_EQ(kv.stats().quarantined, 1u);
  EXPECT_EQ(kv.confirm(session_of(1), {"a"}, pages).code(), StatusCode::kNotFound);
  rig.advance(std::max(kMaxLease, kMaxIoLifetime) - kSecond);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "F") << "its writer may still write";
  rig.advance(kSecond);
  const auto next = kv.reserve(session_of(2), {"a"});
  ASSERT_EQ(outcomes(next), "R");
  EXPECT_GT(next[0].ref.generation, pages[0].ref.generation);
}

TEST(MetadataJournalTest, WhatWasRemovedClearedOrEvictedStaysAway) {
  OnDisk rig;
  Talker kv = rig.talk();
  kv.store(session_of(1), {"removed"});
  kv.store(session_of(2), {"cleared"});
  kv.store(session_of(3), {"evicted"});
  EXPECT_EQ(kv.remove("removed"), 1u);
  EXPECT_EQ(kv.clear("clear"), 1u);
  (void)kv.reserve(session_of(4), {"x", "y", "z", "w"});
  EXPECT_EQ(kv.stats().evicted, 1u);
  (void)rig.restart();
  EXPECT_EQ(Talker(rig.service(), {0, "kv"}).presence({"removed", "cleared", "evicted"}), "000");
}

TEST(MetadataJournalTest, APowerCutLeavesABeginningAndEveryDurableConfirmation) {
  for (std::size_t kept = 0; kept < 8; ++kept) {
    OnDisk rig;
    Talker kv = rig.talk(8);
    const auto pages = kv.reserve(session_of(1), {"durable"});
    ASSERT_TRUE(kv.confirm(session_of(1), {"durable"}, pages, true).is_ok());
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i < 4; ++i) {
      last = kv.store(session_of(2, i), {"k" + std::to_string(i)})[0].ref.generation;
    }
    ASSERT_EQ(rig.disk->unsynced_writes(), 8u);
    rig.disk->cut_power(kept);
    (void)rig.restart();
    Talker after(rig.service(), {0, "kv"});
    EXPECT_EQ(after.presence({"durable", "k0", "k1", "k2", "k3"}),
              "1" + std::string(kept / 2, '1') + std::string(4 - kept / 2, '0'));
    const auto next = after.reserve(session_of(3), {"x"});
    EXPECT_GT(next[0].ref.generation, last) << "a generation is never used twice, kept " << kept;
  }
}

TEST(MetadataJournalTest, ADurableConfirmationOfWhatIsThereIsSyncedToo) {
  OnDisk rig;
  Talker kv = rig.talk();
  const auto pages = kv.store(session_of(1), {"a"});
  ASSERT_GT(rig.disk->unsynced_writes(), 0u);
  EXPECT_TRUE(kv.confirm(session_of(1), {"a"}, pages, true).is_ok());
  EXPECT_EQ(rig.disk->unsynced_writes(), 0u);
}

// What somebody wanted to be gone does not come back with the power.
TEST(MetadataJournalTest, AClearIsSynced) {
  OnDisk rig;
  Talker kv = rig.talk();
  kv.store(session_of(1), {"a", "b"});
  EXPECT_TRUE(rig.service().clear(kv.space(), "a").is_ok());
  EXPECT_EQ(rig.disk->unsynced_writes(), 0u);
}

// A large namespace is cleared in parts.
TEST(MetadataJournalTest, AClearFindsEveryPage) {
  constexpr std::uint64_t kPages = 5000;
  OnDisk rig;
  Talker kv = rig.talk(kPages);
  std::vector<std::string> gone, kept;
  for (std::uint64_t i = 0; i < kPages - 7; ++i)
    (i % 3 == 0 ? kept : gone).push_back("gk"[i % 3 == 0] + std::to_string(i));
  for (const auto& keys : {gone, kept}) kv.store(session_of(1), keys);
  EXPECT_EQ(kv.clear("g"), gone.size());
  EXPECT_TRUE(rig.check().is_ok()) << rig.check().to_string();
  EXPECT_EQ(kv.stats().free, kPages - kept.size());
  (void)rig.restart();
  Talker after(rig.service(), kv.space());
  EXPECT_EQ(after.presence(gone), std::string(gone.size(), '0'));
  EXPECT_EQ(after.presence(kept), std::string(kept.size(), '1'));
}

TEST(MetadataJournalTest, ADiskThatRefusesIsUnavailableAndMends) {
  for (const auto mood : {MemoryDisk::Mood::kRefusing, MemoryDisk::Mood::kPartAnswers}) {
    OnDisk rig;
    Talker kv = rig.talk(8);
    kv.store(session_of(1), {"a", "b"});
    const auto pages = kv.reserve(session_of(2), {"c"});
    rig.disk->set_mood(mood);
    EXPECT_EQ(kv.confirm(session_of(2), {"c"}, pages).code(), StatusCode::kUnavailable);
    const std::vector<ReserveItems> items{{&kv.space(), {{"d"}}}};
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(rig.service().reserve(session_of(3), items, kMaxTtl).status().code(), StatusCode::kUnavailable);
    }
    EXPECT_EQ(kv.stats().reserved, 0u) << "what is refused changes nothing";
    EXPECT_EQ(rig.service().clear(kv.space(), "").status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(rig.service().initialize({7, "kv"}, 4).status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(kv.presence({"a", "b"}), "11") << "reading goes on";
    rig.disk->set_mood(MemoryDisk::Mood::kWell);
    EXPECT_TRUE(kv.confirm(session_of(2), {"c"}, pages).is_ok()) << "repeating is safe";
    EXPECT_EQ(outcomes(kv.reserve(session_of(3), {"d"})), "R");
    (void)rig.restart();
    EXPECT_EQ(Talker(rig.service(), {0, "kv"}).presence({"a", "b", "c"}), "111");
  }
}

class ThrowsOnce final : public metadata::Journal {
 public:
  bool is_armed = false;
  [[nodiscard]] Status replay(const Visitor& each) override { return disk_.replay(each); }
  [[nodiscard]] Status write(const metadata::JournalBatch& batch, bool synced) override {
    if (std::exchange(is_armed, false)) throw std::bad_alloc();
    return disk_.write(batch, synced);
  }
  [[nodiscard]] Status sync() override { return disk_.sync(); }

 private:
  MemoryDisk disk_;
};

TEST(MetadataJournalTest, AJournalThatThrowsIsUnavailableOnce) {
  ManualClock clock;
  auto journal = std::make_unique<ThrowsOnce>();
  ThrowsOnce& throws = *journal;
  auto service = EmbeddedMetadata::create(embedded_test_options(), clock, std::move(journal));
  ASSERT_TRUE(service.is_ok()) << service.status().to_string();
  ASSERT_TRUE((*service)->initialize({0, "kv"}, 4).is_ok());
  Talker kv(**service, {0, "kv"});
  const std::vector<ReserveItems> items{{&kv.space(), {{"a"}}}};
  throws.is_armed = true;
  EXPECT_EQ((*service)->reserve(session_of(1), items, kMaxTtl).status().code(), StatusCode::kUnavailable);
  const auto pages = kv.reserve(session_of(1), {"a"});
  EXPECT_EQ(outcomes(pages), "R") << "the next one writes both";
  EXPECT_TRUE(kv.confirm(session_of(1), {"a"}, pages).is_ok());
}

class ThrowingClock final : public Clock {
 public:
  mutable int left = 0;  // the n-th look from now throws; 0: none
  ManualClock clock;
  [[nodiscard]] TimePoint now() const override {
    if (left > 0 && --left == 0) throw std::bad_alloc();
    return clock.now();
  }
  [[nodiscard]] std::int64_t wall_unix_seconds() const override { return clock.wall_unix_seconds(); }
};

// Between marking and publishing: what is marked would neither expire nor be confirmed, ever.
TEST(MetadataJournalTest, AConfirmationThatBreaksOffLeavesNoMark) {
  ThrowingClock clock;
  auto service = EmbeddedMetadata::create(embedded_test_options(), clock);
  ASSERT_TRUE(service.is_ok()) << service.status().to_string();
  Talker kv(**service, {0, "kv"}), swa(**service, {0, "swa"});
  for (const Talker* talker : {&kv, &swa}) ASSERT_TRUE((*service)->initialize(talker->space(), 4).is_ok());
  const PageRef first = kv.reserve(session_of(1), {"a"})[0].ref, second = swa.reserve(session_of(1), {"b"})[0].ref;
  const ConfirmRequest request{session_of(1), {{{&kv.space(), "a", first}}, {{&swa.space(), "b", second}}}, {}, false};
  clock.left = 2;  // in the second namespace
  EXPECT_EQ((*service)->confirm(request).status().code(), StatusCode::kUnavailable);
  clock.left = 0;
  clock.clock.advance(kMaxTtl + kMaxIoLifetime + kSecond);
  EXPECT_EQ(kv.stats().free, 4u);
  EXPECT_EQ(swa.stats().free, 4u);
  EXPECT_TRUE((*service)->check().is_ok()) << (*service)->check().to_string();
}

TEST(MetadataJournalTest, NoKeyComesBackAfterARefusedEviction) {
  OnDisk rig;
  Talker kv = rig.talk(1);
  kv.store(session_of(1), {"old"});
  rig.disk->set_mood(MemoryDisk::Mood::kRefusing);
  const std::vector<ReserveItems> items{{&kv.space(), {{"new"}}}};
  EXPECT_EQ(rig.service().reserve(session_of(2), items, kMaxTtl).status().code(), StatusCode::kUnavailable);
  rig.disk->set_mood(MemoryDisk::Mood::kWell);
  const auto pages = kv.reserve(session_of(2), {"new"});
  ASSERT_EQ(outcomes(pages), "R");
  (void)rig.restart();
  EXPECT_EQ(Talker(rig.service(), {0, "kv"}).presence({"old", "new"}), "00");
}

TEST(MetadataJournalTest, StrangeRecordsAreCorruptAndOtherFormatsUnsupported) {
  ManualClock clock;
  const auto opening_with = [&](const std::string& key, const std::string& value) {
    OnDisk rig;
    rig.talk().store(session_of(1), {"a"});
    rig.disk->plant(key, value);
    return open_on(rig.disk, clock).status().code();
  };
  EXPECT_EQ(opening_with("f", std::string(8, 'x')), StatusCode::kUnsupported);
  EXPECT_EQ(opening_with("f", "x"), StatusCode::kCorrupt);
  EXPECT_EQ(opening_with("a", "x"), StatusCode::kCorrupt);
  EXPECT_EQ(opening_with("z0000", "x"), StatusCode::kCorrupt);
  EXPECT_EQ(opening_with("p0000", "x"), StatusCode::kCorrupt);
  const std::string zero(3, '\0');
  EXPECT_EQ(opening_with("n" + zero + '\1', "short"), StatusCode::kCorrupt);
  EXPECT_EQ(opening_with("n" + zero + '\1', std::string(16, '\0')), StatusCode::kCorrupt) << "no pages, no name";
  EXPECT_EQ(opening_with("p" + zero + '\0' + zero + '\7' + '\0', std::string(20, 'x')), StatusCode::kCorrupt)
      << "a page behind the end";
  EXPECT_EQ(opening_with("p" + zero + '\7' + zero + '\0' + '\0', std::string(20, 'x')), StatusCode::kCorrupt)
      << "a namespace that nobody named";
  // Found by fuzzing: the next namespace got the number behind the gap, and took over what was there.
  const std::string four_pages_of_swa = '\4' + std::string(15, '\0') + "swa";
  EXPECT_EQ(opening_with("n" + zero + '\2', four_pages_of_swa), StatusCode::kCorrupt) << "numbers with a gap";
  EXPECT_EQ(opening_with("n" + zero + '\1', four_pages_of_swa), StatusCode::kOk);
}

// The bytes of docs/formats.md, section 7, written by hand.
TEST(MetadataJournalTest, TheRecordsHaveTheBytesOfTheFormat) {
  metadata::JournalBatch batch;
  metadata::record_format(batch);
  metadata::record_generations(batch, 0x01020304, 5);
  metadata::record_namespace(batch, 1, {-2, "kv"}, 7);
  metadata::record_reserved(batch, 1, {258, 9}, metadata::hash_key("abc"), "k");
  metadata::record_confirmed(batch, 1, {258, 9});
  metadata::record_forgotten(batch, 1, {258, 9});
  const auto hex = [](std::string_view text) {
    return hex_encode({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  };
  std::vector<std::string> records;
  batch.for_each([&](std::string_view key, std::string_view value) { records.push_back(hex(key) + " " + hex(value)); },
                 [&](std::string_view key) { records.push_back(hex(key)); });
  const std::vector<std::string> expected{
      "66 0100000000000000",
      "6701020304 0500000000000000",
      "6e00000001 0700000000000000feffffffffffffff6b76",
      "70000000010000010200 090000000000000050392f89945faf786b",
      "70000000010000010201 0900000000000000",
      "70000000010000010200 09000000000000000000000000000000",
  };
  EXPECT_EQ(records, expected);
}

TEST(MetadataJournalTest, OneProcessHasTheDirectory) {
  support::TemporaryDirectory directory;
  const auto first = metadata::open_rocksdb_journal(directory.path() + "/deep/journal");
  ASSERT_TRUE(first.is_ok()) << first.status().to_string();
  const auto second = metadata::open_rocksdb_journal(directory.path() + "/deep/journal");
  EXPECT_EQ(second.status().code(), StatusCode::kConflict) << second.status().to_string();
  EXPECT_NE(second.status().message().find("in use"), std::string::npos);
}

TEST(MetadataJournalTest, ADirectoryThatCannotBeMadeIsNotFound) {
  const auto opened = metadata::open_rocksdb_journal("/proc/none/journal");
  EXPECT_EQ(opened.status().code(), StatusCode::kNotFound) << opened.status().to_string();
}

TEST(MetadataJournalTest, ARottenDirectoryIsCorruptAndNoCrash) {
  support::TemporaryDirectory directory;
  ManualClock clock;
  {
    auto journal = metadata::open_rocksdb_journal(directory.path());
    ASSERT_TRUE(journal.is_ok());
    auto service = EmbeddedMetadata::create(embedded_test_options(), clock, std::move(journal.value()));
    ASSERT_TRUE(service.is_ok());
    ASSERT_TRUE((*service)->initialize({0, "kv"}, 8).is_ok());
    Talker(**service, {0, "kv"}).store(session_of(1), {"a"});
  }
  for (const auto& file : std::filesystem::directory_iterator(directory.path())) {
    if (file.path().filename().string().starts_with("MANIFEST")) std::filesystem::resize_file(file.path(), 3);
  }
  const auto opened = metadata::open_rocksdb_journal(directory.path());
  EXPECT_EQ(opened.status().code(), StatusCode::kCorrupt) << opened.status().to_string();
}

}  // namespace
}  // namespace larder::conformance
