// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/rng.h"
#include "sim/sim_file_system.h"

namespace larder::file_store {
namespace {

using Bytes = std::vector<std::byte>;
using Sizes = std::vector<std::vector<std::uint32_t>>;  // of payloads: per group, per page

constexpr SegmentId kSegment = 3;
constexpr std::uint64_t kFirstGeneration = 10;

StoreId test_store() {
  StoreId store{};
  for (std::size_t i = 0; i < store.size(); ++i) store[i] = static_cast<std::uint8_t>(0x21 + 3 * i);
  return store;
}

// The bytes of a segment file as its writer leaves them, and what is in it.
class SegmentImage {
 public:
  explicit SegmentImage(const StoreId& store = test_store(), SegmentId segment = kSegment)
      : bytes(encode_segment_header({store, segment, 0, kFirstGeneration})), store_(store), segment_(segment) {}

  // A record; the promise is clamped to what a record can promise.
  void append(const Sizes& groups, std::uint64_t synced = 0) {
    RecordHead head{store_, segment_, bytes.size(), 0, std::min<std::uint64_t>(synced, bytes.size()), {}};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const std::uint32_t size : groups[g]) head.pages.push_back(new_page(static_cast<std::uint32_t>(g), size));
    }
    head.record_bytes = lay_out_record(head.pages, head.start).record_bytes;
    bytes.resize(bytes.size() + static_cast<std::size_t>(head.record_bytes));
    for (ListedPage& page : head.pages) {
      std::byte* const to = bytes.data() + page.location.offset;
      for (std::uint32_t i = 0; i < page.location.payload_bytes; ++i) to[i] = static_cast<std::byte>(rng_.next_u64());
      page.location.checksum = checksum_in(bytes, page);
    }
    const Bytes encoded = encode_record_head(head);
    std::copy(encoded.begin(), encoded.end(), bytes.begin() + static_cast<std::ptrdiff_t>(head.start));
    head_bytes.push_back(encoded.size());
    records.push_back(std::move(head));
  }

  void seal() {
    footer_at = bytes.size();
    Footer footer{store_, segment_, footer_at, next_generation_ - 1, records.size(), {}};
    for (const RecordHead& record : records) {
      footer.pages.insert(footer.pages.end(), record.pages.begin(), record.pages.end());
    }
    const Bytes encoded = encode_footer(footer);
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
  }

  static Checksum128 checksum_in(const Bytes& bytes, const ListedPage& page) {
    Bytes copy(bytes.begin() + static_cast<std::ptrdiff_t>(page.location.offset),
               bytes.begin() + static_cast<std::ptrdiff_t>(page.location.offset + page.location.payload_bytes));
    const Segment piece{copy.data(), copy.size()};
    return payload_checksum({&piece, 1});
  }
  [[nodiscard]] std::uint64_t end_of(std::size_t record) const {
    return records[record].start + records[record].record_bytes;
  }

  Bytes bytes;
  std::vector<RecordHead> records;
  std::vector<std::size_t> head_bytes;
  std::uint64_t footer_at = 0;

 private:
  ListedPage new_page(std::uint32_t group, std::uint32_t size) {
    ListedPage page;
    page.identity.namespace_digest.bytes[0] = 7;
    page.identity.pool = next_generation_ % 3 == 0 ? PoolName::kKv : PoolName::kMamba;
    store_le<std::uint64_t>(page.key.bytes.data(), rng_.next_u64());
    store_le<std::uint64_t>(page.key.bytes.data() + 8, next_generation_);
    if (next_generation_ % 2 == 0) store_le<std::uint64_t>(page.parent.bytes.data(), rng_.next_u64());
    page.location = {segment_, 0, size, next_generation_++, {}};
    page.group = group;
    return page;
  }

  StoreId store_;
  SegmentId segment_;
  std::uint64_t next_generation_ = kFirstGeneration;
  Rng rng_{99};
};

