// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "storage/file/segment_rewrite.h"
#include "storage/file/volume.h"

namespace larder::file_store {
namespace {

constexpr int kMaxPasses =
    4;  // a header, then the tail behind it, then pages: three at most, and one to see it is well
constexpr std::size_t kShownDigits = 16;

// One look at the store, and what is wrong with it.
struct Pass {
  StoreReport store;
  VerifyReport verified;
  std::vector<Finding> findings;
  std::map<std::uint32_t, std::set<std::uint32_t>> damaged;  // per segment: pages with wrong bytes
};

std::string page_text(const ListedPage& page) {
  return "page " + page.key.hex().substr(0, kShownDigits) + " of pool " + std::string(pool_name(page.identity.pool)) +
         ", namespace " + page.identity.namespace_digest.hex().substr(0, kShownDigits);
}

void add_finding(Pass& pass, FindingKind kind, std::string path, std::string what, std::string remedy,
                 bool is_repairable, std::uint32_t volume, std::uint32_t segment = 0) {
  Finding finding;
  finding.kind = kind;
  finding.path = std::move(path);
  finding.what = std::move(what);
  finding.remedy = std::move(remedy);
  finding.is_repairable = is_repairable;
  finding.volume = volume;
  finding.segment = segment;
  pass.findings.push_back(std::move(finding));
}

// The FORMAT of the one volume that the others say is missing; empty: there is no such one.
std::string missing_format_text(const StoreReport& store) {
  const Result<VolumeSet> set = join_lists(volumes_seen(store));
  if (!set.is_ok() || set->missing.size() != 1) return {};
  const VolumeMember& missing = set->missing[0];
  return format_text({store.store, missing.volume, missing.id, set->version, set->members});
}

void check_volume(Pass& pass, std::uint32_t index) {
  const VolumeReport& volume = pass.store.volumes[index];
  const auto path = [&](std::string_view name) { return join_path(volume.directory, name); };
  if (!volume.format_status.is_ok()) {
    std::string remedy = "put it back from a copy";
    if (const std::string text = missing_format_text(pass.store); !text.empty()) {
      remedy += ", or write this text:\n" + text;
    } else if (pass.store.store != StoreId{}) {
      remedy += ", or write this text with the volume's own number:\n" + format_text({pass.store.store, index});
    }
    add_finding(pass, FindingKind::kFormat, path(kFormatName), volume.format_status.message(), std::move(remedy), false,
                index);
  }
  for (const std::string& name : volume.foreign) {
    add_finding(pass, FindingKind::kForeignFile, path(name), "not a file of a store; a server refuses the directory",
                "move it elsewhere", false, index);
  }
  for (const std::string& name : volume.temporary) {
    add_finding(pass, FindingKind::kTemporary, path(name), "left over from an interrupted write", "remove it", true,
                index);
    pass.findings.back().is_damage = false;
  }
  if (!volume.cleared_status.is_ok()) {
    add_finding(pass, FindingKind::kCleared, path(kClearedName), volume.cleared_status.message(),
                pass.store.is_all_dropped
                    ? "clear every page, as opening the store would: what was cleared is not known (name all volumes: "
                      "one with a whole CLEARED saves the pages)"
                    : "write what the other volumes say",
                true, index);
  }
}

bool are_formats_whole(const StoreReport& store) {
  return std::all_of(store.volumes.begin(), store.volumes.end(),
                     [](const VolumeReport& volume) { return volume.format_status.is_ok(); });
}

void check_volume_set(Pass& pass) {
  const Status status = check_volumes(pass.store);
  if (status.code() == StatusCode::kConflict) {
    add_finding(pass, FindingKind::kFormat, pass.store.volumes[0].directory, status.message(),
                "give the directories of one store, each once", false, 0);
  }
  if (status.code() == StatusCode::kUnavailable && are_formats_whole(pass.store)) {
    add_finding(pass, FindingKind::kFormat, pass.store.volumes[0].directory, status.message(),
                "name all directories of the store", false, 0);
  }
  if (!are_formats_whole(pass.store)) return;
  unsigned highest = 0;
  std::set<unsigned> numbers;
  for (const VolumeReport& volume : pass.store.volumes) {
    if (volume.format.set_version > 0) return;  // there is a list: numbers say nothing
    numbers.insert(volume.format.volume);
    highest = std::max(highest, volume.format.volume);
  }
  if (numbers.size() == std::size_t{highest} + 1 || !status.is_ok()) return;
  add_finding(pass, FindingKind::kFormat, pass.store.volumes[0].directory,
              "volumes of this store are not given: their numbers have a gap below " + std::to_string(highest),
              "name all directories of the store", false, 0);
}

// Pages that the footer lists and no whole head does.
std::uint64_t pages_without_head(FileSystem& files, const StoreReport& store, const SegmentReport& segment) {
  const Result<std::unique_ptr<File>> file = files.open(segment.path, {});
  if (!file.is_ok()) return 0;
  const auto groups = read_groups(**file, store.store, segment.number, segment.scan.end_bytes);
  if (!groups.is_ok()) return 0;
  std::set<std::pair<std::uint64_t, PageKey>> heads;  // generations are unique but for copies
  for (const auto& group : *groups) {
    for (const ListedPage& page : group) heads.emplace(page.location.generation, page.key);
  }
  std::uint64_t missing = 0;
  for (std::uint32_t i = segment.first_page; i < segment.first_page + segment.pages; ++i) {
    const ListedPage& page = store.pages[i].page;
    if (!heads.contains({page.location.generation, page.key})) ++missing;
  }
  return missing;
}

bool is_header_damaged(FileSystem& files, const SegmentReport& segment) {
  const Result<std::unique_ptr<File>> file = files.open(segment.path, {});
  std::byte bytes[128];
  if (!file.is_ok() || !read_exactly(**file, bytes, 0).is_ok()) return false;
  return decode_segment_header(bytes).status().code() == StatusCode::kCorrupt;
}

void check_segment(FileSystem& files, Pass& pass, std::uint32_t index) {
  const SegmentReport& segment = pass.store.segments[index];
  const auto found = [&](FindingKind kind, std::string what, std::string remedy, bool is_repairable) {
    add_finding(pass, kind, segment.path, std::move(what), std::move(remedy), is_repairable, segment.volume, index);
  };
  if (segment.status.code() == StatusCode::kCorrupt) {
    found(FindingKind::kHeader,
          segment.is_unwritten ? "a segment in which nothing was written yet" : segment.status.message(),
          "remove the file: no header and no record in it is whole", true);
    pass.findings.back().is_damage = !segment.is_unwritten;
    return;
  }
  if (!segment.status.is_ok()) {
    found(FindingKind::kSegment, segment.status.message(), "move the file away, or give it back to its store", false);
    return;
  }
  if (is_header_damaged(files, segment)) {
    found(FindingKind::kHeader, "segment header damaged", "write it again", true);
  }
  const ScanResult& scan = segment.scan;
  if (!scan.io.is_ok()) {
    found(FindingKind::kSegment, scan.io.message(), "the disk fails: copy the store to another one", false);
    return;
  }
  if (scan.has_footer) {
    const std::uint64_t missing = pages_without_head(files, pass.store, segment);
    if (missing > 0) {
      found(FindingKind::kHeads, std::to_string(missing) + " pages are known by the footer only: record heads damaged",
            "write the segment again", true);
    }
    return;
  }
  const std::uint64_t tail = scan.is_tail_zero ? 0 : scan.file_bytes - scan.end_bytes;
  std::string what = "no footer";
  if (tail > 0) what += ", a torn tail of " + std::to_string(tail) + " bytes";
  if (scan.corrupt_groups > 0) what += ", " + std::to_string(scan.corrupt_groups) + " damaged groups";
  found(FindingKind::kTail, std::move(what), "cut off what is behind the last whole record, and write a footer", true);
  pass.findings.back().is_damage = tail > 0 || scan.corrupt_groups > 0;
}

void check_pages(Pass& pass) {
  for (const DamagedPage& damaged : pass.verified.damaged) {
    const InspectedPage& page = pass.store.pages[damaged.page];
    // A segment that could not be read to its end may hold more pages than are listed: it is left as it is.
    const bool is_repairable =
        damaged.status.code() == StatusCode::kCorrupt && pass.store.segments[page.segment].scan.io.is_ok();
    add_finding(pass, FindingKind::kPage, pass.store.path_of(page),
                page_text(page.page) + ": " + damaged.status.message(),
                is_repairable ? "write the segment again without the group of the page"
                              : "the disk fails: copy the store to another one",
                is_repairable, pass.store.segments[page.segment].volume, page.segment);
    if (is_repairable) pass.damaged[page.segment].insert(damaged.page);
  }
}

Result<Pass> look(FileSystem& files, std::span<const std::string> directories, const ProgressSink& progress) {
  Pass pass;
  Result<StoreReport> store = inspect_store(files, directories, {.check_unsynced_payloads = true});
  if (!store.is_ok()) return store.status();
  pass.store = std::move(*store);
  pass.verified = verify_pages(files, pass.store, progress);
  for (std::uint32_t v = 0; v < pass.store.volumes.size(); ++v) check_volume(pass, v);
  check_volume_set(pass);
  for (std::uint32_t s = 0; s < pass.store.segments.size(); ++s) check_segment(files, pass, s);
  check_pages(pass);
  return pass;
}

// Mends what one pass found.
class Mender {
 public:
  Mender(FileSystem& files, Clock& clock, const Pass& pass, CheckReport& report)
      : files_(files), clock_(clock), pass_(pass), report_(report) {}

