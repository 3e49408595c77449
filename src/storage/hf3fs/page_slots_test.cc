// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/page_slots.h"

#include <gtest/gtest.h>

#include <map>

namespace larder::hf3fs {
namespace {

TEST(PageSlotsTest, SlotsAreAlignedAndNeverOverlapNorCrossAChunk) {
  for (const std::uint64_t chunk : {0ull, 4096ull, 65536ull, 1048576ull}) {
    for (const std::uint64_t payload : {1ull, 4096ull, 65536ull, 300001ull, 3000000ull}) {
      for (const std::uint32_t files : {1u, 3u}) {
        const SlotGeometry slots = make_slot_geometry(payload, chunk, files);
        const std::string where = "chunk " + std::to_string(chunk) + " payload " + std::to_string(payload);
        EXPECT_GE(slots.slot_bytes, transfer_bytes(payload)) << where;
        std::map<std::pair<std::uint32_t, std::uint64_t>, bool> begins;
        const std::uint64_t budget = slots.slot_bytes * 40;
        for (std::uint64_t page = 0; page < slots.pages_in(budget); ++page) {
          const SlotAddress at = slots.address_of(page);
          EXPECT_EQ(at.offset % kSlotAlignment, 0u) << where;
          EXPECT_LE(at.offset + slots.slot_bytes, budget / files) << where << ": beyond the file's size";
          if (chunk > slots.slot_bytes) {
            EXPECT_EQ(at.offset / chunk, (at.offset + slots.slot_bytes - 1) / chunk) << where;
          } else if (chunk > 0) {
            EXPECT_EQ(at.offset % chunk, 0u) << where;
          }
          EXPECT_TRUE(begins.emplace(std::pair(at.file, at.offset), true).second) << where;
        }
        std::uint64_t last_end = 0;
        std::uint32_t last_file = 0;
        for (const auto& [begin, unused] : begins) {
          if (begin.first == last_file) {
            EXPECT_GE(begin.second, last_end) << where;
          }
          last_file = begin.first;
          last_end = begin.second + slots.slot_bytes;
        }
      }
    }
  }
}

TEST(PageSlotsTest, NamesSayWhatPagesAgreeOn) {
  Digest256 fingerprint;
  fingerprint.bytes[0] = 0xab;
  const NamedGeometry geometry{65536, make_slot_geometry(65536, 1 << 20, 4)};
  const std::string name = namespace_name(PoolName::kDeepseekV4C4, fingerprint, geometry);
  EXPECT_EQ(name, "deepseek_v4_c4-ab00000000000000-b65536-c1048576-f4");
  EXPECT_TRUE(name.starts_with(namespace_prefix(PoolName::kDeepseekV4C4, fingerprint)));
  const Result<NamedGeometry> read = parse_namespace_name(name);
  ASSERT_TRUE(read.is_ok());
  EXPECT_EQ(read->payload_bytes, 65536u);
  EXPECT_EQ(read->slots.slot_bytes, geometry.slots.slot_bytes);
  EXPECT_EQ(read->slots.files, 4u);
  EXPECT_EQ(namespace_prefix_of(name), namespace_prefix(PoolName::kDeepseekV4C4, fingerprint));
  for (const char* foreign : {"", "kv", "kv-", "kv-ab00000000000000", "kv-ab00000000000000-b1-c0", "kv-ab-b1-c0-f1",
                              "kv-ab00000000000000-b-c0-f1", "kv-ab00000000000000-b1-c0-f0",
                              "kv-ab00000000000000-b1-c0-f1x", "kv-ab00000000000000-b99999999999999999999-c0-f1"}) {
    EXPECT_EQ(parse_namespace_name(foreign).status().code(), StatusCode::kInvalidArgument) << foreign;
  }
}

}  // namespace
}  // namespace larder::hf3fs
