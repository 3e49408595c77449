// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/store_image.h"

#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <utility>

#include "storage/file/segment_format.h"

namespace larder::crash {
namespace {

using file_store::kBlockBytes;

using GroupOfKey = std::map<PageKey, GroupId>;

GroupOfKey keys_of(const std::set<GroupId>& groups) {
  GroupOfKey out;
  for (const GroupId& group : groups) out.emplace(key_of(group), group);
  return out;
}

std::optional<file_store::Trailer> trailer_of(std::span<const std::byte> bytes) {
  if (bytes.size() < 3 * kBlockBytes || bytes.size() % kBlockBytes != 0) return std::nullopt;
  const auto trailer = file_store::decode_trailer(bytes.last(kBlockBytes));
  return trailer.is_ok() ? std::optional(*trailer) : std::nullopt;
}

std::size_t page_of(const GroupId& group, PoolName pool) {
  const std::vector<PageShape> shapes = pages_of(group);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i].pool == pool) return i;
  }
  ADD_FAILURE() << to_text(group) << " has no such page";
  return 0;
}

bool is_segment(const std::string& path) {
  return file_store::parse_segment_name(path.substr(path.rfind('/') + 1)).has_value();
}

// Walks a segment that is whole, from record to record.
class SegmentWalk {
 public:
  SegmentWalk(const std::string& path, std::span<const std::byte> bytes, const GroupOfKey& keys)
      : path_(path), bytes_(bytes), keys_(keys), trailer_(trailer_of(bytes)) {}

  void run() {
    add(PlaceKind::kHeader, 128);
    add(PlaceKind::kUnused, kBlockBytes);
    while (add_record()) {}
    if (trailer_) {
      EXPECT_EQ(at_, trailer_->footer_start) << path_;
      add(PlaceKind::kFooter, at_ + trailer_->footer_bytes);
      add(PlaceKind::kUnused, bytes_.size() - kBlockBytes);
      add(PlaceKind::kTrailer, bytes_.size() - kBlockBytes + 128);
    }
    add(PlaceKind::kUnused, bytes_.size());
  }
  [[nodiscard]] std::vector<Place> take_places() { return std::move(places_); }
  [[nodiscard]] std::vector<RecordPlace> take_records() { return std::move(records_); }

 private:
  void add(PlaceKind kind, std::uint64_t end) {
    if (end <= at_) return;
    Place place;
    place.kind = kind;
    place.path = path_;
    place.begin = at_;
    place.end = end;
    place.is_sealed = trailer_.has_value();
    places_.push_back(std::move(place));
    at_ = end;
  }

  bool add_record() {
    if (at_ + file_store::kRecordHeaderBytes > bytes_.size()) return false;
    const auto head_bytes = file_store::record_head_bytes(bytes_.subspan(at_));
    if (!head_bytes.is_ok()) return false;
    const auto head = file_store::decode_record_head(bytes_.subspan(at_, *head_bytes));
    EXPECT_TRUE(head.is_ok()) << path_;
    RecordPlace record{at_, at_ + head->record_bytes, trailer_.has_value(), {}};
    for (const file_store::ListedPage& page : head->pages) record.groups.insert(keys_.at(page.key));
    add(PlaceKind::kHead, at_ + *head_bytes);
    places_.back().record = record.begin;
    places_.back().groups = record.groups;
    for (const file_store::ListedPage& page : head->pages) {
      if (page.location.payload_bytes == 0) continue;
      const GroupId group = keys_.at(page.key);
      add(PlaceKind::kUnused, page.location.offset);
      add(PlaceKind::kPayload, page.location.offset + page.location.payload_bytes);
      places_.back().record = record.begin;
      places_.back().groups = {group};
      places_.back().page = page_of(group, page.identity.pool);
    }
    add(PlaceKind::kUnused, record.end);
    records_.push_back(std::move(record));
    return true;
  }

  const std::string path_;
  const std::span<const std::byte> bytes_;
  const GroupOfKey& keys_;
  const std::optional<file_store::Trailer> trailer_;
  std::uint64_t at_ = 0;
  std::vector<Place> places_;
  std::vector<RecordPlace> records_;
};

}  // namespace

std::string StoreImage::directory_option() const {
  std::string out;
  for (const std::string& directory : directories) out += (out.empty() ? "" : ":") + directory;
  return out;
}

StoreImage take_image(FileSystem& files, const std::vector<std::string>& directories) {
  StoreImage image;
  image.directories = directories;
  for (const std::string& directory : directories) {
    const auto names = files.list(directory);
    EXPECT_TRUE(names.is_ok()) << directory;
    for (const std::string& name : *names) {
      if (name == file_store::kLockName) continue;
      const auto file = files.open(join_path(directory, name), {});
      EXPECT_TRUE(file.is_ok()) << name;
      std::vector<std::byte> bytes(static_cast<std::size_t>(*(*file)->size_bytes()));
      EXPECT_TRUE(read_exactly(**file, bytes, 0).is_ok()) << name;
      image.files[join_path(directory, name)] = std::move(bytes);
    }
  }
  return image;
}

void put_image(const StoreImage& image, FileSystem& files) {
  for (const std::string& directory : image.directories) ASSERT_TRUE(files.make_dirs(directory).is_ok());
  for (const auto& [path, bytes] : image.files) {
    const auto file = files.open(path, {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(file.is_ok()) << path;
    ASSERT_TRUE(write_fully(**file, bytes, 0).is_ok()) << path;
  }
}

std::vector<Place> places_of(const StoreImage& image, const std::set<GroupId>& groups) {
  const GroupOfKey keys = keys_of(groups);
  std::vector<Place> out;
  for (const auto& [path, bytes] : image.files) {
    if (is_segment(path)) {
      SegmentWalk walk(path, bytes, keys);
      walk.run();
      for (Place& place : walk.take_places()) out.push_back(std::move(place));
      continue;
    }
    Place place;
    place.kind = path.ends_with(file_store::kFormatName) ? PlaceKind::kFormat : PlaceKind::kCleared;
    place.path = path;
    place.end = bytes.size();
    out.push_back(std::move(place));
  }
  return out;
}

std::map<std::string, std::vector<RecordPlace>> records_of(const StoreImage& image, const std::set<GroupId>& groups) {
  const GroupOfKey keys = keys_of(groups);
  std::map<std::string, std::vector<RecordPlace>> out;
  for (const auto& [path, bytes] : image.files) {
    if (!is_segment(path)) continue;
    SegmentWalk walk(path, bytes, keys);
    walk.run();
    out[path] = walk.take_records();
  }
  return out;
}

}  // namespace larder::crash
