// SPDX-License-Identifier: Apache-2.0
// The file store's room: how much it may hold, in all and on each disk, and how long its segments are.
//
//   max_size                                  of all volumes together, as the options say
//   a disk that turned out to have less       its volume's DiskLimit; if all have one, their sum counts like max_size
//
// A volume at its limit takes nothing while others have room, and keeps what it has. A segment is at most an eighth of
// what its volume may hold, so that there is always one to clean or drop.
#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"
#include "base/log.h"
#include "storage/file/file_store.h"

namespace larder::file_store {
namespace {

constexpr std::uint64_t kLeastSegmentBytes = std::uint64_t{16} << 10;
constexpr std::uint64_t kLeastSegments = 8;
constexpr std::uint64_t kLeastGroups = 4;  // that a store has room for, of any size

std::string in_words(std::uint64_t bytes) {
  const bool is_small = bytes < std::uint64_t{64} << 20;
  return is_small ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes >> 20) + " MiB";
}

}  // namespace

bool FileStore::are_disks_limited() const {
  return std::all_of(volumes_.begin(), volumes_.end(), [](const Volume& v) { return v.limit.is_known(); });
}

std::uint64_t FileStore::most_bytes() const {
  if (!are_disks_limited()) return options_.max_bytes;
  std::uint64_t sum = 0;
  for (const Volume& v : volumes_) sum += v.limit.bytes();
  return std::min(options_.max_bytes, sum);
}

std::uint64_t FileStore::segment_bytes(unsigned volume) const {
  const Volume& v = volumes_[volume];
  const std::uint64_t share = std::min(v.limit.bytes(), v.disk_bytes) / kLeastSegments / kBlockBytes * kBlockBytes;
  return std::min(options_.segment_bytes, std::max(share, kLeastSegmentBytes));
}

// One of each volume, together.
std::uint64_t FileStore::segments_bytes() const {
  std::uint64_t sum = 0;
  for (unsigned i = 0; i < volumes_.size(); ++i) sum += segment_bytes(i);
  return sum;
}

std::uint64_t FileStore::largest_segment() const {
  std::uint64_t largest = 0;
  for (unsigned i = 0; i < volumes_.size(); ++i) largest = std::max(largest, segment_bytes(i));
  return largest;
}

// What a group may weigh so that the budget always has room for it and for cleaning.
std::uint64_t FileStore::largest_record() const {
  const std::uint64_t most = most_bytes() == kUnlimited ? kMaxRecordBytes : most_bytes() / kLeastGroups;
  return std::min(most, kMaxRecordBytes / 2);
}

// Of the store's budget. One segment is kept for cleaning; if the disks are the limit, one on each, for it needs a
// whole one somewhere.
bool FileStore::has_room(std::uint64_t bytes, bool for_cleaning) const {
  const std::uint64_t most = most_bytes();
  if (most == kUnlimited) return true;  // the disk says when it is full
  const std::uint64_t reserve = for_cleaning ? 0 : are_disks_limited() ? segments_bytes() : largest_segment();
  const std::uint64_t kept = defect(Defect::kPhysicalBytesUncounted) ? live_bytes() : physical_bytes_;
  return kept + bytes + reserve <= most;
}

bool FileStore::has_disk_room(unsigned volume, std::uint64_t bytes) const {
  const Volume& v = volumes_[volume];
  return !v.limit.is_known() || v.held_bytes + bytes <= v.limit.bytes();
}

// A segment of that size was planned before the limit was known: all that is there would go for it.
bool FileStore::is_too_large(unsigned volume, std::uint64_t bytes) const {
  const DiskLimit& limit = volumes_[volume].limit;
  return limit.is_known() && bytes > limit.bytes() / 2;
}

// Room for one more segment per volume, and the reserve for cleaning. At most a quarter of the budget, but for a store
// of several volumes.
std::uint64_t FileStore::bytes_ahead() const { return segments_bytes() + largest_segment(); }