// Five records of several groups, all kinds of payloads; records 0 and 1 are promised to be on disk.
SegmentImage example() {
  SegmentImage image;
  image.append({{100, 0, 64}, {5000}});
  image.append({{16'384, 7}, {0}, {300, 300}});
  image.append({{1}}, image.end_of(0));
  image.append({{2000, 2000}, {0, 20'000}, {63}}, image.end_of(1));
  image.append({{900}, {65}, {1000}});
  return image;
}

class SegmentScanTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(files_.make_dirs("/d").is_ok()); }

  std::unique_ptr<File> open(const Bytes& bytes) {
    OpenOptions options;
    options.write = options.create = options.truncate = true;
    auto file = files_.open(path_, options);
    EXPECT_TRUE(file.is_ok() && write_fully(**file, bytes, 0).is_ok());
    EXPECT_TRUE((*file)->sync_data().is_ok());  // the simulation keeps unsynced writes for ever
    return std::move(file).value();
  }
  Result<ScanResult> try_scan(const Bytes& bytes, bool check = true) {
    return scan_segment(*open(bytes), test_store(), kSegment, check);
  }
  ScanResult scan(const Bytes& bytes, bool check = true) {
    auto found = try_scan(bytes, check);
    EXPECT_TRUE(found.is_ok()) << found.status().to_string();
    return found.is_ok() ? std::move(found).value() : ScanResult{};
  }

  sim::SimFileSystem files_{1};
  const std::string path_ = "/d/" + segment_name(kSegment);
};

// The groups found, as "record.group ..."; each must be whole, in order and exactly as written.
std::string groups_of(const SegmentImage& image, const ScanResult& found) {
  std::string out;
  auto at = found.pages.begin();
  for (std::size_t r = 0; r < image.records.size(); ++r) {
    const std::vector<ListedPage>& written = image.records[r].pages;
    for (auto first = written.begin(); first != written.end();) {
      const auto last = std::find_if(first, written.end(), [&](const auto& p) { return p.group != first->group; });
      const bool is_there = at != found.pages.end() && at->key == first->key;
      if (is_there) out += (out.empty() ? "" : " ") + std::to_string(r) + "." + std::to_string(first->group);
      for (; first != last; ++first) {
        if (!is_there) continue;
        if (at == found.pages.end()) return out + " and a part of a group";
        const bool is_group_same = at->group == (found.has_footer ? 0 : first->group);
        if (!is_group_same || at->key != first->key || at->parent != first->parent || at->identity != first->identity ||
            at->location != first->location) {
          return out + " and a page that was not written so";
        }
        ++at;
      }
    }
  }
  return at == found.pages.end() ? out : out + " and pages that were not written, or twice, or out of order";
}

// All groups of the image but those that `is_lost(record, group)` names.
template <class IsLost>
std::string groups_but(const SegmentImage& image, const IsLost& is_lost) {
  std::set<std::pair<std::size_t, std::uint32_t>> all;
  for (std::size_t r = 0; r < image.records.size(); ++r) {
    for (const ListedPage& page : image.records[r].pages) all.emplace(r, page.group);
  }
  std::string out;
  for (const auto& [record, group] : all) {
    if (is_lost(record, group)) continue;
    out += (out.empty() ? "" : " ") + std::to_string(record) + "." + std::to_string(group);
  }
  return out;
}
std::string all_groups(const SegmentImage& image) {
  return groups_but(image, [](std::size_t, std::uint32_t) { return false; });
}

void fill(Bytes& bytes, std::uint64_t from, std::uint64_t count, std::byte value = std::byte{0}) {
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(from), count, value);
}
void copy(Bytes& bytes, std::uint64_t from, std::uint64_t to, std::uint64_t count) {
  const Bytes source(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                     bytes.begin() + static_cast<std::ptrdiff_t>(from + count));
  std::copy(source.begin(), source.end(), bytes.begin() + static_cast<std::ptrdiff_t>(to));
}

TEST_F(SegmentScanTest, FindsWhatWasWritten) {
  const SegmentImage image = example();
  const ScanResult found = scan(image.bytes);
  EXPECT_EQ(groups_of(image, found), "0.0 0.1 1.0 1.1 1.2 2.0 3.0 3.1 3.2 4.0 4.1 4.2");
  EXPECT_FALSE(found.has_footer);
  EXPECT_EQ(found.end_bytes, image.bytes.size());
  EXPECT_EQ(found.file_bytes, image.bytes.size());
  EXPECT_TRUE(found.is_tail_zero);
  EXPECT_EQ(found.synced_bytes, image.end_of(1));
  EXPECT_EQ(found.records, 5u);
  EXPECT_EQ(found.corrupt_groups, 0u);
  EXPECT_EQ(found.max_generation, kFirstGeneration + found.pages.size() - 1);
  EXPECT_TRUE(found.io.is_ok());
}

TEST_F(SegmentScanTest, ASealedSegmentIsReadFromItsFooter) {
  SegmentImage image = example();
  image.seal();
  const auto file = open(image.bytes);
  const std::uint64_t before = files_.operations();
  const auto found = scan_segment(*file, test_store(), kSegment, true);
  EXPECT_EQ(files_.operations() - before, 3u) << "header, trailer, footer";
  ASSERT_TRUE(found.is_ok());
  EXPECT_TRUE(found->has_footer);
  EXPECT_EQ(groups_of(image, *found), all_groups(image));
  EXPECT_EQ(found->end_bytes, image.footer_at);
  EXPECT_EQ(found->file_bytes, image.bytes.size());
  EXPECT_EQ(found->records, 5u);
  EXPECT_EQ(found->max_generation, image.records.back().pages.back().location.generation);
  EXPECT_EQ(found->corrupt_groups, 0u);
}

TEST_F(SegmentScanTest, AnEmptySegment) {
  SegmentImage image;
  const ScanResult found = scan(image.bytes);
  EXPECT_TRUE(found.pages.empty());
  EXPECT_EQ(found.end_bytes, kBlockBytes);
  EXPECT_TRUE(found.is_tail_zero);
  EXPECT_EQ(found.max_generation, kFirstGeneration - 1) << "generations below the header's were given out";
  image.seal();
  EXPECT_TRUE(scan(image.bytes).has_footer);
}

// Space is reserved ahead: zeros to a large size. They are read once, in large pieces.
TEST_F(SegmentScanTest, AReservedTailIsNoTornTail) {
  const SegmentImage image = example();
  constexpr std::uint64_t kTail = (std::uint64_t{16} << 20) + 512;
  Bytes bytes = image.bytes;
  bytes.resize(bytes.size() + kTail);
  const auto file = open(bytes);
  const std::uint64_t before = files_.operations();
  const auto found = scan_segment(*file, test_store(), kSegment, false);
  EXPECT_LT(files_.operations() - before, 17u + 10);
  ASSERT_TRUE(found.is_ok());
  EXPECT_EQ(groups_of(image, *found), all_groups(image));
  EXPECT_EQ(found->end_bytes, image.bytes.size());
  EXPECT_EQ(found->file_bytes, bytes.size());
  EXPECT_TRUE(found->is_tail_zero);
  EXPECT_EQ(found->corrupt_groups, 0u);
  for (const std::uint64_t at : {image.bytes.size(), bytes.size() - 1, bytes.size() - kTail / 2}) {
    bytes[at] = std::byte{1};
    const ScanResult torn = scan(bytes, false);
    EXPECT_FALSE(torn.is_tail_zero) << at;
    EXPECT_EQ(torn.end_bytes, image.bytes.size());
    EXPECT_EQ(torn.corrupt_groups, 0u);
    bytes[at] = std::byte{0};
  }
}

TEST_F(SegmentScanTest, ABadFooterOrTrailerCostsAScan) {
  SegmentImage image = example();
  image.seal();
  const std::uint64_t trailer = image.bytes.size() - kBlockBytes;
  const std::size_t table = 128 + 2 * kIdentityBytes + scan(image.bytes).pages.size() * kPageBytes;
  for (std::uint64_t at = image.footer_at; at < trailer + 128; ++at) {
    image.bytes[at] ^= std::byte{0x10};
    const ScanResult found = scan(image.bytes);
    const bool is_padding = at >= image.footer_at + table && at < trailer;
    EXPECT_EQ(found.has_footer, is_padding) << at;
    EXPECT_EQ(groups_of(image, found), all_groups(image)) << at;
    EXPECT_EQ(found.end_bytes, image.footer_at) << at;
    EXPECT_FALSE(found.is_tail_zero) << at;
    EXPECT_EQ(found.corrupt_groups, 0u) << at;
    image.bytes[at] ^= std::byte{0x10};
  }
}

// Whole trailers that do not fit the file, or belong elsewhere.
TEST_F(SegmentScanTest, ATrailerMustFitTheFileAndTheFooter) {
  SegmentImage image = example();
  image.seal();
  const auto expect_scan = [&](const Bytes& bytes, const char* what) {
    const ScanResult found = scan(bytes);
    EXPECT_FALSE(found.has_footer) << what;
    EXPECT_EQ(groups_of(image, found), all_groups(image)) << what;
  };
  Bytes longer = image.bytes;
  longer.resize(longer.size() + kBlockBytes);
  expect_scan(longer, "a block behind the trailer");
  copy(longer, image.bytes.size() - kBlockBytes, image.bytes.size(), kBlockBytes);
  expect_scan(longer, "a block between footer and trailer");
  for (const std::uint64_t start : {image.footer_at - kBlockBytes, image.footer_at + kBlockBytes,
                                    std::uint64_t{1} << 63, ~std::uint64_t{0} - 4095}) {
    Bytes bytes = image.bytes;
    const Bytes other = encode_footer({test_store(), kSegment, start, 0, 0, {}});
    std::copy(other.end() - 4096, other.end(), bytes.end() - 4096);
    expect_scan(bytes, "a trailer that names another place");
  }
  // Our trailer in front of whole footers of another store, segment, or place.
  const auto own = open(image.bytes);
  const std::vector<ListedPage> pages = scan_segment(*own, test_store(), kSegment, false)->pages;
  StoreId other_store = test_store();
  other_store[3] ^= 1;
  for (const Footer& footer : {Footer{other_store, kSegment, image.footer_at, 1000, 5, pages},
                               Footer{test_store(), kSegment + 1, image.footer_at, 1000, 5, pages},
                               Footer{test_store(), kSegment, image.footer_at + kBlockBytes, 1000, 5, pages}}) {
    Bytes bytes = image.bytes;
    const Bytes encoded = encode_footer(footer);
    std::copy(encoded.begin(), encoded.end() - 4096, bytes.end() - static_cast<std::ptrdiff_t>(encoded.size()));
    expect_scan(bytes, "a footer of another segment");
  }
  for (const bool is_other_store : {false, true}) {
    StoreId store = test_store();
    store[3] ^= is_other_store ? 1 : 0;
    Bytes bytes = image.bytes;
    const Bytes other = encode_footer({store, is_other_store ? kSegment : kSegment + 1, image.footer_at, 0, 0, {}});
    std::copy(other.end() - 4096, other.end(), bytes.end() - 4096);
    expect_scan(bytes, "a trailer of another segment");
    std::copy(other.begin(), other.end(), bytes.end() - static_cast<std::ptrdiff_t>(other.size()));
    expect_scan(bytes, "footer and trailer of another segment");
  }
}

TEST_F(SegmentScanTest, CutAtEverySector) {
  SegmentImage image = example();
  image.seal();
  const std::string all = all_groups(image);
  for (std::size_t size = 0; size < image.bytes.size(); size += 512) {
    const Bytes bytes(image.bytes.begin(), image.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const auto found = try_scan(bytes);
    if (size < kBlockBytes) {
      EXPECT_EQ(found.status().code(), StatusCode::kCorrupt) << size;
      continue;
    }
    ASSERT_TRUE(found.is_ok()) << size;
    const auto is_cut = [&](std::size_t record, std::uint32_t) { return image.end_of(record) > size; };
    EXPECT_EQ(groups_of(image, *found), groups_but(image, is_cut)) << size;
    EXPECT_FALSE(found->has_footer);
    EXPECT_EQ(found->file_bytes, size);
    std::uint64_t end = kBlockBytes;
    for (std::size_t r = 0; r < image.records.size(); ++r) end = image.end_of(r) <= size ? image.end_of(r) : end;
    EXPECT_EQ(found->end_bytes, end) << size;
    EXPECT_EQ(found->corrupt_groups, 0u) << size;
  }
}

// Every byte of header and heads, and a sample of the payloads. A head costs its record; a payload that was perhaps not
// on disk costs its group; any other byte costs nothing.
TEST_F(SegmentScanTest, EveryFlippedByteCostsWhatItHits) {
  SegmentImage image = example();
  Rng rng(5);
  for (std::uint64_t at = 0, record = 0; at < image.bytes.size(); ++at) {
    if (at >= image.end_of(record)) ++record;
    const RecordHead& head = image.records[record];
    const bool is_head = at >= head.start && at < head.start + image.head_bytes[record];
    if (!is_head && at >= 128 && at % 37 != 0) continue;
    const auto is_hit = [&](const ListedPage& page) {
      return at >= page.location.offset && at - page.location.offset < page.location.payload_bytes;
    };
    const auto hit = std::find_if(head.pages.begin(), head.pages.end(), is_hit);
    const bool is_payload_lost = hit != head.pages.end() && record > 1;
    const auto is_lost = [&](std::size_t r, std::uint32_t group) {
      return r == record && (is_head || (is_payload_lost && hit->group == group));
    };
    // (Without the head of record 3, which promises for record 1, that one is checked, too, and found whole.)
    const auto mask = static_cast<std::byte>(1u << rng.below(8));
    image.bytes[at] ^= mask;
    const ScanResult found = scan(image.bytes);
    ASSERT_EQ(groups_of(image, found), groups_but(image, is_lost)) << at;
    const bool is_tail = is_head && record + 1 == image.records.size();
    ASSERT_EQ(found.end_bytes, is_tail ? image.end_of(record - 1) : image.bytes.size()) << at;
    ASSERT_EQ(found.corrupt_groups, (is_head && !is_tail) || is_payload_lost ? 1u : 0u) << at;
    image.bytes[at] ^= mask;
  }
}

// The promise that counts is the highest, whichever record makes it.
TEST_F(SegmentScanTest, PromisesDecideWhatIsChecked) {
  SegmentImage image;
  for (int i = 0; i < 3; ++i) image.append({{500}, {600}});
  image.append({{700}}, image.end_of(1));
  image.append({{800}}, image.end_of(0));
  Bytes bytes = image.bytes;
  for (const RecordHead& record : image.records) bytes[record.pages[0].location.offset + 9] ^= std::byte{1};
  ScanResult found = scan(bytes);
  EXPECT_EQ(groups_of(image, found), "0.0 0.1 1.0 1.1 2.1");
  EXPECT_EQ(found.synced_bytes, image.end_of(1));
  EXPECT_EQ(found.corrupt_groups, 3u);
  EXPECT_EQ(found.end_bytes, image.bytes.size());
  EXPECT_EQ(found.max_generation, image.records.back().pages.back().location.generation) << "dropped, but given out";
  EXPECT_EQ(groups_of(image, scan(bytes, false)), all_groups(image)) << "not asked to check";
  fill(bytes, image.records[3].start, 64);  // the promise is gone, and only record 0's is left
  found = scan(bytes);
  EXPECT_EQ(groups_of(image, found), "0.0 0.1 1.1 2.1");
  EXPECT_EQ(found.synced_bytes, image.end_of(0));
}

// Writes in flight reach the disk in any order: any of the records may be missing, torn, or without payloads.
TEST_F(SegmentScanTest, RecordsInFlight) {
  SegmentImage image;
  for (std::uint32_t i = 0; i < 6; ++i) image.append({{5000, 3 * i}, {17'000}});
  for (unsigned missing = 0; missing < 64; ++missing) {
    Bytes bytes = image.bytes;
    std::uint64_t end = kBlockBytes, gaps = 0;
    for (std::size_t r = 0; r < 6; ++r) {
      const bool is_missing = ((missing >> r) & 1) != 0;
      const bool is_second = r > 0 && ((missing >> (r - 1)) & 1) != 0;
      if (is_missing) fill(bytes, image.records[r].start, r % 2 == 0 ? image.records[r].record_bytes : 100);
      if (!is_missing) end = image.end_of(r);
      if (!is_missing && is_second) ++gaps;
    }
    bytes.resize(bytes.size() + 3 * kBlockBytes);
    const ScanResult found = scan(bytes);
    const auto is_lost = [&](std::size_t record, std::uint32_t) { return ((missing >> record) & 1) != 0; };
    ASSERT_EQ(groups_of(image, found), groups_but(image, is_lost)) << missing;
    ASSERT_EQ(found.end_bytes, end) << missing;
    ASSERT_EQ(found.corrupt_groups, gaps) << missing;
  }
}

TEST_F(SegmentScanTest, RecordsOutOfPlaceAreNotThere) {
  SegmentImage image;
  for (int i = 0; i < 4; ++i) image.append({{5000}, {700}});
  const std::uint64_t size = image.records[0].record_bytes;
  Bytes bytes = image.bytes;
  copy(bytes, image.records[1].start, image.records[2].start, size);
  EXPECT_EQ(groups_of(image, scan(bytes)), "0.0 0.1 1.0 1.1 3.0 3.1") << "record 1 again in place of record 2";
  std::copy_n(image.bytes.begin() + static_cast<std::ptrdiff_t>(image.records[2].start), size,
              bytes.begin() + static_cast<std::ptrdiff_t>(image.records[1].start));
  const ScanResult found = scan(bytes);
  EXPECT_EQ(groups_of(image, found), "0.0 0.1 3.0 3.1") << "both swapped";
  EXPECT_EQ(found.corrupt_groups, 1u);
  bytes = image.bytes;
  bytes.insert(bytes.end(), image.bytes.begin() + static_cast<std::ptrdiff_t>(kBlockBytes), image.bytes.end());
  EXPECT_EQ(groups_of(image, scan(bytes)), all_groups(image)) << "all of them again behind the end";
  EXPECT_EQ(scan(bytes).end_bytes, image.bytes.size());
}

// Blocks of zeros in a payload that is known to be synced are not the scan's to find; in a head they are.
TEST_F(SegmentScanTest, ZeroedBlocks) {
  const SegmentImage image = example();
  for (std::uint64_t at = kBlockBytes; at < image.bytes.size(); at += kBlockBytes) {
    Bytes bytes = image.bytes;
    fill(bytes, at, kBlockBytes);
    const auto is_lost = [&](std::size_t r, std::uint32_t group) {
      const RecordHead& head = image.records[r];
      if (at < head.start + image.head_bytes[r] && at + kBlockBytes > head.start) return true;
      const auto is_hit = [&](const ListedPage& page) {
        const std::uint64_t first = page.location.offset, end = first + page.location.payload_bytes;
        return page.group == group && first < end && first < at + kBlockBytes && at < end;
      };
      return r > 1 && std::any_of(head.pages.begin(), head.pages.end(), is_hit);
    };
    EXPECT_EQ(groups_of(image, scan(bytes)), groups_but(image, is_lost)) << at;
  }
}

TEST_F(SegmentScanTest, SegmentsOfAnotherStoreOrNumber) {
  SegmentImage image = example();
  for (const bool is_sealed : {false, true}) {
    if (is_sealed) image.seal();
    auto file = open(image.bytes);
    StoreId other = test_store();
    other[15] ^= 1;
    EXPECT_EQ(scan_segment(*file, other, kSegment, true).status().code(), StatusCode::kConflict);
    EXPECT_EQ(scan_segment(*file, test_store(), kSegment + 1, true).status().code(), StatusCode::kConflict);
    Bytes headless = image.bytes;
    headless[20] ^= std::byte{1};
    file = open(headless);
    EXPECT_EQ(scan_segment(*file, other, kSegment, true).status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(scan_segment(*file, test_store(), kSegment + 1, true).status().code(), StatusCode::kCorrupt);
  }
  SegmentImage mixed;
  mixed.append({{100}});
  SegmentImage foreign(test_store(), kSegment + 1);
  foreign.append({{100}});
  foreign.append({{100}});
  mixed.bytes.insert(mixed.bytes.end(), foreign.bytes.begin() + static_cast<std::ptrdiff_t>(foreign.end_of(0)),
                     foreign.bytes.end());
  EXPECT_EQ(groups_of(mixed, scan(mixed.bytes)), "0.0") << "a record of another segment, in its own place";
}

TEST_F(SegmentScanTest, ADamagedHeaderCostsNothing) {
  SegmentImage image = example();
  for (const bool is_sealed : {false, true}) {
    if (is_sealed) image.seal();
    Bytes bytes = image.bytes;
    fill(bytes, 0, kBlockBytes);
    const ScanResult found = scan(bytes);
    EXPECT_EQ(groups_of(image, found), all_groups(image));
    EXPECT_EQ(found.has_footer, is_sealed);
  }
  Bytes bytes = SegmentImage().bytes;
  bytes.resize(bytes.size() * 8);
  EXPECT_TRUE(try_scan(bytes).is_ok());
  bytes[9] ^= std::byte{1};
  EXPECT_EQ(try_scan(bytes).status().code(), StatusCode::kCorrupt) << "nothing was written to it";
}

TEST_F(SegmentScanTest, LargeHeadsAndPayloads) {
  SegmentImage image;
  Sizes groups;
  for (std::uint32_t g = 0; g < 1500; ++g) groups.push_back({g % 7, 40});
  image.append(groups);
  image.append({{3'000'001}, {0}, {2'000'000, 5}});
  image.append({{10}});
  ASSERT_GT(image.head_bytes[0], 300'000u);
  Bytes bytes = image.bytes;
  EXPECT_EQ(groups_of(image, scan(bytes)), all_groups(image));
  bytes[image.records[1].pages[0].location.offset + 3'000'000] ^= std::byte{1};
  bytes[image.records[0].pages[2999].location.offset] ^= std::byte{1};
  const auto is_lost = [](std::size_t r, std::uint32_t g) { return (r == 1 && g == 0) || (r == 0 && g == 1499); };
  EXPECT_EQ(groups_of(image, scan(bytes)), groups_but(image, is_lost));
  fill(bytes, image.records[0].start + image.head_bytes[0] - 1, 1, std::byte{1});
  const auto is_now_lost = [](std::size_t r, std::uint32_t g) { return r == 0 || (r == 1 && g == 0); };
  EXPECT_EQ(groups_of(image, scan(bytes)), groups_but(image, is_now_lost));
}

// Every single read fails, or all from there on: what is listed is right, and an error is never taken for the end.
TEST_F(SegmentScanTest, ReadErrors) {
  SegmentImage image = example();
  for (const bool is_sealed : {false, true}) {
    if (is_sealed) image.seal();
    for (const auto fault : {sim::FileFault::kIoError, sim::FileFault::kShort}) {
      for (const std::uint64_t count : {1u, 1000u}) {
        for (std::uint64_t n = 1;; ++n) {
          if (fault == sim::FileFault::kShort && count > 1) break;  // a file that ever gives half
          const auto file = open(image.bytes);
          files_.fail_nth(n, fault, count);
          const auto found = scan_segment(*file, test_store(), kSegment, true);
          const bool has_fired = files_.fault_fired();
          files_.clear_fault();
          ASSERT_TRUE(found.is_ok()) << n << ": " << found.status().to_string();
          const std::string groups = groups_of(image, *found);
          EXPECT_EQ(groups.find("and"), std::string::npos) << groups;
          if (!found->io.is_ok()) {
            EXPECT_GE(found->max_generation, std::uint64_t{1} << 40) << "more pages may turn up next time";
          } else {
            EXPECT_EQ(groups, all_groups(image)) << n;
          }
          if (!has_fired) break;
        }
      }
    }
  }
}

// Any damage: no crash (the sanitizers watch), nothing but what was written, and of unsynced groups only whole ones.
TEST_F(SegmentScanTest, RandomDamage) {
  const char* const given = std::getenv("LARDER_TEST_SEED");
  const std::uint64_t first_seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  SegmentImage image = example();
  const Bytes unsealed = image.bytes;
  image.seal();
  std::uint64_t pages_found = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + 20'000; ++seed) {
    SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    Bytes bytes = rng.chance(1, 3) ? image.bytes : unsealed;
    for (std::uint64_t i = 1 + rng.below(5); i > 0; --i) {
      const std::uint64_t blocks = bytes.size() / kBlockBytes;
      const std::uint64_t at = rng.below(blocks) * kBlockBytes;
      const std::uint64_t count = (1 + rng.below(std::min<std::uint64_t>(4, blocks - at / kBlockBytes))) * kBlockBytes;
      switch (rng.below(8)) {
        case 0: fill(bytes, at, count); break;
        case 1: fill(bytes, at + rng.below(3000), rng.below(1000), static_cast<std::byte>(rng.next_u64())); break;
        case 2: copy(bytes, at, rng.below(blocks - count / kBlockBytes + 1) * kBlockBytes, count); break;
        case 3: bytes.resize(bytes.size() - rng.below(5) * 512); break;
        case 4: bytes.resize(bytes.size() + rng.below(9) * 1024); break;
        case 5:
          for (std::uint64_t b = 0; b < count; b += 8) store_le<std::uint64_t>(bytes.data() + at + b, rng.next_u64());
          break;
        case 6: copy(bytes, kBlockBytes, at, 8 + rng.below(500)); break;  // a magic, and some of a head
        default:
          for (std::uint64_t f = rng.below(6); f > 0; --f) bytes[rng.below(bytes.size())] ^= std::byte{4};
      }
      bytes.resize(std::max<std::size_t>(bytes.size(), 2 * kBlockBytes));
    }
    const auto found = try_scan(bytes);
    if (!found.is_ok()) {
      ASSERT_EQ(found.status().code(), StatusCode::kCorrupt) << found.status().to_string();
      continue;
    }
    const std::string groups = groups_of(image, *found);
    ASSERT_EQ(groups.find("and"), std::string::npos) << groups;
    pages_found += found->pages.size();
    ASSERT_LE(found->end_bytes, bytes.size());
    for (const ListedPage& page : found->pages) {
      const auto is_its = [&](const RecordHead& r) { return page.location.offset < r.start + r.record_bytes; };
      const auto record = std::find_if(image.records.begin(), image.records.end(), is_its);
      if (found->has_footer || record->start + record->record_bytes <= found->synced_bytes) continue;
      ASSERT_EQ(SegmentImage::checksum_in(bytes, page), page.location.checksum);
    }
  }
  EXPECT_GT(pages_found, 20'000u * 6);
}

}  // namespace
}  // namespace larder::file_store
