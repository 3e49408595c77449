// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_format.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "base/file_system.h"
#include "base/rng.h"

namespace larder::file_store {
namespace {

using Bytes = std::vector<std::byte>;

// Files made from docs/formats.md by tests/golden/make_file_store_golden.py; a change is a new format version.
Bytes golden(const std::string& name) {
  const std::string path = std::string(LARDER_SOURCE_DIR) + "/tests/golden/file_store_v2/" + name;
  auto file = real_file_system().open(path, {});
  EXPECT_TRUE(file.is_ok()) << file.status().to_string();
  if (!file.is_ok()) return {};
  Bytes bytes(static_cast<std::size_t>((*file)->size_bytes().value_or(0)));
  EXPECT_TRUE(read_exactly(**file, bytes, 0).is_ok());
  return bytes;
}

Digest256 digest_from(int first) {
  Digest256 digest;
  for (std::size_t i = 0; i < 32; ++i) digest.bytes[i] = static_cast<std::uint8_t>(first + static_cast<int>(i));
  return digest;
}

StoreId golden_store() {
  StoreId store{};
  for (std::size_t i = 0; i < store.size(); ++i) store[i] = static_cast<std::uint8_t>(0xf0 + i);
  return store;
}

// Bytes [from, from + count) of a file, fewer at its end.
std::span<const std::byte> part(const Bytes& bytes, std::size_t from, std::size_t count = ~std::size_t{0}) {
  const auto rest = std::span(bytes).subspan(std::min(from, bytes.size()));
  return rest.first(std::min(count, rest.size()));
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// The pages of the golden record, without places, checksums and payloads.
std::vector<ListedPage> golden_pages() {
  std::vector<ListedPage> pages(3);
  const PageIdentity kv{digest_from(0x80), digest_from(0xa0), PoolName::kKv};
  const PageIdentity indexer{digest_from(0x80), digest_from(0xc0), PoolName::kIndexer};
  const std::uint32_t sizes[] = {100, 0, 16484}, groups[] = {0, 0, 1};
  const std::uint64_t generations[] = {7, 9, 8};
  for (std::size_t i = 0; i < pages.size(); ++i) {
    pages[i].identity = i == 1 ? indexer : kv;
    pages[i].key = digest_from(0x10 + 0x20 * static_cast<int>(i));
    if (i > 0) pages[i].parent = digest_from(0x10);
    pages[i].location.segment = 1;
    pages[i].location.payload_bytes = sizes[i];
    pages[i].location.generation = generations[i];
    pages[i].group = groups[i];
  }
  return pages;
}

// As the golden file has it, with the checksums of the payloads that lie in it.
RecordHead golden_head(const Bytes& file) {
  RecordHead head{golden_store(), 1, 4096, 0, 4096, golden_pages()};
  head.record_bytes = lay_out_record(head.pages, head.start).record_bytes;
  for (ListedPage& page : head.pages) {
    Bytes payload(page.location.payload_bytes);
    const auto from = part(file, page.location.offset, payload.size());
    EXPECT_EQ(from.size(), payload.size());
    std::copy(from.begin(), from.end(), payload.begin());
    const Segment piece{payload.data(), payload.size()};
    page.location.checksum = payload_checksum({&piece, 1});
  }
  return head;
}

TEST(SegmentFormatGolden, Segment) {
  const Bytes file = golden("segment-0000000000000001.larder");
  ASSERT_EQ(file.size(), 36'864u);
  EXPECT_TRUE(equal(encode_segment_header({golden_store(), 1, 1'700'000'000, 7}), part(file, 0, 4096)));
  const auto header = decode_segment_header(file);
  ASSERT_TRUE(header.is_ok()) << header.status().to_string();
  EXPECT_EQ(header->store, golden_store());
  EXPECT_EQ(header->segment, 1u);
  EXPECT_EQ(header->created_unix_seconds, 1'700'000'000u);
  EXPECT_EQ(header->first_generation, 7u);
}

TEST(SegmentFormatGolden, Record) {
  const Bytes file = golden("segment-0000000000000001.larder");
  const RecordHead expected = golden_head(file);
  EXPECT_EQ(expected.record_bytes, 24'576u);
  EXPECT_EQ(expected.pages[0].location.offset, 4096u + 704);
  EXPECT_EQ(expected.pages[1].location.offset, 4096u + 704 + 128) << "a page of 0 bytes does not wait for a block";
  EXPECT_EQ(expected.pages[2].location.offset, 8192u);
  const Bytes encoded = encode_record_head(expected);
  EXPECT_EQ(encoded.size(), 704u);
  EXPECT_TRUE(equal(encoded, part(file, 4096, 704)));
  EXPECT_TRUE(is_record_magic(part(file, 4096)));
  EXPECT_FALSE(is_record_magic(part(file, 0)));
  EXPECT_EQ(record_head_bytes(part(file, 4096)).value_or(0), 704u);
  const auto head = decode_record_head(part(file, 4096));
  ASSERT_TRUE(head.is_ok()) << head.status().to_string();
  EXPECT_EQ(head->store, golden_store());
  EXPECT_EQ(head->segment, 1u);
  EXPECT_EQ(head->start, 4096u);
  EXPECT_EQ(head->record_bytes, 24'576u);
  EXPECT_EQ(head->synced_bytes, 4096u);
  ASSERT_EQ(head->pages.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const ListedPage &got = head->pages[i], &want = expected.pages[i];
    EXPECT_EQ(got.identity, want.identity);
    EXPECT_EQ(got.key, want.key);
    EXPECT_EQ(got.parent, want.parent);
    EXPECT_EQ(got.location, want.location);
    EXPECT_EQ(got.group, want.group);
  }
}

TEST(SegmentFormatGolden, FooterAndTrailer) {
  const Bytes file = golden("segment-0000000000000001.larder");
  const Footer expected{golden_store(), 1, 28'672, 9, 1, golden_head(file).pages, true};
  EXPECT_TRUE(equal(encode_footer(expected), part(file, 28'672)));
  const auto trailer = decode_trailer(part(file, file.size() - 4096));
  ASSERT_TRUE(trailer.is_ok()) << trailer.status().to_string();
  EXPECT_EQ(trailer->store, golden_store());
  EXPECT_EQ(trailer->segment, 1u);
  EXPECT_EQ(trailer->footer_start, 28'672u);
  EXPECT_EQ(trailer->footer_bytes, 672u);
  const auto footer = decode_footer(part(file, 28'672, 672));
  ASSERT_TRUE(footer.is_ok()) << footer.status().to_string();
  EXPECT_EQ(footer->start, 28'672u);
  EXPECT_EQ(footer->max_generation, 9u);
  EXPECT_EQ(footer->records, 1u);
  EXPECT_TRUE(footer->is_synced);
  ASSERT_EQ(footer->pages.size(), 3u);
  EXPECT_EQ(footer->pages[2].location, expected.pages[2].location);
  EXPECT_EQ(footer->pages[1].identity, expected.pages[1].identity);
  EXPECT_EQ(footer->pages[2].group, 0u);
}

TEST(SegmentFormatGolden, ClearedAndFormat) {
  const Bytes file = golden("CLEARED");
  const Cleared list[] = {{digest_from(0x80), 77}, {Digest256{}, 5}};
  EXPECT_TRUE(equal(encode_cleared(list), file));
  const auto decoded = decode_cleared(file);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().to_string();
  ASSERT_EQ(decoded->size(), 2u);
  EXPECT_EQ(decoded->at(0).namespace_digest, digest_from(0x80));
  EXPECT_EQ(decoded->at(0).generation, 77u);
  EXPECT_TRUE(decoded->at(1).namespace_digest.is_zero());

  const Bytes text = golden("FORMAT");
  const std::string_view format(reinterpret_cast<const char*>(text.data()), text.size());
  EXPECT_EQ(format_text({golden_store(), 3}), format);
  const auto parsed = parse_format_text(format);
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->store, golden_store());
  EXPECT_EQ(parsed->volume, 3u);
  EXPECT_EQ(segment_name(1), "segment-0000000000000001.larder");
}

// Writes the checksum that fits: what is behind it must be found by looking.
void seal(Bytes& bytes) {
  if (bytes.size() < 24) return;
  store_le<std::uint64_t>(bytes.data() + 16, 0);
  store_le<std::uint64_t>(bytes.data() + 16, XXH3_64bits(bytes.data(), bytes.size()));
}

// A decoder under test: OK with the bytes that encoding the result gives, or the error.
using Decoder = std::function<Result<Bytes>(std::span<const std::byte>)>;

Result<Bytes> recode_header(std::span<const std::byte> bytes) {
  const auto header = decode_segment_header(bytes);
  return header.is_ok() ? Result<Bytes>(encode_segment_header(*header)) : header.status();
}
Result<Bytes> recode_record(std::span<const std::byte> bytes) {
  const auto head = decode_record_head(bytes);
  return head.is_ok() ? Result<Bytes>(encode_record_head(*head)) : head.status();
}
Result<Bytes> recode_footer(std::span<const std::byte> bytes) {
  const auto footer = decode_footer(bytes);
  return footer.is_ok() ? Result<Bytes>(encode_footer(*footer)) : footer.status();
}
Result<Bytes> recode_trailer(std::span<const std::byte> bytes) {
  LARDER_ASSIGN_OR_RETURN(const auto trailer, decode_trailer(bytes));
  const Bytes footer = encode_footer({trailer.store, trailer.segment, trailer.footer_start, 0, 0, {}});
  Bytes bytes_again(footer.end() - 4096, footer.end() - 4096 + 128);
  store_le<std::uint64_t>(bytes_again.data() + 56, trailer.footer_bytes);  // that of a footer without pages, so far
  seal(bytes_again);
  return bytes_again;
}
Result<Bytes> recode_cleared(std::span<const std::byte> bytes) {
  const auto list = decode_cleared(bytes);
  return list.is_ok() ? Result<Bytes>(encode_cleared(*list)) : list.status();
}

struct Structure {
  const char* name;
  Bytes bytes;
  Decoder recode;
};

std::vector<Structure> structures() {
  const Bytes file = golden("segment-0000000000000001.larder");
  const auto copy = [&file](std::size_t from, std::size_t count) {
    const auto bytes = part(file, from, count);
    return Bytes(bytes.begin(), bytes.end());
  };
  return {{"header", copy(0, 128), recode_header},
          {"record", copy(4096, 704), recode_record},
          {"footer", copy(28'672, 672), recode_footer},
          {"trailer", copy(32'768, 128), recode_trailer},
          {"cleared", golden("CLEARED"), recode_cleared}};
}

TEST(SegmentFormat, EveryFlippedBitAndCutIsFound) {
  for (Structure& s : structures()) {
    SCOPED_TRACE(s.name);
    ASSERT_TRUE(s.recode(s.bytes).is_ok());
    for (std::size_t bit = 0; bit < s.bytes.size() * 8; ++bit) {
      s.bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      ASSERT_EQ(s.recode(s.bytes).status().code(), StatusCode::kCorrupt) << "bit " << bit;
      s.bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    for (std::size_t size = 0; size < s.bytes.size(); ++size) {
      ASSERT_EQ(s.recode(part(s.bytes, 0, size)).status().code(), StatusCode::kCorrupt) << "cut to " << size;
    }
  }
}

TEST(SegmentFormat, AnotherVersionIsNamed) {
  for (Structure& s : structures()) {
    store_le<std::uint16_t>(s.bytes.data() + 8, 3);
    seal(s.bytes);
    // In the middle of a segment another version is damage like any other.
    const StatusCode wanted = std::string_view(s.name) == "record" ? StatusCode::kCorrupt : StatusCode::kUnsupported;
    EXPECT_EQ(s.recode(s.bytes).status().code(), wanted) << s.name;
  }
}

// One field set to a value that cannot be, under a right checksum.
struct Wrong {
  std::size_t at;
  std::uint64_t value;
  std::size_t size;
};

void expect_refused(const Structure& s, std::span<const Wrong> wrongs) {
  for (const Wrong& wrong : wrongs) {
    Bytes bytes = s.bytes;
    std::memcpy(bytes.data() + wrong.at, &wrong.value, wrong.size);
    ASSERT_FALSE(equal(bytes, s.bytes)) << "no change at " << wrong.at;
    seal(bytes);
    EXPECT_EQ(s.recode(bytes).status().code(), StatusCode::kCorrupt) << s.name << " at " << wrong.at;
  }
}

constexpr std::uint64_t kMost = ~std::uint64_t{0};
constexpr std::size_t kIdentity = 128, kPage = 128 + 2 * 80;

TEST(SegmentFormat, RefusesRecordsThatCannotBe) {
  const Structure record = structures().at(1);
  const Wrong wrongs[] = {
      {10, 1, 1},
      {40, 0, 8},
      {40, std::uint64_t{1} << 32, 8},
      {48, 0, 8},
      {48, 4097, 8},
      {48, 8192, 8},
      {48, kMost - 4095, 8},
      {56, 0, 8},
      {56, 20'480, 8},
      {56, 28'672, 8},
      {56, 24'577, 8},
      {56, std::uint64_t{64} << 30, 8},
      {56, kMost - 4095, 8},
      {64, 672, 8},
      {64, 768, 8},
      {72, 4097, 8},
      {80, 0, 4},
      {80, 2, 4},
      {80, 65'537, 4},
      {80, 0xffffffff, 4},
      {84, 0, 4},
      {84, 1, 4},
      {84, 4, 4},
      {84, 0xffffffff, 4},
      {88, 1, 1},
      {127, 1, 1},
      {kIdentity + 64, kPoolNumberCount, 1},
      {kIdentity + 65, 1, 1},
      {kIdentity + 79, 1, 1},
      {kPage + 88, 4864, 8},               // the first payload where it is not
      {kPage + 88, 4800 + 1, 8},           // not aligned
      {kPage + 88, kMost - 63, 8},         // overflows
      {kPage + 96, 164, 4},                // moves the next
      {kPage + 96, 0xffffffff, 4},         //
      {kPage + 100, 1, 4},                 // not in the order of first use
      {kPage + 100, 2, 4},                 // out of range
      {kPage + 104, 1, 4},                 // the first group is 0
      {kPage + 108, 1, 1},                 //
      {kPage + 127, 1, 1},                 //
      {kPage + 128 + 100, 0, 4},           // identity 1 is used nowhere
      {kPage + 128 + 100, 0xffffffff, 4},  //
      {kPage + 256 + 104, 2, 4},           // skips group 1
      {kPage + 256 + 104, 0xffffffff, 4},  //
      {672, 1, 1},                         // padding of the head
      {703, 1, 1},
  };
  expect_refused(record, wrongs);
  // Those of the header alone are seen before the rest is read.
  for (const Wrong& wrong : {Wrong{48, kMost - 4095, 8}, Wrong{56, 0, 8}, Wrong{64, 768, 8}, Wrong{80, 65'537, 4}}) {
    Bytes header(record.bytes.begin(), record.bytes.begin() + 128);
    std::memcpy(header.data() + wrong.at, &wrong.value, wrong.size);
    EXPECT_EQ(record_head_bytes(header).status().code(), StatusCode::kCorrupt) << wrong.at;
  }
  Bytes disordered = record.bytes;  // identities 1, 0, 1: all used, but not listed in the order of first use
  for (std::size_t i = 0; i < 3; ++i) {
    store_le<std::uint32_t>(disordered.data() + kPage + i * kPageBytes + 100, i == 1 ? 0 : 1);
  }
  seal(disordered);
  EXPECT_EQ(record.recode(disordered).status().code(), StatusCode::kCorrupt);
}

TEST(SegmentFormat, RefusesOtherStructuresThatCannotBe) {
  const std::vector<Structure> all = structures();
  const Wrong headers[] = {{15, 1, 1}, {40, 0, 8}, {40, std::uint64_t{1} << 32, 8}, {64, 1, 1}, {127, 1, 1}};
  expect_refused(all[0], headers);
  const Wrong footers[] = {{40, 0, 8},
                           {48, 0, 8},
                           {48, 28'671, 8},
                           {48, 8192, 8},  // pages behind the footer's start
                           {56, 673, 8},
                           {56, kMost, 8},
                           {64, 8, 8},  // a page has a higher generation
                           {80, 4, 4},
                           {80, 0xffffffff, 4},
                           {84, 1, 4},
                           {84, 0xffffffff, 4},
                           {88, 2, 4},
                           {92, 1, 1},
                           {127, 1, 1},
                           {kIdentity + 64, 255, 1},
                           {kPage + 88, 64, 8},               // in the header
                           {kPage + 88, 4801, 8},             // not aligned
                           {kPage + 256 + 88, 8192 + 64, 8},  // a large one, not at a block
                           {kPage + 88, kMost - 63, 8},
                           {kPage + 104, 1, 4},  // group
                           {kPage + 100, 1, 4}};
  expect_refused(all[2], footers);
  const Wrong trailers[] = {{40, 0, 8}, {48, 1, 8}, {48, 0, 8}, {56, 127, 8}, {64, 1, 1}, {127, 1, 1}};
  expect_refused(all[3], trailers);
  const Wrong lists[] = {{24, 1, 8}, {24, 3, 8}, {24, kMost, 8}, {24, (kMost / 40) + 3, 8}};
  expect_refused(all[4], lists);
  Bytes two_alike = all[2].bytes;  // both identities the same
  std::copy_n(two_alike.begin() + kIdentity, 80, two_alike.begin() + kIdentity + 80);
  seal(two_alike);
  EXPECT_EQ(all[2].recode(two_alike).status().code(), StatusCode::kCorrupt);
  EXPECT_TRUE(decode_cleared(encode_cleared(std::vector<Cleared>(kMaxCleared))).is_ok());
  EXPECT_EQ(decode_cleared(encode_cleared(std::vector<Cleared>(kMaxCleared + 1))).status().code(),
            StatusCode::kCorrupt);
}

TEST(JoinClears, WhatOneListClearsStaysCleared) {
  Rng rng(11);
  std::vector<Result<std::vector<Cleared>>> files;
  for (int file = 0; file < 3; ++file) {
    std::vector<Cleared> list(3000);
    for (Cleared& entry : list) {
      store_le<std::uint64_t>(entry.namespace_digest.bytes.data(), 1 + rng.below(8000));
      entry.generation = 1 + rng.below(5000);
    }
    files.emplace_back(std::move(list));
  }
  files.emplace_back(corrupt("damaged"));
  const JoinedClears joined = join_cleared(files);
  EXPECT_FALSE(joined.is_damaged) << "some are whole";
  EXPECT_LE(joined.list.size(), kMaxCleared);
  std::size_t exact = 0;
  for (const auto& file : files) {
    if (!file.is_ok()) continue;
    for (const Cleared& entry : *file) {
      ASSERT_TRUE(is_in(joined.list, entry.namespace_digest, entry.generation - 1));
    }
  }
  for (const Cleared& entry : joined.list) exact += entry.namespace_digest.is_zero() ? 0 : 1;
  EXPECT_EQ(exact, kMaxCleared - 1) << "only the oldest have become one";
  EXPECT_TRUE(join_cleared(std::span(files).last(1)).is_damaged);
  EXPECT_FALSE(join_cleared({}).is_damaged);
}

// Any bytes under a right checksum: no crash (the sanitizers watch), and what is taken is what would be written.
TEST(SegmentFormat, AnyBytesAreTakenAsTheyWouldBeWrittenOrRefused) {
  const char* const given = std::getenv("LARDER_TEST_SEED");
  const std::uint64_t first_seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const std::vector<Structure> all = structures();
  std::size_t taken = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + 20'000; ++seed) {
    SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const Structure& s = all[rng.below(all.size())];
    Bytes bytes = s.bytes;
    for (std::uint64_t i = rng.below(3); i > 0; --i) {
      // Numbers of the kinds that go wrong, mostly in the header and at the tables' fields.
      const std::uint64_t values[] = {0,      1,          2,     64,           4096,          65'536,
                                      65'537, 0x7fffffff, kMost, kMost - 4095, rng.next_u64()};
      const std::size_t width = std::size_t{1} << rng.below(4);
      const std::size_t at = rng.below(rng.chance(1, 2) ? 112 : bytes.size()) / width * width;
      std::memcpy(bytes.data() + at, &values[rng.below(std::size(values))], width);
    }
    if (rng.chance(1, 8)) bytes.resize(rng.below(bytes.size() + 1));
    if (rng.chance(1, 8)) bytes.resize(bytes.size() + rng.below(300));
    seal(bytes);
    const Result<Bytes> again = s.recode(bytes);
    if (!again.is_ok()) continue;
    ++taken;
    const std::size_t size = std::min(again->size(), bytes.size());
    ASSERT_TRUE(equal(part(*again, 0, size), part(bytes, 0, size))) << s.name;
  }
  EXPECT_GT(taken, 2000u);
}

// Many identities: each listed once, in the order of first use, and counted so by the layout.
TEST(SegmentFormat, ManyIdentities) {
  Rng rng(3);
  RecordHead head{golden_store(), 9, 1 << 20, 0, 8192, std::vector<ListedPage>(6000)};
  for (std::size_t i = 0; i < head.pages.size(); ++i) {
    ListedPage& page = head.pages[i];
    store_le<std::uint64_t>(page.identity.namespace_digest.bytes.data(), rng.below(40));
    store_le<std::uint64_t>(page.identity.layout_fingerprint.bytes.data() + 8, rng.below(40));
    page.identity.pool = static_cast<PoolName>(rng.below(3));
    page.key = digest_from(static_cast<int>(i));
    page.location.segment = 9;
    page.location.generation = 10 + i;
    page.location.payload_bytes = static_cast<std::uint32_t>(rng.chance(1, 8) ? 16'384 + rng.below(9) : rng.below(99));
    page.group = static_cast<std::uint32_t>(i / 3);
  }
  const RecordLayout layout = lay_out_record(head.pages, head.start);
  head.record_bytes = layout.record_bytes;
  const Bytes bytes = encode_record_head(head);
  EXPECT_EQ(bytes.size(), layout.head_bytes);
  EXPECT_LT(bytes.size(), 6000 * kPageBytes + 4801 * kIdentityBytes);
  const auto decoded = decode_record_head(bytes);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().to_string();
  std::uint64_t end = head.start + layout.head_bytes;
  for (std::size_t i = 0; i < head.pages.size(); ++i) {
    const ListedPage &got = decoded->pages[i], &want = head.pages[i];
    ASSERT_TRUE(got.identity == want.identity && got.location == want.location && got.group == want.group) << i;
    ASSERT_GE(got.location.offset, end);
    ASSERT_LT(got.location.offset, end + (want.location.payload_bytes >= kBlockPayload ? kBlockBytes : 64));
    end = got.location.offset + want.location.payload_bytes;
  }
  EXPECT_EQ(align_up(end, kBlockBytes), head.start + head.record_bytes);
}

TEST(SegmentFormat, FormatText) {
  const auto code_of = [](std::string_view text) { return parse_format_text(text).status().code(); };
  const std::string good = format_text({golden_store(), 15});
  EXPECT_EQ(parse_format_text(good)->volume, 15u);
  for (const char* bad : {"", "something else\n", "larder file store\n", "larder file store\nformat_version = 2\n",
                          "larder file store\nformat_version = 2\nstore_id = 00\nvolume = 0\n"}) {
    EXPECT_EQ(code_of(bad), StatusCode::kCorrupt) << bad;
  }
  const std::string head = good.substr(0, good.find("volume"));
  for (const char* volume : {"", "volume = \n", "volume = 16\n", "volume = -1\n", "volume = 1x\n", "volume = 01\n",
                             "volume = 1", "volume = 99999999999\n", "volume = 1\nmore\n"}) {
    EXPECT_EQ(code_of(head + volume), StatusCode::kCorrupt) << volume;
  }
  for (const char* other : {"larder file store\nformat_version = 1\nstore_id = 00\n",
                            "larder file store\nformat_version = 3\nanything\n"}) {
    EXPECT_EQ(code_of(other), StatusCode::kUnsupported) << other;
  }
}

TEST(SegmentFormat, FormatTextWithVolumes) {
  const VolumeFormat format = {golden_store(),
                               3,
                               0x123456789abcdef0,
                               7,
                               {{0, 0, "/mnt/a b"}, {3, 0x123456789abcdef0, "/mnt/c\nmember = 9"}, {15, 1, ""}}};
  const std::string good = format_text(format);
  EXPECT_EQ(good, format_text({golden_store(), 3}) +
                      "volume_id = 123456789abcdef0\nset = 7\nmember = 0 0000000000000000 /mnt/a b\n"
                      "member = 3 123456789abcdef0 /mnt/c?member = 9\nmember = 15 0000000000000001 \n");
  const auto parsed = parse_format_text(good);
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().to_string();
  EXPECT_EQ(format_text(*parsed), good);
  EXPECT_EQ(parsed->id, format.id);
  EXPECT_EQ(parsed->set_version, 7u);
  ASSERT_EQ(parsed->members.size(), 3u);
  EXPECT_EQ(parsed->members[2].volume, 15u);
  EXPECT_EQ(parsed->members[2].id, 1u);
  const std::string head = good.substr(0, good.find("volume_id"));
  const std::string own = "member = 3 0000000000000000 /c\n";
  EXPECT_TRUE(parse_format_text(head + "set = 1\n" + own).is_ok());
  EXPECT_TRUE(parse_format_text(head + "volume_id = 0000000000000001\n").is_ok()) << "about to join";
  const std::vector<std::string> bad_ones = {"volume_id = 0000000000000000\nset = 1\n" + own,
                                             "volume_id = 1\n",
                                             "set = 1\n",
                                             "set = 0\n" + own,
                                             own,
                                             "set = 01\n" + own,
                                             "set = x\n" + own,
                                             "set = 18446744073709551616\n" + own,
                                             "set = 18446744073709551615\n" + own,
                                             "set = 1\n" + own + own,
                                             "set = 1\n" + own + "member = 2 0000000000000000 /b\n",
                                             "set = 1\nmember = 2 0000000000000000 /b\n",
                                             "set = 1\n" + own + "member = 16 0000000000000000 /q\n",
                                             "set = 1\nmember = 3 0000000000000001 /c\n",
                                             "set = 1\nmember = 3 0 /c\n",
                                             "set = 1\nmember = 3\n",
                                             "set = 1\n" + own + "more\n"};
  for (const std::string& bad : bad_ones) {
    EXPECT_EQ(parse_format_text(head + bad).status().code(), StatusCode::kCorrupt) << bad;
  }
}

// The largest FORMAT fits what readers take.
TEST(SegmentFormat, FormatTextIsShort) {
  VolumeFormat format = {golden_store(), 15, ~VolumeId{0}, kMaxSetVersion, {}};
  for (unsigned i = 0; i < kMaxVolumes; ++i) format.members.push_back({i, ~VolumeId{0}, std::string(5000, '\x01')});
  const std::string text = format_text(format);
  EXPECT_LE(text.size(), 4096u);
  EXPECT_EQ(format_text(*parse_format_text(text)), text);
}

TEST(SegmentFormat, Names) {
  for (const SegmentId id : {1u, 42u, 0xffffffffu}) EXPECT_EQ(parse_segment_name(segment_name(id)), id);
  for (const char* bad : {"", "segment-.larder", "segment-000000000000002A.larder", "segment-0000000000000000.larder",
                          "segment-0000000100000000.larder", "segment-000000000000002a.larder2", "FORMAT"}) {
    EXPECT_EQ(parse_segment_name(bad), std::nullopt) << bad;
  }
  for (const char* own : {"FORMAT", "LOCK", "CLEARED", "FORMAT.tmp", "CLEARED.tmp", "lost+found",
                          "segment-0000000000000001.larder", ".nfs000000000012d6870000000f"}) {
    EXPECT_TRUE(is_store_name(own)) << own;
  }
  for (const char* foreign : {"data", "format", "segment-1.larder", ".tmp", "FORMAT~", "LOCK.tmp", "FORMAT.tmp.tmp",
                              "segment-0000000000000001.larder.tmp"}) {
    EXPECT_FALSE(is_store_name(foreign)) << foreign;
  }
}

}  // namespace
}  // namespace larder::file_store
