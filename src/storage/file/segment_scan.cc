#include "storage/file/segment_scan.h"

#include <algorithm>
#include <utility>

namespace larder::file_store {
namespace {

constexpr std::size_t kWindowBytes = 4096;  // small reads are served from the last window
constexpr std::size_t kSearchBytes = std::size_t{1} << 20;

// One envelope found, not yet committed.
struct Candidate {
  Envelope envelope;
  std::uint64_t offset;
  std::uint32_t header_checksum;
};
struct Group {
  std::uint64_t end;       // behind its commit record
  std::size_t first_page;  // into ScanResult::pages
  std::vector<Checksum128> checksums;
};

class Scanner {
 public:
  Scanner(File& file, const StoreId& store, SegmentId segment, std::uint64_t file_bytes)
      : file_(file), store_low_(store_low(store)), segment_(segment) {
    out_.file_bytes = file_bytes;
    out_.end_bytes = kSegmentHeaderBytes;
  }

  ScanResult run(bool check_unsynced_payloads) {
    std::uint64_t at = kSegmentHeaderBytes;
    while (at < out_.file_bytes && out_.io.is_ok()) {
      if (step(at)) continue;
      if (!out_.io.is_ok() || !resume_behind_damage(at)) break;
    }
    if (check_unsynced_payloads && out_.io.is_ok()) drop_unwritten_groups();
    return std::move(out_);
  }

 private:
  // Bytes [at, at + size), from the window if they are there; empty behind the end of the file or on an I/O error.
  std::span<const std::byte> view(std::uint64_t at, std::size_t size) {
    if (at + size > out_.file_bytes) return {};
    if (at < window_at_ || at + size > window_at_ + window_.size()) {
      const std::uint64_t wanted = std::max<std::uint64_t>(size, kWindowBytes);
      window_.resize(static_cast<std::size_t>(std::min(wanted, out_.file_bytes - at)));
      window_at_ = at;
      if (!read_whole(window_, at)) window_.clear();
    }
    if (window_.empty()) return {};
    return std::span(window_).subspan(static_cast<std::size_t>(at - window_at_), size);
  }

  bool read_whole(std::span<std::byte> into, std::uint64_t at) {
    const Status status = read_exactly(file_, into, at);
    if (!status.is_ok()) out_.io = status;
    return status.is_ok();
  }

  // Takes one record or commit record at `at` and moves on; false at damage.
  bool step(std::uint64_t& at) {
    if (is_commit_magic(view(at, std::min<std::uint64_t>(8, out_.file_bytes - at)))) return take_commit(at);
    const std::span<const std::byte> bytes = view(at, kEnvelopeBytes);
    if (bytes.empty()) return false;
    const Result<Envelope> envelope = decode_envelope(bytes);
    if (!envelope.is_ok() || envelope->payload_bytes > out_.file_bytes - at) return false;
    if (candidates_.size() >= kMaxGroupRecords || at > kMaxRecordOffset) return false;
    candidates_.push_back({*envelope, at, load_le<std::uint32_t>(bytes.data() + 12)});
    at += record_bytes(envelope->payload_bytes);
    return true;
  }

  // The commit record at `at`, if it is whole and says where it is.
  bool read_commit(std::uint64_t at, CommitRecord& commit, std::uint64_t& length) {
    const Result<std::uint64_t> announced = commit_length(view(at, kCommitHeaderBytes));
    if (!announced.is_ok() || *announced > out_.file_bytes - at) return false;
    Result<CommitRecord> decoded = decode_commit(view(at, static_cast<std::size_t>(*announced)));
    if (!decoded.is_ok() || decoded->offset != at || decoded->segment != segment_) return false;
    if (decoded->store_low != store_low_) return false;
    commit = std::move(decoded).value();
    length = *announced;
    return true;
  }

  bool take_commit(std::uint64_t& at) {
    CommitRecord commit;
    std::uint64_t length = 0;
    if (!read_commit(at, commit, length)) return false;
    if (!candidates_match(commit)) return false;
    at += length;
    keep_group(commit, at);
    return true;
  }

  bool candidates_match(const CommitRecord& commit) const {
    if (candidates_.size() != commit.entries.size()) return false;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const Candidate& found = candidates_[i];
      const CommitEntry& listed = commit.entries[i];
      if (found.offset != listed.offset || found.header_checksum != listed.envelope_checksum) return false;
      if (found.envelope.generation != listed.generation || found.envelope.pool != listed.pool) return false;
      if (found.envelope.payload_bytes != listed.payload_bytes || found.envelope.group != commit.group) return false;
    }
    return true;
  }

  void keep_group(const CommitRecord& commit, std::uint64_t end) {
    groups_.push_back({end, out_.pages.size(), {}});
    for (const Candidate& found : candidates_) {
      const Envelope& e = found.envelope;
      out_.pages.push_back({{e.namespace_digest, e.layout_fingerprint, e.pool},
                            e.key,
                            {segment_, found.offset, static_cast<std::uint32_t>(e.payload_bytes), e.generation}});
      groups_.back().checksums.push_back(e.checksum);
      out_.max_generation = std::max(out_.max_generation, e.generation);
    }
    if (!candidates_.empty()) ++out_.groups;
    out_.max_group = std::max(out_.max_group, commit.group);
    out_.synced_bytes = std::max(out_.synced_bytes, std::min(commit.synced_bytes, end));
    out_.end_bytes = end;
    candidates_.clear();
  }

