// SPDX-License-Identifier: Apache-2.0
#include "storage/file/volume.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace larder::file_store {
namespace {

constexpr std::size_t kMaxFormatBytes = 4096;
constexpr std::uint64_t kWriteAgainBytes = std::uint64_t{4} << 20;

Status write_block_file(FileSystem& files, const std::string& path) {
  OpenOptions options;
  options.write = options.create = options.truncate = options.direct = true;
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.open(path, options));
  AlignedBuffer out(kBlockBytes), in(kBlockBytes);
  std::memset(out.data(), 0x5a, out.size());
  std::memset(in.data(), 0, in.size());
  LARDER_RETURN_IF_ERROR(write_fully(*file, {out.data(), out.size()}, 0));
  LARDER_RETURN_IF_ERROR(read_exactly(*file, {in.data(), in.size()}, 0));
  return std::memcmp(out.data(), in.data(), in.size()) == 0 ? Status::ok() : corrupt("direct I/O returned other bytes");
}

Status read_block(FileSystem& files, const std::string& path) {
  OpenOptions options;
  options.direct = true;
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.open(path, options));
  AlignedBuffer in(kBlockBytes);
  return read_exactly(*file, {in.data(), in.size()}, 0);
}

// Whose FORMAT lies there. Not the list of volumes: an older one is as good here.
enum class FormatIs : std::uint8_t { kOurs, kAnothers, kBroken, kUnread };

FormatIs look_at_format(FileSystem& files, const std::string& directory, const VolumeFormat& format) {
  const Result<VolumeFormat> found = read_format(files, directory);
  if (found.is_ok()) {
    const bool is_ours = found->store == format.store && found->volume == format.volume && found->id == format.id;
    return is_ours ? FormatIs::kOurs : FormatIs::kAnothers;
  }
  const StatusCode code = found.status().code();
  return code == StatusCode::kCorrupt || code == StatusCode::kUnsupported ? FormatIs::kBroken : FormatIs::kUnread;
}

bool has_segments(FileSystem& files, const std::string& directory) {
  const auto names = files.list(directory);
  return names.is_ok() &&
         std::ranges::any_of(*names, [](const auto& name) { return parse_segment_name(name).has_value(); });
}

AlignedBuffer aligned_copy(std::span<const std::byte> bytes) {
  AlignedBuffer out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// All of a file of `limit` bytes at most. kCorrupt: it is longer; else as FileSystem.
Result<std::vector<std::byte>> read_small_file(FileSystem& files, const std::string& path, std::uint64_t limit) {
  Result<std::unique_ptr<File>> file = files.open(path, {});
  if (!file.is_ok()) return file.status();
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t size, (*file)->size_bytes());
  if (size > limit) return corrupt(path + ": longer than such a file can be");
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  LARDER_RETURN_IF_ERROR(read_exactly(**file, bytes, 0));
  return bytes;
}

std::optional<std::string> read_lock_text(FileSystem& files, const std::string& directory) {
  const auto bytes = read_small_file(files, join_path(directory, kLockName), kMaxFormatBytes);
  if (!bytes.is_ok()) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

}  // namespace

Status replace_file(FileSystem& files, const std::string& directory, std::string_view name,
                    std::span<const std::byte> bytes) {
  const std::string path = join_path(directory, name);
  const std::string temporary = path + std::string(kTemporarySuffix);
  OpenOptions options;
  options.write = options.create = options.truncate = true;
  {
    LARDER_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.open(temporary, options));
    Status written = write_fully(*file, bytes, 0);
    if (written.is_ok()) written = file->sync_all();
    if (!written.is_ok()) {
      (void)files.remove(temporary);
      return written;
    }
  }
  LARDER_RETURN_IF_ERROR(files.rename(temporary, path));
  return files.sync_dir(directory);
}

