// SPDX-License-Identifier: Apache-2.0
// What only shows between the two steps of a confirmation, and at the edges of the table's parts.
#include "metadata/page_table.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/rng.h"

namespace larder::metadata {
namespace {

constexpr Nanos kSecond = std::chrono::seconds(1);
const PageTableLimits kLimits{10 * kSecond, 10 * kSecond};
const MetadataSession kOne{{1, 1}, 1}, kTwo{{2, 2}, 1};

TimePoint at(int seconds) { return TimePoint(kSecond * seconds); }

Reserved reserve(PageTable& table, const MetadataSession& session, std::string_view key, int now = 0) {
  const std::array<ReserveWish, 1> wishes{{{{key, hash_key(key)}, 0}}};
  std::array<ReserveAnswer, 1> answers;
  const std::uint64_t protected_from = table.make_recent(wishes, at(now));
  table.reserve(session, wishes, at(now + 5), at(now), protected_from, answers);
  return answers[0].reserved;
}

bool has(PageTable& table, std::string_view key, int now = 0) {
  const std::array<HashedKey, 1> keys{{{key, hash_key(key)}}};
  std::array<std::optional<PageRef>, 1> found;
  table.find(keys, Nanos{0}, at(now), found);
  return found[0].has_value();
}

TEST(PageTableTest, AMarkedPageNeitherExpiresNorIsGivenAway) {
  PageTable table(1, kLimits);
  PageRef ref = reserve(table, kOne, "a").ref;
  ASSERT_EQ(table.mark(kOne, "a", ref), Marked::kMarked);
  EXPECT_EQ(reserve(table, kTwo, "b", 100).outcome, ReserveOutcome::kFull);
  table.release(kOne, "a", ref, false);
  EXPECT_EQ(table.stats(at(200)).reserved, 1u);
  table.publish(kOne, "a", ref);
  EXPECT_TRUE(has(table, "a", 200));
  EXPECT_TRUE(table.check().is_ok()) << table.check().to_string();
}

TEST(PageTableTest, AClearBetweenMarkAndPublishWins) {
  PageTable table(2, kLimits);
  PageRef ref = reserve(table, kOne, "a").ref;
  ASSERT_EQ(table.mark(kOne, "a", ref), Marked::kMarked);
  std::vector<PageRef> forgotten;
  const auto forgot = [&](const PageRef& page) { forgotten.push_back(page); };
  ClearPart before{0, 2, ref.generation}, after{0, 2, ref.generation + 1};
  EXPECT_EQ(table.clear("", before, at(0), forgot), 0u);
  EXPECT_TRUE(forgotten.empty()) << "that was reserved after the clear began";
  EXPECT_EQ(table.clear("", after, at(0), forgot), 0u);
  EXPECT_EQ(after.from, 2u) << "the end";
  EXPECT_EQ(forgotten, std::vector{ref}) << "the journal must hear of it";
  PageRef other = reserve(table, kTwo, "a").ref;
  table.publish(kOne, "a", ref);
  EXPECT_FALSE(has(table, "a"));
  EXPECT_EQ(table.stats(at(0)).free, 1u);
  ASSERT_EQ(table.mark(kTwo, "a", other), Marked::kMarked);
  table.publish(kTwo, "a", other);
  EXPECT_TRUE(has(table, "a"));
  EXPECT_TRUE(table.check().is_ok()) << table.check().to_string();
}

TEST(PageTableTest, OneRequestSentTwiceIsPublishedOnceAndGivenUpLast) {
  PageTable table(2, kLimits);
  PageRef ref = reserve(table, kOne, "a").ref;
  ASSERT_EQ(table.mark(kOne, "a", ref), Marked::kMarked);
  ASSERT_EQ(table.mark(kOne, "a", ref), Marked::kMarked);
  table.give_up(kOne, "a", ref);
  EXPECT_EQ(table.stats(at(0)).reserved, 1u) << "the other one may still publish it";
  table.publish(kOne, "a", ref);
  table.publish(kOne, "a", ref);
  table.give_up(kOne, "a", ref);
  EXPECT_TRUE(has(table, "a"));
  PageRef unknown{ref.page, 0};
  EXPECT_EQ(table.mark(kOne, "a", unknown), Marked::kStored);
  EXPECT_EQ(unknown, ref) << "the generation is filled in";
  EXPECT_TRUE(table.check().is_ok()) << table.check().to_string();
}

TEST(PageTableTest, OfTwoRecoveredPagesWithOneKeyTheNewerCounts) {
  PageTable table(4, kLimits);
  const HashedKey key{"a", hash_key("a")};
  table.load(0, 7, key, 0, true);
  table.load(1, 5, key, 0, true);
  table.load(3, 2, key, 0, false);
  table.recovered(3, at(0));
  EXPECT_EQ(table.next_generation(), 8u) << "above all that were seen";
  const NamespaceStats stats = table.stats(at(0));
  EXPECT_EQ(stats.stored, 1u);
  EXPECT_EQ(stats.quarantined, 3u) << "also page 2, of which nothing is known";
  EXPECT_EQ(table.stats(at(10)).free, 3u);
  EXPECT_TRUE(has(table, "a", 10));
  EXPECT_TRUE(table.check().is_ok()) << table.check().to_string();
}

// So many leases or reservations may end at once that settling them all would keep everybody waiting.
TEST(PageTableTest, ACallSettlesAPartOfWhatIsDue) {
  constexpr std::uint64_t kPages = 5000;
  PageTable table(kPages, kLimits);
  std::vector<PageRef> refs;
  for (std::uint64_t i = 0; i < kPages; ++i) refs.push_back(reserve(table, kOne, "key" + std::to_string(i)).ref);
  ASSERT_FALSE(has(table, "key0", 100));
  EXPECT_GT(table.stats(at(100)).reserved, kPages / 2);
  PageRef& last = refs.back();
  EXPECT_EQ(table.mark(kOne, "key4999", last), Marked::kRefused) << "it is over all the same";
  table.release(kOne, "key4999", last, false);
  const Reserved again = reserve(table, kTwo, "key4999", 100);
  EXPECT_EQ(again.outcome, ReserveOutcome::kReserved);
  EXPECT_GT(again.ref.generation, last.generation);
  EXPECT_TRUE(table.check().is_ok()) << table.check().to_string();
  for (int i = 0; i < 5; ++i) (void)has(table, "key0", 100);
  const NamespaceStats stats = table.stats(at(100));
  EXPECT_EQ(stats.reserved, 1u);
  EXPECT_EQ(stats.free, kPages - 1);
  EXPECT_EQ(stats.expired, kPages);
  EXPECT_TRUE(table.check().is_ok()) << table.check().to_string();
}

TEST(PageTableTest, ACallPutsAPartOfTheLeasedPagesAside) {
  constexpr std::uint64_t kPages = 40'000;
  PageTable table(kPages, kLimits);
  const auto store = [&](const std::string& key) {
    PageRef ref = reserve(table, kOne, key).ref;
    ASSERT_EQ(table.mark(kOne, key, ref), Marked::kMarked);
    table.publish(kOne, key, ref);
  };
  for (std::uint64_t i = 1; i < kPages; ++i) {
    const std::string key = "key" + std::to_string(i);
    store(key);
    const std::array<HashedKey, 1> keys{{{key, hash_key(key)}}};
    std::array<std::optional<PageRef>, 1> found;
    table.find(keys, 10 * kSecond, at(0), found);
  }
  store("not leased");
  int calls = 1;
  while (reserve(table, kTwo, "new", 1).outcome != ReserveOutcome::kReserved && calls < 10) ++calls;
  EXPECT_EQ(calls, 3) << "each looks at a part of them";
  EXPECT_FALSE(has(table, "not leased", 1));
  EXPECT_TRUE(table.check().is_ok()) << table.check().to_string();
}

// All keys fall into few homes, so that they stand in each other's way.
TEST(KeySlotsTest, FindsWhatIsThereAfterRandomErasures) {
  Rng rng(1);
  KeySlots slots;
  std::vector<bool> is_in(400, false);
  const auto hash = [](PageNumber page) { return std::uint64_t{page % 7} << 32 | page % 11; };
  for (int step = 0; step < 20'000; ++step) {
    const auto page = static_cast<PageNumber>(rng.below(is_in.size()));
    is_in[page] ? slots.erase(hash(page), page) : slots.insert(hash(page), page);
    is_in[page] = !is_in[page];
    const auto other = static_cast<PageNumber>(rng.below(is_in.size()));
    const PageNumber found = slots.find(hash(other), [&](PageNumber candidate) { return candidate == other; });
    ASSERT_EQ(found == other, is_in[other]) << "step " << step;
  }
}

}  // namespace
}  // namespace larder::metadata