  [[nodiscard]] Status mend(const Finding& finding) {
    const auto now = static_cast<std::uint64_t>(clock_.wall_unix_seconds());
    switch (finding.kind) {
      case FindingKind::kTemporary:
        LARDER_RETURN_IF_ERROR(files_.remove(finding.path));
        return files_.sync_dir(parent_path(finding.path));
      case FindingKind::kCleared: return write_cleared(finding.path);
      case FindingKind::kHeader: {
        const SegmentReport& segment = pass_.store.segments[finding.segment];
        return restore_header(files_, segment.path, pass_.store.store, segment.number, now);
      }
      case FindingKind::kTail: sealed_.insert(finding.segment); return seal(pass_.store.segments[finding.segment]);
      case FindingKind::kHeads:
      case FindingKind::kPage: return rewrite(finding.segment, now);
      case FindingKind::kFormat:
      case FindingKind::kForeignFile:
      case FindingKind::kSegment: break;
    }
    return internal_error("fsck: no repair for a " + std::string(finding_kind_name(finding.kind)));
  }

 private:
  [[nodiscard]] Status seal(const SegmentReport& segment) {
    std::vector<ListedPage> pages;
    for (std::uint32_t i = segment.first_page; i < segment.first_page + segment.pages; ++i) {
      pages.push_back(pass_.store.pages[i].page);
    }
    return seal_left_segment(files_, segment.path, pass_.store.store, segment.number, segment.scan, std::move(pages))
        .status();
  }

