// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/slot_bytes.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "storage/hf3fs/page_slots.h"

namespace larder::hf3fs {
namespace {

constexpr std::size_t kSlotPayload = 5000;
constexpr std::byte kUntouched{0xEE};

class SlotBytes : public ::testing::Test {
 protected:
  SlotBytes() : slot_(transfer_bytes(kSlotPayload), std::byte{0x77}) {
    for (std::size_t i = 0; i < kSlotPayload; ++i) bytes_[i] = static_cast<std::byte>(i * 7);
    PageTransfer transfer = transfer_of(pieces_);
    fill_slot(transfer, slot_.data(), slot_.size());
  }
  PageTransfer transfer_of(std::span<const Segment> pieces) const {
    PageTransfer transfer;
    transfer.envelope.key.bytes.fill(3);
    transfer.envelope.namespace_digest.bytes.fill(4);
    transfer.envelope.layout_fingerprint.bytes.fill(5);
    transfer.envelope.generation = 9;
    transfer.envelope.payload_bytes = kSlotPayload;
    transfer.payload = pieces;
    return transfer;
  }
  // What a reader finds who expects `transfer`. Nothing behind its memory may be touched.
  StatusCode take(PageTransfer transfer) {
    std::vector<std::byte> out(kSlotPayload + 1, kUntouched);
    const Segment pieces[] = {{out.data(), 17}, {out.data() + 17, 0}, {out.data() + 17, kSlotPayload - 17}};
    transfer.payload = pieces;
    const Status status = take_out(transfer, slot_.data());
    EXPECT_EQ(out.back(), kUntouched);
    out.pop_back();
    EXPECT_TRUE(!status.is_ok() || out == bytes_);
    was_touched_ = out != std::vector<std::byte>(kSlotPayload, kUntouched);
    return status.code();
  }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(kSlotPayload);
  const std::vector<Segment> pieces_ = {{bytes_.data(), 1000}, {bytes_.data() + 1000, kSlotPayload - 1000}};
  std::vector<std::byte> slot_;
  bool was_touched_ = false;  // by the last take()
};

TEST_F(SlotBytes, WhatWasPutInComesOut) {
  EXPECT_EQ(take(transfer_of(pieces_)), StatusCode::kOk);
  for (std::size_t i = kHeadBytes + kSlotPayload; i < slot_.size(); ++i) ASSERT_EQ(slot_[i], std::byte{0}) << i;
}

// The page of an earlier or later use of the slot is no error of the disk.
TEST_F(SlotBytes, AnotherGenerationIsAMiss) {
  for (const std::uint64_t generation : {8u, 10u}) {
    PageTransfer transfer = transfer_of(pieces_);
    transfer.envelope.generation = generation;
    EXPECT_EQ(take(transfer), StatusCode::kNotFound);
    EXPECT_FALSE(was_touched_);
  }
}

TEST_F(SlotBytes, AnyOtherDifferenceIsCorrupt) {
  const std::function<void(Envelope&)> changes[] = {
      [](Envelope& e) { e.pool = PoolName::kMamba; },
      [](Envelope& e) { e.key.bytes[31] ^= 1; },
      [](Envelope& e) { e.namespace_digest.bytes[0] ^= 1; },
      [](Envelope& e) { e.layout_fingerprint.bytes[0] ^= 1; },
      [](Envelope& e) { e.payload_bytes -= 1; },
  };
  for (const auto& change : changes) {
    PageTransfer transfer = transfer_of(pieces_);
    change(transfer.envelope);
    EXPECT_EQ(take(transfer), StatusCode::kCorrupt);
    EXPECT_FALSE(was_touched_);
  }
}

// Pieces and the blocks they are copied in have borders of their own.
TEST_F(SlotBytes, LaterBlocksAreVerifiedToo) {
  constexpr std::size_t kLarge = 100'000;
  std::vector<std::byte> content(kLarge), out(kLarge), slot(transfer_bytes(kLarge));
  for (std::size_t i = 0; i < kLarge; ++i) content[i] = static_cast<std::byte>(i * 7 + i / 1000);
  const std::vector<Segment> from = {{content.data(), kLarge}};
  const std::vector<Segment> to = {{out.data(), 20'001}, {out.data() + 20'001, 50'000}, {out.data() + 70'001, 29'999}};
  PageTransfer transfer = transfer_of(from);
  transfer.envelope.payload_bytes = kLarge;
  fill_slot(transfer, slot.data(), slot.size());
  transfer.payload = to;
  ASSERT_TRUE(take_out(transfer, slot.data()).is_ok());
  EXPECT_EQ(out, content);
  for (const std::size_t at : {0u, 17'000u, 20'001u, 40'000u, 99'999u}) {
    slot[kHeadBytes + at] ^= std::byte{1};
    EXPECT_EQ(take_out(transfer, slot.data()).code(), StatusCode::kCorrupt) << at;
    slot[kHeadBytes + at] ^= std::byte{1};
  }
}

TEST_F(SlotBytes, AnyBitOfHeadOrPayloadIsSeen) {
  for (std::size_t at = 0; at < kHeadBytes + kSlotPayload; at += at < kEnvelopeBytes ? 1 : 97) {
    if (at >= kEnvelopeBytes && at < kHeadBytes) continue;  // padding
    slot_[at] ^= std::byte{0x10};
    EXPECT_EQ(take(transfer_of(pieces_)), StatusCode::kCorrupt) << "byte " << at;
    slot_[at] ^= std::byte{0x10};
  }
  EXPECT_EQ(take(transfer_of(pieces_)), StatusCode::kOk);
}

}  // namespace
}  // namespace larder::hf3fs