  // Finds the next commit record behind `at` that is whole, and sets `at` to where to go on. False: there is none.
  bool resume_behind_damage(std::uint64_t& at) {
    const std::uint64_t damaged_from = candidates_.empty() ? at : candidates_.front().offset;
    candidates_.clear();
    std::uint64_t search = damaged_from;
    CommitRecord commit;
    std::uint64_t length = 0;
    while (find_commit(search, commit, length)) {
      if (commit.group_start > damaged_from && !commit.entries.empty()) {
        at = commit.group_start;  // the damage lies before this group, which gets its own chance
        ++out_.corrupt_groups;
        return true;
      }
      if (commit.offset > damaged_from) {
        skip_group(commit, search + length);
        at = out_.end_bytes;
        return true;
      }
      search += kRecordAlignment;
    }
    return false;
  }

  // A damaged group (or a sync mark behind damage): its pages are lost, its numbers still count.
  void skip_group(const CommitRecord& commit, std::uint64_t end) {
    ++out_.corrupt_groups;
    out_.synced_bytes = std::max(out_.synced_bytes, std::min(commit.synced_bytes, end));
    out_.max_group = std::max(out_.max_group, commit.group);
    for (const CommitEntry& e : commit.entries) out_.max_generation = std::max(out_.max_generation, e.generation);
    out_.end_bytes = end;
  }

  // From `at` on, in steps of kRecordAlignment.
  bool find_commit(std::uint64_t& at, CommitRecord& commit, std::uint64_t& length) {
    std::vector<std::byte> buffer;
    for (at = align_record(at); at + kCommitHeaderBytes <= out_.file_bytes;) {
      buffer.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kSearchBytes, out_.file_bytes - at)));
      if (!read_whole(buffer, at)) return false;
      for (std::size_t i = 0; i + kCommitHeaderBytes <= buffer.size(); i += kRecordAlignment) {
        if (!is_commit_magic(std::span(buffer).subspan(i)) || !read_commit(at + i, commit, length)) continue;
        at += i;
        return true;
      }
      if (!out_.io.is_ok()) return false;
      at += align_record(buffer.size());
    }
    return false;
  }

  // Groups behind the last synced byte may have their commit record on disk, but not their payloads.
  void drop_unwritten_groups() {
    std::vector<ScannedPage> kept;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      const auto first = out_.pages.begin() + static_cast<std::ptrdiff_t>(group.first_page);
      const auto last = first + static_cast<std::ptrdiff_t>(group.checksums.size());
      if (group.end > out_.synced_bytes && !are_payloads_whole(std::span(first, last), group.checksums)) {
        if (!out_.io.is_ok()) return;  // unreadable is not unwritten: reads will tell
        ++out_.corrupt_groups;
        --out_.groups;
        continue;
      }
      kept.insert(kept.end(), std::make_move_iterator(first), std::make_move_iterator(last));
    }
    out_.pages = std::move(kept);
  }

  bool are_payloads_whole(std::span<const ScannedPage> pages, std::span<const Checksum128> checksums) {
    std::vector<std::byte> buffer;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      PayloadHasher hasher;
      std::uint64_t at = pages[i].location.offset + kEnvelopeBytes;
      for (std::uint64_t left = pages[i].location.payload_bytes; left > 0;) {
        buffer.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kSearchBytes, left)));
        if (!read_whole(buffer, at)) return false;
        hasher.update(buffer);
        at += buffer.size();
        left -= buffer.size();
      }
      if (hasher.finish() != checksums[i]) return false;
    }
    return true;
  }

  File& file_;
  const std::uint64_t store_low_;
  const SegmentId segment_;
  ScanResult out_;
  std::vector<std::byte> window_;
  std::uint64_t window_at_ = 0;
  std::vector<Candidate> candidates_;  // of the group being read
  std::vector<Group> groups_;
};

}  // namespace

Result<ScanResult> scan_segment(File& file, const StoreId& store, SegmentId segment, bool check_unsynced_payloads) {
  const Result<std::uint64_t> size = file.size_bytes();
  if (!size.is_ok()) return size.status();
  if (*size < kSegmentHeaderBytes) return corrupt(file.path() + ": shorter than a segment header");
  std::array<std::byte, kSegmentHeaderBytes> bytes;
  LARDER_RETURN_IF_ERROR(read_exactly(file, bytes, 0));
  const Result<SegmentHeader> header = decode_segment_header(bytes);
  if (!header.is_ok() && header.status().code() != StatusCode::kCorrupt) {
    return Status(header.status().code(), file.path() + ": " + header.status().message());
  }
  if (header.is_ok() && (header->store != store || header->segment != segment)) {
    return conflict(file.path() + ": belongs to another store or carries another number; move it away");
  }
  // A damaged header costs nothing else: each commit record names the store, the segment and its own place too.
  ScanResult found = Scanner(file, store, segment, *size).run(check_unsynced_payloads);
  if (found.io.is_ok()) return found;
  if (!header.is_ok()) return found.io;
  // What could not be read may be readable next time. Its generations must not come again: a page written from now on
  // is newer, and a clear from now on covers it.
  const std::uint64_t most_pages = *size / record_bytes(0);
  found.max_generation = std::max(found.max_generation, header->first_generation + most_pages);
  return found;
}

}  // namespace larder::file_store
