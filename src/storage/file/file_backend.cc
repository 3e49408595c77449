// SPDX-License-Identifier: Apache-2.0
#include "storage/file/file_backend.h"

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>

#include "base/log.h"
#include "storage/file/file_store.h"
#include "storage/option_text.h"

namespace larder {
namespace {

using file_store::Choice;
using file_store::FileStoreOptions;
using file_store::FsyncMode;

constexpr std::uint64_t kLeastSegmentBytes = std::uint64_t{16} << 10;
constexpr std::uint64_t kMostSegmentBytes = std::uint64_t{64} << 30;
// Made by itself: a 64th of the budget, so that dropping one loses little, within these. Each segment costs two syncs
// of the disk, during which its writes are slower: fewer, larger ones are faster.
constexpr std::uint64_t kLeastAutoBytes = std::uint64_t{64} << 20, kMostAutoBytes = std::uint64_t{512} << 20;
constexpr std::uint64_t kAutoShare = 64;
// Segments that a budget must hold at least: one that is written, one to clean into, and some to choose from.
constexpr std::uint64_t kLeastSegments = 8;
constexpr std::string_view kDefaultMaxSize = "80%";

Result<FsyncMode> parse_fsync(const std::string& text) {
  if (text == "off") return FsyncMode::kOff;
  if (text == "segment") return FsyncMode::kSegment;
  if (text == "group") return FsyncMode::kGroup;
  return invalid_argument("option 'fsync': '" + text + "' is none of off, segment, group");
}

Status parse_choice(const BackendOptions& options, const char* key, Choice& out) {
  const std::string text = text_option(options, key, "auto");
  if (text != "auto" && text != "on" && text != "off") {
    return invalid_argument(std::string("option '") + key + "': '" + text + "' is none of auto, on, off");
  }
  out = text == "auto" ? Choice::kAuto : text == "on" ? Choice::kOn : Choice::kOff;
  return Status::ok();
}

std::string text_of(const std::vector<std::string>& directories) {
  std::string out;
  for (const std::string& directory : directories) out += (out.empty() ? "" : ", ") + directory;
  return out;
}

// "/a:/b" names two volumes.
Status read_directories(const BackendOptions& options, FileStoreOptions& out) {
  const std::string text = text_option(options, "directory", "");
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find(':', from), text.size());
    std::string directory = text.substr(from, end - from);
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
    if (directory.empty()) return invalid_argument("option 'directory': an empty name in '" + text + "'");
    if (std::find(out.directories.begin(), out.directories.end(), directory) != out.directories.end()) {
      return invalid_argument("option 'directory': " + directory + " is named twice");
    }
    out.directories.push_back(std::move(directory));
    from = end + 1;
  }
  return Status::ok();
}

// Of the file system that `directory` is on, or will be once it is made.
Result<std::uint64_t> disk_bytes(FileSystem& files, std::string directory) {
  for (;;) {
    const Result<SpaceInfo> space = files.space(directory.empty() ? "." : directory);
    if (space.is_ok()) return space->total_bytes;
    if (space.status().code() != StatusCode::kNotFound || directory.empty() || directory == "/") {
      return Status(space.status().code(),
                    "file store: " + space.status().message() + "; check the option 'directory' and its permissions");
    }
    const std::size_t slash = directory.rfind('/');
    directory = slash == std::string::npos ? "" : directory.substr(0, std::max<std::size_t>(slash, 1));
  }
}

// "80%": of the disks that the directories are on.
Result<std::uint64_t> share_of_disks(const FileStoreOptions& options, const std::string& text, FileSystem& files) {
  std::uint64_t percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [stop, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc{} || stop != end || percent < 1 || percent > 100) {
    return invalid_argument("option 'max_size': '" + text + "' is no share from 1% to 100%");
  }
  std::uint64_t total = 0;
  for (const std::string& directory : options.directories) {
    LARDER_ASSIGN_OR_RETURN(const std::uint64_t bytes, disk_bytes(files, directory));
    total += bytes;
  }
  if (total == 0) return kUnlimitedBytes;  // no disk, such as /proc: the store says so
  const std::uint64_t share = total / 100 * percent;
  log_info("storage/file", "max_size is " + text + " of the disk of " + text_of(options.directories) + ": " +
                               std::to_string(share) + " bytes");
  return share;
}

