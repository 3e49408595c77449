// SPDX-License-Identifier: Apache-2.0
// Segment files made of choices, with damage: for the targets that read them.
//
// Every page has a key, a generation and a payload of its own, so what a reader lists can be looked up in what was
// written. Damage changes single bytes, which cannot make a right checksum for itself.
// Threads: values and pure functions.
#pragma once

#include <iterator>

#include "fuzz/fuzz_input.h"
#include "storage/file/segment_format.h"

namespace larder::fuzz {

using namespace larder::file_store;

inline constexpr StoreId kStore{9, 8, 7};
inline constexpr std::uint64_t kFirstGeneration = 100;

struct Record {
  RecordHead head;
  std::uint64_t head_bytes = 0;
  [[nodiscard]] std::uint64_t end() const { return head.start + head.record_bytes; }
};

struct Image {
  SegmentId segment = 0;
  std::vector<std::byte> bytes;
  std::vector<Record> records;
  std::uint64_t records_end = kBlockBytes;
  bool has_footer = false;
  std::vector<std::uint64_t> damaged;  // places of changed bytes
  std::uint64_t whole_bytes = 0;       // before the file was cut

  [[nodiscard]] bool is_whole(std::uint64_t from, std::uint64_t to) const {
    return to <= bytes.size() &&
           std::none_of(damaged.begin(), damaged.end(), [&](std::uint64_t at) { return at >= from && at < to; });
  }
  [[nodiscard]] bool is_untouched() const { return damaged.empty() && bytes.size() == whole_bytes; }
};

inline Digest256 digest_of(std::uint64_t number) {
  Digest256 digest;
  store_le<std::uint64_t>(digest.bytes.data(), number + 1);
  return digest;
}

inline std::uint32_t payload_size(FuzzInput& input) {
  static constexpr std::uint32_t kSizes[] = {0, 1, 64, 100, 700, 4096, 16383, 16384};
  return kSizes[input.below(8)];
}

// The payload of the page with this generation.
inline void write_payload(std::span<std::byte> to, std::uint64_t generation) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<std::byte>(generation * 31 + i * 7 + (i >> 8));
}

inline void add_record(Image& image, FuzzInput& input, std::uint64_t& generation) {
  Record record;
  RecordHead& head = record.head;
  head.store = kStore;
  head.segment = image.segment;
  head.start = image.records_end;
  head.pages.resize(static_cast<std::size_t>(1 + input.below(5)));
  std::uint32_t group = 0;
  for (ListedPage& page : head.pages) {
    if (&page != head.pages.data() && input.flag()) ++group;
    page.group = group;
    const std::uint64_t identity = input.below(3);
    page.identity = {digest_of(identity), digest_of(identity), static_cast<PoolName>(identity)};
    page.key = digest_of(generation);
    if (input.flag()) page.parent = digest_of(generation - 1);
    page.location.payload_bytes = payload_size(input);
    page.location.generation = generation++;
  }
  const RecordLayout layout = lay_out_record(head.pages, head.start);
  head.record_bytes = layout.record_bytes;
  record.head_bytes = layout.head_bytes;
  head.synced_bytes = input.flag() ? head.start : 0;
  image.records_end = record.end();
  image.bytes.resize(static_cast<std::size_t>(image.records_end));
  for (ListedPage& page : head.pages) {
    PageLocation& at = page.location;
    at.segment = image.segment;
    const std::span<std::byte> payload = std::span(image.bytes).subspan(at.offset, at.payload_bytes);
    write_payload(payload, at.generation);
    const Segment piece{payload.data(), payload.size()};
    at.checksum = payload_checksum({&piece, 1});
  }
  const std::vector<std::byte> encoded = encode_record_head(head);
  std::copy(encoded.begin(), encoded.end(), image.bytes.begin() + static_cast<std::ptrdiff_t>(head.start));
  image.records.push_back(std::move(record));
}

inline void add_footer(Image& image, std::uint64_t last_generation) {
  Footer footer{kStore, image.segment, image.records_end, last_generation, image.records.size(), {}, true};
  for (const Record& record : image.records) {
    for (ListedPage page : record.head.pages) {
      page.group = 0;
      footer.pages.push_back(page);
    }
  }
  const std::vector<std::byte> encoded = encode_footer(footer);
  image.bytes.insert(image.bytes.end(), encoded.begin(), encoded.end());
  image.has_footer = true;
}

// Pages of generations from `generation` on, which is moved behind the last.
inline Image make_image(FuzzInput& input, SegmentId segment, std::uint64_t& generation) {
  Image image;
  image.segment = segment;
  image.bytes = encode_segment_header({kStore, segment, 0, generation});
  for (std::uint64_t left = input.below(6); left > 0; --left) add_record(image, input, generation);
  const std::uint64_t tail = input.below(4);
  if (tail == 1) add_footer(image, generation);
  if (tail == 2) image.bytes.resize(image.bytes.size() + static_cast<std::size_t>(1 + input.below(3)) * kBlockBytes);
  image.whole_bytes = image.bytes.size();
  if (input.below(4) == 0) image.bytes.resize(static_cast<std::size_t>(input.below(image.bytes.size() + 1)));
  // One byte at a time: so no damage can make a right checksum for itself.
  const std::vector<std::byte> original = image.bytes;
  std::vector<std::uint64_t> touched;
  for (std::uint64_t left = input.below(8); left > 0 && !image.bytes.empty(); --left) {
    touched.push_back(input.number<std::uint32_t>() % image.bytes.size());
    image.bytes[static_cast<std::size_t>(touched.back())] ^= static_cast<std::byte>(1 + input.below(255));
  }
  // Twice at one place may be as it was.
  std::copy_if(touched.begin(), touched.end(), std::back_inserter(image.damaged),
               [&](std::uint64_t at) { return image.bytes[at] != original[at]; });
  return image;
}

}  // namespace larder::fuzz
