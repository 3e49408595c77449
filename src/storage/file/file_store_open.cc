// SPDX-License-Identifier: Apache-2.0
#include "storage/file/file_store_open.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "base/probe.h"
#include "storage/file/scan_ahead.h"
#include "storage/file/segment_scan.h"
#include "storage/file/volume_set.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kPrefetch = 8;           // pages ahead
constexpr std::size_t kSegmentsThatShow = 16;  // how many pages the others will hold, about
constexpr std::uint64_t kMostAhead = 4;        // times the pages that are there: some segments hold many, others few

Status with_advice(const Status& status, const std::string& advice) {
  return {status.code(), "file store: " + status.message() + "; " + advice};
}

// Refuses a directory that holds anything that is not ours: we are going to delete files in it one day.
Result<std::vector<std::string>> list_own_files(FileSystem& files, const std::string& directory) {
  Result<std::vector<std::string>> names = files.list(directory);
  if (!names.is_ok()) return with_advice(names.status(), "check the option 'directory' and its permissions");
  for (const std::string& name : *names) {
    if (is_store_name(name)) continue;
    return invalid_argument(
        "file store: directory " + directory + " holds '" + name +
        "', which is no file of a Larder store; name an empty or new directory, or move that file away");
  }
  return names;
}

// Unlike that of any other store, as far as two clocks and a path can tell. Only a guard against mixed-up files.
StoreId new_store_id(const std::string& directory, const Clock& clock) {
  const std::uint64_t times[2] = {static_cast<std::uint64_t>(clock.wall_unix_seconds()),
                                  static_cast<std::uint64_t>(clock.now().time_since_epoch().count())};
  const XXH128_hash_t hash =
      XXH3_128bits_withSeed(times, sizeof times, XXH3_64bits(directory.data(), directory.size()));
  StoreId id{};
  std::memcpy(id.data(), &hash.low64, 8);
  std::memcpy(id.data() + 8, &hash.high64, 8);
  return id;
}

// Unlike that of any process before it, as a new_store_id() is.
std::string new_lock_text(const std::string& directory, const Clock& clock) {
  return hex_encode(new_store_id(directory + "\n" + std::string(kLockName), clock)) + "\n";
}

// A directory and what its FORMAT said; none: it is new.
struct OpenedVolume {
  Volume volume;
  std::vector<std::string> names;
  std::optional<VolumeFormat> format;
  bool is_new = false;  // it joins now, or did when the process or the power ended
};

Result<OpenedVolume> open_directory(FileSystem& files, const std::string& directory) {
  OpenedVolume out;
  out.volume.directory = directory;
  if (Status made = files.make_dirs(directory); !made.is_ok()) {
    // To whoever opens a store "not found" is a miss.
    const bool is_nowhere = made.code() == StatusCode::kNotFound;
    return with_advice(is_nowhere ? unavailable(made.message()) : made, "name a directory that this user may write to");
  }
  // Before the lock is made: a directory of somebody else's stays exactly as it is.
  LARDER_ASSIGN_OR_RETURN(const std::vector<std::string> before, list_own_files(files, directory));
  Result<std::unique_ptr<FileLock>> lock = files.lock(join_path(directory, kLockName));
  if (!lock.is_ok()) {
    const bool is_held = lock.status().code() == StatusCode::kConflict;
    return with_advice(lock.status(), is_held ? "a store has one process; end the other or name another directory"
                                              : "give this user the right to write in " + directory);
  }
  out.volume.lock = std::move(lock).value();
  LARDER_ASSIGN_OR_RETURN(out.names, list_own_files(files, directory));
  const Result<FileInfo> info = files.stat(directory);
  if (!info.is_ok()) return with_advice(info.status(), "is the disk in order?");
  out.volume.device_id = info->device_id;
  const Result<VolumeFormat> format = read_format(files, directory);
  if (format.is_ok()) {
    out.format = *format;
    return out;
  }
  const StatusCode code = format.status().code();
  if (code == StatusCode::kCorrupt) {
    return with_advice(Status(code, directory + ": " + format.status().message()),
                       "put FORMAT back (larder store fsck prints its text), or empty the directory");
  }
  if (code == StatusCode::kUnsupported) {
    return with_advice(format.status(), "use the build that wrote " + directory + ", or another directory");
  }
  if (code != StatusCode::kNotFound) return with_advice(format.status(), "check the disk of " + directory);
  for (const std::string& name : out.names) {
    if (parse_segment_name(name)) {
      return conflict("file store: " + directory +
                      " holds segments but no FORMAT; put FORMAT back (larder store fsck says its text), or empty it");
    }
  }
  return out;
}