Result<std::uint64_t> read_max_size(const BackendOptions& options, const FileStoreOptions& out, FileSystem& files) {
  const std::string text = text_option(options, "max_size", std::string(kDefaultMaxSize));
  if (out.directories.empty()) return kUnlimitedBytes;  // the store says what is missing
  if (text.ends_with('%')) return share_of_disks(out, text, files);
  return size_option(options, "max_size", kUnlimitedBytes);
}

Status read_sizes(const BackendOptions& options, FileSystem& files, FileStoreOptions& out) {
  const std::uint64_t volumes = std::max<std::uint64_t>(out.directories.size(), 1);
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t max_size, read_max_size(options, out, files));
  const std::uint64_t least = kLeastSegmentBytes * kLeastSegments * volumes;
  if (max_size < least) {
    return invalid_argument("option 'max_size': the least is " + std::to_string(least) +
                            " bytes (128Ki per directory)");
  }
  const std::uint64_t auto_size = std::clamp(max_size / (kAutoShare * volumes), kLeastAutoBytes, kMostAutoBytes);
  const bool is_auto = text_option(options, "segment_size", "auto") == "auto";
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t segment_size,
                          is_auto ? auto_size : size_option(options, "segment_size", auto_size));
  if (segment_size < kLeastSegmentBytes || segment_size > kMostSegmentBytes) {
    return invalid_argument("option 'segment_size': auto, or from 16Ki to 64Gi");
  }
  out.max_bytes = max_size;
  // So that there is always one to clean or drop.
  out.segment_bytes = std::min(segment_size, out.max_bytes / (kLeastSegments * volumes));
  out.segment_bytes = out.segment_bytes / kDirectAlignment * kDirectAlignment;
  return Status::ok();
}

Status read_admission(const BackendOptions& options, FileStoreOptions& out) {
  const std::string text = text_option(options, "admission", "all");
  if (text != "all" && text != "second_offer") {
    return invalid_argument("option 'admission': '" + text + "' is none of all, second_offer");
  }
  out.admission.second_offer = text == "second_offer";
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t window,
                          count_option(options, "admission_window", 1'000'000, 64, 1'000'000'000));
  out.admission.window = static_cast<std::size_t>(window);
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t wear, size_option(options, "max_writes_per_day", kUnlimitedBytes));
  if (wear == 0) return invalid_argument("option 'max_writes_per_day': 0 would never write; say unlimited or a size");
  out.admission.bytes_per_day = wear == kUnlimitedBytes ? 0 : wear;
  return Status::ok();
}

