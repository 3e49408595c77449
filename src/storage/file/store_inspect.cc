// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_inspect.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "storage/file/cleared_list.h"
#include "storage/file/segment_frame.h"
#include "storage/file/volume.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kShownKeyDigits = 16;
constexpr std::uint64_t kZeroReadBytes = std::uint64_t{1} << 20;

Status at_path(const std::string& path, const Status& status) {
  if (status.is_ok() || status.message().find(path) != std::string::npos) return status;
  return Status(status.code(), path + ": " + status.message());
}

void report_format(FileSystem& files, VolumeReport& volume) {
  const Result<VolumeFormat> format = read_format(files, volume.directory);
  volume.format_status = at_path(join_path(volume.directory, kFormatName), format.status());
  if (format.is_ok()) volume.format = *format;
}

// A CLEARED that cannot be read is not a damaged one: nobody knows what it says, and nobody may guess.
Status report_cleared(FileSystem& files, VolumeReport& volume) {
  Result<std::vector<Cleared>> list = read_cleared(files, volume.directory);
  const StatusCode code = list.status().code();
  if (code == StatusCode::kNotFound) return Status::ok();
  const Status status = at_path(join_path(volume.directory, kClearedName), list.status());
  if (!list.is_ok() && code != StatusCode::kCorrupt) return status;
  volume.has_cleared = true;
  volume.cleared_status = status;
  if (list.is_ok()) volume.cleared = std::move(*list);
  return Status::ok();
}

// Reads what the volume's directory holds; the numbers of its segments.
Result<std::vector<SegmentId>> read_volume(FileSystem& files, VolumeReport& volume) {
  LARDER_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(volume.directory));
  std::vector<SegmentId> segments;
  for (const std::string& name : names) {
    if (const auto number = parse_segment_name(name)) {
      segments.push_back(*number);
    } else if (name.ends_with(kTemporarySuffix) && is_store_name(name)) {
      volume.temporary.push_back(name);
    } else if (!is_store_name(name)) {
      volume.foreign.push_back(name);
    }
  }
  std::sort(segments.begin(), segments.end());
  report_format(files, volume);
  LARDER_RETURN_IF_ERROR(report_cleared(files, volume));
  return segments;
}

// The store's id: of a FORMAT, or else of a segment that can be read.
StoreId find_store_id(FileSystem& files, const StoreReport& report,
                      const std::vector<std::vector<SegmentId>>& segments) {
  for (const VolumeReport& volume : report.volumes) {
    if (volume.format_status.is_ok()) return volume.format.store;
  }
  for (std::size_t v = 0; v < segments.size(); ++v) {
    for (const SegmentId number : segments[v]) {
      const auto file = files.open(join_path(report.volumes[v].directory, segment_name(number)), {});
      std::byte bytes[128];
      if (!file.is_ok() || !read_exactly(**file, bytes, 0).is_ok()) continue;
      const Result<SegmentHeader> header = decode_segment_header(bytes);
      if (header.is_ok()) return header->store;
    }
  }
  return {};
}

// Nothing but zeros, if anything: a segment is made so, before its header is written. False: or it cannot be read.
bool is_all_zero(File& file) {
  const Result<std::uint64_t> size = file.size_bytes();
  if (!size.is_ok()) return false;
  std::vector<std::byte> piece;
  for (std::uint64_t at = 0; at < *size; at += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(at == 0 ? kBlockBytes : kZeroReadBytes, *size - at)));
    if (!read_exactly(file, piece, at).is_ok() || !is_zero(piece)) return false;
  }
  return true;
}

void scan_one(FileSystem& files, StoreReport& report, std::uint32_t volume, SegmentId number,
              const InspectOptions& options) {
  SegmentReport out;
  out.number = number;
  out.volume = volume;
  out.path = join_path(report.volumes[volume].directory, segment_name(number));
  out.first_page = static_cast<std::uint32_t>(report.pages.size());
  const Result<std::unique_ptr<File>> file = files.open(out.path, {});
  if (file.status().code() == StatusCode::kNotFound) {
    ++report.volumes[volume].vanished;
    return;
  }
  const StoreId& store =
      report.volumes[volume].format_status.is_ok() ? report.volumes[volume].format.store : report.store;
  Result<ScanResult> scan =
      file.is_ok() ? scan_segment(**file, store, number, options.check_unsynced_payloads) : file.status();
  // Shorter than it was: a server has sealed it meanwhile.
  if (scan.is_ok() && scan->io.code() == StatusCode::kCorrupt) {
    scan = scan_segment(**file, store, number, options.check_unsynced_payloads);
  }
  if (!scan.is_ok()) {
    out.status = at_path(out.path, scan.status());
    out.is_unwritten = scan.status().code() == StatusCode::kCorrupt && file.is_ok() && is_all_zero(**file);
  } else {
    const auto index = static_cast<std::uint32_t>(report.segments.size());
    for (const ListedPage& page : scan->pages) report.pages.push_back({page, index, PageState::kLive});
    out.scan = std::move(*scan);
    out.scan.pages.clear();
    out.pages = static_cast<std::uint32_t>(report.pages.size()) - out.first_page;
  }
  report.segments.push_back(std::move(out));
}

