// SPDX-License-Identifier: Apache-2.0
// The page tables of a segment: record heads, footers, trailers.
#include <cstring>
#include <limits>
#include <unordered_map>

#include "storage/file/segment_format.h"
#include "storage/file/segment_frame.h"

namespace larder::file_store {
namespace {

constexpr std::string_view kRecordMagic = "LARDERRC", kFooterMagic = "LARDERFT", kTrailerMagic = "LARDERTR";
// Headers. In all three:
constexpr std::size_t kStoreAt = 24, kSegmentAt = 40;
constexpr std::size_t kStartAt = 48;  // in a trailer: of the footer
// In record and footer, which both end in a table of identities and pages:
constexpr std::size_t kPagesAt = 80, kIdentitiesAt = 84, kHeaderZerosAt = 88;
constexpr std::size_t kFooterSyncedAt = 88, kFooterZerosAt = 92;
constexpr std::size_t kRecordBytesAt = 56, kHeadBytesAt = 64, kSyncedAt = 72;       // record
constexpr std::size_t kFooterBytesAt = 56, kMaxGenerationAt = 64, kRecordsAt = 72;  // footer; the first: trailer, too
constexpr std::size_t kTrailerZerosAt = 64;                                         // trailer
constexpr std::size_t kNamespaceAt = 0, kFingerprintAt = 32, kPoolAt = 64, kIdentityZerosAt = 65;
constexpr std::size_t kKeyAt = 0, kParentAt = 32, kChecksumLowAt = 64, kChecksumHighAt = 72, kGenerationAt = 80;
constexpr std::size_t kOffsetAt = 88, kPayloadBytesAt = 96, kIdentityAt = 100, kGroupAt = 104, kPageZerosAt = 108;

static_assert(kHeaderBytes == kRecordHeaderBytes);

constexpr std::uint64_t table_bytes(std::uint64_t pages, std::uint64_t identities) {
  return kRecordHeaderBytes + identities * kIdentityBytes + pages * kPageBytes;
}

constexpr std::uint64_t alignment_of(std::uint64_t payload_bytes) {
  return payload_bytes >= kBlockPayload ? kBlockBytes : kPayloadAlignment;
}

// The one rule of where payloads go; writer and reader both follow it.
class PayloadPlacer {
 public:
  explicit PayloadPlacer(std::uint64_t head_end) : end_(head_end) {}
  std::uint64_t place(std::uint64_t payload_bytes) {
    const std::uint64_t offset = align_up(end_, alignment_of(payload_bytes));
    end_ = offset + payload_bytes;
    return offset;
  }
  [[nodiscard]] std::uint64_t end() const { return end_; }

 private:
  std::uint64_t end_;
};

// Different identities, in the order in which they came. Neighbours mostly have the same one: that costs one compare.
class IdentityList {
 public:
  // The place of the identity in the list; a new one is added at its end.
  std::uint32_t index_of(const PageIdentity& identity) {
    if (last_ < order_.size() && *order_[last_] == identity) return last_;
    const auto [at, is_new] = places_.try_emplace(identity, static_cast<std::uint32_t>(order_.size()));
    if (is_new) order_.push_back(&at->first);
    last_ = at->second;
    return last_;
  }
  [[nodiscard]] const std::vector<const PageIdentity*>& order() const { return order_; }

 private:
  std::unordered_map<PageIdentity, std::uint32_t, PageIdentityHash> places_;
  std::vector<const PageIdentity*> order_;  // keys of the map, which stay where they are
  std::uint32_t last_ = 0;
};

// A table to be written: the identities, and each page's place among them.
class Table {
 public:
  explicit Table(std::span<const ListedPage> pages) : pages_(pages) {
    indices_.reserve(pages.size());
    for (const ListedPage& page : pages) indices_.push_back(identities_.index_of(page.identity));
  }
  [[nodiscard]] std::uint64_t bytes() const { return table_bytes(pages_.size(), identities_.order().size()); }

  // Counts, identities and pages, into zeros that begin with the header; at least bytes() of them.
  void write(std::byte* header, bool with_groups) const {
    store_le<std::uint32_t>(header + kPagesAt, static_cast<std::uint32_t>(pages_.size()));
    store_le<std::uint32_t>(header + kIdentitiesAt, static_cast<std::uint32_t>(identities_.order().size()));
    std::byte* at = header + kRecordHeaderBytes;
    for (const PageIdentity* identity : identities_.order()) {
      store_digest(at + kNamespaceAt, identity->namespace_digest);
      store_digest(at + kFingerprintAt, identity->layout_fingerprint);
      store_le<std::uint8_t>(at + kPoolAt, static_cast<std::uint8_t>(identity->pool));
      at += kIdentityBytes;
    }
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      write_page(at, pages_[i], indices_[i], with_groups ? pages_[i].group : 0);
      at += kPageBytes;
    }
  }

