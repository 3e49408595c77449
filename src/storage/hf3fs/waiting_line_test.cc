// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/waiting_line.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "base/rng.h"

namespace larder::hf3fs {
namespace {

constexpr std::uint64_t kPayload = 60'000;  // 64 KiB with its head
constexpr std::uint64_t kSlot = 65'536;
const auto kNobody = [](const GatherWindow&) { return false; };

class WaitingLineTest : public ::testing::Test {
 protected:
  void push(std::uint64_t slot, std::uint32_t file = 0, TimePoint deadline = TimePoint(Nanos(0))) {
    WaitingTransfer entry;
    entry.transfer.files = files_;
    entry.transfer.address = {file, slot * kSlot};
    entry.transfer.envelope.payload_bytes = kPayload;
    entry.deadline = deadline;
    line_.push(std::move(entry));
  }
  // "0:3 0:4": file and slot of the first run, which is taken.
  std::string take(const WaitingLine::IsBusy& is_busy = kNobody, std::uint64_t limit = kGatherBytes) {
    std::string out;
    for (const WaitingLine::Entry entry : line_.first(is_busy, limit)) {
      const SlotAddress at = line_.take(entry).transfer.address;
      if (!out.empty()) out += ' ';
      out += std::to_string(at.file) + ':' + std::to_string(at.offset / kSlot);
    }
    return out;
  }
  std::shared_ptr<PageFiles> files_ = std::make_shared<PageFiles>();
  WaitingLine line_{std::chrono::seconds(1)};
};

TEST_F(WaitingLineTest, NeighboursOfTheFirstGoWithItInTheOrderOfTheFile) {
  for (const std::uint64_t slot : {4, 9, 2, 3, 5, 7}) push(slot);
  push(6, 1);
  EXPECT_EQ(take(), "0:2 0:3 0:4 0:5");
  EXPECT_EQ(take(), "0:9");
  EXPECT_EQ(take(), "0:7");
  EXPECT_EQ(take(), "1:6");
  EXPECT_EQ(take(), "");
}

TEST_F(WaitingLineTest, ARunEndsAtItsWindowAndAtTheLimit) {
  for (std::uint64_t slot = 10; slot < 20; ++slot) push(slot);  // slot 16 begins the second MiB
  EXPECT_EQ(take(kNobody, 3 * kSlot), "0:10 0:11 0:12");
  EXPECT_EQ(take(kNobody, 1), "0:13");
  EXPECT_EQ(take(), "0:14 0:15");
  EXPECT_EQ(take(), "0:16 0:17 0:18 0:19");
}

TEST_F(WaitingLineTest, ABusyWindowIsPassedBy) {
  for (const std::uint64_t slot : {1, 2, 17, 18}) push(slot);
  const auto first_is_busy = [](const GatherWindow& window) { return window.number == 0; };
  EXPECT_EQ(take(first_is_busy), "0:17 0:18");
  EXPECT_EQ(take(first_is_busy), "");
  EXPECT_EQ(take(), "0:1 0:2");
}

TEST_F(WaitingLineTest, WhoFailedInCompanyGoesAlone) {
  for (const std::uint64_t slot : {1, 2, 3}) push(slot);
  std::vector<WaitingTransfer> failed;
  for (const WaitingLine::Entry entry : line_.first(kNobody)) failed.push_back(line_.take(entry));
  for (WaitingTransfer& entry : failed) entry.goes_alone = true;
  push(4);
  line_.put_back(std::move(failed));
  EXPECT_EQ(take(), "0:1");
  EXPECT_EQ(take(), "0:2");
  EXPECT_EQ(take(), "0:3");
  EXPECT_EQ(take(), "0:4");
}

TEST_F(WaitingLineTest, DeadlinesFarApartPartNeighbours) {
  push(1, 0, TimePoint(std::chrono::seconds(10)));
  push(2, 0, TimePoint(std::chrono::seconds(12)));
  EXPECT_EQ(take(), "0:1");
  WaitingTransfer out;
  EXPECT_FALSE(line_.take_expired(TimePoint(std::chrono::seconds(11)), out));
  EXPECT_TRUE(line_.take_expired(TimePoint(std::chrono::seconds(12)), out));
  EXPECT_TRUE(line_.empty());
}

// What is put back has the oldest deadlines, whatever came since; among its like it keeps its place.
TEST_F(WaitingLineTest, WhatIsOverIsFoundBehindWhatIsNot) {
  const auto at = [](int seconds) { return TimePoint(std::chrono::seconds(seconds)); };
  for (const int deadline : {10, 11, 12, 30}) push(static_cast<std::uint64_t>(deadline), 0, at(deadline));
  std::vector<WaitingTransfer> failed;
  for (int i = 0; i < 3; ++i) failed.push_back(line_.take(line_.first(kNobody, 1).front()));
  std::swap(failed[0], failed[2]);  // as in the file, which is not the order of their deadlines
  line_.put_back(std::move(failed));
  push(31, 0, at(29));  // its submitter was slow
  std::string over;
  for (WaitingTransfer out; line_.take_expired(at(29), out);) {
    over += std::to_string(out.transfer.address.offset / kSlot) + ' ';
  }
  EXPECT_EQ(over, "10 11 12 31 ");
  EXPECT_EQ(line_.size(), 1u);
}

// Whatever waits: each transfer goes once, runs have no gap, and the first of the line is never left behind.
TEST_F(WaitingLineTest, AnyLineIsTakenWholeInRunsWithoutGaps) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    const std::size_t count = rng.below(60);
    std::multiset<std::pair<std::uint32_t, std::uint64_t>> waiting;
    for (std::size_t i = 0; i < count; ++i) {
      const auto file = static_cast<std::uint32_t>(rng.below(2));
      const std::uint64_t slot = rng.below(40);  // some twice
      push(slot, file);
      waiting.emplace(file, slot * kSlot);
    }
    while (!line_.empty()) {
      const std::uint64_t limit = kSlot * (1 + rng.below(20));
      const std::vector<WaitingLine::Entry> run = line_.first(kNobody, limit);
      ASSERT_FALSE(run.empty()) << "seed " << seed;
      std::vector<WaitingTransfer> taken;
      for (const WaitingLine::Entry entry : run) taken.push_back(line_.take(entry));
      EXPECT_TRUE(taken.size() == 1 || taken.back().end() - taken[0].transfer.address.offset <= limit);
      for (std::size_t i = 0; i < taken.size(); ++i) {
        const SlotAddress at = taken[i].transfer.address;
        ASSERT_TRUE(i == 0 || (at.offset == taken[i - 1].end() && at.file == taken[0].transfer.address.file &&
                               window_of(taken[i].transfer) == window_of(taken[0].transfer)))
            << "seed " << seed;
        const auto found = waiting.find({at.file, at.offset});
        ASSERT_NE(found, waiting.end()) << "seed " << seed;
        waiting.erase(found);
      }
    }
    EXPECT_TRUE(waiting.empty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace larder::hf3fs
