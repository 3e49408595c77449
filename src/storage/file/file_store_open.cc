// Opening a file store: directory, lock, FORMAT, CLEARED, segments.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "storage/file/file_store.h"
#include "storage/file/segment_scan.h"

namespace larder::file_store {
namespace {

Status with_advice(const Status& status, const std::string& advice) {
  return {status.code(), "file store: " + status.message() + "; " + advice};
}

// Refuses a directory that holds anything that is not ours: we are going to delete files in it one day.
Result<std::vector<std::string>> list_own_files(FileSystem& files, const std::string& directory) {
  Result<std::vector<std::string>> names = files.list(directory);
  if (!names.is_ok()) return with_advice(names.status(), "check the option 'directory' and its permissions");
  for (const std::string& name : *names) {
    if (is_store_name(name)) continue;
    return invalid_argument("file store: directory " + directory + " holds '" + name +
                            "', which is no file of a Larder store; name an empty or new directory");
  }
  return names;
}

Result<std::vector<std::byte>> read_small_file(FileSystem& files, const std::string& path, std::uint64_t limit) {
  Result<std::unique_ptr<File>> file = files.open(path, {});
  if (!file.is_ok()) return file.status();
  const Result<std::uint64_t> size = (*file)->size_bytes();
  if (!size.is_ok()) return size.status();
  if (*size > limit) return corrupt(path + ": longer than such a file can be");
  std::vector<std::byte> bytes(static_cast<std::size_t>(*size));
  LARDER_RETURN_IF_ERROR(read_exactly(**file, bytes, 0));
  return bytes;
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

Status read_or_make_format(FileSystem& files, const std::string& directory, const Clock& clock,
                           const std::vector<std::string>& names, StoreId& store) {
  const std::string path = join_path(directory, kFormatName);
  const Result<std::vector<std::byte>> bytes = read_small_file(files, path, 4096);
  if (bytes.is_ok()) {
    const auto* text = reinterpret_cast<const char*>(bytes->data());
    const Result<StoreId> parsed = parse_format_text({text, bytes->size()});
    if (!parsed.is_ok()) {
      return with_advice(parsed.status(), "use the build that wrote " + directory + ", or another directory");
    }
    store = *parsed;
    return Status::ok();
  }
  if (bytes.status().code() != StatusCode::kNotFound) return with_advice(bytes.status(), "repair or remove it");
  for (const std::string& name : names) {
    if (parse_segment_name(name)) {
      return conflict("file store: " + directory + " holds segments but no FORMAT; put FORMAT back, or empty it");
    }
  }
  store = new_store_id(directory, clock);
  const std::string text = format_text(store);
  Status made = replace_file(files, directory, kFormatName, std::as_bytes(std::span(text)));
  if (made.is_ok()) made = files.sync_dir(parent_path(directory));
  return made.is_ok() ? made : with_advice(made, "is the disk full, or mounted read-only?");
}

// A damaged CLEARED cannot say which pages are gone, so all pages written so far are.
Status read_cleared(FileSystem& files, const std::string& directory, std::vector<Cleared>& list, bool& is_damaged) {
  const std::string path = join_path(directory, kClearedName);
  const Result<std::vector<std::byte>> bytes = read_small_file(files, path, 40 * kMaxCleared + 4096);
  is_damaged = false;
  if (bytes.is_ok()) {
    Result<std::vector<Cleared>> decoded = decode_cleared(*bytes);
    is_damaged = !decoded.is_ok();
    if (decoded.is_ok()) list = std::move(decoded).value();
    return Status::ok();
  }
  const StatusCode code = bytes.status().code();
  is_damaged = code == StatusCode::kCorrupt;
  if (is_damaged || code == StatusCode::kNotFound) return Status::ok();
  return with_advice(bytes.status(), "try again, or check the disk");  // unreadable is not damaged
}

class Opener {
 public:
  Opener(const FileStoreOptions& options, FileSystem& files, OpenedStore& out)
      : options_(options), files_(files), out_(out) {}

  Status run(const std::vector<std::string>& names) {
    bool is_damaged = false;
    LARDER_RETURN_IF_ERROR(read_cleared(files_, options_.directory, out_.cleared, is_damaged));
    for (const Cleared& cleared : out_.cleared) {
      out_.next_generation = std::max(out_.next_generation, cleared.generation);
    }
    for (const std::string& name : names) {
      if (name.ends_with(kTemporarySuffix)) (void)files_.remove(join_path(options_.directory, name));
      const std::optional<SegmentId> id = parse_segment_name(name);
      if (!id) continue;
      out_.next_segment = std::max(out_.next_segment, *id + 1);
      LARDER_RETURN_IF_ERROR(read_segment(*id));
    }
    if (is_damaged) {
      log_warning("storage/file", "CLEARED of " + options_.directory + " is damaged: all stored pages are dropped");
      out_.cleared.assign(1, Cleared{Digest256{}, out_.next_generation});
      out_.index.clear();
      ++out_.corrupt;
    }
    return drop_settled_clears(is_damaged);
  }

 private:
  Status read_segment(SegmentId id) {
    const std::string path = join_path(options_.directory, segment_name(id));
    Result<std::unique_ptr<File>> file = files_.open(path, {});
    if (!file.is_ok()) return with_advice(file.status(), "check the permissions of the store's files");
    const bool check = options_.fsync != FsyncMode::kOff;
    const Result<ScanResult> scanned = scan_segment(**file, out_.store, id, check);
    if (!scanned.is_ok()) return refuse_or_drop(scanned.status(), path);
    const ScanResult& found = *scanned;
    if (!found.io.is_ok()) log_warning("storage/file", "a part of a segment is left out: " + found.io.to_string());
    out_.corrupt += found.corrupt_groups;
    out_.next_generation = std::max(out_.next_generation, found.max_generation + 1);
    out_.next_group = std::max(out_.next_group, found.max_group + 1);
    std::uint64_t end = found.file_bytes;
    if (found.io.is_ok() && found.end_bytes < found.file_bytes) {
      ++out_.torn_tails;
      end = cut(path, found.end_bytes) ? found.end_bytes : end;
    }
    const bool is_empty = std::all_of(found.pages.begin(), found.pages.end(),
                                      [this](const ScannedPage& page) { return is_cleared(page); });
    if (found.io.is_ok() && is_empty && files_.remove(path).is_ok()) return Status::ok();
    SegmentTable::Segment segment;
    segment.end_bytes = end;
    segment.is_synced = found.io.is_ok() && found.synced_bytes + commit_bytes(0) >= found.end_bytes;
    out_.segments.add(id, std::move(segment));
    return add_pages(found);
  }

  Status add_pages(const ScanResult& found) {
    for (const ScannedPage& page : found.pages) {
      oldest_generation_ = std::min(oldest_generation_, page.location.generation);
      if (!is_cleared(page)) LARDER_RETURN_IF_ERROR(out_.index.insert(page.identity, page.key, page.location));
    }
    return Status::ok();
  }

  bool is_cleared(const ScannedPage& page) const {
    for (const Cleared& cleared : out_.cleared) {
      if (page.location.generation >= cleared.generation) continue;
      if (cleared.namespace_digest.is_zero()) return true;
      if (cleared.namespace_digest == page.identity.namespace_digest) return true;
    }
    return false;
  }

  // A segment without a whole header was being made when the power went: nothing is lost with it.
  Status refuse_or_drop(const Status& why, const std::string& path) {
    if (why.code() != StatusCode::kCorrupt) return with_advice(why, "the store was not opened");
    ++out_.torn_tails;
    (void)files_.remove(path);
    return Status::ok();
  }

  bool cut(const std::string& path, std::uint64_t end) {
    OpenOptions options;
    options.write = true;
    const Result<std::unique_ptr<File>> file = files_.open(path, options);
    return file.is_ok() && (*file)->truncate(end).is_ok();
  }

  // Entries that no stored page is older than have done their work. Removed segments must stay removed before that.
  Status drop_settled_clears(bool is_damaged) {
    const Status synced = files_.sync_dir(options_.directory);
    if (!synced.is_ok()) return with_advice(synced, "is the disk in order?");
    const auto settled = [this](const Cleared& c) { return c.generation <= oldest_generation_; };
    const std::size_t before = out_.cleared.size();
    std::erase_if(out_.cleared, settled);
    if (out_.cleared.size() == before && !is_damaged) return Status::ok();
    const Status written = replace_file(files_, options_.directory, kClearedName, encode_cleared(out_.cleared));
    return written.is_ok() ? written : with_advice(written, "is the disk full, or mounted read-only?");
  }

  const FileStoreOptions& options_;
  FileSystem& files_;
  OpenedStore& out_;
  std::uint64_t oldest_generation_ = ~std::uint64_t{0};
};

}  // namespace

Status replace_file(FileSystem& files, const std::string& directory, std::string_view name,
                    std::span<const std::byte> bytes) {
  const std::string path = join_path(directory, name);
  const std::string temporary = path + std::string(kTemporarySuffix);
  OpenOptions options;
  options.write = options.create = options.truncate = true;
  {
    Result<std::unique_ptr<File>> file = files.open(temporary, options);
    if (!file.is_ok()) return file.status();
    Status written = write_fully(**file, bytes, 0);
    if (written.is_ok()) written = (*file)->sync_all();
    if (!written.is_ok()) {
      (void)files.remove(temporary);
      return written;
    }
  }
  LARDER_RETURN_IF_ERROR(files.rename(temporary, path));
  return files.sync_dir(directory);
}

Result<std::unique_ptr<OpenedStore>> open_store(const FileStoreOptions& options, FileSystem& files, Clock& clock) {
  if (options.directory.empty()) {
    return invalid_argument("file store: the option 'directory' is required: where shall the pages be kept?");
  }
  const std::string& directory = options.directory;
  if (Status made = files.make_dirs(directory); !made.is_ok()) {
    return with_advice(made, "name a directory that this user may write to");
  }
  // Before the lock is made: a directory of somebody else's stays exactly as it is.
  const Result<std::vector<std::string>> before = list_own_files(files, directory);
  if (!before.is_ok()) return before.status();
  auto out = std::make_unique<OpenedStore>(options.open_files);
  Result<std::unique_ptr<FileLock>> lock = files.lock(join_path(directory, kLockName));
  if (!lock.is_ok()) {
    const bool is_held = lock.status().code() == StatusCode::kConflict;
    return with_advice(lock.status(), is_held ? "a store has one process; end the other or name another directory"
                                              : "give this user the right to write in " + directory);
  }
  out->lock = std::move(lock).value();
  const Result<std::vector<std::string>> names = list_own_files(files, directory);
  if (!names.is_ok()) return names.status();
  LARDER_RETURN_IF_ERROR(read_or_make_format(files, directory, clock, *names, out->store));
  LARDER_RETURN_IF_ERROR(Opener(options, files, *out).run(*names));
  return out;
}

}  // namespace larder::file_store
