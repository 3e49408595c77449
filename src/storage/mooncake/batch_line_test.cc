// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/batch_line.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace larder::mooncake {
namespace {

constexpr std::uint64_t kPage = share::kArenaPageBytes;
using Kind = Batch::Kind;

Batch batch_of(Kind kind, std::uint64_t pages, std::vector<std::string> names = {}) {
  Batch out;
  out.kind = kind;
  out.bytes = pages * kPage;
  out.names = std::move(names);
  return out;
}

// Numbers of those that are ready. The first that is pushed is 1.
std::vector<std::uint64_t> ready(BatchLine& line) {
  std::vector<std::uint64_t> out;
  for (const BatchLine::Ready& one : line.take_ready()) out.push_back(one.batch);
  return out;
}

using Numbers = std::vector<std::uint64_t>;
using Names = std::vector<std::string>;

// First names of those that are refused.
Names refused(BatchLine& line) {
  Names out;
  for (const Batch& batch : line.take_refused()) out.push_back(batch.names.empty() ? "" : batch.names[0]);
  return out;
}

TEST(BatchLine, GivesWhatThereIsRoomForInOrder) {
  BatchLine line(4 * kPage);
  for (const std::uint64_t pages : {2, 1, 3, 1}) line.push(batch_of(Kind::kRead, pages));
  EXPECT_EQ(ready(line), (Numbers{1, 2}));  // the last would fit, but the third comes first
  line.end(1);
  EXPECT_EQ(ready(line), Numbers());  // three pages are free, but not in one piece
  line.end(2);
  EXPECT_EQ(ready(line), (Numbers{3, 4}));
}

TEST(BatchLine, OnePageIsWrittenByOneAtATime) {
  BatchLine line(8 * kPage);
  line.push(batch_of(Kind::kWrite, 1, {"a", "b"}));
  line.push(batch_of(Kind::kWrite, 1, {"b", "c"}));
  line.push(batch_of(Kind::kWrite, 1, {"d"}));
  line.push(batch_of(Kind::kRead, 1));
  EXPECT_EQ(ready(line), (Numbers{1, 3, 4}));
  EXPECT_EQ(ready(line), Numbers());
  line.end(1);
  EXPECT_EQ(ready(line), (Numbers{2}));
}

TEST(BatchLine, AClearWaitsForTheWritesBeforeItAndIsWaitedForByThoseAfter) {
  BatchLine line(8 * kPage);
  line.push(batch_of(Kind::kWrite, 1, {"a"}));
  line.push(batch_of(Kind::kClear, 0));
  line.push(batch_of(Kind::kWrite, 1, {"b"}));
  line.push(batch_of(Kind::kRead, 1));
  EXPECT_EQ(ready(line), (Numbers{1, 4}));
  line.end(1);
  EXPECT_EQ(ready(line), (Numbers{2}));
  line.push(batch_of(Kind::kClear, 0));
  EXPECT_EQ(ready(line), Numbers());
  line.end(2);
  EXPECT_EQ(ready(line), (Numbers{3}));
  line.end(3);
  EXPECT_EQ(ready(line), (Numbers{5}));
}

TEST(BatchLine, KnowsWhichReadsMetAClear) {
  BatchLine line(8 * kPage);
  for (const Kind kind : {Kind::kRead, Kind::kRead, Kind::kClear, Kind::kRead}) line.push(batch_of(kind, 1));
  line.end(ready(line).at(0));  // 1 is over
  EXPECT_TRUE(line.has_met_clear(2));
  EXPECT_TRUE(line.has_met_clear(4));
  line.end(3);
  line.push(batch_of(Kind::kRead, 1));
  EXPECT_EQ(ready(line), (Numbers{5}));
  EXPECT_TRUE(line.has_met_clear(2)) << "of one that is over now";
  EXPECT_FALSE(line.has_met_clear(5));
}

TEST(BatchLine, AClearOfAnotherNamespaceIsNone) {
  Digest256 own, other;
  other.bytes[0] = 1;
  for (const bool is_read_first : {true, false}) {
    for (const std::optional<Digest256>& cleared :
         {std::optional<Digest256>(), std::optional(own), std::optional(other)}) {
      BatchLine line(8 * kPage);
      Batch read = batch_of(Kind::kRead, 1), clear = batch_of(Kind::kClear, 0);
      read.space = own;
      clear.space = cleared;
      line.push(is_read_first ? read : clear);
      line.push(is_read_first ? clear : read);
      EXPECT_EQ(ready(line), (Numbers{1, 2}));
      EXPECT_EQ(line.has_met_clear(is_read_first ? 1 : 2), cleared != std::optional(other)) << is_read_first;
    }
  }
}

// A late one may take minutes: what would wait for it is refused, and its memory and names stay its own.
TEST(BatchLine, NothingWaitsForWhatIsLate) {
  BatchLine line(4 * kPage);
  line.push(batch_of(Kind::kWrite, 1, {"a", "b"}));
  line.push(batch_of(Kind::kWrite, 1, {"c"}));
  line.push(batch_of(Kind::kWrite, 1, {"b", "x"}));
  line.push(batch_of(Kind::kWrite, 1, {"c", "y"}));
  EXPECT_EQ(ready(line), (Numbers{1, 2}));
  EXPECT_EQ(refused(line), Names());
  line.set_late(1);
  EXPECT_EQ(ready(line), Numbers());
  EXPECT_EQ(refused(line), (Names{"b"})) << "the other one waits for what is in time";
  line.push(batch_of(Kind::kClear, 0, {"clear"}));
  line.push(batch_of(Kind::kRead, 2));
  EXPECT_EQ(ready(line), (Numbers{6}));
  EXPECT_EQ(refused(line), (Names{"clear"}));
  line.end(2);
  EXPECT_EQ(ready(line), (Numbers{4}));
  line.end(1);
  line.push(batch_of(Kind::kWrite, 1, {"a"}));
  EXPECT_EQ(ready(line), (Numbers{7}));
}

TEST(BatchLine, RoomThatIsOnlyWhereLateOnesAreIsNotWaitedFor) {
  BatchLine line(4 * kPage);
  for (const std::uint64_t pages : {2, 1, 3, 1}) line.push(batch_of(Kind::kRead, pages, {std::to_string(pages)}));
  EXPECT_EQ(ready(line), (Numbers{1, 2}));
  line.set_late(1);
  EXPECT_EQ(ready(line), Numbers());
  EXPECT_EQ(refused(line), Names()) << "the second gives its room back";
  line.end(2);
  EXPECT_EQ(ready(line), (Numbers{4}));
  EXPECT_EQ(refused(line), (Names{"3"}));
  line.end(1);
  line.push(batch_of(Kind::kRead, 2));
  EXPECT_EQ(ready(line), (Numbers{5}));
}

TEST(BatchLine, AClearThatIsLateRefusesWrites) {
  BatchLine line(4 * kPage);
  line.push(batch_of(Kind::kClear, 0));
  line.push(batch_of(Kind::kWrite, 1, {"a"}));
  EXPECT_EQ(ready(line), (Numbers{1}));
  line.set_late(1);
  line.push(batch_of(Kind::kRead, 1));
  EXPECT_EQ(ready(line), (Numbers{3}));
  EXPECT_EQ(refused(line), (Names{"a"}));
}

// Whatever comes: memory is never given twice, names neither, and all batches begin in the end.
TEST(BatchLine, KeepsItsPromisesInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    BatchLine line(16 * kPage);
    struct Running {
      Batch batch;
      std::uint64_t offset = 0;
    };
    std::map<std::uint64_t, Batch> pushed;
    std::map<std::uint64_t, Running> running;
    std::uint64_t number = 0;
    for (int step = 0; step < 300 || !pushed.empty() || !running.empty(); ++step) {
      ASSERT_LT(step, 10'000);
      if (step < 300 && rng.chance(1, 2)) {
        const auto kind = static_cast<Kind>(rng.below(3));
        Batch batch = batch_of(kind, kind == Kind::kClear ? 0 : rng.below(17));
        if (kind == Kind::kWrite) batch.names = {std::to_string(rng.below(8)), "x" + std::to_string(rng.below(8))};
        pushed.emplace(++number, batch);
        line.push(std::move(batch));
      } else if (!running.empty()) {
        const auto at = std::next(running.begin(), static_cast<std::ptrdiff_t>(rng.below(running.size())));
        line.end(at->first);
        running.erase(at);
      }
      for (const BatchLine::Ready& one : line.take_ready()) {
        const Batch batch = pushed.at(one.batch);
        for (const auto& [other, entry] : running) {
          const bool is_apart = one.offset + batch.bytes <= entry.offset ||
                                entry.offset + entry.batch.bytes <= one.offset || batch.bytes == 0 ||
                                entry.batch.bytes == 0;
          EXPECT_TRUE(is_apart) << one.batch << " and " << other;
          const bool is_write_and_clear = (batch.kind == Kind::kClear && entry.batch.kind != Kind::kRead) ||
                                          (entry.batch.kind == Kind::kClear && batch.kind != Kind::kRead);
          EXPECT_FALSE(is_write_and_clear) << one.batch << " and " << other;
          for (const std::string& name : batch.names) {
            EXPECT_EQ(std::count(entry.batch.names.begin(), entry.batch.names.end(), name), 0) << name;
          }
        }
        running.emplace(one.batch, Running{batch, one.offset});
        pushed.erase(one.batch);
      }
    }
    EXPECT_EQ(line.waiting(), 0u);
  }
}

}  // namespace
}  // namespace larder::mooncake