void join_volumes_cleared(StoreReport& report) {
  std::vector<Result<std::vector<Cleared>>> lists;
  for (const VolumeReport& volume : report.volumes) {
    if (!volume.has_cleared) continue;
    if (volume.cleared_status.is_ok()) {
      lists.emplace_back(volume.cleared);
    } else {
      lists.emplace_back(volume.cleared_status);
    }
  }
  JoinedClears joined = join_cleared(lists);
  report.cleared = std::move(joined.list);
  report.is_all_dropped = joined.is_damaged;
}

auto page_id(const ListedPage& page) {
  return std::tie(page.key, page.identity.pool, page.identity.namespace_digest, page.identity.layout_fingerprint);
}

void set_states(StoreReport& report) {
  const ClearedList cleared(report.cleared);
  std::vector<std::uint32_t> order(report.pages.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const ListedPage& left = report.pages[a].page;
    const ListedPage& right = report.pages[b].page;
    if (page_id(left) != page_id(right)) return page_id(left) < page_id(right);
    return std::pair(right.location.generation, a) < std::pair(left.location.generation, b);  // the newest first
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    InspectedPage& page = report.pages[order[i]];
    if (report.is_all_dropped || cleared.covers(page.page)) {
      page.state = PageState::kCleared;
    } else if (i > 0 && page_id(report.pages[order[i - 1]].page) == page_id(page.page)) {
      page.state = PageState::kSuperseded;
    }
  }
}

}  // namespace

std::string_view page_state_name(PageState state) {
  switch (state) {
    case PageState::kLive: return "live";
    case PageState::kSuperseded: return "superseded";
    case PageState::kCleared: return "cleared";
  }
  return "unknown";
}

bool StoreReport::is_unfinished(const InspectedPage& page) const {
  const ScanResult& scan = segments[page.segment].scan;
  return !scan.has_footer && page.page.location.offset + page.page.location.payload_bytes > scan.synced_bytes;
}

Result<StoreReport> inspect_store(FileSystem& files, std::span<const std::string> directories,
                                  const InspectOptions& options) {
  if (directories.empty()) return invalid_argument("no directory given: a store is one or more directories");
  std::set<std::string> seen;
  StoreReport report;
  std::vector<std::vector<SegmentId>> segments;
  for (std::string directory : directories) {
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
    if (!seen.insert(directory).second) return invalid_argument("the directory " + directory + " is given twice");
    VolumeReport volume;
    volume.directory = directory;
    LARDER_ASSIGN_OR_RETURN(std::vector<SegmentId> numbers, read_volume(files, volume));
    segments.push_back(std::move(numbers));
    report.volumes.push_back(std::move(volume));
  }
  report.store = find_store_id(files, report, segments);
  for (std::uint32_t v = 0; v < report.volumes.size(); ++v) {
    for (const SegmentId number : segments[v]) scan_one(files, report, v, number, options);
  }
  join_volumes_cleared(report);
  set_states(report);
  return report;
}

Status check_volumes(const StoreReport& report) {
  const VolumeReport* first = nullptr;
  std::set<unsigned> numbers;
  for (const VolumeReport& volume : report.volumes) {
    if (volume.format_status.code() == StatusCode::kNotFound) {
      return not_found(volume.directory + ": no file store is there (it has no file FORMAT)");
    }
    LARDER_RETURN_IF_ERROR(volume.format_status);
    if (first == nullptr) first = &volume;
    if (volume.format.store != first->format.store) {
      return conflict(volume.directory + " and " + first->directory + " are volumes of two different stores");
    }
    if (!numbers.insert(volume.format.volume).second) {
      return conflict(volume.directory + ": a second directory with volume number " +
                      std::to_string(volume.format.volume) + "; is it a copy of another one?");
    }
  }
  const std::vector<VolumeSeen> seen = volumes_seen(report);
  const Result<VolumeSet> set = join_lists(seen);
  return set.is_ok() ? check_set(*set, seen) : set.status();
}

