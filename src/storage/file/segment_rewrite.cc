// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_rewrite.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "storage/file/volume.h"

namespace larder::file_store {
namespace {

using Group = std::vector<ListedPage>;
using GroupList = std::vector<Group>;

// What tells one listed page of a segment from another.
using PageId = std::tuple<PageKey, PoolName, Digest256, Digest256, std::uint64_t>;
PageId id_of(const ListedPage& page) {
  return {page.key, page.identity.pool, page.identity.namespace_digest, page.identity.layout_fingerprint,
          page.location.generation};
}

// The whole head at `at`, if there is one that names its place; of any store.
Result<RecordHead> read_any_head(File& file, std::uint64_t at) {
  std::array<std::byte, kRecordHeaderBytes> start;
  LARDER_RETURN_IF_ERROR(read_exactly(file, start, at));
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t length, record_head_bytes(start));
  std::vector<std::byte> bytes(static_cast<std::size_t>(length));
  LARDER_RETURN_IF_ERROR(read_exactly(file, bytes, at));
  Result<RecordHead> head = decode_record_head(bytes);
  if (head.is_ok() && head->start != at) return corrupt("a record of another place");
  return head;
}

Result<RecordHead> read_head(File& file, const StoreId& store, SegmentId segment, std::uint64_t at) {
  Result<RecordHead> head = read_any_head(file, at);
  if (head.is_ok() && (head->store != store || head->segment != segment)) return corrupt("a record of another segment");
  return head;
}

// The first whole head in the file, of any store. kCorrupt: none.
Result<RecordHead> find_any_head(File& file, std::uint64_t size) {
  for (std::uint64_t at = kBlockBytes; at + kRecordHeaderBytes <= size; at += kBlockBytes) {
    Result<RecordHead> head = read_any_head(file, at);
    if (head.status().code() != StatusCode::kCorrupt) return head;
  }
  return corrupt("no record");
}

void append_groups(const RecordHead& head, GroupList& out) {
  for (std::size_t i = 0; i < head.pages.size(); ++i) {
    if (i == 0 || head.pages[i].group != head.pages[i - 1].group) out.emplace_back();
    out.back().push_back(head.pages[i]);
  }
}

// The pages that the report lists for the segment, as groups. Pages that only the footer knows make one group with
// their neighbours of the same kind: their heads are gone, and a group must not be torn.
GroupList listed_groups(const StoreReport& report, const SegmentReport& segment, const GroupList& by_heads) {
  std::map<PageId, std::size_t> group_of;
  for (std::size_t g = 0; g < by_heads.size(); ++g) {
    for (const ListedPage& page : by_heads[g]) group_of.emplace(id_of(page), g);
  }
  constexpr std::size_t kNone = ~std::size_t{0};
  GroupList out;
  std::vector<std::size_t> place_of_group(by_heads.size(), kNone);  // in `out`
  std::size_t footer_only = kNone;                                  // where the last page went, if only the footer knew
  for (std::uint32_t i = segment.first_page; i < segment.first_page + segment.pages; ++i) {
    const ListedPage& page = report.pages[i].page;
    const auto found = group_of.find(id_of(page));
    const bool is_known = found != group_of.end();
    // Pages of 0 bytes lie where others do, so a group's pages need not be neighbours.
    std::size_t& place = is_known ? place_of_group[found->second] : footer_only;
    if (place == kNone || out[place].size() == kMaxRecordPages) {
      place = out.size();
      out.emplace_back();
    }
    out[place].push_back(page);
    if (is_known) footer_only = kNone;
  }
  return out;
}

// Writes records one after the other.
class SegmentCopy {
 public:
  SegmentCopy(FileSystem& files, const std::string& from, File& to, const StoreId& store, SegmentId number)
      : reader_(files), from_(from), to_(to) {
    footer_.store = store;
    footer_.segment = number;
  }

  [[nodiscard]] Status begin(const SegmentHeader& header) { return append(encode_segment_header(header)); }

