// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_scan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/defect.h"
#include "storage/file/segment_frame.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kHeadWindowBytes = std::size_t{64} << 10;  // most heads, and several small records, at once
constexpr std::size_t kSearchBytes = std::size_t{1} << 20;       // search, payloads
constexpr std::size_t kFooterReadBytes = std::size_t{4} << 20;

// A stretch of the file, read ahead. Small neighbouring reads cost one system call. Where reading ahead fails, only
// what is wanted is read: a bad sector must not cost its neighbours.
class Window {
 public:
  Window(File& file, std::uint64_t file_bytes, std::size_t read_ahead)
      : file_(file), file_bytes_(file_bytes), read_ahead_(read_ahead) {}

  // Bytes [at, at + size), valid until the next call. Empty: they are not all in the file, or reading failed (then
  // `io` says why).
  std::span<const std::byte> view(std::uint64_t at, std::size_t size, Status& io) {
    if (at > file_bytes_ || size > file_bytes_ - at) return {};
    if (at < at_ || at + size > at_ + bytes_.size()) {
      const auto ahead =
          static_cast<std::size_t>(std::min<std::uint64_t>(std::max(size, read_ahead_), file_bytes_ - at));
      io = read(at, at < failed_end_ ? size : ahead);
      if (!io.is_ok() && bytes_.size() > size) {
        failed_end_ = at + ahead;  // a dying disk takes its time for each error: not once more for this stretch
        io = read(at, size);
      }
      if (!io.is_ok()) bytes_.clear();
    }
    if (bytes_.empty()) return {};
    return std::span(bytes_).subspan(static_cast<std::size_t>(at - at_), size);
  }

 private:
  Status read(std::uint64_t at, std::size_t size) {
    bytes_.resize(size);
    at_ = at;
    return read_exactly(file_, bytes_, at);
  }

  File& file_;
  const std::uint64_t file_bytes_;
  const std::size_t read_ahead_;
  std::uint64_t failed_end_ = 0;  // nothing is read ahead before this
  std::uint64_t at_ = 0;
  std::vector<std::byte> bytes_;
};

class Scanner {
 public:
  Scanner(File& file, const StoreId& store, SegmentId segment, std::uint64_t file_bytes)
      : file_(file), store_(store), segment_(segment), heads_(file, file_bytes, kHeadWindowBytes) {
    out_.file_bytes = file_bytes;
    out_.end_bytes = kBlockBytes;
  }

  // The segment as its footer lists it. Nothing: there is none, or not a whole one of this segment. An I/O error counts
  // as none: the scan that follows comes by the same place.
  std::optional<ScanResult> read_footer() {
    const std::optional<Trailer> trailer = read_trailer();
    if (!trailer) return std::nullopt;
    // Not a vector: it may have hundreds of megabytes, which need not be zeroed first.
    const auto size = static_cast<std::size_t>(trailer->footer_bytes);
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(size);
    const std::span<std::byte> bytes(memory.get(), size);
    for (std::size_t done = 0; done < size; done += kFooterReadBytes) {
      const std::span<std::byte> piece = bytes.subspan(done, std::min(kFooterReadBytes, size - done));
      if (!read_exactly(file_, piece, trailer->footer_start + done).is_ok()) return std::nullopt;
    }
    Result<Footer> footer = decode_footer(bytes);
    if (!footer.is_ok() || footer->store != store_ || footer->segment != segment_) return std::nullopt;
    if (footer->start != trailer->footer_start) return std::nullopt;
    ScanResult found;
    found.has_footer = true;
    found.is_footer_synced = footer->is_synced;
    found.end_bytes = footer->start;
    found.file_bytes = out_.file_bytes;
    found.records = footer->records;
    found.max_generation = footer->max_generation;
    found.pages = std::move(footer->pages);
    return found;
  }

