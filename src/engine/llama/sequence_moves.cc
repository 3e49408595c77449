// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/sequence_moves.h"

#include <fmt/format.h>

#include <utility>

namespace larder::llama {
namespace {

using Bytes = std::vector<std::byte>;

Status load_composed(SequenceHost& host, const BlobGeometry& geometry, const BlobContents& contents,
                     std::uint32_t sequence) {
  const Result<std::size_t> size = composed_bytes(geometry, contents);
  if (!size) return size.status();
  Bytes blob(*size);
  LARDER_RETURN_IF_ERROR(compose_blob(geometry, contents, blob));
  return host.load(sequence, blob, contents.form.is_partial);
}

}  // namespace

Result<SequenceExport> SequenceExport::take(SequenceHost& host, const BlobGeometry& geometry, std::uint32_t sequence,
                                            std::uint32_t scratch, std::uint32_t begin, std::uint32_t end) {
  SequenceExport out(geometry, begin, end);
  if (geometry.full) {
    host.share(sequence, scratch, begin, end);
    Result<Bytes> whole = host.save(scratch, false);
    host.clear(scratch);
    if (!whole) return whole.status();
    out.whole_bytes_ = std::move(*whole);
  }
  if (geometry.window || !geometry.full) {
    Result<Bytes> partial = host.save(sequence, true);
    if (!partial) return partial.status();
    out.partial_bytes_ = std::move(*partial);
  }
  LARDER_RETURN_IF_ERROR(out.parse());
  return out;
}

Status SequenceExport::parse() {
  if (!whole_bytes_.empty()) {
    auto blob = parse_sequence_blob(whole_bytes_, *geometry_, {});
    if (!blob) return blob.status();
    whole_ = std::move(*blob);
    if (whole_.full->begin != begin_ || whole_.full->end != end_) {
      return corrupt(fmt::format("positions [{}, {}) were exported as [{}, {})", begin_, end_, whole_.full->begin,
                                 whole_.full->end));
    }
  }
  if (!partial_bytes_.empty()) {
    auto blob = parse_sequence_blob(partial_bytes_, *geometry_, {.is_partial = true});
    if (!blob) return blob.status();
    partial_ = std::move(*blob);
    if (partial_.window && partial_.window->end != end_) {
      return corrupt(fmt::format("the window of position {} ends at {}", end_, partial_.window->end));
    }
  }
  const auto& recurrent = partial_.recurrent ? partial_.recurrent : whole_.recurrent;
  if (recurrent && recurrent->position != end_) {
    return corrupt(fmt::format("the state of position {} is of {}", end_, recurrent->position.value_or(0)));
  }
  return Status::ok();
}

Status SequenceExport::full_page(std::uint32_t page_end, std::uint32_t tokens, std::span<std::byte> page) const {
  return cut_page(*whole_.full, *geometry_->full, page_end, tokens, page);
}

Status SequenceExport::window_page(std::uint32_t page_end, std::uint32_t tokens, std::span<std::byte> page) const {
  return cut_page(*partial_.window, *geometry_->window, page_end, tokens, page);
}

PageBytes SequenceExport::checkpoint() const {
  const auto& recurrent = partial_.recurrent ? partial_.recurrent : whole_.recurrent;
  return recurrent ? recurrent->bytes : PageBytes{};
}

Status restore_sequence(SequenceHost& host, const BlobGeometry& geometry, const RestoreParts& parts,
                        std::uint32_t sequence, std::uint32_t scratch) {
  if ((geometry.window && parts.window.empty()) || (geometry.recurrent && parts.checkpoint.empty())) {
    return invalid_argument(fmt::format("no window, or no checkpoint, of position {} is given", parts.end));
  }
  if (geometry.full && !parts.full.empty()) {
    BlobContents pages;
    pages.end = parts.end;
    pages.page_size = parts.page_size;
    pages.full = parts.full;
    const auto tokens = static_cast<std::uint32_t>(parts.full.size() * parts.page_size);
    const Status status = load_composed(host, geometry, pages, scratch);
    if (status.is_ok()) host.share(scratch, sequence, parts.end - tokens, parts.end);
    host.clear(scratch);
    LARDER_RETURN_IF_ERROR(status);
  }
  if (!geometry.has_partial_form()) return Status::ok();
  BlobContents rest;
  rest.form.is_partial = true;
  rest.end = parts.end;
  rest.window_kind = parts.window_kind;
  rest.window = parts.window;
  rest.checkpoint = parts.checkpoint;
  return load_composed(host, geometry, rest, sequence);
}

}  // namespace larder::llama