// Of those that are there already. False: all are new.
Result<bool> agree_on_store(const std::vector<OpenedVolume>& volumes, StoreId& store) {
  bool is_known = false;
  for (const OpenedVolume& v : volumes) {
    if (!v.format) continue;
    if (is_known && v.format->store != store) {
      return conflict("file store: " + v.volume.directory +
                      " belongs to another store than the directories named before it; name those of one store");
    }
    store = v.format->store;
    is_known = true;
  }
  return is_known;
}

// The volumes that the store should have, if that is known: all of them are there. One that is no member, and has
// nothing that could come back, becomes a new one.
Result<VolumeSet> agree_on_set(std::vector<OpenedVolume>& volumes) {
  std::vector<VolumeSeen> seen;
  std::vector<OpenedVolume*> seen_of;
  for (OpenedVolume& v : volumes) {
    if (!v.format) continue;
    const bool has_segments = std::any_of(v.names.begin(), v.names.end(),
                                          [](const std::string& name) { return parse_segment_name(name).has_value(); });
    seen.push_back({&v.volume.directory, &*v.format, has_segments});
    seen_of.push_back(&v);
  }
  Result<VolumeSet> set = join_lists(seen);
  if (!set.is_ok()) return set;
  LARDER_RETURN_IF_ERROR(check_set(*set, seen));
  for (const std::size_t i : set->outsiders) seen_of[i]->format.reset();
  return set;
}

// Not zero, and unlike that of any volume before it, as far as two clocks and a path can tell.
VolumeId new_volume_id(const std::string& directory, const Clock& clock, std::uint64_t set_version) {
  const StoreId drawn = new_store_id(directory + "\n" + std::to_string(set_version), clock);
  return load_le<std::uint64_t>(reinterpret_cast<const std::byte*>(drawn.data())) | 1;
}

Status remove_cleared(FileSystem& files, const std::string& directory) {
  const Status removed = files.remove(join_path(directory, kClearedName));
  if (removed.code() == StatusCode::kNotFound) return Status::ok();
  return removed.is_ok() ? files.sync_dir(directory) : removed;
}

// A number for each new one, whose FORMAT has no list yet: with one, a crash would leave it asking for volumes of which
// nobody else knows.
Status number_volumes(FileSystem& files, const Clock& clock, std::vector<OpenedVolume>& volumes, StoreId store,
                      bool is_new_store, std::uint64_t set_version) {
  std::array<const std::string*, kMaxVolumes> taken{};
  for (OpenedVolume& v : volumes) {
    v.is_new = !v.format || (set_version == 0 && v.format->id != 0);
    if (!v.format) continue;
    const std::string*& place = taken[v.format->volume];
    if (place) {
      return conflict("file store: " + *place + " and " + v.volume.directory + " are both volume " +
                      std::to_string(v.format->volume) + " of the store; one is a copy: leave it out");
    }
    place = &v.volume.directory;
  }
  for (OpenedVolume& v : volumes) {
    if (v.format) continue;
    const auto free = std::find(taken.begin(), taken.end(), nullptr);
    if (free == taken.end()) return invalid_argument("file store: a store has at most 16 directories");
    *free = &v.volume.directory;
    v.format = VolumeFormat{store, static_cast<unsigned>(free - taken.begin()), 0, 0, {}};
    if (!is_new_store) v.format->id = new_volume_id(v.volume.directory, clock, set_version);
    // Generations may begin anew: what an earlier store had cleared there says nothing about the pages of this one.
    Status made = remove_cleared(files, v.volume.directory);
    if (made.is_ok()) made = write_format(files, v.volume.directory, *v.format);
    if (made.is_ok()) made = files.sync_dir(parent_path(v.volume.directory));
    if (!made.is_ok()) return with_advice(made, "is the disk full, or mounted read-only?");
  }
  return Status::ok();
}