std::uint64_t FileStore::percent_of_budget(unsigned percent) const {
  const std::uint64_t most = most_bytes();
  if (most == kUnlimited) return kUnlimited;
  return std::min(most / 100 * percent, most - std::min(most, bytes_ahead()));
}

void FileStore::set_size(SegmentInfo& segment, std::uint64_t bytes) {
  std::uint64_t& held = volumes_[segment.volume].held_bytes;
  physical_bytes_ = physical_bytes_ - segment.physical_bytes + bytes;
  held = held - segment.physical_bytes + bytes;
  segment.physical_bytes = bytes;
}

// What the volume's segments take now; not what they may take before they are full.
std::uint64_t FileStore::bytes_on_disk(unsigned volume) const {
  std::uint64_t bytes = volumes_[volume].held_bytes;
  for (const auto& [id, segment] : segments_) {
    if (segment.volume != volume || !segment.active || segment.active->is_reserved) continue;
    bytes -= segment.physical_bytes - std::min(segment.physical_bytes, segment.active->end_bytes);
  }
  return bytes;
}

// kUnlimited: the system does not say, which explains nothing.
std::uint64_t FileStore::free_bytes(unsigned volume) const {
  const Result<SpaceInfo> space = files_.space(volumes_[volume].directory);
  return space.is_ok() ? space->free_bytes : kUnlimited;
}

// The disk had no room for what needed `asked` bytes at most. True: something must go first. False: there is room, for
// a smaller segment at least; or so the system says, and the disk is tried once more.
bool FileStore::note_full_disk(unsigned volume, std::uint64_t asked, std::uint64_t free) {
  Volume& v = volumes_[volume];
  if (free >= asked && ++v.unexplained_full < 2) return false;
  const std::uint64_t held = bytes_on_disk(volume);
  v.limit.disk_was_full(held, asked, free, clock_.now());
  if (!std::exchange(v.is_limit_said, true)) {
    const std::string wanted =
        options_.max_bytes == kUnlimited ? "max_size is unlimited" : "max_size is " + in_words(options_.max_bytes);
    log_warning("storage/file", "the disk of " + v.directory + " is full, with " + in_words(held) +
                                    " of this store: " + wanted + ", but there is no room for more. It keeps below " +
                                    in_words(v.limit.bytes()) +
                                    " there from now on, by evicting what was used longest ago, and takes more when "
                                    "there is free room again. A smaller max_size says so beforehand");
  }
  return !has_disk_room(volume, 2 * segment_bytes(volume));
}

bool FileStore::may_limits_grow() const {
  const TimePoint now = clock_.now();
  return std::any_of(volumes_.begin(), volumes_.end(), [now](const Volume& v) { return v.limit.may_grow(now); });
}

// Disks that have had no room for a while: perhaps others have left some. May block.
void FileStore::grow_limits() {
  for (unsigned i = 0; i < volumes_.size(); ++i) {
    Volume& v = volumes_[i];
    {
      LockGuard guard(mutex_);
      const std::uint64_t near = std::max(
          {2 * segment_bytes(i), v.limit.bytes() / 10, waiting_.empty() ? 0 : awaited_bytes() + largest_segment()});
      // A group that is larger than its share of the limit needs a larger one, whatever is free below it.
      if (!v.limit.may_grow(clock_.now()) || (has_disk_room(i, near) && refused_bytes_ == 0)) continue;
    }
    const std::uint64_t free = free_bytes(i);
    LockGuard guard(mutex_);
    if (free == kUnlimited || !v.limit.may_grow(clock_.now())) continue;
    const std::uint64_t wanted = kLeastGroups * std::exchange(refused_bytes_, 0);
    const std::uint64_t step = std::max(segment_bytes(i), v.limit.bytes() / 16);
    v.limit.grow(bytes_on_disk(i), free, std::max(step, wanted - std::min(wanted, v.limit.bytes())), clock_.now());
    if (volumes_.size() == 1 && v.limit.bytes() >= options_.max_bytes) v.limit.forget();
  }
}

}  // namespace larder::file_store
