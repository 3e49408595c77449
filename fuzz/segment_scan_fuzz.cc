// Recovery of a segment file (storage/file/segment_scan.h) on a simulated disk.
//
// Fed: which records to write (pages, sizes, groups, promises of synced bytes), whether a footer and reserved space
// follow, single bytes to change, and where to cut the file. Or any bytes as a whole file.
// Checked: an untouched segment is listed exactly as it was written. With damage: every page listed was written so, in
// place, once, inside of the file; every record that is whole is still listed, up to its groups whose unsynced payloads
// were damaged, and such a group is not; only a damaged header makes the whole file unreadable. Errors say why.
#include "fuzz/fuzz_input.h"
#include "sim/sim_file_system.h"
#include "storage/file/segment_scan.h"

namespace larder::fuzz {
namespace {

using namespace larder::file_store;

constexpr StoreId kStore{9, 8, 7};
constexpr SegmentId kSegment = 5;
constexpr std::uint64_t kFirstGeneration = 100;

struct Record {
  RecordHead head;
  std::uint64_t head_bytes = 0;
  [[nodiscard]] std::uint64_t end() const { return head.start + head.record_bytes; }
};

struct Image {
  std::vector<std::byte> bytes;
  std::vector<Record> records;
  std::uint64_t records_end = kBlockBytes;
  bool has_footer = false;
  std::vector<std::uint64_t> damaged;  // places of changed bytes
  std::uint64_t whole_bytes = 0;       // before the file was cut

  [[nodiscard]] bool is_whole(std::uint64_t from, std::uint64_t to) const {
    return to <= bytes.size() &&
           std::none_of(damaged.begin(), damaged.end(), [&](std::uint64_t at) { return at >= from && at < to; });
  }
  [[nodiscard]] bool is_untouched() const { return damaged.empty() && bytes.size() == whole_bytes; }
};

Digest256 digest_of(std::uint64_t number) {
  Digest256 digest;
  store_le<std::uint64_t>(digest.bytes.data(), number + 1);
  return digest;
}

std::uint32_t payload_size(FuzzInput& input) {
  static constexpr std::uint32_t kSizes[] = {0, 1, 64, 100, 700, 4096, 16383, 16384};
  return kSizes[input.below(8)];
}

// The payload of the page with this generation.
void write_payload(std::span<std::byte> to, std::uint64_t generation) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<std::byte>(generation * 31 + i * 7 + (i >> 8));
}

void add_record(Image& image, FuzzInput& input, std::uint64_t& generation) {
  Record record;
  RecordHead& head = record.head;
  head.store = kStore;
  head.segment = kSegment;
  head.start = image.records_end;
  head.pages.resize(static_cast<std::size_t>(1 + input.below(5)));
  std::uint32_t group = 0;
  for (ListedPage& page : head.pages) {
    if (&page != head.pages.data() && input.flag()) ++group;
    page.group = group;
    const std::uint64_t identity = input.below(3);
    page.identity = {digest_of(identity), digest_of(identity), static_cast<PoolName>(identity)};
    page.key = digest_of(generation);
    if (input.flag()) page.parent = digest_of(generation - 1);
    page.location.payload_bytes = payload_size(input);
    page.location.generation = generation++;
  }
  const RecordLayout layout = lay_out_record(head.pages, head.start);
  head.record_bytes = layout.record_bytes;
  record.head_bytes = layout.head_bytes;
  head.synced_bytes = input.flag() ? head.start : 0;
  image.records_end = record.end();
  image.bytes.resize(static_cast<std::size_t>(image.records_end));
  for (ListedPage& page : head.pages) {
    PageLocation& at = page.location;
    at.segment = kSegment;
    const std::span<std::byte> payload = std::span(image.bytes).subspan(at.offset, at.payload_bytes);
    write_payload(payload, at.generation);
    const Segment piece{payload.data(), payload.size()};
    at.checksum = payload_checksum({&piece, 1});
  }
  const std::vector<std::byte> encoded = encode_record_head(head);
  std::copy(encoded.begin(), encoded.end(), image.bytes.begin() + static_cast<std::ptrdiff_t>(head.start));
  image.records.push_back(std::move(record));
}

void add_footer(Image& image, std::uint64_t last_generation) {
  Footer footer{kStore, kSegment, image.records_end, last_generation, image.records.size(), {}, true};
  for (const Record& record : image.records) {
    for (ListedPage page : record.head.pages) {
      page.group = 0;
      footer.pages.push_back(page);
    }
  }
  const std::vector<std::byte> encoded = encode_footer(footer);
  image.bytes.insert(image.bytes.end(), encoded.begin(), encoded.end());
  image.has_footer = true;
}

Image make_image(FuzzInput& input) {
  Image image;
  image.bytes = encode_segment_header({kStore, kSegment, 0, kFirstGeneration});
  std::uint64_t generation = kFirstGeneration;
  for (std::uint64_t left = input.below(6); left > 0; --left) add_record(image, input, generation);
  const std::uint64_t tail = input.below(4);
  if (tail == 1) add_footer(image, generation);
  if (tail == 2) image.bytes.resize(image.bytes.size() + static_cast<std::size_t>(1 + input.below(3)) * kBlockBytes);
  image.whole_bytes = image.bytes.size();
  if (input.below(4) == 0) image.bytes.resize(static_cast<std::size_t>(input.below(image.bytes.size() + 1)));
  // One byte at a time: so no damage can make a right checksum for itself.
  for (std::uint64_t left = input.below(8); left > 0 && !image.bytes.empty(); --left) {
    const std::uint64_t at = input.number<std::uint32_t>() % image.bytes.size();
    image.bytes[static_cast<std::size_t>(at)] ^= static_cast<std::byte>(1 + input.below(255));
    image.damaged.push_back(at);
  }
  return image;
}

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
  const Image image = make_image(input);
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
