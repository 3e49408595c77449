// SPDX-License-Identifier: Apache-2.0
#include "storage/file/write_gather.h"

#include <algorithm>
#include <utility>

namespace larder::file_store {
namespace {

constexpr std::size_t kQuickItems = 4;
constexpr std::uint64_t kQuickBytes = std::uint64_t{128} << 10;
// What has gathered is cut into about as many writes as are enough, each between these: none so large that the others
// end long before it, and the disk has too little to do.
constexpr std::uint64_t kLeastJoined = std::uint64_t{320} << 10, kMostJoined = std::uint64_t{1} << 20;

// Records of at most this size are joined. A small part of a segment, so that its end is used well.
std::uint64_t joined_limit(std::uint64_t segment_bytes) { return std::min(kMostJoined, segment_bytes / 16); }

}  // namespace

bool WriteGather::is_quick(const WriteRequest& request) {
  if (request.groups.size() != 1 || request.groups[0].items.size() > kQuickItems) return false;
  std::uint64_t bytes = 0;
  for (const WriteItem& item : request.groups[0].items) bytes += larder::payload_bytes(item.payload);
  return bytes <= kQuickBytes;
}

bool WriteGather::claim_idle_disk() {
  if (writing_ > 0 || !gathered_.empty() || is_lone_coming_) return false;
  is_lone_coming_ = true;
  return true;
}

bool WriteGather::take(RecordPtr& record, std::uint64_t segment_bytes) {
  const bool is_small = record->layout.record_bytes <= joined_limit(segment_bytes) / 2;
  if (!is_small || (writing_ < enough_ && gathered_.empty())) return false;
  record->may_wait = false;  // the thread that ends another write will place it
  gathered_bytes_ += record->layout.record_bytes;
  gathered_.push_back(std::move(record));
  return true;
}

bool WriteGather::begin_placing() {
  if (is_placing_ || gathered_.empty()) return false;
  is_placing_ = true;
  return true;
}

std::vector<RecordPtr> WriteGather::next(std::uint64_t segment_bytes) {
  std::vector<RecordPtr> out;
  if (gathered_.empty() || writing_ >= enough_) {
    is_placing_ = false;
    return out;
  }
  const std::uint64_t share = gathered_bytes_ / enough_;
  const std::uint64_t most = std::min(std::clamp(share, kLeastJoined, kMostJoined), joined_limit(segment_bytes));
  std::uint64_t bytes = 0;
  std::size_t pages = 0;
  while (!gathered_.empty()) {
    const WriteRecord& next = *gathered_.front();
    bytes += next.layout.record_bytes;
    pages += next.pages.size();
    const bool fits = bytes <= most && pages <= kMaxRecordPages;
    if (!out.empty() && (!fits || !may_share(*out.front(), next))) break;
    gathered_bytes_ -= next.layout.record_bytes;
    out.push_back(std::move(gathered_.front()));
    gathered_.pop_front();
  }
  return out;
}

}  // namespace larder::file_store