  [[nodiscard]] Status rewrite(std::uint32_t index, std::uint64_t now) {
    const auto before = outcomes_.find(index);  // by another finding of the segment
    if (before != outcomes_.end()) return before->second;
    const auto damaged = pass_.damaged.find(index);
    const Result<RewriteResult> result =
        rewrite_segment(files_, pass_.store, pass_.store.segments[index],
                        damaged == pass_.damaged.end() ? std::set<std::uint32_t>{} : damaged->second, now);
    outcomes_[index] = result.status();
    if (result.is_ok()) {
      report_.removed_pages += result->removed_pages;
      report_.removed_groups += result->removed_groups;
    }
    return result.status();
  }

  [[nodiscard]] Status write_cleared(const std::string& path) {
    std::vector<Cleared> list = pass_.store.cleared;
    if (pass_.store.is_all_dropped) {
      std::uint64_t generation = 0;
      for (const InspectedPage& page : pass_.store.pages) {
        generation = std::max(generation, page.page.location.generation);
      }
      for (const SegmentReport& segment : pass_.store.segments) {
        const bool is_unread = segment.status.is_ok() ? !segment.scan.io.is_ok() && segment.scan.first_generation == 0
                                                      : segment.status.code() != StatusCode::kCorrupt;
        if (is_unread) {
          return unavailable(segment.path + " cannot be read, so nobody knows what must stay cleared");
        }
        generation = std::max(generation, segment.scan.max_generation);
      }
      list = {{Digest256{}, generation + 1}};
    }
    return replace_file(files_, parent_path(path), kClearedName, encode_cleared(list));
  }

