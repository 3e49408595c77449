// SPDX-License-Identifier: Apache-2.0
#include "storage/file/write_gather.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace larder::file_store {
namespace {

constexpr std::uint64_t kSegmentBytes = std::uint64_t{16} << 20;  // records up to 1 MiB are joined

RecordPtr record_of(std::uint64_t payload_bytes, bool is_durable = false) {
  auto record = std::make_shared<WriteRecord>();
  ListedPage page;
  page.location.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  record->pages = {page};
  record->payloads.resize(1);
  record->groups = {{nullptr, 0, 0, 1, false}};
  record->is_durable = is_durable;
  record->layout = lay_out_record(record->pages, 0);
  return record;
}

// Two of one volume are enough.
void begin_enough(WriteGather& gather) {
  gather.write_begun(true);
  gather.write_begun(true);
}

TEST(WriteGather, OneLoneWriteMayClaimAnIdleDisk) {
  WriteGather gather(1);
  EXPECT_TRUE(gather.claim_idle_disk());
  EXPECT_FALSE(gather.claim_idle_disk()) << "one is coming";
  gather.give_up_claim();
  EXPECT_TRUE(gather.claim_idle_disk());
  gather.write_begun(true);
  EXPECT_TRUE(gather.is_one_being_written());
  EXPECT_FALSE(gather.claim_idle_disk());
  gather.write_ended();
  EXPECT_TRUE(gather.claim_idle_disk());
}

TEST(WriteGather, NothingWaitsOnAnIdleDiskNorWhatIsLarge) {
  WriteGather gather(1);
  RecordPtr small = record_of(4096), large = record_of(std::uint64_t{2} << 20);
  EXPECT_FALSE(gather.take(small, kSegmentBytes));
  begin_enough(gather);
  EXPECT_FALSE(gather.take(large, kSegmentBytes));
  EXPECT_TRUE(gather.take(small, kSegmentBytes));
  EXPECT_EQ(small, nullptr);
}

TEST(WriteGather, WhatHasGatheredGoesInOrderAndTogether) {
  WriteGather gather(1);
  begin_enough(gather);
  std::vector<const WriteRecord*> order;
  for (int i = 0; i < 5; ++i) {
    RecordPtr record = record_of(4096, i == 3);  // the fourth is durable
    order.push_back(record.get());
    ASSERT_TRUE(gather.take(record, kSegmentBytes));
  }
  ASSERT_TRUE(gather.begin_placing());
  EXPECT_TRUE(gather.next(kSegmentBytes).empty()) << "enough is being written";
  gather.write_ended();
  ASSERT_TRUE(gather.begin_placing());
  EXPECT_FALSE(gather.begin_placing()) << "one does so at a time";
  std::vector<RecordPtr> parts = gather.next(kSegmentBytes);
  ASSERT_EQ(parts.size(), 3u) << "a durable one does not go with others";
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(parts[i].get(), order[i]);
  const RecordPtr joined = join_records(std::move(parts));
  ASSERT_EQ(joined->groups.size(), 3u);
  EXPECT_EQ(joined->groups[2].begin, 2u);
  EXPECT_EQ(joined->pages[2].group, 2u);
  EXPECT_EQ(gather.next(kSegmentBytes).size(), 1u);
  EXPECT_EQ(gather.next(kSegmentBytes).size(), 1u);
  EXPECT_TRUE(gather.next(kSegmentBytes).empty());
  EXPECT_FALSE(gather.begin_placing()) << "nothing is left";
}

}  // namespace
}  // namespace larder::file_store
