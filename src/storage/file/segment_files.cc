// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_files.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace larder::file_store {
namespace {

// A file that would not go is tried again after so long.
constexpr Nanos kRemoveAgain = std::chrono::seconds(5);
// So many files in a row that would not go are more than bad luck: the disk is read-only, or the directory. Then, after
// so long, one more is tried.
constexpr unsigned kStuckFiles = 2;
constexpr Nanos kEmptyAgain = std::chrono::minutes(1);

}  // namespace

Result<FilePtr> SegmentFiles::open(SegmentId id) {
  std::string path;
  OpenOptions options;
  unsigned number = 0;
  {
    LockGuard guard(state_.mutex);
    SegmentInfo* const segment = state_.segments.find(id);
    if (!segment) return not_found("page is not in the file store");  // evicted meanwhile
    if (segment->file) return segment->file;
    number = segment->volume;
    const Volume& volume = state_.volumes[number];
    path = join_path(volume.directory, segment_name(id));
    options.direct = volume.is_direct;
  }
  Result<std::unique_ptr<File>> opened = state_.files.open(path, options);
  if (opened.status().code() == StatusCode::kNotFound) LARDER_RETURN_IF_ERROR(state_.check_here(number));
  std::vector<FilePtr> closed;  // closes behind the lock
  LockGuard guard(state_.mutex);
  SegmentInfo* const segment = state_.segments.find(id);
  if (!opened.is_ok()) {
    // Deleted behind our back: its pages are gone, and their room with them.
    if (opened.status().code() == StatusCode::kNotFound && segment) state_.copies.forget(id, closed);
    return opened.status();
  }
  FilePtr file = std::move(opened).value();
  if (segment && !segment->file) {
    state_.segments.open(*segment, file, closed);
  }
  return file;
}

void SegmentFiles::close_failed(SegmentId id, const FilePtr& file) {
  FilePtr closed;  // closes behind the lock
  LockGuard guard(state_.mutex);
  SegmentInfo* const segment = state_.segments.find(id);
  if (!segment || segment->active || segment->file != file) return;
  closed = state_.segments.close(*segment);
}

bool SegmentFiles::remove(SegmentId id) {
  std::string path;
  unsigned volume = 0;
  bool is_first_try = false;
  {
    LockGuard guard(state_.mutex);
    SegmentInfo* const segment = state_.segments.find(id);
    if (!segment) return false;
    segment->is_leaving = true;
    is_first_try = std::exchange(segment->remove_again, TimePoint{}) == TimePoint{};
    volume = segment->volume;
    path = join_path(state_.volumes[volume].directory, segment_name(id));
  }
  Status removed = state_.check_here(volume);  // below an empty mount point, the name may be another store's
  if (removed.is_ok()) removed = state_.files.remove(path);
  if (removed.code() == StatusCode::kNotFound) removed = Status::ok();
  if (!removed.is_ok() && is_first_try) {
    log_warning("storage/file", "a segment that holds nothing cannot be removed now: " + removed.to_string());
  }
  std::vector<FilePtr> closed;
  LockGuard guard(state_.mutex);
  Volume& v = state_.volumes[volume];
  if (removed.is_ok()) {
    v.stuck_files = 0;
    v.clean_again = TimePoint{};
    state_.copies.forget(id, closed);
    return true;
  }
  const TimePoint now = state_.clock.now();
  SegmentInfo* const segment = state_.segments.find(id);
  if (segment) segment->remove_again = now + kRemoveAgain;
  if (is_first_try && ++v.stuck_files >= kStuckFiles) v.clean_again = now + kEmptyAgain;
  return false;
}

bool SegmentFiles::remove_dead() {
  std::vector<SegmentId> dead;
  {
    LockGuard guard(state_.mutex);
    const TimePoint now = state_.clock.now();
    for (auto& [id, segment] : state_.segments) {
      const bool is_due = segment.remove_again != TimePoint{} && segment.remove_again <= now;
      if (segment.active || segment.holds > 0 || (segment.is_leaving && !is_due)) continue;
      if (state_.index.live_pages(id) > 0 || segment.is_unread) continue;
      segment.is_leaving = true;
      dead.push_back(id);
    }
  }
  bool any = false;
  for (const SegmentId id : dead) any = remove(id) || any;
  return any;
}

}  // namespace larder::file_store
