// SPDX-License-Identifier: Apache-2.0
#include "storage/file/maintenance.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/probe.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kEvictBatch = 256;  // nodes per hold of the mutex
// A segment fuller than this is not worth cleaning: first something must be evicted.
constexpr std::uint64_t kCleanBelowPercent = 90;
// So many in a row that left as much on disk as there was: enough.
constexpr unsigned kVainCleanings = 3;

}  // namespace

void Maintenance::start_if_high() {
  {
    LockGuard guard(state_.mutex);
    if (state_.is_finished ||
        (state_.segments.physical_bytes() <= state_.room.goal_bytes() && !state_.room.full_volume))
      return;
  }
  start();
}

void Maintenance::start() {
  {
    LockGuard guard(state_.mutex);
    if (is_under_way_ || state_.is_finished) return;
    is_under_way_ = true;
    least_physical_ = state_.segments.physical_bytes();
    vain_cleanings_ = 0;
  }
  state_.post([this] { go_on(); });
}

void Maintenance::go_on() {
  {
    LockGuard guard(state_.mutex);
    if (is_in_step_) {
      goes_on_ = true;
      return;
    }
    is_in_step_ = true;
  }
  state_.grow_limits();
  while (!state_.is_closing()) {  // the next process goes on
    if (files_.remove_dead()) continue;
    {
      LockGuard guard(state_.mutex);
      // By itself, or since the coldest have gone.
      state_.room.forget_full_if_there_is_room();
      if (is_content()) break;
    }
    if (do_all_files_stay()) return end(true);
    if (evict_some()) continue;
    if (drop_for_space()) continue;
    if (!clean_one() && !seal_for_space()) return end(true);
    LockGuard guard(state_.mutex);
    if (std::exchange(goes_on_, false)) continue;
    is_in_step_ = false;
    return;
  }
  end(false);
}

bool Maintenance::is_content() const {
  if (state_.room.full_volume) return false;
  if (state_.waiting.empty()) return state_.segments.physical_bytes() <= state_.room.goal_bytes();
  const std::uint64_t own = state_.awaited_bytes();
  // As PageWriter::try_place() decides: what it would let wait again must not count as content.
  const TimePoint now = state_.clock.now();
  bool may_fit = false, has_disk = !state_.room.are_disks_limited();  // else PageWriter says which one has to give
  for (unsigned i = 0; i < state_.volumes.size(); ++i) {
    if (state_.room.is_too_large(i, own) || state_.volumes[i].suspended_until > now) continue;
    may_fit = true;
    has_disk = has_disk || state_.room.has_disk_room(i, std::max(state_.room.segment_bytes(i), own));
  }
  if (!may_fit) return true;  // it is refused
  return has_disk && state_.room.has_room(std::max(state_.room.largest_segment(), own), false);
}

void Maintenance::end(bool is_stuck) {
  std::deque<RecordPtr> refused;
  Status why = overloaded("file store: max_size is reached and nothing can be evicted now");
  {
    LockGuard guard(state_.mutex);
    if (!cleaning_failed_.is_ok()) {
      why = overloaded("file store: max_size is reached and no room can be made now: " + cleaning_failed_.to_string());
    }
    is_under_way_ = is_in_step_ = goes_on_ = false;
    state_.room.full_volume.reset();
    if (is_stuck) refused.swap(state_.waiting);
  }
  for (const RecordPtr& record : refused) writer_.fail(*record, why);
  writer_.place_waiting();
}

// Then evicting more frees nothing.
bool Maintenance::do_all_files_stay() const {
  LockGuard guard(state_.mutex);
  const TimePoint now = state_.clock.now();
  return std::all_of(state_.volumes.begin(), state_.volumes.end(),
                     [now](const Volume& v) { return v.clean_again > now; });
}

// True: something went, so look again. Evicts only what is too much to live.
bool Maintenance::evict_some() {
  LockGuard guard(state_.mutex);
  const std::uint64_t target = state_.room.low_bytes();
  if (state_.room.live_bytes() <= target) return false;
  for (std::size_t i = 0; i < kEvictBatch && state_.room.live_bytes() > target; ++i) {
    const PageIndex::Evicted evicted = state_.index.evict_coldest();
    if (evicted.pages == 0) return i > 0;
    state_.counters.evicted.fetch_add(evicted.pages, kRelaxed);
    probe(Probe::kFileEvicted);
  }
  return true;
}