bool has_list(const VolumeFormat& format, std::uint64_t version, const std::vector<VolumeMember>& members) {
  VolumeFormat wanted = format;
  wanted.set_version = version;
  wanted.members = members;
  return format_text(wanted) == format_text(format);
}

Status write_list(FileSystem& files, const OpenedVolume& v) {
  assert(v.format);
  // The process before may have ended between the two.
  LARDER_RETURN_IF_ERROR(files.sync_dir(parent_path(v.volume.directory)));
  return write_format(files, v.volume.directory, *v.format);
}

// Brings the list up to date in all volumes, before anything is stored in a new one. A store of one volume has none: it
// cannot lack one. Old volumes come first (volume_set.h).
Status write_lists(FileSystem& files, std::vector<OpenedVolume>& volumes, const VolumeSet& before) {
  if (volumes.size() == 1 && before.version == 0) return Status::ok();
  std::vector<OpenedVolume*> order;
  std::vector<VolumeMember> members;
  for (OpenedVolume& v : volumes) {
    assert(v.format);  // each has one, or has just got one
    order.push_back(&v);
    members.push_back({v.format->volume, v.format->id, v.volume.directory});
  }
  std::sort(members.begin(), members.end(),
            [](const VolumeMember& a, const VolumeMember& b) { return a.volume < b.volume; });
  std::stable_partition(order.begin(), order.end(), [](const OpenedVolume* v) { return !v->is_new; });
  const bool has_joined = order.back()->is_new;
  const std::uint64_t version = before.version + (has_joined || before.version == 0 ? 1 : 0);
  for (OpenedVolume* v : order) {
    assert(v->format);
    if (has_list(*v->format, version, members)) continue;
    v->format->set_version = version;
    v->format->members = members;
    const Status written = write_list(files, *v);
    if (written.is_ok()) continue;
    if (has_joined) return with_advice(written, "is the disk full, or mounted read-only?");
    // The list that is there, if any, asks for these volumes, too. The next opening tries again.
    log_warning("storage/file", v->volume.directory + ": list of volumes not written: " + written.to_string());
  }
  return Status::ok();
}

// One store id for all, a number for each, and a list of them; new directories join.
Status agree_on_format(FileSystem& files, const Clock& clock, std::vector<OpenedVolume>& volumes, StoreId& store) {
  LARDER_ASSIGN_OR_RETURN(const bool is_known, agree_on_store(volumes, store));
  LARDER_ASSIGN_OR_RETURN(const VolumeSet set, agree_on_set(volumes));
  if (!is_known) store = new_store_id(volumes.front().volume.directory, clock);
  LARDER_RETURN_IF_ERROR(number_volumes(files, clock, volumes, store, !is_known, set.version));
  LARDER_RETURN_IF_ERROR(write_lists(files, volumes, set));
  for (OpenedVolume& v : volumes) v.volume.format = *v.format;
  return Status::ok();
}

// Of all volumes. One that cannot be read is not a damaged one: nobody knows what it says. `has_copy`: per volume,
// whether a whole file lies there.
Result<JoinedClears> read_all_cleared(FileSystem& files, const std::vector<OpenedVolume>& volumes,
                                      std::vector<bool>& has_copy) {
  std::vector<Result<std::vector<Cleared>>> lists;
  for (const OpenedVolume& v : volumes) {
    Result<std::vector<Cleared>> list = read_cleared(files, v.volume.directory);
    const StatusCode code = list.status().code();
    has_copy.push_back(list.is_ok());
    if (code == StatusCode::kNotFound) continue;
    if (code == StatusCode::kUnsupported) {
      return with_advice(list.status(), "use the build that wrote " + v.volume.directory + ", or another directory");
    }
    if (!list.is_ok() && code != StatusCode::kCorrupt) {
      return with_advice(list.status(), "try again, or check the disk of " + v.volume.directory);
    }
    lists.push_back(std::move(list));
  }
  return join_cleared(lists);
}

