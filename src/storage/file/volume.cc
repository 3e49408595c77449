#include "storage/file/volume.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace larder::file_store {
namespace {

Status write_block_file(FileSystem& files, const std::string& path) {
  OpenOptions options;
  options.write = options.create = options.truncate = options.direct = true;
  const Result<std::unique_ptr<File>> file = files.open(path, options);
  if (!file.is_ok()) return file.status();
  AlignedBuffer out(kBlockBytes), in(kBlockBytes);
  std::memset(out.data(), 0x5a, out.size());
  std::memset(in.data(), 0, in.size());
  LARDER_RETURN_IF_ERROR(write_fully(**file, {out.data(), out.size()}, 0));
  LARDER_RETURN_IF_ERROR(read_exactly(**file, {in.data(), in.size()}, 0));
  return std::memcmp(out.data(), in.data(), in.size()) == 0 ? Status::ok() : corrupt("direct I/O returned other bytes");
}

AlignedBuffer aligned_copy(std::span<const std::byte> bytes) {
  AlignedBuffer out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

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

bool supports_direct(FileSystem& files, const std::string& directory) {
  const std::string path = join_path(directory, std::string(kFormatName) + std::string(kTemporarySuffix));
  const bool works = write_block_file(files, path).is_ok();
  (void)files.remove(path);
  return works;
}

Status restore_directory(FileSystem& files, Volume& volume, const StoreId& store, bool& was_lost) {
  was_lost = false;
  const std::string path = join_path(volume.directory, kFormatName);
  const Result<FileInfo> found = files.stat(path);
  if (found.is_ok()) return Status::ok();
  if (found.status().code() != StatusCode::kNotFound) return found.status();
  // A directory under an empty mount point would fill the wrong disk.
  const Result<FileInfo> parent = files.stat(parent_path(volume.directory));
  if (!parent.is_ok()) return unavailable("file store: " + volume.directory + " is gone: " + parent.status().message());
  if (parent->device_id != volume.device_id) {
    return unavailable("file store: " + volume.directory + " is gone; is its disk mounted?");
  }
  LARDER_RETURN_IF_ERROR(files.make_dirs(volume.directory));
  volume.lock.reset();  // of a file that is gone
  Result<std::unique_ptr<FileLock>> lock = files.lock(join_path(volume.directory, kLockName));
  if (!lock.is_ok()) return lock.status();
  const std::string text = format_text({store, volume.number});
  LARDER_RETURN_IF_ERROR(replace_file(files, volume.directory, kFormatName, std::as_bytes(std::span(text))));
  volume.lock = std::move(lock).value();
  was_lost = true;
  return files.sync_dir(parent_path(volume.directory));
}

Result<std::shared_ptr<ActiveSegment>> create_segment(FileSystem& files, const Volume& volume,
                                                      const SegmentHeader& header, std::uint64_t capacity_bytes) {
  const std::string path = join_path(volume.directory, segment_name(header.segment));
  OpenOptions options;
  options.write = options.create = options.exclusive = true;
  options.direct = volume.is_direct;
  Result<std::unique_ptr<File>> file = files.open(path, options);
  if (!file.is_ok()) return file.status();
  const auto made = [&]() -> Status {
    const Status reserved = (*file)->allocate(0, capacity_bytes);
    if (!reserved.is_ok() && reserved.code() != StatusCode::kUnsupported) return reserved;
    const AlignedBuffer block = aligned_copy(encode_segment_header(header));
    LARDER_RETURN_IF_ERROR(write_fully(**file, {block.data(), block.size()}, 0));
    return files.sync_dir(volume.directory);
  }();
  if (!made.is_ok()) {
    (void)files.remove(path);
    return made;
  }
  auto segment = std::make_shared<ActiveSegment>();
  segment->id = header.segment;
  segment->file = std::move(file).value();
  segment->capacity_bytes = capacity_bytes;
  segment->end_bytes = kBlockBytes;
  return segment;
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

}  // namespace larder::file_store
