// SPDX-License-Identifier: Apache-2.0
#include "storage/file/write_record.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/probe.h"

namespace larder::file_store {
namespace {

// Lays a record's bytes out as pieces of memory, in file order: large payloads as they are, the rest copied into one
// staging buffer whose pieces start and end at blocks.
class PieceBuilder {
 public:
  PieceBuilder(std::uint64_t staged_bytes, std::uint64_t start) : staging_(staged_bytes), at_(start) {}

  // The next staged byte belongs at `offset` of the file; what lies between is zero.
  void seek(std::uint64_t offset) {
    if (offset > at_) std::memset(staging_.data() + used_, 0, offset - at_);
    used_ += offset - at_;
    at_ = offset;
  }
  void stage(const void* bytes, std::size_t size) {
    if (size > 0) std::memcpy(staging_.data() + used_, bytes, size);
    used_ += size;
    at_ += size;
  }
  void flush() {
    if (used_ > flushed_) pieces_.push_back({staging_.data() + flushed_, used_ - flushed_});
    flushed_ = used_;
  }
  void direct(const Segment& piece) {
    if (piece.size > 0) pieces_.push_back(piece);
    at_ += piece.size;
  }
  [[nodiscard]] std::vector<Segment> take_pieces() { return std::move(pieces_); }
  [[nodiscard]] AlignedBuffer take_staging() { return std::move(staging_); }

 private:
  AlignedBuffer staging_;
  std::uint64_t used_ = 0, flushed_ = 0;
  std::uint64_t at_;  // of the file
  std::vector<Segment> pieces_;
};

// Bytes of a payload that are written from where they are.
std::uint64_t direct_bytes(const ListedPage& page, std::span<const Segment> payload) {
  const std::uint64_t size = page.location.payload_bytes;
  return size >= kBlockPayload && is_block_aligned(payload) ? size / kBlockBytes * kBlockBytes : 0;
}

void add_payload(PieceBuilder& out, std::span<const Segment> payload, std::uint64_t direct) {
  if (direct > 0) out.flush();
  for (const Segment& piece : payload) {
    const std::size_t size = std::min<std::uint64_t>(direct, piece.size);
    out.direct({piece.data, size});
    out.stage(piece.data + size, piece.size - size);
    direct -= size;
  }
}

}  // namespace

std::vector<Segment> encode_record(WriteRecord& record, const StoreId& store) {
  RecordHead head;
  head.store = store;
  head.segment = record.segment->id;
  head.start = record.start;
  head.record_bytes = record.layout.record_bytes;
  head.synced_bytes = record.synced_bytes;
  head.pages = std::move(record.pages);
  const std::vector<std::byte> bytes = encode_record_head(head);
  record.pages = std::move(head.pages);
  std::uint64_t staged = record.layout.record_bytes;
  for (std::size_t i = 0; i < record.pages.size(); ++i) staged -= direct_bytes(record.pages[i], record.payloads[i]);
  PieceBuilder pieces(staged, record.start);
  pieces.stage(bytes.data(), bytes.size());
  for (std::size_t i = 0; i < record.pages.size(); ++i) {
    const ListedPage& page = record.pages[i];
    if (page.location.payload_bytes == 0) continue;
    pieces.seek(page.location.offset);
    add_payload(pieces, record.payloads[i], direct_bytes(page, record.payloads[i]));
  }
  pieces.seek(record.start + record.layout.record_bytes);
  pieces.flush();
  record.staging = pieces.take_staging();
  return pieces.take_pieces();
}

bool may_share(const WriteRecord& a, const WriteRecord& b) {
  if (a.is_durable != b.is_durable) return false;
  return !a.is_durable || (a.duplicates_in.empty() && b.duplicates_in.empty());
}

RecordPtr join_records(std::vector<RecordPtr> parts) {
  RecordPtr all = std::move(parts.front());
  if (parts.size() == 1) return all;
  probe(Probe::kFileGathered);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    WriteRecord& part = *parts[i];
    const std::size_t first_page = all->pages.size();
    const std::uint32_t first_group = all->pages.back().group + 1;
    for (ListedPage& page : part.pages) {
      page.group += first_group;
      all->pages.push_back(page);
    }
    std::move(part.payloads.begin(), part.payloads.end(), std::back_inserter(all->payloads));
    for (WriteRecord::GroupRef& group : part.groups) {
      group.begin += first_page;
      group.end += first_page;
      all->groups.push_back(std::move(group));
    }
    all->duplicates_in.insert(all->duplicates_in.end(), part.duplicates_in.begin(), part.duplicates_in.end());
    all->returns = std::min(all->returns, part.returns);
    if (!all->avoids) all->avoids = part.avoids;
    part.let_go();
  }
  all->layout = lay_out_record(all->pages, 0);
  return all;
}

}  // namespace larder::file_store