Result<VolumeFormat> read_format(FileSystem& files, const std::string& directory) {
  LARDER_ASSIGN_OR_RETURN(const auto bytes, read_small_file(files, join_path(directory, kFormatName), kMaxFormatBytes));
  return parse_format_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Result<std::vector<Cleared>> read_cleared(FileSystem& files, const std::string& directory) {
  const auto bytes = read_small_file(files, join_path(directory, kClearedName), kMaxClearedBytes);
  return bytes.is_ok() ? decode_cleared(*bytes) : bytes.status();
}

Status write_format(FileSystem& files, const std::string& directory, const VolumeFormat& format) {
  const std::string text = format_text(format);
  return replace_file(files, directory, kFormatName, std::as_bytes(std::span(text)));
}

Status try_direct(FileSystem& files, const std::string& directory) {
  const std::string path = join_path(directory, std::string(kFormatName) + std::string(kTemporarySuffix));
  const Status tried = write_block_file(files, path);
  (void)files.remove(path);
  if (tried.code() != StatusCode::kOverloaded) return tried;
  const Result<std::vector<std::string>> names = files.list(directory);
  if (!names.is_ok()) return tried;
  for (const std::string& name : *names) {
    if (!parse_segment_name(name)) continue;
    const Status read = read_block(files, join_path(directory, name));
    if (read.code() != StatusCode::kCorrupt) return read;  // else it has no whole block
  }
  return tried;
}

std::optional<std::string> mark_lock(FileSystem& files, const std::string& directory, const std::string& text) {
  {
    OpenOptions options;
    options.write = true;
    const Result<std::unique_ptr<File>> file = files.open(join_path(directory, kLockName), options);
    if (file.is_ok()) (void)write_fully(**file, std::as_bytes(std::span(text)), 0);  // on a full disk, perhaps not
  }
  return read_lock_text(files, directory);
}

Status check_lock(FileSystem& files, const std::string& directory, const std::optional<std::string>& lock_text) {
  const std::optional<std::string> found = lock_text ? read_lock_text(files, directory) : std::nullopt;
  if (!found || found->empty() || found == lock_text) return Status::ok();
  return conflict("file store: LOCK in " + directory +
                  " was deleted, and another process has opened the store since; end one of the two and start again");
}

Whereabouts find_volume(FileSystem& files, const std::string& directory, const VolumeFormat& format,
                        std::uint64_t device_id) {
  Whereabouts out;
  const std::string path = join_path(directory, kFormatName);
  const Result<FileInfo> found = files.stat(path);
  if (found.is_ok()) {
    // A disk may be back under another number. And another store may lie there, on the same disk too: a directory that
    // was moved away is made again by the next one. What cannot be read on the same disk is a bad spot.
    const FormatIs whose = look_at_format(files, directory, format);
    const bool is_same_disk = found->device_id == device_id;
    const bool is_ours = whose == FormatIs::kOurs || (is_same_disk && whose != FormatIs::kAnothers);
    out.state = is_ours ? Whereabouts::State::kHere : Whereabouts::State::kAway;
    out.device_id = found->device_id;
    if (!is_ours) {
      out.why = unavailable("file store: another store lies in " + directory + "; is the right disk mounted?");
    }
    return out;
  }
  out.why = found.status();
  if (found.status().code() != StatusCode::kNotFound) return out;
  // What is left of the path. A directory under an empty mount point would fill the wrong disk.
  std::string left = directory;
  Result<FileInfo> info = files.stat(left);
  while (!info.is_ok() && info.status().code() == StatusCode::kNotFound && parent_path(left) != left) {
    left = parent_path(left);
    info = files.stat(left);
  }
  out.why = info.status();
  if (info.is_ok() && info->device_id == device_id) {
    out.lacks_format = left == directory && has_segments(files, directory);
    out.state = out.lacks_format ? Whereabouts::State::kHere : Whereabouts::State::kDeleted;
    out.device_id = device_id;
  } else if (info.is_ok()) {
    out.why = unavailable("file store: " + directory + " is gone; is its disk mounted?");
  }
  return out;
}

Result<Restored> restore_directory(FileSystem& files, const std::string& directory, const VolumeFormat& format,
                                   std::uint64_t device_id, std::unique_ptr<FileLock>& old_lock,
                                   const std::optional<std::string>& lock_text) {
  const Whereabouts found = find_volume(files, directory, format, device_id);
  Restored out;
  out.device_id = found.state == Whereabouts::State::kHere ? found.device_id : device_id;
  if (found.state == Whereabouts::State::kAway) return found.why;
  const std::string lock_path = join_path(directory, kLockName);
  // Without a text: of somebody who has not opened the store (yet), or made here while the disk was full.
  const bool is_unmarked = lock_text && !lock_text->empty() && read_lock_text(files, directory) == "";
  const bool lacks_lock = is_unmarked || files.stat(lock_path).status().code() == StatusCode::kNotFound;
  if (!lacks_lock) LARDER_RETURN_IF_ERROR(check_lock(files, directory, lock_text));
  if (found.state == Whereabouts::State::kHere && found.device_id == device_id && old_lock && !lacks_lock) {
    if (!found.lacks_format) return out;
    out.lacked_files = true;
    LARDER_RETURN_IF_ERROR(write_format(files, directory, format));
    return out;
  }
  out.was_lost = found.state == Whereabouts::State::kDeleted;
  if (out.was_lost) LARDER_RETURN_IF_ERROR(files.make_dirs(directory));
  old_lock.reset();  // of the same file, or of one that is gone, or of a mount that was
  LARDER_ASSIGN_OR_RETURN(out.lock, files.lock(lock_path));
  out.lock_text = lock_text ? mark_lock(files, directory, *lock_text) : std::nullopt;
  out.lacked_files = !out.was_lost && found.device_id == device_id;
  if (!out.was_lost && !found.lacks_format) return out;
  LARDER_RETURN_IF_ERROR(write_format(files, directory, format));
  (void)files.sync_dir(parent_path(directory));  // if a crash takes it away again, nothing is lost
  return out;
}

Result<std::shared_ptr<ActiveSegment>> create_segment(FileSystem& files, const Volume& volume,
                                                      const SegmentHeader& header, std::uint64_t capacity_bytes,
                                                      std::uint64_t& left_bytes) {
  left_bytes = 0;
  const std::string path = join_path(volume.directory, segment_name(header.segment));
  OpenOptions options;
  options.write = options.create = options.exclusive = true;
  options.direct = volume.is_direct;
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.open(path, options));
  bool is_reserved = false;
  const auto made = [&]() -> Status {
    const Status reserved = file->allocate(0, capacity_bytes);
    is_reserved = reserved.is_ok();
    if (!reserved.is_ok() && reserved.code() != StatusCode::kUnsupported) return reserved;
    const AlignedBuffer block = aligned_copy(encode_segment_header(header));
    LARDER_RETURN_IF_ERROR(write_fully(*file, {block.data(), block.size()}, 0));
    return files.sync_dir(volume.directory);
  }();
  if (!made.is_ok()) {
    if (!files.remove(path).is_ok()) left_bytes = is_reserved ? capacity_bytes : kBlockBytes;
    return made;
  }
  auto segment = std::make_shared<ActiveSegment>();
  segment->id = header.segment;
  segment->file = std::move(file);
  segment->capacity_bytes = capacity_bytes;
  segment->is_reserved = is_reserved;
  segment->end_bytes = kBlockBytes;
  return segment;
}