  // As the next group of the record that is being gathered, or of a new one: a record each would cost up to a block for
  // each. The pages' locations say where they are in the old file.
  [[nodiscard]] Status add(const Group& group) {
    std::uint64_t bytes = 0;
    for (const ListedPage& page : group) bytes += page.location.payload_bytes;
    const bool is_too_large = gathered_bytes_ + bytes > kRecordTarget;
    const bool is_too_long = gathered_.size() + group.size() > kMaxRecordPages;
    if (!gathered_.empty() && (is_too_large || is_too_long)) LARDER_RETURN_IF_ERROR(write_gathered());
    const std::uint32_t number = gathered_.empty() ? 0 : gathered_.back().group + 1;
    for (const ListedPage& page : group) gathered_.emplace_back(page).group = number;
    gathered_bytes_ += bytes;
    return Status::ok();
  }

  // The footer goes in only when everything before it is on disk.
  [[nodiscard]] Status finish() {
    if (!gathered_.empty()) LARDER_RETURN_IF_ERROR(write_gathered());
    footer_.start = end_;
    return seal_segment(to_, std::move(footer_), true).status();
  }

 private:
  [[nodiscard]] Status write_gathered() {
    const Group from = std::exchange(gathered_, {});
    gathered_bytes_ = 0;
    Group placed = from;
    RecordHead head;
    head.store = footer_.store;
    head.segment = footer_.segment;
    head.start = end_;
    const RecordLayout layout = lay_out_record(placed, end_);
    head.record_bytes = layout.record_bytes;
    for (ListedPage& page : placed) page.location.segment = footer_.segment;
    head.pages = placed;
    const std::uint64_t record_end = end_ + layout.record_bytes;
    LARDER_RETURN_IF_ERROR(append(encode_record_head(head)));
    for (std::size_t i = 0; i < from.size(); ++i) LARDER_RETURN_IF_ERROR(copy(from[i].location, placed[i].location));
    LARDER_RETURN_IF_ERROR(pad_to(record_end));
    ++footer_.records;
    for (const ListedPage& page : placed) {
      footer_.max_generation = std::max(footer_.max_generation, page.location.generation);
      footer_.pages.push_back(page);
    }
    return Status::ok();
  }

  [[nodiscard]] Status append(std::span<const std::byte> bytes) {
    LARDER_RETURN_IF_ERROR(write_fully(to_, bytes, end_));
    end_ += bytes.size();
    return Status::ok();
  }
  [[nodiscard]] Status pad_to(std::uint64_t offset) {
    const std::vector<std::byte> zeros(static_cast<std::size_t>(offset - end_));
    return append(zeros);
  }
  [[nodiscard]] Status copy(const PageLocation& from, const PageLocation& to) {
    LARDER_RETURN_IF_ERROR(pad_to(to.offset));
    Status written;
    LARDER_RETURN_IF_ERROR(reader_.read(from_, from.offset, from.payload_bytes, [&](std::span<const std::byte> bytes) {
      if (written.is_ok()) written = append(bytes);
    }));
    return written;
  }

  PayloadReader reader_;
  const std::string from_;
  File& to_;
  Footer footer_;
  std::uint64_t end_ = 0;
  Group gathered_;  // of the next record
  std::uint64_t gathered_bytes_ = 0;
};

Status copy_groups(FileSystem& files, const GroupList& groups, const std::string& from, const std::string& to,
                   const SegmentHeader& header) {
  Result<std::unique_ptr<File>> file = files.open(to, {.write = true, .create = true, .truncate = true});
  if (!file.is_ok()) return file.status();
  SegmentCopy copy(files, from, **file, header.store, header.segment);
  LARDER_RETURN_IF_ERROR(copy.begin(header));
  for (const Group& group : groups) LARDER_RETURN_IF_ERROR(copy.add(group));
  return copy.finish();
}

// What the old header says of generations; 0 promises nothing.
std::uint64_t first_generation_of(FileSystem& files, const std::string& path) {
  const Result<std::unique_ptr<File>> file = files.open(path, {});
  std::array<std::byte, 128> bytes;
  if (!file.is_ok() || !read_exactly(**file, bytes, 0).is_ok()) return 0;
  const Result<SegmentHeader> header = decode_segment_header(bytes);
  return header.is_ok() ? header->first_generation : 0;
}

}  // namespace

