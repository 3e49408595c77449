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
constexpr std::size_t kDropBatch = 1024;  // pages that are looked at, per hold of the mutex
// A segment fuller than this is not worth cleaning: first something must be evicted.
constexpr std::uint64_t kCleanBelowPercent = 90;
// So many that left as much on disk as there was, since something was evicted: enough.
constexpr unsigned kVainCleanings = 3;
// So many in a row that found no room, though segments were sealed for it: enough.
constexpr unsigned kLackedRoom = 4;

}  // namespace

void Maintenance::start_if_high() {
  {
    LockGuard guard(state_.mutex);
    const bool is_high = state_.segments.physical_bytes() > state_.room.goal_bytes() || state_.room.full_volume;
    if (state_.is_finished || (!is_high && !keeper_of_clears())) return;
  }
  start();
}

void Maintenance::start() {
  {
    LockGuard guard(state_.mutex);
    if (is_under_way_ || state_.is_finished) return;
    is_under_way_ = true;
    least_filled_ = state_.room.filled_bytes();
    oldest_stays_ = false;
    // Cleanings that gained nothing would gain nothing again, unless the live bytes have changed since (without
    // eviction: have fallen).
    const bool evicts = state_.options.evicts;
    const std::uint64_t live_before = std::exchange(live_bytes_, state_.room.live_bytes());
    if (evicts ? live_bytes_ != live_before : live_bytes_ < live_before) vain_cleanings_ = 0;
    if (evicts || live_bytes_ < live_before || has_room_to_clean()) lacked_room_ = 0;
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
    bool has_room = false;
    {
      LockGuard guard(state_.mutex);
      state_.room.note_held();
      // By itself, or since the coldest have gone.
      state_.room.forget_full_if_there_is_room();
      has_room = is_content();
    }
    if (has_room) {
      if (!clean_oldest()) break;
    } else {
      if (do_all_files_stay()) return end(true);
      if (evict_some()) continue;
      if (!seal_for_cleaning()) {
        if (drop_for_space()) continue;
        if (!clean_one() && !seal_for_space() && !clean_oldest()) return end(true);
      }
    }
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
  if (!state_.options.evicts && !do_all_files_stay()) why = declined_as_full();
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
  steps_.try_clears_again();
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
  state_.let_callers_go_first();
  LockGuard guard(state_.mutex);
  const std::uint64_t target = state_.room.low_bytes();
  if (state_.room.live_bytes() <= target) return false;
  if (state_.index.unlinked_pages() > 0) {  // what a clear is removing goes before what somebody may want
    (void)state_.index.drop_unlinked(kDropBatch);
    return true;
  }
  if (!state_.options.evicts) return false;
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
// and everything is kept. Or cleaning found no room: the emptiest one of all goes, and leaves what cleaning needs.
// (Evicting what a segment holds seldom empties one: the coldest pages lie in many.) False: there is nothing to drop.
bool Maintenance::drop_for_space() {
  SegmentId victim = 0;
  {
    LockGuard guard(state_.mutex);
    const bool lacks_room = state_.options.evicts && lacks_room_for_good();
    if (!state_.room.full_volume && !lacks_room) return false;
    if (lacks_room) lacked_room_ = 0;
    const std::optional<unsigned> full = std::exchange(state_.room.full_volume, std::nullopt);
    const TimePoint now = state_.clock.now();
    const bool may_drop = state_.options.evicts && (!full || state_.volumes[*full].clean_again <= now);
    if (may_drop) victim = state_.room.emptiest_segment(full, now).id;
    if (victim == 0) return full.has_value();
    state_.segments.at(victim).is_leaving = true;
    state_.counters.evicted.fetch_add(state_.index.drop_segment(victim), kRelaxed);
  }
  (void)files_.remove(victim);
  return true;
}

// Nothing is to be gained by moving (pages that fill their segments badly, too): the coldest go until something is.
bool Maintenance::evict_a_segments_worth() {
  if (!state_.options.evicts) return false;
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
    const bool is_vain = live_bytes > info.physical_bytes / 100 * kCleanBelowPercent ||
                         vain_cleanings_ > kVainCleanings || lacks_room_for_good();
    // While cleaning fails, a fuller segment shows whether it works again; nothing is evicted before.
    if (is_vain && cleaning_failed_.is_ok()) {
      if (!evict_a_segments_worth()) return false;
    } else {
      info.is_leaving = true;
      segment = emptiest;
    }
  }
  if (segment != 0) {
    cleaner_.clean(segment, [this](const SegmentCleaner::Cleaned& ended) { cleaned(ended); });
  } else {
    state_.post([this] { go_on(); });
  }
  return true;
}

void Maintenance::cleaned(const SegmentCleaner::Cleaned& ended) {
  using Outcome = SegmentCleaner::Outcome;
  const Outcome how = ended.how;
  bool is_full = false;
  {
    LockGuard guard(state_.mutex);
    cleaning_failed_ = how == Outcome::kNotRead || how == Outcome::kNotWritten ? ended.why : Status::ok();
    lacked_room_ = how == Outcome::kLacksRoom ? lacked_room_ + 1 : 0;
    lacked_bytes_ = ended.lacked_bytes;
    const std::uint64_t filled = state_.room.filled_bytes();
    if (filled >= least_filled_ && how == Outcome::kMoved) ++vain_cleanings_;
    least_filled_ = std::min(least_filled_, filled);
    is_full = state_.room.full_volume.has_value() && state_.options.evicts;
  }
  // On a full disk, something is dropped first.
  if (how == Outcome::kStays || (how == Outcome::kNotWritten && !is_full)) return end(true);
  state_.post([this] { go_on(); });
}

// As PageWriter::try_place() decides for the record that cleaning found no room for.
bool Maintenance::has_room_to_clean() const {
  const TimePoint now = state_.clock.now();
  for (unsigned i = 0; i < state_.volumes.size(); ++i) {
    if (state_.volumes[i].suspended_until <= now && state_.room.has_room_to_move(i, lacked_bytes_)) return true;
  }
  return false;
}

// Cleaning found no room, and sealing has given none.
bool Maintenance::lacks_room_for_good() const { return lacked_room_ > kLackedRoom; }

// Cleaning found no room. What is about to be sealed gives some back, and so does what cleaning fills: the next page
// did not fit there. True: this goes on behind a seal.
bool Maintenance::seal_for_cleaning() {
  {
    LockGuard guard(state_.mutex);
    if (lacked_room_ == 0 || lacked_room_ > kLackedRoom || has_room_to_clean()) return false;
  }
  return log_.seal(LogKind::kMoved);
}

// The segment that was made first keeps each entry of CLEARED that is younger than it, whatever it holds. Null: the
// list has room, or that segment cannot be cleaned now, and what others keep does not matter; or writes wait, and the
// next clear or start goes on.
SegmentInfo* Maintenance::keeper_of_clears() {
  if (oldest_stays_ || !state_.waiting.empty() || state_.cleared.size() < ClearedList::kCrowded) return nullptr;
  SegmentInfo* oldest = nullptr;
  for (auto& [id, segment] : state_.segments) {
    if (!oldest || segment.first_generation < oldest->first_generation) oldest = &segment;
  }
  if (!oldest || state_.cleared.kept_by(oldest->first_generation) < ClearedList::kCrowded) return nullptr;
  const TimePoint not_before = std::max(oldest->clean_again, state_.volumes[oldest->volume].clean_again);
  const bool may_go = !oldest->is_leaving && !oldest->is_unread && oldest->holds == 0;
  return may_go && not_before <= state_.clock.now() ? oldest : nullptr;
}

// What lives in it moves to a segment that is younger than all entries. True: it has begun, and this goes on behind it.
bool Maintenance::clean_oldest() {
  SegmentId segment = 0;
  {
    LockGuard guard(state_.mutex);
    SegmentInfo* const oldest = keeper_of_clears();
    if (!oldest) return false;
    if (!oldest->active) {
      oldest->is_leaving = true;
      segment = oldest->id;
    }
  }
  if (segment == 0) return log_.seal();
  cleaner_.clean(segment, [this](const SegmentCleaner::Cleaned& ended) { oldest_cleaned(ended.how); });
  return true;
}

// Nothing is dropped for it: what could not be moved stays, and the next clear tries again.
void Maintenance::oldest_cleaned(SegmentCleaner::Outcome how) {
  {
    LockGuard guard(state_.mutex);
    oldest_stays_ = how != SegmentCleaner::Outcome::kMoved;
  }
  state_.post([this] { go_on(); });
}

// There is nothing sealed to be cleaned: what is about to be sealed is awaited. If writes wait for room, the segments
// that take appends are sealed, too; they may be most of what the store holds (they were sized before the disk was
// found to be full).
bool Maintenance::seal_for_space() {
  bool seals = false;
  {
    LockGuard guard(state_.mutex);
    const TimePoint now = state_.clock.now();
    const bool is_any_left_alone = std::any_of(state_.segments.begin(), state_.segments.end(),
                                               [now](const auto& each) { return each.second.clean_again > now; });
    seals = !state_.waiting.empty() && !is_any_left_alone;
  }
  return seals ? log_.seal() : log_.await_seal();
}

}  // namespace larder::file_store