Result<FileStoreOptions> read_options(const BackendOptions& options, FileSystem& files) {
  FileStoreOptions out;
  LARDER_RETURN_IF_ERROR(read_directories(options, out));
  LARDER_RETURN_IF_ERROR(read_sizes(options, files, out));
  LARDER_RETURN_IF_ERROR(read_admission(options, out));
  const std::string evict = text_option(options, "evict", "on");
  if (evict != "on" && evict != "off") return invalid_argument("option 'evict': '" + evict + "' is none of on, off");
  out.evicts = evict == "on";
  LARDER_RETURN_IF_ERROR(parse_choice(options, "direct", out.direct));
  LARDER_RETURN_IF_ERROR(parse_choice(options, "io_uring", out.uring));
  LARDER_ASSIGN_OR_RETURN(out.fsync, parse_fsync(text_option(options, "fsync", "segment")));
  const auto count = [&](const char* key, std::size_t fallback, std::size_t low, std::size_t high, auto& to) -> Status {
    const Result<std::uint64_t> value = count_option(options, key, fallback, low, high);
    if (value.is_ok()) to = static_cast<std::remove_reference_t<decltype(to)>>(*value);
    return value.status();
  };
  LARDER_RETURN_IF_ERROR(count("io_depth", 64, 1, 4096, out.io_depth));
  LARDER_RETURN_IF_ERROR(count("queue_limit", 1024, 1, 1'000'000, out.queue_limit));
  LARDER_RETURN_IF_ERROR(count("open_files", 128, 1, 100'000, out.open_files));
  LARDER_RETURN_IF_ERROR(count("high_watermark", 95, 10, 100, out.high_percent));
  LARDER_RETURN_IF_ERROR(count("low_watermark", 85, 5, 100, out.low_percent));
  if (out.low_percent > out.high_percent) {
    return invalid_argument("option 'low_watermark': above high_watermark; evicting would never end");
  }
  return out;
}

// One queue per volume. io_uring only for the operating system's own files.
Status add_queues(const FileStoreOptions& options, const BackendEnvironment& environment,
                  std::vector<file_store::Volume>& volumes) {
  const bool is_real = environment.files == &real_file_system();
  if (options.uring == Choice::kOn && !is_real) return unsupported("file store: io_uring needs real files");
  for (file_store::Volume& volume : volumes) {
    if (is_real && options.uring != Choice::kOff) {
      Result<std::unique_ptr<file_store::IoQueue>> ring = file_store::create_uring_queue(options.io_depth);
      if (ring.is_ok()) {
        volume.io = std::move(ring).value();
        (void)volume.io->register_memory(environment.host_memory);  // it is as well without, only slower
        continue;
      }
      if (options.uring == Choice::kOn) return ring.status();
      log_warning("storage/file", "threads instead of io_uring: " + ring.status().message());
    }
    volume.io = file_store::create_executor_queue(*environment.executor);
  }
  return Status::ok();
}

Result<std::unique_ptr<StorageBackend>> create_file(const BackendOptions& options,
                                                    const BackendEnvironment& environment) {
  if (environment.files == nullptr || environment.clock == nullptr || environment.executor == nullptr) {
    return invalid_argument("file backend: needs files, a clock and an executor");
  }
  LARDER_ASSIGN_OR_RETURN(const FileStoreOptions read, read_options(options, *environment.files));
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<file_store::OpenedStore> opened,
                          file_store::open_store(read, *environment.files, *environment.clock, environment.executor));
  LARDER_RETURN_IF_ERROR(add_queues(read, environment, opened->volumes));
  return std::unique_ptr<StorageBackend>(
      std::make_unique<file_store::FileStore>(read, environment, std::move(*opened)));
}

}  // namespace

Status register_file_backend(BackendFactory& factory) {
  return factory.add(
      "file",
      {{"directory", "",
        "where the files go, one directory per disk, ':' between them; made if absent; each "
        "must hold nothing else. Required"},
       {"max_size", "80%", "bytes on all disks together, or a share of them; full: what was used longest ago goes"},
       {"evict", "on", "on | off: with off, a full store keeps what it has and refuses what is new"},
       {"high_watermark", "95", "percent of max_size where eviction begins"},
       {"low_watermark", "85", "percent of max_size that may be alive after it"},
       {"segment_size", "auto",
        "bytes per segment file; at most max_size / 8 / directories; auto: a 64th, from 64Mi to 512Mi"},
       {"fsync", "segment", "off | segment | group: what reaches the disk without being asked to"},
       {"direct", "auto", "auto | on | off: past the page cache"},
       {"io_uring", "auto", "auto | on | off (threads instead)"},
       {"io_depth", "64", "reads and writes at once per directory"},
       {"queue_limit", "1024", "operations in flight before submit refuses"},
       {"open_files", "128", "segment files kept open"},
       {"admission", "all", "all | second_offer: write a page only when it is offered again"},
       {"admission_window", "1000000", "groups that second_offer remembers"},
       {"max_writes_per_day", "unlimited", "bytes; what is beyond is declined (disks wear out)"}},
      create_file);
}

}  // namespace larder