 private:
  static void write_page(std::byte* at, const ListedPage& page, std::uint32_t identity, std::uint32_t group) {
    store_digest(at + kKeyAt, page.key);
    store_digest(at + kParentAt, page.parent);
    store_le<std::uint64_t>(at + kChecksumLowAt, page.location.checksum.low);
    store_le<std::uint64_t>(at + kChecksumHighAt, page.location.checksum.high);
    store_le<std::uint64_t>(at + kGenerationAt, page.location.generation);
    store_le<std::uint64_t>(at + kOffsetAt, page.location.offset);
    store_le<std::uint32_t>(at + kPayloadBytesAt, page.location.payload_bytes);
    store_le<std::uint32_t>(at + kIdentityAt, identity);
    store_le<std::uint32_t>(at + kGroupAt, group);
  }

  std::span<const ListedPage> pages_;
  IdentityList identities_;
  std::vector<std::uint32_t> indices_;
};

Status read_identities(const std::byte* at, std::uint32_t count, std::vector<PageIdentity>& out) {
  IdentityList seen;
  out.resize(count);
  for (std::uint32_t i = 0; i < count; ++i, at += kIdentityBytes) {
    PageIdentity& identity = out[i];
    load_digest(at + kNamespaceAt, identity.namespace_digest);
    load_digest(at + kFingerprintAt, identity.layout_fingerprint);
    const auto pool = load_le<std::uint8_t>(at + kPoolAt);
    identity.pool = static_cast<PoolName>(pool);
    const bool is_padded = is_zero({at + kIdentityZerosAt, kIdentityBytes - kIdentityZerosAt});
    if (pool >= kPoolNumberCount || !is_padded || seen.index_of(identity) != i) {
      return corrupt("page table: identity " + std::to_string(i) + " is none, or there twice");
    }
  }
  return Status::ok();
}

// All but the identity; its index.
inline std::uint32_t read_page(const std::byte* at, ListedPage& page) {
  load_digest(at + kKeyAt, page.key);
  load_digest(at + kParentAt, page.parent);
  page.location.checksum = {load_le<std::uint64_t>(at + kChecksumLowAt), load_le<std::uint64_t>(at + kChecksumHighAt)};
  page.location.generation = load_le<std::uint64_t>(at + kGenerationAt);
  page.location.offset = load_le<std::uint64_t>(at + kOffsetAt);
  page.location.payload_bytes = load_le<std::uint32_t>(at + kPayloadBytesAt);
  page.group = load_le<std::uint32_t>(at + kGroupAt);
  return load_le<std::uint32_t>(at + kIdentityAt);
}

inline bool are_page_zeros_right(const std::byte* at) {
  return (load_le<std::uint32_t>(at + kPageZerosAt) | load_le<std::uint64_t>(at + kPageZerosAt + 4) |
          load_le<std::uint64_t>(at + kPageZerosAt + 12)) == 0;
}

// The table behind a header whose counts are known to fit the bytes. `is_right` says of each page whether its place,
// group and so on can be; it is inlined, because a footer has millions of pages.
template <class IsRight>
Status read_table(std::span<const std::byte> bytes, SegmentId segment, std::vector<ListedPage>& out,
                  const IsRight& is_right) {
  const auto count = load_le<std::uint32_t>(bytes.data() + kPagesAt);
  std::vector<PageIdentity> identities;
  const std::byte* at = bytes.data() + kRecordHeaderBytes;
  LARDER_RETURN_IF_ERROR(read_identities(at, load_le<std::uint32_t>(bytes.data() + kIdentitiesAt), identities));
  at += identities.size() * kIdentityBytes;
  std::size_t used = 0;  // identities in the order of their first use
  out.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i, at += kPageBytes) {
    ListedPage& page = out.emplace_back();
    const std::uint32_t identity = read_page(at, page);
    const bool is_identity_right = identity <= used && identity < identities.size();
    if (!is_identity_right || !are_page_zeros_right(at) || page.location.offset > kMaxPayloadOffset ||
        !is_right(page)) {
      return corrupt("page table: page " + std::to_string(i) + " is out of place");
    }
    if (identity == used) ++used;
    page.identity = identities[identity];
    page.location.segment = segment;
  }
  return used == identities.size() ? Status::ok() : corrupt("page table: identities without pages");
}

struct Origin {
  StoreId store{};
  SegmentId segment = 0;
  std::uint64_t start = 0;
};

void write_origin(std::byte* header, const Origin& origin) {
  std::memcpy(header + kStoreAt, origin.store.data(), origin.store.size());
  store_le<std::uint64_t>(header + kSegmentAt, origin.segment);
  store_le<std::uint64_t>(header + kStartAt, origin.start);
}

