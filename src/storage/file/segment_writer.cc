#include "storage/file/segment_writer.h"

#include <algorithm>
#include <utility>

namespace larder::file_store {
namespace {

constexpr std::size_t kMaxBuffers = 1024;
constexpr std::array<std::byte, kRecordAlignment> kZeros{};

}  // namespace

std::uint64_t SegmentWriter::group_bytes(std::span<const PageToAppend> pages) {
  std::uint64_t sum = commit_bytes(pages.size());
  for (const PageToAppend& page : pages) sum += record_bytes(page.payload_bytes);
  return sum;
}

Status SegmentWriter::open_new(SegmentId id, std::uint64_t now_unix_seconds) {
  const std::string path = join_path(directory_, segment_name(id));
  OpenOptions options;
  options.write = options.create = options.exclusive = true;
  Result<std::unique_ptr<File>> file = files_.open(path, options);
  if (!file.is_ok()) return file.status();
  const auto header = encode_segment_header({store_, id, now_unix_seconds, next_generation_});
  if (Status written = write_fully(**file, header, 0); !written.is_ok()) {
    (void)files_.remove(path);  // if it stays, the next open removes it: its header is not whole
    return written;
  }
  file_ = std::move(file).value();
  segment_ = id;
  end_bytes_ = kSegmentHeaderBytes;
  synced_bytes_ = 0;
  is_name_synced_ = false;
  return Status::ok();
}

Status SegmentWriter::append_group(std::span<const PageToAppend> pages, std::vector<PageLocation>& locations) {
  std::vector<EnvelopeBytes> envelopes;
  envelopes.reserve(pages.size());  // the buffers point into it
  CommitRecord commit;
  commit.store_low = store_low(store_);
  commit.segment = segment_;
  commit.group = next_group_;
  commit.group_start = end_bytes_;
  commit.synced_bytes = is_name_synced_ ? synced_bytes_ : 0;
  Buffers buffers;
  locations.clear();
  std::uint64_t at = end_bytes_;
  for (const PageToAppend& page : pages) {
    const std::uint64_t generation = next_generation_ + locations.size();
    envelopes.push_back(encode_envelope({page.identity.pool, page.flags, page.key, page.identity.namespace_digest,
                                         page.identity.layout_fingerprint, generation, page.payload_bytes,
                                         page.checksum, commit.group}));
    const std::uint32_t checksum = load_le<std::uint32_t>(envelopes.back().data() + 12);
    commit.entries.push_back({at, page.payload_bytes, generation, checksum, page.identity.pool});
    locations.push_back({segment_, at, static_cast<std::uint32_t>(page.payload_bytes), generation});
    buffers.emplace_back(envelopes.back());
    for (const Segment& piece : page.payload) {
      if (piece.size != 0) buffers.emplace_back(piece.data, piece.size);
    }
    const std::uint64_t length = record_bytes(page.payload_bytes);
    const std::uint64_t padding = length - kEnvelopeBytes - page.payload_bytes;
    if (padding != 0) buffers.push_back(std::span(kZeros).first(static_cast<std::size_t>(padding)));
    at += length;
  }
  commit.offset = at;
  const std::vector<std::byte> commit_record = encode_commit(commit);
  buffers.emplace_back(commit_record);
  if (Status written = write_buffers(buffers, end_bytes_); !written.is_ok()) {
    undo(end_bytes_);
    return written;
  }
  end_bytes_ = at + commit_record.size();
  next_generation_ += pages.size();
  ++next_group_;
  return Status::ok();
}

Status SegmentWriter::write_buffers(Buffers& buffers, std::uint64_t offset) {
  std::span<std::span<const std::byte>> left(buffers);
  while (!left.empty()) {
    const Result<std::size_t> put = file_->writev_at(left.first(std::min(left.size(), kMaxBuffers)), offset);
    if (!put.is_ok()) return put.status();
    if (*put == 0) return overloaded("write " + file_->path() + ": the disk takes no more");
    offset += *put;
    for (std::size_t done = *put; done > 0;) {
      const std::size_t step = std::min(done, left.front().size());
      left.front() = left.front().subspan(step);
      done -= step;
      if (left.front().empty()) left = left.subspan(1);
    }
  }
  return Status::ok();
}

void SegmentWriter::undo(std::uint64_t end_bytes) {
  if (!file_->truncate(end_bytes).is_ok()) abandon();
}

Status SegmentWriter::sync() {
  if (!file_ || is_synced()) return Status::ok();
  Status status = file_->sync_data();
  if (status.is_ok() && !is_name_synced_) status = files_.sync_dir(directory_);
  if (!status.is_ok()) {
    abandon();
    return status;
  }
  is_name_synced_ = true;
  synced_bytes_ = end_bytes_;
  return Status::ok();
}

bool SegmentWriter::seal(bool with_sync) {
  if (!file_) return false;
  bool synced = is_synced();
  if (with_sync) {
    synced = sync().is_ok();
    if (synced) {
      CommitRecord mark;  // tells recovery that it need not read the payloads
      mark.store_low = store_low(store_);
      mark.segment = segment_;
      mark.group = next_group_;
      mark.group_start = mark.offset = mark.synced_bytes = end_bytes_;
      const std::vector<std::byte> bytes = encode_commit(mark);
      if (write_fully(*file_, bytes, end_bytes_).is_ok()) end_bytes_ += bytes.size();
    }
  }
  abandon();
  return synced;
}

void SegmentWriter::abandon() {
  file_ = nullptr;
  segment_ = 0;
}

}  // namespace larder::file_store