  FileSystem& files_;
  Clock& clock_;
  const Pass& pass_;
  CheckReport& report_;
  std::set<std::uint32_t> sealed_;
  std::map<std::uint32_t, Status> outcomes_;  // of segments written again
};

// True if something was mended.
bool mend_all(FileSystem& files, Clock& clock, Pass& pass, CheckReport& report) {
  Mender mender(files, clock, pass, report);
  bool any = false;
  for (Finding& finding : pass.findings) {
    if (!finding.is_repairable) continue;
    const Status status = mender.mend(finding);
    finding.is_repaired = status.is_ok();
    any = any || status.is_ok();
    if (!status.is_ok()) finding.remedy += "; failed: " + status.message();
  }
  return any;
}

// A store whose volumes are in doubt is not written to.
bool may_mend(const Pass& pass) {
  return std::none_of(pass.findings.begin(), pass.findings.end(),
                      [](const Finding& finding) { return finding.kind == FindingKind::kFormat; });
}

}  // namespace

std::string_view finding_kind_name(FindingKind kind) {
  constexpr std::string_view kNames[] = {"format",  "foreign_file", "temporary", "cleared", "header",
                                         "segment", "tail",         "heads",     "page"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool CheckReport::has_damage() const {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.is_damage && !finding.is_repaired; });
}

Result<std::vector<std::unique_ptr<FileLock>>> lock_volumes(FileSystem& files,
                                                            std::span<const std::string> directories) {
  std::vector<std::unique_ptr<FileLock>> locks;
  for (const std::string& directory : directories) {
    Result<std::unique_ptr<FileLock>> lock = files.lock(join_path(directory, kLockName));
    if (lock.status().code() == StatusCode::kConflict) {
      return conflict(directory +
                      ": in use. A store has one process: stop the server, or detach its storage backend, and try "
                      "again (ls, stat, verify and export may run beside it)");
    }
    if (!lock.is_ok()) return lock.status();
    locks.push_back(std::move(*lock));
  }
  return locks;
}

Result<CheckReport> check_store(FileSystem& files, Clock& clock, std::span<const std::string> directories,
                                const CheckOptions& options) {
  CheckReport report;
  for (const std::string& directory : directories) {  // before a LOCK is made where no store is
    const Result<FileInfo> format = files.stat(join_path(directory, kFormatName));
    LARDER_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(directory));
    const bool has_segment = std::any_of(names.begin(), names.end(),
                                         [](const std::string& name) { return parse_segment_name(name).has_value(); });
    if (!format.is_ok() && !has_segment)
      return not_found(directory + ": no file store is there (it has no file FORMAT)");
  }
  std::vector<std::string> locked(directories.begin(), directories.end());
  if (!options.repair) {  // a LOCK of this user's may be one that the server's user may not open
    std::erase_if(locked, [&](const std::string& directory) {
      return files.stat(join_path(directory, kLockName)).status().code() == StatusCode::kNotFound;
    });
  }
  const auto locks = lock_volumes(files, locked);
  if (!locks.is_ok() && (options.repair || locks.status().code() == StatusCode::kConflict)) return locks.status();
  for (int number = 0; number < kMaxPasses; ++number) {
    LARDER_ASSIGN_OR_RETURN(Pass pass, look(files, directories, options.progress));
    const bool is_last = !options.repair || number + 1 == kMaxPasses || !may_mend(pass);
    const bool any = !is_last && mend_all(files, clock, pass, report);
    for (Finding& finding : pass.findings) {
      if (!any || finding.is_repaired) report.findings.push_back(std::move(finding));
    }
    report.segments = pass.store.segments.size();
    report.pages = pass.verified.pages;
    report.bytes = pass.verified.bytes;
    if (!any) break;
  }
  return report;
}

}  // namespace larder::file_store