// kCorrupt: no segment number, or a place where nothing can start.
Status read_origin(std::span<const std::byte> header, Origin& origin) {
  std::memcpy(origin.store.data(), header.data() + kStoreAt, origin.store.size());
  const auto segment = load_le<std::uint64_t>(header.data() + kSegmentAt);
  origin.segment = static_cast<SegmentId>(segment);
  origin.start = load_le<std::uint64_t>(header.data() + kStartAt);
  if (segment == 0 || segment > std::numeric_limits<SegmentId>::max()) return corrupt("no segment number");
  if (origin.start < kBlockBytes || origin.start % kBlockBytes != 0) return corrupt("starts at no block");
  return Status::ok();
}

bool is_record_layout_right(std::span<const std::byte> header, std::uint64_t head_bytes) {
  const auto start = load_le<std::uint64_t>(header.data() + kStartAt);
  const auto record_bytes = load_le<std::uint64_t>(header.data() + kRecordBytesAt);
  return load_le<std::uint64_t>(header.data() + kHeadBytesAt) == head_bytes && start <= kMaxPayloadOffset &&
         record_bytes >= head_bytes && record_bytes < kMaxRecordBytes && record_bytes % kBlockBytes == 0 &&
         load_le<std::uint64_t>(header.data() + kSyncedAt) <= start;
}

}  // namespace

RecordLayout lay_out_record(std::span<ListedPage> pages, std::uint64_t start) {
  IdentityList identities;
  for (const ListedPage& page : pages) (void)identities.index_of(page.identity);
  const std::uint64_t head_bytes = align_up(table_bytes(pages.size(), identities.order().size()), kPayloadAlignment);
  PayloadPlacer placer(start + head_bytes);
  for (ListedPage& page : pages) page.location.offset = placer.place(page.location.payload_bytes);
  return {head_bytes, align_up(placer.end() - start, kBlockBytes)};
}

std::vector<std::byte> encode_record_head(const RecordHead& head) {
  const Table table(head.pages);
  std::vector<std::byte> out(static_cast<std::size_t>(align_up(table.bytes(), kPayloadAlignment)));
  write_origin(out.data(), {head.store, head.segment, head.start});
  store_le<std::uint64_t>(out.data() + kRecordBytesAt, head.record_bytes);
  store_le<std::uint64_t>(out.data() + kHeadBytesAt, out.size());
  store_le<std::uint64_t>(out.data() + kSyncedAt, head.synced_bytes);
  table.write(out.data(), true);
  seal_frame(out, kRecordMagic);
  return out;
}

bool is_record_magic(std::span<const std::byte> bytes) { return has_magic(bytes, kRecordMagic); }

Result<std::uint64_t> record_head_bytes(std::span<const std::byte> header) {
  if (header.size() < kRecordHeaderBytes || !is_record_magic(header)) return corrupt("record: no magic");
  header = header.first(kRecordHeaderBytes);
  Origin origin;
  LARDER_RETURN_IF_ERROR(read_origin(header, origin));
  const auto pages = load_le<std::uint32_t>(header.data() + kPagesAt);
  const auto identities = load_le<std::uint32_t>(header.data() + kIdentitiesAt);
  if (pages == 0 || pages > kMaxRecordPages || identities == 0 || identities > pages) {
    return corrupt("record: impossible counts");
  }
  const std::uint64_t head_bytes = align_up(table_bytes(pages, identities), kPayloadAlignment);
  if (!has_known_version(header) || !is_zero(header.subspan(kHeaderZerosAt)) ||
      !is_record_layout_right(header, head_bytes)) {
    return corrupt("record: an impossible header");
  }
  return head_bytes;
}

Result<RecordHead> decode_record_head(std::span<const std::byte> bytes) {
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t head_bytes, record_head_bytes(bytes));
  if (bytes.size() < head_bytes) return corrupt("record: shorter than its head");
  bytes = bytes.first(static_cast<std::size_t>(head_bytes));
  LARDER_RETURN_IF_ERROR(check_frame(bytes, kRecordMagic, "record"));
  Origin origin;
  LARDER_RETURN_IF_ERROR(read_origin(bytes, origin));
  RecordHead head;
  head.store = origin.store;
  head.segment = origin.segment;
  head.start = origin.start;
  head.record_bytes = load_le<std::uint64_t>(bytes.data() + kRecordBytesAt);
  head.synced_bytes = load_le<std::uint64_t>(bytes.data() + kSyncedAt);
  PayloadPlacer placer(head.start + head_bytes);
  std::uint32_t group = 0;
  const auto is_right = [&](const ListedPage& page) {
    const bool is_group_right = page.group == group || (page.group == group + 1 && head.pages.size() > 1);
    group = page.group;
    return is_group_right && page.location.offset == placer.place(page.location.payload_bytes);
  };
  LARDER_RETURN_IF_ERROR(read_table(bytes, head.segment, head.pages, is_right));
  const auto identities = load_le<std::uint32_t>(bytes.data() + kIdentitiesAt);
  const std::uint64_t used = table_bytes(head.pages.size(), identities);
  if (!is_zero(bytes.subspan(static_cast<std::size_t>(used)))) return corrupt("record: padding that is not zero");
  if (align_up(placer.end() - head.start, kBlockBytes) != head.record_bytes) {
    return corrupt("record: its length does not fit its pages");
  }
  return head;
}

