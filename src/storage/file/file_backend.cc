#include "storage/file/file_backend.h"

#include <algorithm>
#include <utility>

#include "storage/file/file_store.h"
#include "storage/option_text.h"

namespace larder {
namespace {

using file_store::FileStoreOptions;
using file_store::FsyncMode;

constexpr std::uint64_t kLeastSegmentBytes = 4096;
constexpr std::uint64_t kMostSegmentBytes = std::uint64_t{64} << 30;
constexpr std::uint64_t kDefaultSegmentBytes = std::uint64_t{64} << 20;

Result<FsyncMode> parse_fsync(const std::string& text) {
  if (text == "off") return FsyncMode::kOff;
  if (text == "segment") return FsyncMode::kSegment;
  if (text == "group") return FsyncMode::kGroup;
  return invalid_argument("option 'fsync': '" + text + "' is none of off, segment, group");
}

Status read_sizes(const BackendOptions& options, FileStoreOptions& out) {
  const Result<std::uint64_t> max_size = size_option(options, "max_size", kUnlimitedBytes);
  if (!max_size.is_ok()) return max_size.status();
  if (*max_size < 4 * kLeastSegmentBytes) return invalid_argument("option 'max_size': the least is 16Ki");
  const Result<std::uint64_t> segment_size = size_option(options, "segment_size", kDefaultSegmentBytes);
  if (!segment_size.is_ok()) return segment_size.status();
  if (*segment_size < kLeastSegmentBytes || *segment_size > kMostSegmentBytes) {
    return invalid_argument("option 'segment_size': from 4Ki to 64Gi");
  }
  out.max_bytes = *max_size;
  out.segment_bytes = std::min(*segment_size, out.max_bytes / 4);  // so that there is always one to drop
  return Status::ok();
}

Result<FileStoreOptions> read_options(const BackendOptions& options) {
  FileStoreOptions out;
  out.directory = text_option(options, "directory", "");
  while (out.directory.size() > 1 && out.directory.back() == '/') out.directory.pop_back();
  LARDER_RETURN_IF_ERROR(read_sizes(options, out));
  const Result<FsyncMode> fsync = parse_fsync(text_option(options, "fsync", "segment"));
  if (!fsync.is_ok()) return fsync.status();
  out.fsync = *fsync;
  const auto count = [&](const char* key, std::size_t fallback, std::size_t high, std::size_t& to) -> Status {
    const Result<std::uint64_t> value = count_option(options, key, fallback, 1, high);
    if (value.is_ok()) to = static_cast<std::size_t>(*value);
    return value.status();
  };
  LARDER_RETURN_IF_ERROR(count("threads", 4, 256, out.read_tasks));
  LARDER_RETURN_IF_ERROR(count("queue_limit", 1024, 1'000'000, out.queue_limit));
  LARDER_RETURN_IF_ERROR(count("open_files", 128, 100'000, out.open_files));
  return out;
}

Result<std::unique_ptr<StorageBackend>> create_file(const BackendOptions& options,
                                                    const BackendEnvironment& environment) {
  if (environment.files == nullptr || environment.clock == nullptr || environment.executor == nullptr) {
    return invalid_argument("file backend: needs files, a clock and an executor");
  }
  const Result<FileStoreOptions> read = read_options(options);
  if (!read.is_ok()) return read.status();
  Result<std::unique_ptr<file_store::OpenedStore>> opened =
      file_store::open_store(*read, *environment.files, *environment.clock);
  if (!opened.is_ok()) return opened.status();
  return std::unique_ptr<StorageBackend>(
      std::make_unique<file_store::FileStore>(*read, environment, std::move(**opened)));
}

}  // namespace

Status register_file_backend(BackendFactory& factory) {
  return factory.add("file",
                     {{"directory", "", "where the files go; made if absent; it must hold nothing else. Required"},
                      {"max_size", "unlimited", "bytes on disk; full: the segments used longest ago are dropped"},
                      {"segment_size", "64Mi", "bytes per segment file; at most max_size / 4"},
                      {"fsync", "segment", "off | segment | group: what reaches the disk without being asked to"},
                      {"threads", "4", "executor tasks that one read request may use"},
                      {"queue_limit", "1024", "operations in flight before submit refuses"},
                      {"open_files", "128", "segment files kept open"}},
                     create_file);
}

}  // namespace larder
