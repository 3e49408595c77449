// SPDX-License-Identifier: Apache-2.0
// Recovery of a segment file (storage/file/segment_scan.h) on a simulated disk.
//
// Fed: which records to write (pages, sizes, groups, promises of synced bytes), whether a footer and reserved space
// follow, single bytes to change, and where to cut the file. Or any bytes as a whole file.
// Checked: an untouched segment is listed exactly as it was written. With damage: every page listed was written so, in
// place, once, inside of the file; every record that is whole is still listed, up to its groups whose unsynced payloads
// were damaged, and such a group is not; only a damaged header makes the whole file unreadable. Errors say why.
#include "fuzz/fuzz_input.h"
#include "fuzz/segment_image.h"
#include "sim/sim_file_system.h"
#include "storage/file/segment_scan.h"

namespace larder::fuzz {
namespace {

constexpr SegmentId kSegment = 5;

Result<ScanResult> scan(std::span<const std::byte> bytes, bool check_payloads) {
  sim::SimFileSystem files(1);
  auto file = files.open("/segment", {.write = true, .create = true});
  fuzz_check(file.is_ok() && write_fully(**file, bytes, 0).is_ok(), "the simulated disk refuses");
  return scan_segment(**file, kStore, kSegment, check_payloads);
}

bool is_listed(const ScanResult& found, const ListedPage& page) {
  return std::any_of(found.pages.begin(), found.pages.end(),
                     [&](const ListedPage& listed) { return listed.location == page.location; });
}

bool is_same_page(const ListedPage& a, const ListedPage& b, bool with_group) {
  return a.identity == b.identity && a.key == b.key && a.parent == b.parent && a.location == b.location &&
         (!with_group || a.group == b.group);
}

// What is listed was written so, each page once and in the order of the file.
void check_listed(const Image& image, const ScanResult& found) {
  std::size_t at = 0;
  for (const Record& record : image.records) {
    for (const ListedPage& page : record.head.pages) {
      const bool is_next = at < found.pages.size() && is_same_page(found.pages[at], page, !found.has_footer);
      if (is_next) ++at;
    }
  }
  fuzz_check(at == found.pages.size(), "a page is listed that was not written, or twice");
  for (const ListedPage& page : found.pages) {
    fuzz_check(page.location.offset + page.location.payload_bytes <= image.bytes.size(), "a page behind the file");
    fuzz_check(page.location.generation <= found.max_generation, "a page above the highest generation");
  }
  fuzz_check(found.end_bytes <= image.bytes.size() && found.file_bytes == image.bytes.size(), "an end behind the file");
  fuzz_check(found.io.is_ok(), "a whole disk gives I/O errors");
}

// Damage costs what it hits and nothing else. Without a footer: scanned.
void check_kept(const Image& image, const ScanResult& found, bool check_payloads) {
  for (const Record& record : image.records) {
    const std::uint64_t start = record.head.start;
    if (!image.is_whole(start, start + record.head_bytes) || record.end() > image.bytes.size()) continue;
    const bool is_trusted = !check_payloads || record.end() <= found.synced_bytes;
    const std::vector<ListedPage>& pages = record.head.pages;
    for (const ListedPage& page : pages) {
      // A group stands or falls with all of its payloads.
      const bool is_group_whole = std::all_of(pages.begin(), pages.end(), [&](const ListedPage& other) {
        const std::uint64_t from = other.location.offset;
        return other.group != page.group || image.is_whole(from, from + other.location.payload_bytes);
      });
      fuzz_check(is_listed(found, page) == (is_trusted || is_group_whole),
                 is_group_whole ? "a whole group is not listed" : "a group without its payload is listed");
    }
  }
}

void check_untouched(const Image& image, const ScanResult& found) {
  std::size_t pages = 0;
  for (const Record& record : image.records) pages += record.head.pages.size();
  fuzz_check(found.pages.size() == pages && found.corrupt_groups == 0, "pages of a whole segment are not listed");
  fuzz_check(found.has_footer == image.has_footer && found.end_bytes == image.records_end, "another end, or no footer");
  fuzz_check(found.records == image.records.size() && found.first_generation == kFirstGeneration, "other counts");
  fuzz_check(found.has_footer || found.is_tail_zero, "reserved space looks torn");
}

void check_image(FuzzInput& input) {
  const bool check_payloads = input.flag();
  std::uint64_t generation = kFirstGeneration;
  const Image image = make_image(input, kSegment, generation);
  const Result<ScanResult> found = scan(image.bytes, check_payloads);
  if (!found.is_ok()) {
    check_explains(found.status(), "scan_segment");
    fuzz_check(found.status().code() == StatusCode::kCorrupt, "a damaged segment is " + found.status().to_string());
    fuzz_check(!image.is_whole(0, 128) || image.bytes.size() < kBlockBytes, "a whole header, and nothing is read");
    return;
  }
  check_listed(image, *found);
  if (image.is_untouched()) check_untouched(image, *found);
  if (!found->has_footer) check_kept(image, *found, check_payloads);
}

// Any file. Scanning with and without the payloads lists the same but for groups that are dropped.
void check_any(std::span<const std::byte> bytes) {
  const Result<ScanResult> all = scan(bytes, false), checked = scan(bytes, true);
  fuzz_check(all.is_ok() == checked.is_ok(), "whether a segment can be read depends on its payloads");
  if (!all.is_ok()) return check_explains(all.status(), "scan_segment");
  fuzz_check(checked->pages.size() <= all->pages.size() && checked->end_bytes == all->end_bytes, "more with a check");
  for (const ListedPage& page : checked->pages) fuzz_check(is_listed(*all, page), "a page that only the check sees");
  for (const ListedPage& page : all->pages) {
    fuzz_check(page.location.offset + page.location.payload_bytes <= bytes.size(), "a page behind the file");
  }
}

void run(FuzzInput input) {
  if (input.below(8) == 7) return check_any(input.rest());
  check_image(input);
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