std::vector<std::byte> encode_footer(const Footer& footer) {
  const Table table(footer.pages);
  const auto padded = static_cast<std::size_t>(align_up(table.bytes(), kBlockBytes));
  std::vector<std::byte> out(padded + kBlockBytes);
  const Origin origin{footer.store, footer.segment, footer.start};
  write_origin(out.data(), origin);
  store_le<std::uint64_t>(out.data() + kFooterBytesAt, table.bytes());
  store_le<std::uint64_t>(out.data() + kMaxGenerationAt, footer.max_generation);
  store_le<std::uint64_t>(out.data() + kRecordsAt, footer.records);
  store_le<std::uint32_t>(out.data() + kFooterSyncedAt, footer.is_synced ? 1 : 0);
  table.write(out.data(), false);
  seal_frame(std::span(out).first(static_cast<std::size_t>(table.bytes())), kFooterMagic);

  std::byte* const trailer = out.data() + padded;
  write_origin(trailer, origin);
  store_le<std::uint64_t>(trailer + kFooterBytesAt, table.bytes());
  seal_frame({trailer, kHeaderBytes}, kTrailerMagic);
  return out;
}

Result<Trailer> decode_trailer(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return corrupt("trailer: shorter than 128 bytes");
  bytes = bytes.first(kHeaderBytes);
  LARDER_RETURN_IF_ERROR(check_frame(bytes, kTrailerMagic, "trailer"));
  Origin origin;
  LARDER_RETURN_IF_ERROR(read_origin(bytes, origin));
  const auto footer_bytes = load_le<std::uint64_t>(bytes.data() + kFooterBytesAt);
  if (footer_bytes < kRecordHeaderBytes || !is_zero(bytes.subspan(kTrailerZerosAt))) {
    return corrupt("trailer: an impossible length, or bytes that must be zero are not");
  }
  return Trailer{origin.store, origin.segment, origin.start, footer_bytes};
}

Result<Footer> decode_footer(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordHeaderBytes || !has_magic(bytes, kFooterMagic)) return corrupt("footer: no magic");
  const auto pages = load_le<std::uint32_t>(bytes.data() + kPagesAt);
  const auto identities = load_le<std::uint32_t>(bytes.data() + kIdentitiesAt);
  const std::uint64_t length = table_bytes(pages, identities);  // below 2^40
  if (length != load_le<std::uint64_t>(bytes.data() + kFooterBytesAt) || length > bytes.size() || identities > pages) {
    return corrupt("footer: impossible counts");
  }
  bytes = bytes.first(static_cast<std::size_t>(length));
  LARDER_RETURN_IF_ERROR(check_frame(bytes, kFooterMagic, "footer"));
  const auto synced = load_le<std::uint32_t>(bytes.data() + kFooterSyncedAt);
  if (synced > 1 || !is_zero(bytes.subspan(kFooterZerosAt, kRecordHeaderBytes - kFooterZerosAt))) {
    return corrupt("footer: bytes that must be zero are not");
  }
  Origin origin;
  LARDER_RETURN_IF_ERROR(read_origin(bytes, origin));
  Footer footer;
  footer.store = origin.store;
  footer.segment = origin.segment;
  footer.start = origin.start;
  footer.max_generation = load_le<std::uint64_t>(bytes.data() + kMaxGenerationAt);
  footer.records = load_le<std::uint64_t>(bytes.data() + kRecordsAt);
  footer.is_synced = synced == 1;
  const auto is_right = [&footer](const ListedPage& page) {
    const PageLocation& at = page.location;
    return page.group == 0 && at.offset >= kBlockBytes && at.offset % alignment_of(at.payload_bytes) == 0 &&
           at.offset + at.payload_bytes <= footer.start && at.generation <= footer.max_generation;
  };
  LARDER_RETURN_IF_ERROR(read_table(bytes, footer.segment, footer.pages, is_right));
  return footer;
}

}  // namespace larder::file_store
