// SPDX-License-Identifier: Apache-2.0
// Stores made by hand, for tests of what reads them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/rng.h"
#include "storage/file/segment_format.h"

namespace larder::file_store {

inline Digest256 test_digest(std::uint64_t seed) {
  Rng rng(seed ^ 0xd16e57);
  Digest256 digest;
  for (auto& byte : digest.bytes) byte = static_cast<std::uint8_t>(rng.below(256));
  return digest;
}
inline std::vector<std::byte> test_payload(std::uint64_t seed, std::size_t size) {
  Rng rng(seed ^ 0x9a71);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

// Writes segments record by record, as the format says and not as the store does.
class SegmentBuilder {
 public:
  SegmentBuilder(FileSystem& files, std::string directory, StoreId store, SegmentId number)
      : path_(join_path(directory, segment_name(number))), store_(store), number_(number) {
    auto file = files.open(path_, {.write = true, .create = true, .truncate = true});
    EXPECT_TRUE(file.is_ok()) << file.status().to_string();
    file_ = std::move(file).value();
    append(encode_segment_header({store, number, 1'700'000'000, 1}));
  }

  struct Page {
    std::uint64_t key = 0, parent = 0;  // test_digest() of them; parent 0: none
    std::uint64_t space = 1;
    PoolName pool = PoolName::kKv;
    std::size_t bytes = 0;
    std::uint64_t generation = 0;
    std::uint32_t group = 0;
  };
  static std::vector<std::byte> payload_of(const Page& page) {
    return test_payload(page.key * 16 + static_cast<std::uint64_t>(page.pool), page.bytes);
  }

  // One record; where each payload lies.
  std::vector<std::uint64_t> record(const std::vector<Page>& pages) {
    std::vector<ListedPage> listed;
    for (const Page& page : pages) {
      ListedPage out;
      out.identity = {test_digest(page.space), test_digest(100 + static_cast<std::uint64_t>(page.pool)), page.pool};
      out.key = test_digest(page.key);
      if (page.parent != 0) out.parent = test_digest(page.parent);
      out.group = page.group;
      std::vector<std::byte> payload = payload_of(page);
      const Segment piece{payload.data(), payload.size()};
      out.location = {number_, 0, static_cast<std::uint32_t>(page.bytes), page.generation,
                      payload_checksum({&piece, 1})};
      listed.push_back(out);
    }
    const RecordLayout layout = lay_out_record(listed, end_);
    RecordHead head{store_, number_, end_, layout.record_bytes, synced_, listed};
    const std::uint64_t record_end = end_ + layout.record_bytes;
    append(encode_record_head(head));
    std::vector<std::uint64_t> places;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      pad_to(listed[i].location.offset);
      append(payload_of(pages[i]));
      places.push_back(listed[i].location.offset);
      highest_ = std::max(highest_, pages[i].generation);
      all_.push_back(listed[i]);
      all_.back().group = 0;
    }
    pad_to(record_end);
    ++records_;
    return places;
  }
  void promise_synced() { synced_ = end_; }  // said by the records that follow
  // The footer may name pages of one offset in any order.
  void swap_in_footer(std::size_t a, std::size_t b) { std::swap(all_.at(a), all_.at(b)); }
  void seal() {
    append(encode_footer({store_, number_, end_, highest_, records_, all_}));
    sync();
  }
  void sync() { EXPECT_TRUE(file_->sync_all().is_ok()); }
  void append(std::span<const std::byte> bytes) {
    EXPECT_TRUE(write_fully(*file_, bytes, end_).is_ok());
    end_ += bytes.size();
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t end() const { return end_; }

 private:
  void pad_to(std::uint64_t offset) { append(std::vector<std::byte>(static_cast<std::size_t>(offset - end_))); }

  std::string path_;
  StoreId store_;
  SegmentId number_;
  std::unique_ptr<File> file_;
  std::uint64_t end_ = 0, synced_ = 0, records_ = 0, highest_ = 0;
  std::vector<ListedPage> all_;
};

inline void write_test_file(FileSystem& files, const std::string& path, std::span<const std::byte> bytes) {
  auto file = files.open(path, {.write = true, .create = true, .truncate = true});
  ASSERT_TRUE(file.is_ok()) << file.status().to_string();
  ASSERT_TRUE(write_fully(**file, bytes, 0).is_ok());
  ASSERT_TRUE((*file)->sync_all().is_ok());
}
inline StoreId test_store_id(std::uint8_t value) {
  StoreId id{};
  id.fill(value);
  return id;
}
inline void make_test_volume(FileSystem& files, const std::string& directory, StoreId store, unsigned volume) {
  ASSERT_TRUE(files.make_dirs(directory).is_ok());
  const std::string text = format_text({store, volume});
  write_test_file(files, join_path(directory, kFormatName), std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace larder::file_store
