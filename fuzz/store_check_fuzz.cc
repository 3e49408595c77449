// SPDX-License-Identifier: Apache-2.0
// The check and repair of a store (storage/file/store_check.h: `larder store fsck`), and the look at one from outside
// (storage/file/store_inspect.h).
//
// Fed: one or two segment files made of choices, with single bytes changed and ends cut off (fuzz/segment_image.h); a
// left-over file; a damaged list of clearings.
// Checked: looking writes nothing. Mending, then losing power, leaves a store in which nothing repairable is found. All
// that it lists was written so and has right bytes; every page that could be read before, and whose group was whole, is
// still there with its key, parent, generation and checksum.
#include <map>
#include <optional>

#include "fuzz/fuzz_input.h"
#include "fuzz/segment_image.h"
#include "sim/sim_file_system.h"
#include "storage/file/store_check.h"

namespace larder::fuzz {
namespace {

const std::vector<std::string> kDirectories = {"/store"};

void put(FileSystem& files, const std::string& name, std::span<const std::byte> bytes) {
  auto file = files.open(join_path(kDirectories[0], name), {.write = true, .create = true, .truncate = true});
  fuzz_check(file.is_ok() && write_fully(**file, bytes, 0).is_ok() && (*file)->sync_all().is_ok(), "the disk refuses");
}

std::map<std::string, std::vector<std::byte>> contents(FileSystem& files) {
  std::map<std::string, std::vector<std::byte>> all;
  const auto names = files.list(kDirectories[0]);
  fuzz_check(names.is_ok(), "the directory is gone");
  for (const std::string& name : *names) {
    if (name == kLockName) continue;
    auto file = files.open(join_path(kDirectories[0], name), {});
    fuzz_check(file.is_ok(), "a file does not open");
    std::vector<std::byte>& bytes = all[name];
    bytes.resize(static_cast<std::size_t>((*file)->size_bytes().value_or(0)));
    fuzz_check(read_exactly(**file, bytes, 0).is_ok(), "a file is not read");
  }
  return all;
}

// Live pages with right bytes, by generation.
std::map<std::uint64_t, ListedPage> readable(FileSystem& files, bool must_all_be) {
  std::map<std::uint64_t, ListedPage> pages;
  const auto report = inspect_store(files, kDirectories, {.check_unsynced_payloads = false});
  fuzz_check(report.is_ok(), "a store cannot be looked at: " + report.status().to_string());
  PayloadReader reader(files);
  for (const InspectedPage& page : report->pages) {
    if (page.state != PageState::kLive) continue;
    const Status status = reader.read_page(report->path_of(page), page.page.location, nullptr);
    if (!status.is_ok()) check_explains(status, "read_page");
    fuzz_check(status.is_ok() || !must_all_be, "a mended store lists what cannot be read: " + status.to_string());
    if (status.is_ok()) pages[page.page.location.generation] = page.page;
  }
  return pages;
}

bool is_same(const ListedPage& a, const ListedPage& b) {
  return a.identity == b.identity && a.key == b.key && a.parent == b.parent &&
         a.location.payload_bytes == b.location.payload_bytes && a.location.checksum == b.location.checksum &&
         a.location.generation == b.location.generation;
}

class Store {
 public:
  explicit Store(FuzzInput& input) : files_(input.number<std::uint8_t>()) {
    fuzz_check(files_.make_dirs(kDirectories[0]).is_ok(), "the disk refuses");
    const std::string format = format_text({kStore, 0});
    put(files_, std::string(kFormatName), std::as_bytes(std::span(format)));
    std::uint64_t generation = kFirstGeneration;
    const std::uint64_t segments = 1 + input.below(2);
    for (std::uint64_t i = 1; i <= segments; ++i) {
      const auto segment = static_cast<SegmentId>(i);
      images_.push_back(make_image(input, segment, generation));
      put(files_, segment_name(segment), images_.back().bytes);
    }
    if (input.below(4) == 0) put(files_, "FORMAT.tmp", std::as_bytes(std::span(format)));
    const std::uint64_t cleared = input.below(8);
    if (cleared < 2) {
      std::vector<std::byte> bytes = encode_cleared(std::vector<Cleared>{{digest_of(2), generation}});
      if (cleared == 1) bytes[static_cast<std::size_t>(input.below(bytes.size()))] ^= std::byte{1};
      is_cleared_ = true;
      put(files_, std::string(kClearedName), bytes);
    }
    fuzz_check(files_.sync_dir(kDirectories[0]).is_ok(), "the disk refuses");
  }

  void check() {
    const auto bytes_before = contents(files_);
    const auto pages_before = readable(files_, false);
    const CheckReport found = look(false);
    fuzz_check(contents(files_) == bytes_before, "looking at a store changes it");
    for (const Finding& finding : found.findings) {
      fuzz_check(!finding.what.empty() && !finding.remedy.empty(), "a finding without words");
    }
    const CheckReport mended = look(true);
    for (const Finding& finding : mended.findings) {
      fuzz_check(finding.is_repaired == finding.is_repairable, "not mended: " + finding.path + ": " + finding.what);
    }
    files_.crash();
    for (const Finding& finding : look(false).findings) {
      fuzz_check(!finding.is_repairable, "still there: " + finding.path + ": " + finding.what);
    }
    check_pages(pages_before, readable(files_, true));
  }

 private:
  CheckReport look(bool repair) {
    const auto report = check_store(files_, clock_, kDirectories, {.repair = repair, .progress = {}});
    fuzz_check(report.is_ok(), "a store cannot be checked: " + report.status().to_string());
    return *report;
  }
  [[nodiscard]] static bool is_head_whole(const Image& image, const Record& record) {
    return image.is_whole(record.head.start, record.head.start + record.head_bytes);
  }
  // The payloads of one group of a record, or of all.
  [[nodiscard]] static bool is_whole(const Image& image, const Record& record, std::optional<std::uint32_t> group) {
    const std::vector<ListedPage>& pages = record.head.pages;
    return std::all_of(pages.begin(), pages.end(), [&](const ListedPage& page) {
      const std::uint64_t from = page.location.offset;
      return (group && *group != page.group) || image.is_whole(from, from + page.location.payload_bytes);
    });
  }
  void check_pages(const std::map<std::uint64_t, ListedPage>& before,
                   const std::map<std::uint64_t, ListedPage>& after) const {
    std::size_t known = 0;
    for (const Image& image : images_) {
      // Of records without a head only the footer knows, and not which pages were a group: they go together.
      const bool is_rest_whole = std::all_of(image.records.begin(), image.records.end(), [&](const Record& record) {
        return is_head_whole(image, record) || is_whole(image, record, std::nullopt);
      });
      for (const Record& record : image.records) {
        for (const ListedPage& page : record.head.pages) {
          const std::uint64_t generation = page.location.generation;
          const bool is_there = after.contains(generation);
          if (is_there) ++known;
          fuzz_check(!is_there || is_same(after.at(generation), page), "a page is another after mending");
          const bool is_group_whole =
              is_head_whole(image, record) ? is_whole(image, record, page.group) : is_rest_whole;
          const bool must_be = before.contains(generation) && is_group_whole && !is_cleared_;
          fuzz_check(is_there || !must_be, "mending loses a page that could be read");
        }
      }
    }
    fuzz_check(known == after.size(), "mending finds pages that were never written");
  }

  sim::SimFileSystem files_;
  ManualClock clock_{std::chrono::seconds(1'700'000'000)};
  std::vector<Image> images_;
  bool is_cleared_ = false;  // a mended list of clearings may clear everything
};

void run(FuzzInput input) {
  Store store(input);
  store.check();
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