Result<std::vector<std::vector<ListedPage>>> read_groups(File& file, const StoreId& store, SegmentId segment,
                                                         std::uint64_t end_bytes) {
  GroupList groups;
  std::uint64_t at = kBlockBytes;
  while (at + kRecordHeaderBytes <= end_bytes) {
    const Result<RecordHead> head = read_head(file, store, segment, at);
    if (head.is_ok()) {
      append_groups(*head, groups);
      at += head->record_bytes;
    } else if (head.status().code() == StatusCode::kCorrupt) {
      at += kBlockBytes;
    } else {
      return head.status();
    }
  }
  return groups;
}

Status restore_header(FileSystem& files, const std::string& path, const StoreId& store, SegmentId segment,
                      std::uint64_t now) {
  Result<std::unique_ptr<File>> file = files.open(path, {.write = true});
  if (!file.is_ok()) return file.status();
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t size, (*file)->size_bytes());
  const Result<RecordHead> head = find_any_head(**file, size);
  if (head.status().code() == StatusCode::kCorrupt) {
    // Without heads, a footer may still list what can be read. It names the store and the segment, too.
    const Result<ScanResult> listed = scan_segment(**file, store, segment, false);
    if (!listed.is_ok() && listed.status().code() != StatusCode::kCorrupt) return listed.status();
    if (listed.is_ok()) LARDER_RETURN_IF_ERROR(listed->io);
    if (!listed.is_ok() || !listed->has_footer) {
      LARDER_RETURN_IF_ERROR(files.remove(path));
      return files.sync_dir(parent_path(path));
    }
  } else if (!head.is_ok()) {
    return head.status();
  } else if (head->store != store || head->segment != segment) {
    return conflict(path + ": its records are another store's, or carry another number; move it away");
  }
  const SegmentHeader header{store, segment, now, 0};
  LARDER_RETURN_IF_ERROR(write_fully(**file, encode_segment_header(header), 0));
  return (*file)->sync_all();
}

Result<RewriteResult> rewrite_segment(FileSystem& files, const StoreReport& report, const SegmentReport& segment,
                                      const std::set<std::uint32_t>& damaged, std::uint64_t now) {
  GroupList by_heads;
  {
    const Result<std::unique_ptr<File>> file = files.open(segment.path, {});
    if (!file.is_ok()) return file.status();
    LARDER_ASSIGN_OR_RETURN(by_heads, read_groups(**file, report.store, segment.number, segment.scan.end_bytes));
  }
  std::set<PageId> bad;
  for (const std::uint32_t page : damaged) bad.insert(id_of(report.pages[page].page));
  GroupList kept;
  RewriteResult result;
  for (Group& group : listed_groups(report, segment, by_heads)) {
    const bool is_bad =
        std::any_of(group.begin(), group.end(), [&](const ListedPage& page) { return bad.contains(id_of(page)); });
    (is_bad ? result.removed_pages : result.kept_pages) += group.size();
    if (is_bad) {
      ++result.removed_groups;
    } else {
      kept.push_back(std::move(group));
    }
  }
  const std::string directory = parent_path(segment.path);
  if (kept.empty()) {
    LARDER_RETURN_IF_ERROR(files.remove(segment.path));
  } else {
    // A temporary name that opening a store knows and removes.
    const std::string temporary = join_path(directory, std::string(kFormatName) + std::string(kTemporarySuffix));
    const SegmentHeader header{report.store, segment.number, now, first_generation_of(files, segment.path)};
    Status status = copy_groups(files, kept, segment.path, temporary, header);
    if (status.is_ok()) status = files.rename(temporary, segment.path);
    if (!status.is_ok()) {
      (void)files.remove(temporary);
      return status;
    }
  }
  LARDER_RETURN_IF_ERROR(files.sync_dir(directory));
  return result;
}

}  // namespace larder::file_store