// Above all generations that may lie in segment `id`: between one segment and the next they grow by what an opening
// leaves out (beyond_unknown) and by pages that are fewer. What is known of the other segments does not tell, where the
// opening before had left something out, too.
std::uint64_t beyond_number(SegmentId id) {
  constexpr unsigned kBits = 41;
  return id < (SegmentId{1} << (63 - kBits)) ? std::uint64_t{id} << kBits : std::uint64_t{1} << 63;
}

class Opener {
 public:
  Opener(FileSystem& files, Executor* executor, OpenedStore& out) : files_(files), executor_(executor), out_(out) {}

  Status run(const std::vector<OpenedVolume>& volumes) {
    LARDER_ASSIGN_OR_RETURN(JoinedClears clears, read_all_cleared(files_, volumes, has_cleared_));
    const bool is_damaged = clears.is_damaged;
    out_.cleared = ClearedList(clears.list);
    for (const Cleared& cleared : out_.cleared.entries()) {
      out_.next_generation = std::max(out_.next_generation, cleared.generation);
    }
    LARDER_RETURN_IF_ERROR(find_segments(volumes));
    LARDER_RETURN_IF_ERROR(read_segments());
    if (is_damaged) {
      log_warning("storage/file", "CLEARED is damaged: all stored pages are dropped");
      (void)out_.cleared.add({}, out_.next_generation);  // of all there is room
      out_.index.clear();
      ++out_.corrupt;
    }
    return write_cleared(volumes, is_damaged);
  }

 private:
  struct Segment {
    SegmentId id = 0;
    unsigned volume = 0;
    std::string path;
  };

  // Removes what was left half-made.
  Status find_segments(const std::vector<OpenedVolume>& volumes) {
    std::unordered_set<SegmentId> ids;
    for (unsigned i = 0; i < volumes.size(); ++i) {
      for (const std::string& name : volumes[i].names) {
        const std::string path = join_path(volumes[i].volume.directory, name);
        if (name.ends_with(kTemporarySuffix)) (void)files_.remove(path);
        const std::optional<SegmentId> id = parse_segment_name(name);
        if (!id) continue;
        out_.next_segment = std::max(out_.next_segment, *id + 1);
        if (!ids.insert(*id).second) {
          return conflict("file store: segment " + std::to_string(*id) + " is in two directories; one is a copy");
        }
        segments_.push_back({*id, i, path});
      }
    }
    return Status::ok();
  }

