// SPDX-License-Identifier: Apache-2.0
// The file store's small writes: they do not change threads, and go together when the disk is busy.
//
// But a lone one on an idle disk changes threads once, to one that may wait for the disk: it writes and ends there,
// which is a change less than through the queue.
//
// A record costs a head of a block, a system call and a wake-up, whatever it carries. While enough writes are under
// way, a further small record gains nothing by going alone, so it waits; when a write ends, what has gathered becomes
// one record. Nothing waits for more to come: an idle disk gets each record at once.
//
// Joined records keep their order, and their groups stay groups: each has its own status, and after a crash all of its
// pages or none. Durable ones and others are not joined: nobody waits for a sync that he did not ask for.
//
// Invariant: if anything has gathered, then a write is under way, or somebody is in place_gathered().
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/probe.h"
#include "storage/file/file_store.h"

namespace larder::file_store {
namespace {

// Planned by the caller's thread: about 10 us of checksum and copies.
constexpr std::size_t kQuickItems = 4;
constexpr std::uint64_t kQuickBytes = std::uint64_t{128} << 10;
// Writes under way per volume before small ones gather. Two keep the disk busy while one of them ends; more make the
// gathered ones smaller, and each costs a head, a wake-up and a submission.
constexpr std::size_t kEnoughWrites = 2;
// What has gathered is cut into about as many writes, each between these: none so large that the others end long
// before it, and the disk has too little to do.
constexpr std::uint64_t kLeastJoined = std::uint64_t{320} << 10, kMostJoined = std::uint64_t{1} << 20;

}  // namespace

bool FileStore::is_quick(const WriteRequest& request) {
  if (request.groups.size() != 1 || request.groups[0].items.size() > kQuickItems) return false;
  std::uint64_t bytes = 0;
  for (const WriteItem& item : request.groups[0].items) bytes += larder::payload_bytes(item.payload);
  return bytes <= kQuickBytes;
}

// True: nothing is being written, and the caller's write is the one to go alone.
bool FileStore::claim_idle_disk() {
  LockGuard guard(mutex_);
  if (writes_in_flight_ > 0 || !gathered_.empty() || is_lone_coming_) return false;
  is_lone_coming_ = true;
  return true;
}

// What has gathered goes in records of at most this size. A small part of a segment, so that its end is used well.
std::uint64_t FileStore::gathered_limit() const {
  std::uint64_t least = options_.segment_bytes;
  for (unsigned i = 0; i < volumes_.size(); ++i) least = std::min(least, segment_bytes(i));
  return std::min(kMostJoined, least / 16);
}

void FileStore::place_or_gather(RecordPtr record, bool may_block) {
  if (record->pages.empty()) return record_published(record);
  record->layout = lay_out_record(record->pages, 0);
  {
    LockGuard guard(mutex_);
    const bool is_small = record->layout.record_bytes <= gathered_limit() / 2;
    const bool is_busy = writes_in_flight_ >= kEnoughWrites * volumes_.size();
    if (is_small && (is_busy || !gathered_.empty())) {
      record->may_wait = false;  // the thread that ends another write will place it
      gathered_bytes_ += record->layout.record_bytes;
      gathered_.push_back(std::move(record));
      return;
    }
  }
  place(std::move(record), may_block);
}

// A write has ended. Does not block, and does not recurse when writes end inside.
void FileStore::place_gathered() {
  {
    LockGuard guard(mutex_);
    if (is_placing_gathered_ || gathered_.empty()) return;
    is_placing_gathered_ = true;
  }
  for (;;) {
    std::vector<RecordPtr> parts;
    {
      LockGuard guard(mutex_);
      if (gathered_.empty() || writes_in_flight_ >= kEnoughWrites * volumes_.size()) {
        is_placing_gathered_ = false;
        return;
      }
      parts = take_gathered();
    }
    place(join(std::move(parts)), false);
  }
}

// Durable and others do not go together, nor do durable ones of which one waits for other segments, too.
bool FileStore::may_share(const Record& a, const Record& b) {
  if (a.is_durable != b.is_durable) return false;
  return !a.is_durable || (a.duplicates_in.empty() && b.duplicates_in.empty());
}

// The oldest, and those behind it that can go with it.
std::vector<FileStore::RecordPtr> FileStore::take_gathered() {
  const std::uint64_t share = gathered_bytes_ / (kEnoughWrites * volumes_.size());
  const std::uint64_t most = std::min(std::clamp(share, kLeastJoined, kMostJoined), gathered_limit());
  std::vector<RecordPtr> out;
  std::uint64_t bytes = 0;
  std::size_t pages = 0;
  while (!gathered_.empty()) {
    const Record& next = *gathered_.front();
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

// One record of all their groups, in order.
FileStore::RecordPtr FileStore::join(std::vector<RecordPtr> parts) {
  RecordPtr all = std::move(parts.front());
  if (parts.size() == 1) return all;
  probe(Probe::kFileGathered);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    Record& part = *parts[i];
    const std::size_t first_page = all->pages.size();
    const std::uint32_t first_group = all->pages.back().group + 1;
    for (ListedPage& page : part.pages) {
      page.group += first_group;
      all->pages.push_back(page);
    }
    std::move(part.payloads.begin(), part.payloads.end(), std::back_inserter(all->payloads));
    for (GroupRef& group : part.groups) {
      group.begin += first_page;
      group.end += first_page;
      all->groups.push_back(std::move(group));
    }
    all->duplicates_in.insert(all->duplicates_in.end(), part.duplicates_in.begin(), part.duplicates_in.end());
    all->returns = std::min(all->returns, part.returns);
    part.groups.clear();
    part.op.reset();
  }
  all->layout = lay_out_record(all->pages, 0);
  return all;
}

}  // namespace larder::file_store
