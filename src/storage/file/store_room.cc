// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_room.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"

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

bool StoreRoom::are_disks_limited() const {
  return std::all_of(volumes_.begin(), volumes_.end(), [](const Volume& v) { return v.limit.is_known(); });
}

std::uint64_t StoreRoom::most_bytes() const {
  if (!are_disks_limited()) return options_.max_bytes;
  std::uint64_t sum = 0;
  for (const Volume& v : volumes_) sum += v.limit.bytes();
  return std::min(options_.max_bytes, sum);
}

std::uint64_t StoreRoom::segment_bytes(unsigned volume) const {
  const Volume& v = volumes_[volume];
  const std::uint64_t share = std::min(v.limit.bytes(), v.disk_bytes) / kLeastSegments / kBlockBytes * kBlockBytes;
  return std::min(options_.segment_bytes, std::max(share, kLeastSegmentBytes));
}

// One of each volume, together.
std::uint64_t StoreRoom::segments_bytes() const {
  std::uint64_t sum = 0;
  for (unsigned i = 0; i < volumes_.size(); ++i) sum += segment_bytes(i);
  return sum;
}

std::uint64_t StoreRoom::largest_segment() const {
  std::uint64_t largest = 0;
  for (unsigned i = 0; i < volumes_.size(); ++i) largest = std::max(largest, segment_bytes(i));
  return largest;
}

std::uint64_t StoreRoom::least_segment() const {
  std::uint64_t least = options_.segment_bytes;
  for (unsigned i = 0; i < volumes_.size(); ++i) least = std::min(least, segment_bytes(i));
  return least;
}

std::uint64_t StoreRoom::largest_record() const {
  const std::uint64_t most = most_bytes() == kUnlimited ? kMaxRecordBytes : most_bytes() / kLeastGroups;
  return std::min(most, kMaxRecordBytes / 2);
}

Status StoreRoom::check_new(std::uint64_t payload_bytes, std::size_t pages) {
  // The room of the record, and of its line in the footer.
  const std::uint64_t most = largest_record();
  const std::uint64_t bytes = payload_bytes + pages * 2 * kPageBytes;
  if (bytes <= most) return Status::ok();
  const std::string words = "file store: a group of " + std::to_string(payload_bytes) + " bytes is larger than " +
                            std::to_string(most) + ", the most that ";
  if (most_bytes() == options_.max_bytes) return invalid_argument(words + "max_size allows");
  refused_bytes_ = std::max(refused_bytes_, bytes);
  return overloaded(words + "the full disk has room for");
}

// One segment is kept for cleaning; if the disks are the limit, one on each, for it needs a whole one somewhere.
bool StoreRoom::has_room(std::uint64_t bytes, bool for_cleaning) const {
  const std::uint64_t most = most_bytes();
  if (most == kUnlimited) return true;  // the disk says when it is full
  const std::uint64_t reserve = for_cleaning ? 0 : are_disks_limited() ? segments_bytes() : largest_segment();
  const std::uint64_t kept = defect(Defect::kPhysicalBytesUncounted) ? live_bytes() : segments_.physical_bytes();
  return kept + bytes + reserve <= most || (for_cleaning && kept <= least_held_);
}

std::uint64_t StoreRoom::filled_bytes() const {
  std::uint64_t bytes = segments_.physical_bytes();
  for (const auto& [id, segment] : segments_) {
    const ActiveSegment* const active = segment.active.get();
    if (!active || !(active->is_full || volumes_[segment.volume].log(LogKind::kMoved).active == segment.active))
      continue;
    const std::uint64_t taken = active->end_bytes + ActiveSegment::footer_room(active->pages);
    bytes -= std::min(bytes, active->capacity_bytes - std::min(active->capacity_bytes, taken));
  }
  return bytes;
}

bool StoreRoom::has_disk_room(unsigned volume, std::uint64_t bytes) const {
  const DiskLimit& limit = volumes_[volume].limit;
  return !limit.is_known() || segments_.held_bytes(volume) + bytes <= limit.bytes();
}

bool StoreRoom::has_room_to_move(unsigned volume, std::uint64_t own) const {
  const std::uint64_t needed = std::max(segment_bytes(volume), own);
  return !is_too_large(volume, own) && has_room(needed, true) && has_disk_room(volume, needed);
}

bool StoreRoom::is_too_large(unsigned volume, std::uint64_t bytes) const {
  const DiskLimit& limit = volumes_[volume].limit;
  return limit.is_known() && bytes > limit.bytes() / 2;
}