Status write_again(File& file, std::uint64_t begin, std::uint64_t end) {
  AlignedBuffer buffer(static_cast<std::size_t>(std::min(kWriteAgainBytes, end - std::min(begin, end))));
  while (begin < end) {
    const std::span<std::byte> piece(buffer.data(), static_cast<std::size_t>(std::min(kWriteAgainBytes, end - begin)));
    LARDER_RETURN_IF_ERROR(read_exactly(file, piece, begin));
    LARDER_RETURN_IF_ERROR(write_fully(file, piece, begin));
    begin += piece.size();
  }
  return Status::ok();
}

Result<std::uint64_t> leave_out_pages(FileSystem& files, const std::string& path, const StoreId& store,
                                      SegmentId segment, std::span<const PagePlace> pages, bool is_synced) {
  OpenOptions options;
  options.write = true;
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.open(path, options));
  LARDER_ASSIGN_OR_RETURN(ScanResult found, scan_segment(*file, store, segment, false));
  LARDER_RETURN_IF_ERROR(found.io);
  const std::set<PagePlace> damaged(pages.begin(), pages.end());
  const std::size_t listed =
      std::erase_if(found.pages, [&](const ListedPage& page) { return damaged.contains(place_of(page.location)); });
  if (found.has_footer ? listed == 0 : !is_synced) return found.file_bytes;
  const bool with_sync = found.has_footer ? found.is_footer_synced : is_synced;
  Result<std::uint64_t> end = seal_segment(
      *file, {store, segment, found.end_bytes, found.max_generation, found.records, std::move(found.pages), false},
      with_sync);
  // Of an unsynced one, too: with a footer that is torn a scan would end at the damaged record, and what lies behind
  // it, and was read after an earlier power cut, would be lost with the next.
  if (end.is_ok() && !with_sync) LARDER_RETURN_IF_ERROR(file->sync_all());
  return end;
}

Result<std::uint64_t> seal_segment(File& file, Footer footer, bool with_sync) {
  if (with_sync) LARDER_RETURN_IF_ERROR(file.sync_data());
  footer.is_synced = with_sync;
  const AlignedBuffer bytes = aligned_copy(encode_footer(footer));
  LARDER_RETURN_IF_ERROR(write_fully(file, {bytes.data(), bytes.size()}, footer.start));
  const std::uint64_t end = footer.start + bytes.size();
  LARDER_RETURN_IF_ERROR(file.truncate(end));
  if (with_sync) LARDER_RETURN_IF_ERROR(file.sync_all());
  return end;
}

Result<std::uint64_t> seal_left_segment(FileSystem& files, const std::string& path, const StoreId& store,
                                        SegmentId segment, const ScanResult& found, std::vector<ListedPage> pages) {
  OpenOptions options;
  options.write = true;
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.open(path, options));
  LARDER_RETURN_IF_ERROR(file->truncate(found.end_bytes));
  LARDER_RETURN_IF_ERROR(write_again(*file, found.synced_bytes, found.end_bytes));
  // With fsync = off, too: durable writes may count on it, and its payloads were just found to be there.
  return seal_segment(
      *file, {store, segment, found.end_bytes, found.max_generation, found.records, std::move(pages), false}, true);
}

}  // namespace larder::file_store