std::vector<VolumeSeen> volumes_seen(const StoreReport& report) {
  std::vector<VolumeSeen> seen;
  for (std::uint32_t v = 0; v < report.volumes.size(); ++v) {
    const VolumeReport& volume = report.volumes[v];
    if (!volume.format_status.is_ok()) continue;
    const bool has_segments = std::any_of(report.segments.begin(), report.segments.end(),
                                          [v](const SegmentReport& segment) { return segment.volume == v; });
    seen.push_back({&volume.directory, &volume.format, has_segments});
  }
  return seen;
}

VerifyReport verify_pages(FileSystem& files, const StoreReport& report, const ProgressSink& progress) {
  VerifyReport out;
  PayloadReader reader(files);
  std::uint64_t total = 0, done = 0;
  for (const InspectedPage& page : report.pages) total += page.page.location.payload_bytes;
  for (std::uint32_t i = 0; i < report.pages.size(); ++i) {
    const InspectedPage& page = report.pages[i];
    const Status status = reader.read_page(report.path_of(page), page.page.location, nullptr);
    done += page.page.location.payload_bytes;
    if (progress) progress(done, total);
    if (status.is_ok()) {
      ++out.pages;
      out.bytes += page.page.location.payload_bytes;
    } else if (status.code() == StatusCode::kNotFound) {
      ++out.vanished;
    } else if (status.code() == StatusCode::kCorrupt && report.is_unfinished(page)) {
      ++out.unfinished;
    } else {
      out.damaged.push_back({i, status});
    }
  }
  // A segment that was being taken out (cut, then removed) while it was read is no damage.
  const std::size_t before = out.damaged.size();
  std::erase_if(out.damaged, [&](const DamagedPage& damaged) {
    return files.stat(report.path_of(report.pages[damaged.page])).status().code() == StatusCode::kNotFound;
  });
  out.vanished += before - out.damaged.size();
  return out;
}

Status SegmentReport::problem() const {
  if (is_unwritten) return Status::ok();
  const Status& failed = status.is_ok() ? scan.io : status;
  if (!failed.is_ok()) return at_path(path, failed);
  if (damaged_groups() == 0) return Status::ok();
  return corrupt(path + ": " + std::to_string(damaged_groups()) + " damaged groups");
}

Result<std::string> parse_digest_prefix(std::string_view what, std::string_view text) {
  std::string digits(text);
  for (char& c : digits) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  }
  const bool is_hex = digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex || digits.size() < 4 || digits.size() > 64) {
    return invalid_argument(std::string(what) + ": 4 to 64 hex digits are expected (the first ones are enough), not '" +
                            std::string(text) + "'");
  }
  return digits;
}

bool is_selected(const PageSelection& selection, const ListedPage& page) {
  if (!selection.namespace_prefix.empty() &&
      !page.identity.namespace_digest.hex().starts_with(selection.namespace_prefix)) {
    return false;
  }
  if (!selection.pools.empty() &&
      std::find(selection.pools.begin(), selection.pools.end(), page.identity.pool) == selection.pools.end()) {
    return false;
  }
  if (selection.key_prefixes.empty()) return true;
  const std::string key = page.key.hex();
  return std::any_of(selection.key_prefixes.begin(), selection.key_prefixes.end(),
                     [&](const std::string& prefix) { return key.starts_with(prefix); });
}

Result<Digest256> find_namespace(const StoreReport& report, const std::string& prefix) {
  std::set<Digest256> found;
  for (const InspectedPage& page : report.pages) {
    const Digest256& digest = page.page.identity.namespace_digest;
    if (!found.contains(digest) && digest.hex().starts_with(prefix)) found.insert(digest);
  }
  if (found.empty()) return not_found("no page of a namespace " + prefix + " is stored");
  if (found.size() == 1) return *found.begin();
  std::string names;
  for (const Digest256& digest : found) names += " " + digest.hex().substr(0, kShownKeyDigits);
  return conflict(std::to_string(found.size()) + " namespaces start with " + prefix + ":" + names +
                  "; give more digits");
}

}  // namespace larder::file_store
