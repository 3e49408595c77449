#include "storage/file/segment_format.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace larder::file_store {
namespace {

// docs/formats.md. Made by an independent script from that text; a change is a new format version.
constexpr const char* kGoldenSegment =
    "4c415244455253470100000001727264f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff2a0000004000000000f153650000000007000000000000"
    "000000000000000000";
constexpr const char* kGoldenCommit =
    "4c4152444552474301000000f09b77c209000000000000004000000000000000c00100000000000040000000000000002a000000020000"
    "00f0f1f2f3f4f5f6f740000000000000000d000000000000000500000000000000efbeadde0300000000010000000000000100000000000000"
    "06000000000000000403020100000000";
constexpr const char* kGoldenCleared =
    "4c4152444552434c0100000018043b5d01000000000000000000000000000000404142434445464748494a4b4c4d4e4f50515253545556"
    "5758595a5b5c5d5e5f4d00000000000000";

std::string hex(std::span<const std::byte> bytes) {
  return hex_encode({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

StoreId golden_store() {
  StoreId store{};
  for (std::size_t i = 0; i < store.size(); ++i) store[i] = static_cast<std::uint8_t>(0xf0 + i);
  return store;
}

CommitRecord golden_commit() {
  CommitRecord record;
  record.store_low = store_low(golden_store());
  record.segment = 42;
  record.group = 9;
  record.group_start = 64;
  record.synced_bytes = 64;
  record.entries = {{64, 13, 5, 0xdeadbeef, PoolName::kIndexer}, {256, 1, 6, 0x01020304, PoolName::kKv}};
  record.offset = 448;
  return record;
}

Digest256 golden_namespace() {
  Digest256 digest;
  for (std::size_t i = 0; i < 32; ++i) digest.bytes[i] = static_cast<std::uint8_t>(0x40 + i);
  return digest;
}

TEST(SegmentFormat, GoldenBytes) {
  EXPECT_EQ(hex(encode_segment_header({golden_store(), 42, 1'700'000'000, 7})), kGoldenSegment);
  EXPECT_EQ(hex(encode_commit(golden_commit())), kGoldenCommit);
  const Cleared cleared{golden_namespace(), 77};
  EXPECT_EQ(hex(encode_cleared({&cleared, 1})), kGoldenCleared);
  EXPECT_EQ(format_text(golden_store()),
            "larder file store\nformat_version = 1\nstore_id = f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff\n");
  EXPECT_EQ(segment_name(42), "segment-000000000000002a.larder");
}

TEST(SegmentFormat, DecodesWhatItEncodes) {
  const auto header = decode_segment_header(encode_segment_header({golden_store(), 42, 1'700'000'000, 7}));
  ASSERT_TRUE(header.is_ok());
  EXPECT_EQ(header->store, golden_store());
  EXPECT_EQ(header->segment, 42u);
  EXPECT_EQ(header->first_generation, 7u);
  const auto bytes = encode_commit(golden_commit());
  EXPECT_EQ(commit_length(bytes).value_or(0), bytes.size());
  const auto commit = decode_commit(bytes);
  ASSERT_TRUE(commit.is_ok()) << commit.status().to_string();
  EXPECT_EQ(commit->entries.size(), 2u);
  EXPECT_EQ(commit->entries[0].envelope_checksum, 0xdeadbeefu);
  EXPECT_EQ(commit->offset, 448u);
  const auto store = parse_format_text(format_text(golden_store()));
  ASSERT_TRUE(store.is_ok());
  EXPECT_EQ(*store, golden_store());
  const Cleared cleared{golden_namespace(), 77};
  const auto list = decode_cleared(encode_cleared({&cleared, 1}));
  ASSERT_TRUE(list.is_ok());
  EXPECT_EQ(list->at(0).generation, 77u);
}

TEST(SegmentFormat, EveryFlippedBitIsFound) {
  const auto check = [](std::vector<std::byte> bytes, std::size_t significant, const auto& decode) {
    for (std::size_t bit = 0; bit < significant * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      EXPECT_FALSE(decode(bytes).is_ok()) << "bit " << bit;
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    for (std::size_t cut = 0; cut < significant; ++cut) {
      EXPECT_FALSE(
          decode(std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut))).is_ok());
    }
  };
  const auto header = encode_segment_header({golden_store(), 42, 1, 7});
  check({header.begin(), header.end()}, 64, [](const auto& b) { return decode_segment_header(b); });
  check(encode_commit(golden_commit()), 128, [](const auto& b) { return decode_commit(b); });
  const Cleared cleared{golden_namespace(), 77};
  check(encode_cleared({&cleared, 1}), 72, [](const auto& b) { return decode_cleared(b); });
}

TEST(SegmentFormat, RefusesEntriesOutOfPlace) {
  CommitRecord record = golden_commit();
  record.entries[1].offset += 64;  // encoded with a right checksum: the decoder must look itself
  EXPECT_EQ(decode_commit(encode_commit(record)).status().code(), StatusCode::kCorrupt);
  record = golden_commit();
  record.offset += 64;
  EXPECT_EQ(decode_commit(encode_commit(record)).status().code(), StatusCode::kCorrupt);
  record = golden_commit();
  record.entries[0].payload_bytes = std::uint64_t{1} << 60;
  EXPECT_EQ(decode_commit(encode_commit(record)).status().code(), StatusCode::kCorrupt);
}

TEST(SegmentFormat, FormatText) {
  EXPECT_EQ(parse_format_text("").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(parse_format_text("something else\n").status().code(), StatusCode::kCorrupt);
  const Status newer = parse_format_text("larder file store\nformat_version = 2\nstore_id = 00\n").status();
  EXPECT_EQ(newer.code(), StatusCode::kUnsupported);
  EXPECT_EQ(parse_format_text("larder file store\nformat_version = 1\nstore_id = 00\n").status().code(),
            StatusCode::kCorrupt);
}

TEST(SegmentFormat, Names) {
  for (const SegmentId id : {1u, 42u, 0xffffffffu}) EXPECT_EQ(parse_segment_name(segment_name(id)), id);
  for (const char* bad : {"", "segment-.larder", "segment-000000000000002A.larder", "segment-0000000000000000.larder",
                          "segment-0000000100000000.larder", "segment-000000000000002a.larder2", "FORMAT"}) {
    EXPECT_EQ(parse_segment_name(bad), std::nullopt) << bad;
  }
  for (const char* own : {"FORMAT", "LOCK", "CLEARED", "FORMAT.tmp", "lost+found", "segment-0000000000000001.larder"}) {
    EXPECT_TRUE(is_store_name(own)) << own;
  }
  for (const char* foreign : {"data", "format", "segment-1.larder", ".tmp", "FORMAT~"}) {
    EXPECT_FALSE(is_store_name(foreign)) << foreign;
  }
}

}  // namespace
}  // namespace larder::file_store