// The disk of a volume is full: nothing can be moved, so its emptiest segment goes with what lives in it. If it has
// none, others fill the disk; or its files stay, whatever is dropped: then the volume's writes wait until that ends,
// and everything is kept. False: no disk is full.
bool Maintenance::drop_for_space() {
  SegmentId victim = 0;
  {
    LockGuard guard(state_.mutex);
    if (!state_.room.full_volume) return false;
    const std::optional<unsigned> full = std::exchange(state_.room.full_volume, std::nullopt);
    const TimePoint now = state_.clock.now();
    if (state_.volumes[*full].clean_again <= now) victim = state_.room.emptiest_segment(full, now).id;
    if (victim == 0) return true;
    state_.segments.at(victim).is_leaving = true;
    state_.counters.evicted.fetch_add(state_.index.drop_segment(victim), kRelaxed);
  }
  (void)files_.remove(victim);
  return true;
}

// Nothing is to be gained by moving (pages that fill their segments badly, too): the coldest go until something is.
bool Maintenance::evict_a_segments_worth() {
  vain_cleanings_ = 0;
  // What a segment holds of it on the average: padding and dead pages take the rest.
  const double share = static_cast<double>(state_.room.live_bytes()) /
                       static_cast<double>(std::max<std::uint64_t>(state_.segments.physical_bytes(), 1));
  const auto enough =
      static_cast<std::uint64_t>(static_cast<double>(state_.room.largest_segment()) * std::min(share, 1.0));
  for (std::uint64_t freed = 0; freed <= enough;) {
    const PageIndex::Evicted evicted = state_.index.evict_coldest();
    if (evicted.pages == 0) return freed > 0;
    state_.counters.evicted.fetch_add(evicted.pages, kRelaxed);
    freed += evicted.payload_bytes + evicted.pages * 2 * kPageBytes;
  }
  return true;
}

// True: it has begun, or something went instead, and this goes on behind that.
bool Maintenance::clean_one() {
  SegmentId segment = 0;
  {
    LockGuard guard(state_.mutex);
    const auto [emptiest, live_bytes] = state_.room.emptiest_segment(std::nullopt, state_.clock.now());
    if (emptiest == 0) return false;
    SegmentInfo& info = state_.segments.at(emptiest);
    const bool is_vain =
        live_bytes > info.physical_bytes / 100 * kCleanBelowPercent || vain_cleanings_ > kVainCleanings;
    // While cleaning fails, a fuller segment shows whether it works again; nothing is evicted before.
    if (is_vain && cleaning_failed_.is_ok()) {
      if (!evict_a_segments_worth()) return false;
    } else {
      info.is_leaving = true;
      segment = emptiest;
    }
  }
  if (segment != 0) {
    cleaner_.clean(segment, [this](SegmentCleaner::Outcome how, const Status& why) { cleaned(how, why); });
  } else {
    state_.post([this] { go_on(); });
  }
  return true;
}

void Maintenance::cleaned(SegmentCleaner::Outcome how, const Status& why) {
  using Outcome = SegmentCleaner::Outcome;
  bool is_full = false;
  {
    LockGuard guard(state_.mutex);
    cleaning_failed_ = how == Outcome::kNotRead || how == Outcome::kNotWritten ? why : Status::ok();
    const std::uint64_t physical = state_.segments.physical_bytes();
    if (physical >= least_physical_ && cleaning_failed_.is_ok()) ++vain_cleanings_;
    if (how == Outcome::kLacksRoom) vain_cleanings_ = kVainCleanings + 1;  // evict instead
    least_physical_ = std::min(least_physical_, physical);
    is_full = state_.room.full_volume.has_value();
  }
  // On a full disk, something is dropped first.
  if (how == Outcome::kStays || (how == Outcome::kNotWritten && !is_full)) return end(true);
  state_.post([this] { go_on(); });
}

// There is nothing sealed to be cleaned, and writes wait for room: the segments that take appends may be most of what
// the store holds (they were sized before the disk was found to be full), so they are sealed, too.
bool Maintenance::seal_for_space() {
  {
    LockGuard guard(state_.mutex);
    const TimePoint now = state_.clock.now();
    const bool is_any_left_alone = std::any_of(state_.segments.begin(), state_.segments.end(),
                                               [now](const auto& each) { return each.second.clean_again > now; });
    if (state_.waiting.empty() || is_any_left_alone) return false;
  }
  return log_.seal_all();
}

}  // namespace larder::file_store
