// SPDX-License-Identifier: Apache-2.0
// Structures of a file store: segment header, record head, footer, trailer, CLEARED, FORMAT, file names
// (storage/file/segment_format.h).
//
// Fed: which structure, whether to seal it (so that what lies behind the checksum is reached), and its bytes.
// Checked: refusals are kCorrupt or kUnsupported and say why. What decodes is encoded to the same bytes again. Pages
// of a record lie where lay_out_record() would lay them, in ascending order, within the record; those of a footer
// between header and footer.
#include "fuzz/fuzz_input.h"
#include "storage/file/segment_format.h"
#include "storage/file/segment_frame.h"

namespace larder::fuzz {
namespace {

using namespace larder::file_store;

constexpr std::size_t kMagicBytes = 8, kTrailerFromEnd = kBlockBytes;

void check_refusal(const Status& status, std::string_view what) {
  fuzz_check(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported,
             std::string(what) + ": refused with " + status.to_string());
  check_explains(status, what);
}

std::string magic_of(std::span<const std::byte> encoded) {
  return {reinterpret_cast<const char*>(encoded.data()), kMagicBytes};
}

void seal(std::span<std::byte> bytes, std::span<const std::byte> like) {
  if (bytes.size() >= kFrameBytes) seal_frame(bytes, magic_of(like));
}

// decode(bytes), and if that takes them: encode gives the same bytes as far as it goes, and `inspect` has its say.
template <class Decode, class Encode, class Inspect>
void check_structure(std::string_view what, std::span<const std::byte> bytes, Decode decode, Encode encode,
                     Inspect inspect) {
  const auto decoded = decode(bytes);
  if (!decoded.is_ok()) return check_refusal(decoded.status(), what);
  const std::vector<std::byte> again = encode(*decoded);
  const std::size_t common = std::min(again.size(), bytes.size());
  fuzz_check(are_equal(std::span(again).first(common), bytes.first(common)), std::string(what) + ": other bytes again");
  inspect(*decoded);
}

void check_header(std::span<std::byte> bytes, bool sealed) {
  if (sealed && bytes.size() >= kHeaderBytes) seal(bytes.first(kHeaderBytes), encode_segment_header({}));
  check_structure("segment header", bytes.first(std::min(bytes.size(), kHeaderBytes)), decode_segment_header,
                  encode_segment_header,
                  [](const SegmentHeader& header) { fuzz_check(header.segment != 0, "segment 0"); });
}

void check_record(std::span<std::byte> bytes, bool sealed) {
  static const std::vector<std::byte> kAnyHead = [] {
    RecordHead head;
    head.pages.resize(1);
    return encode_record_head(head);
  }();
  if (sealed && bytes.size() >= kRecordHeaderBytes) {
    // Magic and version first: they are asked for before the length is known.
    seal(bytes, kAnyHead);
    const Result<std::uint64_t> length = record_head_bytes(bytes);
    if (length.is_ok() && *length <= bytes.size()) seal(bytes.first(static_cast<std::size_t>(*length)), kAnyHead);
  }
  const Result<std::uint64_t> length = record_head_bytes(bytes);
  if (!length.is_ok()) check_refusal(length.status(), "record_head_bytes");
  const Result<RecordHead> decoded = decode_record_head(bytes);
  fuzz_check(!decoded.is_ok() || length.is_ok(), "a record is taken whose length is refused");
  check_structure("record head", bytes, decode_record_head, encode_record_head, [&](const RecordHead& head) {
    fuzz_check(!head.pages.empty() && head.pages.size() <= kMaxRecordPages, "a record of an impossible size");
    fuzz_check(head.synced_bytes <= head.start && head.record_bytes < kMaxRecordBytes, "an impossible promise");
    std::vector<ListedPage> laid = head.pages;
    const RecordLayout layout = lay_out_record(laid, head.start);
    fuzz_check(layout.head_bytes == *length && layout.record_bytes == head.record_bytes, "not as it would be laid out");
    std::uint64_t end = head.start + *length;
    for (std::size_t i = 0; i < laid.size(); ++i) {
      const file_store::PageLocation& at = head.pages[i].location;
      fuzz_check(at == laid[i].location && at.segment == head.segment, "a page lies elsewhere than it would be laid");
      fuzz_check(at.offset >= end, "payloads overlap");
      end = at.offset + at.payload_bytes;
    }
    fuzz_check(end <= head.start + head.record_bytes, "a payload behind its record");
  });
}

void check_footer(std::span<std::byte> bytes, bool sealed) {
  constexpr std::size_t kLengthAt = 56;
  if (sealed && bytes.size() >= kRecordHeaderBytes) {
    const auto length = load_le<std::uint64_t>(bytes.data() + kLengthAt);
    if (length >= kRecordHeaderBytes && length <= bytes.size()) {
      seal(bytes.first(static_cast<std::size_t>(length)), encode_footer({}));
    }
  }
  const std::uint64_t length = bytes.size() < kRecordHeaderBytes ? 0 : load_le<std::uint64_t>(bytes.data() + kLengthAt);
  const auto encode = [&](const Footer& footer) {
    std::vector<std::byte> again = encode_footer(footer);
    fuzz_check(length <= again.size() && again.size() % kBlockBytes == 0, "a footer of another length");
    const Result<Trailer> trailer = decode_trailer(std::span(again).last(kTrailerFromEnd).first(kHeaderBytes));
    fuzz_check(trailer.is_ok() && trailer->footer_start == footer.start && trailer->footer_bytes == length,
               "the trailer names another footer");
    again.resize(static_cast<std::size_t>(length));
    return again;
  };
  check_structure("footer", bytes, decode_footer, encode, [](const Footer& footer) {
    for (const ListedPage& page : footer.pages) {
      const file_store::PageLocation& at = page.location;
      fuzz_check(at.offset >= kBlockBytes && at.offset + at.payload_bytes <= footer.start && at.offset % 64 == 0,
                 "a page outside of the segment");
      fuzz_check(at.generation <= footer.max_generation && at.segment == footer.segment, "a page of another segment");
    }
  });
}

void check_trailer(std::span<std::byte> bytes, bool sealed) {
  if (sealed && bytes.size() >= kHeaderBytes) {
    const std::vector<std::byte> any_footer = encode_footer({});
    seal(bytes.first(kHeaderBytes), std::span(any_footer).last(kTrailerFromEnd));
  }
  // encode_footer() makes trailers, and only for its own footer: an empty one has always the same length.
  const Result<Trailer> trailer = decode_trailer(bytes);
  if (!trailer.is_ok()) return check_refusal(trailer.status(), "trailer");
  fuzz_check(trailer->segment != 0 && trailer->footer_bytes >= kRecordHeaderBytes, "an impossible trailer");
  Footer footer;
  footer.store = trailer->store;
  footer.segment = trailer->segment;
  footer.start = trailer->footer_start;
  if (trailer->footer_bytes != kRecordHeaderBytes) return;
  const std::vector<std::byte> again = encode_footer(footer);
  fuzz_check(are_equal(std::span(again).last(kTrailerFromEnd).first(kHeaderBytes), bytes.first(kHeaderBytes)),
             "trailer: other bytes again");
}

void check_cleared(std::span<std::byte> bytes, bool sealed) {
  if (sealed) seal(bytes, encode_cleared({}));
  const auto encode = [&](const std::vector<Cleared>& list) {
    std::vector<std::byte> again = encode_cleared(list);
    fuzz_check(again.size() == bytes.size(), "CLEARED: another length");
    return again;
  };
  check_structure("CLEARED", bytes, decode_cleared, encode, [](const std::vector<Cleared>& list) {
    fuzz_check(list.size() <= kMaxCleared, "too many clearings");
    for (const Cleared& entry : list) {
      fuzz_check(is_in(list, entry.namespace_digest, 0) || entry.generation == 0, "an entry that clears nothing");
    }
  });
}

void check_texts(std::string_view text) {
  const Result<VolumeFormat> format = parse_format_text(text);
  if (format.is_ok()) {
    fuzz_check(format_text(*format) == text && format->volume < kMaxVolumes, "FORMAT: another text again");
  } else {
    check_refusal(format.status(), "FORMAT");
  }
  const std::optional<SegmentId> segment = parse_segment_name(text);
  if (segment) {
    fuzz_check(segment_name(*segment) == text && *segment != 0 && is_store_name(text), "another name again");
  }
}

void run(FuzzInput input) {
  const std::uint64_t structure = input.below(6);
  const bool sealed = input.flag();
  std::vector<std::byte> bytes = copy_of(input.rest());
  switch (structure) {
    case 0: return check_header(bytes, sealed);
    case 1: return check_record(bytes, sealed);
    case 2: return check_footer(bytes, sealed);
    case 3: return check_trailer(bytes, sealed);
    case 4: return check_cleared(bytes, sealed);
    default: return check_texts({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