  // Oldest first, so that a page's use is about as old as the page; on several disks at once.
  Status read_segments() {
    std::sort(segments_.begin(), segments_.end(), [](const Segment& a, const Segment& b) { return a.id < b.id; });
    std::vector<ScanAhead::Wanted> wanted;
    for (const Segment& segment : segments_) wanted.push_back({segment.id, segment.path});
    ScanAhead scans(files_, out_.store, std::move(wanted), executor_);
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      ScanAhead::Found found = scans.take();
      if (!found.opened.is_ok()) return with_advice(found.opened, "check the permissions of the store's files");
      LARDER_RETURN_IF_ERROR(take_segment(segments_[i], std::move(found.scan)));
      if (i + 1 >= kSegmentsThatShow) reserve_index(i + 1);
    }
    if (of_unknown_age_ > 0) {
      out_.next_generation = std::max(beyond_unknown(out_.next_generation), beyond_number(of_unknown_age_));
    }
    return Status::ok();
  }

  // The table grows by doubling, which moves all of it: so it is made as large as it will be, as far as that shows, and
  // again when as many more have come. What is too much would never be given back.
  void reserve_index(std::size_t segments_read) {
    const std::uint64_t pages = out_.index.size();
    if (pages < reserve_from_) return;
    reserve_from_ = 2 * pages;
    out_.index.reserve(std::min(pages / segments_read * segments_.size(), pages * kMostAhead));
  }

  Status take_segment(const Segment& from, Result<ScanResult> scanned) {
    const auto& [id, volume, path] = from;
    if (!scanned.is_ok()) return refuse_or_drop(scanned.status(), path);
    ScanResult& found = *scanned;
    if (!found.io.is_ok()) log_warning("storage/file", "a part of a segment is left out: " + found.io.to_string());
    out_.corrupt += found.corrupt_groups;
    out_.next_generation = std::max(out_.next_generation, found.max_generation + 1);
    if (found.io.is_ok() && !found.has_footer && !found.is_tail_zero) ++out_.torn_tails, probe(Probe::kFileTornTail);
    SegmentInfo segment;
    segment.id = id;
    segment.volume = volume;
    segment.is_synced = found.is_footer_synced;
    segment.is_listed = true;
    segment.is_doubtful = found.has_footer && !found.is_footer_synced;
    segment.first_generation = found.first_generation;
    if (!out_.cleared.empty()) {
      std::erase_if(found.pages, [this](const ListedPage& page) { return out_.cleared.covers(page); });
    }
    if (found.io.is_ok() && found.pages.empty() && files_.remove(path).is_ok()) return Status::ok();
    for (std::size_t i = 0; i < found.pages.size(); ++i) {
      const ListedPage& page = found.pages[i];
      if (i + kPrefetch < found.pages.size()) {
        out_.index.prefetch(page.identity, found.pages[i + kPrefetch].key);  // mostly of the same identity
      }
      if (!gives_way(page, segment.is_doubtful)) {
        insert(page);
      }
    }
    segment.physical_bytes = found.file_bytes;
    if (!found.io.is_ok() && found.first_generation == 0) of_unknown_age_ = id;  // they come in order
    segment.is_unread = !found.io.is_ok();
    if (segment.is_unread) segment.first_generation = 0;  // what it holds besides is not known
    if (!found.has_footer) {
      // Who knows what became of its last syncs?
      segment.is_doubtful = !found.io.is_ok() || !seal(path, id, found, segment);
    }
    out_.segments.emplace(id, std::move(segment));
    return Status::ok();
  }

  // The oldest go where the index is full. What it has no room for all the same is not promised.
  void insert(const ListedPage& page) {
    const auto try_insert = [&] { return out_.index.insert(page.identity, page.key, page.parent, page.location); };
    Status inserted = try_insert();
    if (inserted.is_ok()) return;
    std::uint64_t evicted = 0;
    inserted = out_.index.make_identity_room(1, evicted);
    if (inserted.is_ok()) inserted = try_insert();
    if (inserted.is_ok() || std::exchange(is_full_said_, true)) return;
    log_warning("storage/file", "some stored pages are left out: " + inserted.to_string());
  }

  // Of two copies of a page, one that may not be there does not count before one that is, whatever their generations.
  bool gives_way(const ListedPage& page, bool is_doubtful) {
    const IdentityId identity = out_.index.find_identity(page.identity);
    PageLocation other;
    if (!out_.index.find(identity, page.key, other) || other.checksum != page.location.checksum) return false;
    const auto segment = out_.segments.find(other.segment);  // else it is this one
    const bool is_other_doubtful = segment == out_.segments.end() ? is_doubtful : segment->second.is_doubtful;
    if (is_other_doubtful && !is_doubtful) (void)out_.index.erase(identity, page.key, other.generation);
    return is_doubtful && !is_other_doubtful;
  }

  // So that the next opening need not scan it, and that all of it is on disk. False: that did not succeed; what the
  // segment holds may be read as before.
  bool seal(const std::string& path, SegmentId id, ScanResult& found, SegmentInfo& segment) {
    const Result<std::uint64_t> end = seal_left_segment(files_, path, out_.store, id, found, std::move(found.pages));
    if (!end.is_ok()) {
      log_warning("storage/file", "a segment was not sealed: " + end.status().to_string());
      return false;
    }
    segment.physical_bytes = *end;
    return segment.is_synced = true;
  }

  // A segment without a whole header was being made when the power went: nothing is lost with it.
  Status refuse_or_drop(const Status& why, const std::string& path) {
    if (why.code() != StatusCode::kCorrupt) return with_advice(why, "the store was not opened");
    ++out_.torn_tails;
    (void)files_.remove(path);
    return Status::ok();
  }

  // Without the entries that have done their work. Removed segments must stay removed before that.
  Status write_cleared(const std::vector<OpenedVolume>& volumes, bool is_damaged) {
    std::uint64_t oldest = out_.next_generation;
    for (const auto& [id, segment] : out_.segments) oldest = std::min(oldest, segment.first_generation);
    const std::size_t before = out_.cleared.size();
    out_.cleared.forget_settled(oldest);
    for (const OpenedVolume& v : volumes) {
      Status synced = files_.sync_dir(v.volume.directory);
      if (!synced.is_ok()) return with_advice(synced, "is the disk in order?");
    }
    const std::vector<Cleared> entries = out_.cleared.entries();
    const bool is_new = entries.size() != before || is_damaged;
    for (std::size_t i = 0; i < volumes.size(); ++i) {
      if (!is_new && (has_cleared_[i] || entries.empty())) continue;
      const std::string& directory = volumes[i].volume.directory;
      const Status written = replace_file(files_, directory, kClearedName, encode_cleared(entries));
      if (written.is_ok()) continue;
      if (is_damaged) return with_advice(written, "is the disk full, or mounted read-only?");
      // The old file says the same, and some that needs no saying; a copy that is missing is missing as before.
      log_warning("storage/file", directory + ": CLEARED was not written anew: " + written.to_string());
    }
    return Status::ok();
  }

  FileSystem& files_;
  Executor* const executor_;
  OpenedStore& out_;
  std::vector<Segment> segments_;
  std::vector<bool> has_cleared_;  // per volume
  SegmentId of_unknown_age_ = 0;   // the last of which a part could not be read, nor the header; it may be the youngest
  bool is_full_said_ = false;      // in the log
  std::uint64_t reserve_from_ = 0;  // so many pages: there is something to be reserved again
};

}  // namespace