bool StoreRoom::has_room_ahead(unsigned volume) const {
  const ActiveSegment* const active = volumes_[volume].log(LogKind::kNew).active.get();
  const std::uint64_t bytes = segment_bytes(volume);
  return active && active->is_nearly_full() && has_room(bytes, false) && has_disk_room(volume, bytes);
}

// Less room for one more segment per volume, and the reserve for cleaning: at most a quarter of the budget, but for a
// store of several volumes.
std::uint64_t StoreRoom::percent_of_budget(unsigned percent) const {
  const std::uint64_t most = most_bytes();
  if (most == kUnlimited) return kUnlimited;
  const std::uint64_t ahead = segments_bytes() + largest_segment();
  return std::min(most / 100 * percent, most - std::min(most, ahead));
}

bool StoreRoom::note_full_disk(LogLines& lines, unsigned volume, std::uint64_t asked, std::uint64_t free,
                               TimePoint now) {
  Volume& v = volumes_[volume];
  asked = std::max(asked, segment_bytes(volume));
  if (free >= asked && ++v.unexplained_full < 2) return false;
  const std::uint64_t held = segments_.bytes_on_disk(volume);
  v.limit.disk_was_full(held, asked, free, now);
  if (!std::exchange(v.is_limit_said, true)) {
    const std::string wanted =
        options_.max_bytes == kUnlimited ? "max_size is unlimited" : "max_size is " + in_words(options_.max_bytes);
    lines.warning("storage/file",
                  "the disk of " + v.directory + " is full, with " + in_words(held) + " of this store: " + wanted +
                      ", but there is no room for more. It keeps below " + in_words(v.limit.bytes()) +
                      " there from now on, by " +
                      (options_.evicts ? "evicting what was used longest ago" : "refusing what is new") +
                      ", and takes more when there is free room again. A smaller max_size says so "
                      "beforehand");
  }
  if (has_disk_room(volume, 2 * segment_bytes(volume))) return false;
  full_volume = volume;
  return true;
}

void StoreRoom::forget_full_if_there_is_room() {
  if (full_volume && has_disk_room(*full_volume, 2 * segment_bytes(*full_volume))) full_volume.reset();
}

StoreRoom::Emptiest StoreRoom::emptiest_segment(std::optional<unsigned> volume, TimePoint now) const {
  Emptiest best;
  double least = 0;
  for (const auto& [id, segment] : segments_) {
    if (segment.active || segment.is_leaving || segment.holds > 0 || segment.physical_bytes == 0) continue;
    const TimePoint not_before = std::max(segment.clean_again, volumes_[segment.volume].clean_again);
    if (volume ? segment.volume != *volume : not_before > now) continue;
    const std::uint64_t live = index_.live_bytes(id);
    const double known = static_cast<double>(live) / static_cast<double>(segment.physical_bytes);
    const double share = segment.is_unread ? 1.0 : known;  // what the index does not know of comes back with its disk
    if (best.id != 0 && share >= least) continue;
    best = {id, live};
    least = share;
  }
  return best;
}

bool StoreRoom::may_limits_grow(TimePoint now) const {
  return std::any_of(volumes_.begin(), volumes_.end(), [now](const Volume& v) { return v.limit.may_grow(now); });
}

bool StoreRoom::wants_to_grow(unsigned volume, std::uint64_t awaited, TimePoint now) const {
  const DiskLimit& limit = volumes_[volume].limit;
  if (!limit.may_grow(now)) return false;
  const std::uint64_t near =
      std::max({2 * segment_bytes(volume), limit.bytes() / 10, awaited == 0 ? 0 : awaited + largest_segment()});
  // A group that is larger than its share of the limit needs a larger one, whatever is free below it.
  return !has_disk_room(volume, near) || refused_bytes_ > 0;
}

void StoreRoom::grow(unsigned volume, std::uint64_t free, TimePoint now) {
  DiskLimit& limit = volumes_[volume].limit;
  if (free == kUnlimited || !limit.may_grow(now)) return;
  const std::uint64_t wanted = kLeastGroups * std::exchange(refused_bytes_, 0);
  const std::uint64_t step = std::max(segment_bytes(volume), limit.bytes() / 16);
  const std::uint64_t missing = wanted - std::min(wanted, limit.bytes());
  limit.grow(segments_.bytes_on_disk(volume), free, std::max(step, missing), now);
  if (volumes_.size() == 1 && limit.bytes() >= options_.max_bytes) limit.forget();
}

}  // namespace larder::file_store