  ScanResult scan(bool check_unsynced_payloads) {
    std::optional<RecordHead> head = read_head(out_.end_bytes);
    std::vector<std::uint64_t> gaps;
    while (out_.io.is_ok()) {
      if (!head) {
        const std::uint64_t from = out_.end_bytes;
        head = find_head(from);
        if (!head) break;
        gaps.push_back(from);
      }
      keep(*head);
      head = read_head(out_.end_bytes);
    }
    out_.corrupt_groups = gaps.size();  // at least: how many lay in each damaged stretch is not known
    for (const std::uint64_t from : gaps) out_.unsynced_gaps += from >= out_.synced_bytes ? 1 : 0;
    if (check_unsynced_payloads) drop_unwritten_groups();
    return std::move(out_);
  }

 private:
  // A record that was found: its pages are those from first_page on, up to the next record's.
  struct Record {
    std::size_t first_page;
    std::uint64_t end;
  };

  // The trailer in the file's last block, if it is whole, of this segment, and fits the file.
  std::optional<Trailer> read_trailer() {
    const std::uint64_t size = out_.file_bytes;
    if (size % kBlockBytes != 0 || size < 3 * kBlockBytes) return std::nullopt;
    const std::uint64_t footer_end = size - kBlockBytes;
    std::vector<std::byte> block(kBlockBytes);
    if (!read_exactly(file_, block, footer_end).is_ok()) return std::nullopt;
    const Result<Trailer> trailer = decode_trailer(block);
    if (!trailer.is_ok() || trailer->store != store_ || trailer->segment != segment_) return std::nullopt;
    if (trailer->footer_start > footer_end || trailer->footer_bytes > footer_end - trailer->footer_start ||
        trailer->footer_start + align_up(trailer->footer_bytes, kBlockBytes) != footer_end) {
      return std::nullopt;
    }
    return *trailer;
  }

  // The record that starts at `at`: its head is whole and names this place, and the file does not end before it does.
  std::optional<RecordHead> read_head(std::uint64_t at) {
    const std::span<const std::byte> header = heads_.view(at, kRecordHeaderBytes, out_.io);
    const Result<std::uint64_t> head_bytes = record_head_bytes(header);
    if (!head_bytes.is_ok()) return std::nullopt;
    Result<RecordHead> head = decode_record_head(heads_.view(at, static_cast<std::size_t>(*head_bytes), out_.io));
    if (!head.is_ok() || head->store != store_ || head->segment != segment_ || head->start != at) return std::nullopt;
    if (head->record_bytes > out_.file_bytes - at) return std::nullopt;
    return std::move(head).value();
  }