Result<std::unique_ptr<OpenedStore>> open_store(const FileStoreOptions& options, FileSystem& files, Clock& clock,
                                                Executor* executor) {
  if (options.directories.empty()) {
    return invalid_argument("file store: the option 'directory' is required: where shall the pages be kept?");
  }
  if (options.directories.size() > kMaxVolumes) {
    return invalid_argument("file store: a store has at most 16 directories");
  }
  std::vector<OpenedVolume> volumes;
  for (const std::string& directory : options.directories) {
    LARDER_ASSIGN_OR_RETURN(OpenedVolume volume, open_directory(files, directory));
    volumes.push_back(std::move(volume));
  }
  auto out = std::make_unique<OpenedStore>();
  out->index = PageIndex(options.max_identities);
  LARDER_RETURN_IF_ERROR(agree_on_format(files, clock, volumes, out->store));
  for (OpenedVolume& v : volumes) {  // not before: who is refused takes nothing from the process that has the store
    v.volume.lock_text = mark_lock(files, v.volume.directory, new_lock_text(v.volume.directory, clock));
  }
  LARDER_RETURN_IF_ERROR(Opener(files, executor, *out).run(volumes));
  for (OpenedVolume& v : volumes) {
    const Status direct =
        options.direct == Choice::kOff ? unsupported("direct = off") : try_direct(files, v.volume.directory);
    if (options.direct == Choice::kOn && takes_no_direct(direct)) {
      return unsupported("file store: " + v.volume.directory + " does not take direct I/O; leave out direct = on");
    }
    v.volume.is_direct = direct.is_ok() || options.direct == Choice::kOn;
    const Result<SpaceInfo> space = files.space(v.volume.directory);
    // Some file systems say 0 of all: they do not know, or have no limit.
    if (space.is_ok() && space->total_bytes > 0) v.volume.disk_bytes = space->total_bytes;
    out->volumes.push_back(std::move(v.volume));
  }
  return out;
}

}  // namespace larder::file_store