  // The first record at or behind `from`, a block. Nothing: there is none, and is_tail_zero says what there is instead;
  // or reading failed.
  std::optional<RecordHead> find_head(std::uint64_t from) {
    bool is_zero_so_far = true;
    std::vector<std::byte> chunk;
    for (std::uint64_t at = from; at < out_.file_bytes; at += chunk.size()) {
      chunk.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kSearchBytes, out_.file_bytes - at)));
      if (out_.io = read_exactly(file_, chunk, at); !out_.io.is_ok()) return std::nullopt;
      if (is_zero_so_far && is_zero(chunk)) continue;
      is_zero_so_far = false;
      for (std::size_t i = 0; i < chunk.size(); i += kBlockBytes) {
        const std::span<const std::byte> block = std::span(chunk).subspan(i);
        if (!is_record_magic(block) || !record_head_bytes(block).is_ok()) continue;
        std::optional<RecordHead> head = read_head(at + i);
        if (head || !out_.io.is_ok()) return head;
      }
    }
    out_.is_tail_zero = is_zero_so_far;
    return std::nullopt;
  }

  void keep(const RecordHead& head) {
    out_.end_bytes = head.start + head.record_bytes;
    records_.push_back({out_.pages.size(), out_.end_bytes});
    out_.pages.insert(out_.pages.end(), head.pages.begin(), head.pages.end());
    for (const ListedPage& page : head.pages) {
      out_.max_generation = std::max(out_.max_generation, page.location.generation);
    }
    out_.synced_bytes = std::max(out_.synced_bytes, head.synced_bytes);
    ++out_.records;
  }

  // Groups behind the last synced byte may have their head on disk, but not their payloads.
  void drop_unwritten_groups() {
    Window payloads(file_, out_.file_bytes, kSearchBytes);
    std::vector<ListedPage>& pages = out_.pages;
    std::size_t kept = 0;
    for (std::size_t r = 0; r < records_.size(); ++r) {
      const std::size_t record_end = r + 1 < records_.size() ? records_[r + 1].first_page : pages.size();
      for (std::size_t first = records_[r].first_page; first < record_end;) {
        std::size_t last = first;
        while (last < record_end && pages[last].group == pages[first].group) ++last;
        const bool is_whole = records_[r].end <= out_.synced_bytes || defect(Defect::kTornRecordTaken) ||
                              are_payloads_whole(std::span(pages).subspan(first, last - first), payloads);
        if (!is_whole) ++out_.corrupt_groups;
        for (; first < last; ++first) {
          if (is_whole) pages[kept++] = pages[first];
        }
      }
    }
    pages.resize(kept);
  }

  // True also if that cannot be known: unreadable is not unwritten, and a read will tell. After one I/O error nothing
  // more is read, because a dying disk takes its time for each.
  bool are_payloads_whole(std::span<const ListedPage> pages, Window& payloads) {
    for (const ListedPage& page : pages) {
      PayloadHasher hasher;
      std::uint64_t at = page.location.offset;
      for (std::uint64_t left = page.location.payload_bytes; left > 0;) {
        if (!out_.io.is_ok()) return true;
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kSearchBytes, left));
        const std::span<const std::byte> piece = payloads.view(at, size, out_.io);
        if (piece.empty()) return true;
        hasher.update(piece);
        at += size;
        left -= size;
      }
      if (hasher.finish() != page.location.checksum) return false;
    }
    return true;
  }

  File& file_;
  const StoreId store_;
  const SegmentId segment_;
  ScanResult out_;
  Window heads_;
  std::vector<Record> records_;
};

// No lower generation than `first` was given out when the segment was made, so all below it were.
void raise_generation(ScanResult& found, std::uint64_t first) {
  found.first_generation = first;
  if (first > 0) found.max_generation = std::max(found.max_generation, first - 1);
  if (found.io.is_ok()) return;
  found.max_generation = beyond_unknown(found.max_generation);
}

}  // namespace

Result<ScanResult> scan_segment(File& file, const StoreId& store, SegmentId segment, bool check_unsynced_payloads) {
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t size, file.size_bytes());
  if (size < kBlockBytes) return corrupt(file.path() + ": shorter than a segment header");
  std::array<std::byte, kHeaderBytes> bytes;
  const Status read = read_exactly(file, bytes, 0);
  const Result<SegmentHeader> header = read.is_ok() ? decode_segment_header(bytes) : read;
  if (read.is_ok() && !header.is_ok() && header.status().code() != StatusCode::kCorrupt) {
    return Status(header.status().code(), file.path() + ": " + header.status().message());
  }
  if (header.is_ok() && (header->store != store || header->segment != segment)) {
    return conflict(file.path() + ": belongs to another store or carries another number; move it away");
  }
  Scanner scanner(file, store, segment, size);
  std::optional<ScanResult> found = scanner.read_footer();
  if (!found) found = scanner.scan(check_unsynced_payloads);
  // A header that is damaged or cannot be read costs nothing else: the footer and each record name the store, the
  // segment and their place, too.
  const bool is_anything_there = found->has_footer || found->records > 0;
  if (!is_anything_there && found->io.is_ok()) found->io = read;
  if (!header.is_ok() && !is_anything_there && found->io.is_ok()) {
    return corrupt(file.path() + ": " + header.status().message());
  }
  raise_generation(*found, header.is_ok() ? header->first_generation : 0);
  return std::move(*found);
}

}  // namespace larder::file_store
