// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/blob_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/bytes.h"

namespace larder::llama {
namespace {

constexpr std::size_t kHeaderBytes = 8;      // magic, sequence
constexpr std::size_t kCountBytes = 4;       // streams, cells of a stream
constexpr std::size_t kLayersBytes = 8;      // v_trans, layers
constexpr std::size_t kRowKindBytes = 12;    // type, row bytes
constexpr std::size_t kExtensionInCell = 8;  // behind position and number of sequences

std::size_t cell_bytes(const AttentionGeometry& geometry) {
  return kPlainCellBytes + (geometry.has_cell_extensions ? kCellExtensionBytes : 0);
}

// Part of a blob from pages: which rows, and where they come from.
struct Source {
  std::span<const PageBytes> pages;
  std::uint32_t page_tokens = 0;
  std::uint32_t zeros = 0;  // cells without a source, before the others
  std::uint32_t begin = 0;  // position of the first cell
  std::uint32_t cells = 0;  // the last of them ends the last page
};

class Writer {
 public:
  explicit Writer(std::span<std::byte> into) : into_(into) {}
  template <std::unsigned_integral T>
  void number(T value) {
    store_le(take(sizeof value), value);
  }
  void row_kind(const RowKind& kind) {
    number(static_cast<std::uint32_t>(kind.type));
    number(kind.bytes);
  }
  void bytes(PageBytes from) {
    if (!from.empty()) std::memcpy(take(from.size()), from.data(), from.size());
  }
  // The caller fills it. Precondition: composed_bytes() counted it.
  std::byte* take(std::size_t count) {
    std::byte* at = into_.data() + at_;
    at_ += count;
    return at;
  }

 private:
  const std::span<std::byte> into_;
  std::size_t at_ = 0;
};

// Calls visit(page, first row in it, cell, count) for the rows of each page, in order.
template <class Visit>
void for_each_page(const Source& source, Visit visit) {
  const std::uint32_t copied = source.cells - source.zeros;
  const auto all = static_cast<std::uint32_t>(source.pages.size() * source.page_tokens);
  std::uint32_t cell = source.zeros, skip = all - copied;
  for (const PageBytes& page : source.pages) {
    const std::uint32_t first = std::min(skip, source.page_tokens);
    skip -= first;
    const std::uint32_t count = source.page_tokens - first;
    if (count > 0) visit(page, first, cell, count);
    cell += count;
  }
}

// The rows of one layer, which in a page begin at `offset`.
void write_rows(Writer& out, const Source& source, const RowKind& kind, std::uint64_t offset) {
  out.row_kind(kind);
  const auto row = static_cast<std::size_t>(kind.bytes);
  std::byte* rows = out.take(source.cells * row);
  std::memset(rows, 0, source.zeros * row);
  for_each_page(source, [&](PageBytes page, std::uint32_t first, std::uint32_t cell, std::uint32_t count) {
    std::memcpy(rows + cell * row, page.data() + offset + first * row, count * row);
  });
}

void write_cells(Writer& out, const Source& source, const AttentionGeometry& geometry, std::uint32_t sequence) {
  const std::size_t stride = cell_bytes(geometry);
  std::byte* cells = out.take(source.cells * stride);
  for (std::uint32_t i = 0; i < source.cells; ++i) {
    std::byte* cell = cells + i * stride;
    const std::uint32_t position = source.begin + i;
    store_le<std::uint32_t>(cell, position);
    store_le<std::uint32_t>(cell + 4, 1);
    store_le<std::uint32_t>(cell + stride - 4, sequence);
    if (geometry.has_cell_extensions && i < source.zeros) {  // a token of text that is not known
      store_le<std::uint32_t>(cell + kExtensionInCell, position);
      store_le<std::uint32_t>(cell + kExtensionInCell + 4, position);
      store_le<std::uint32_t>(cell + kExtensionInCell + 8, std::numeric_limits<std::uint32_t>::max());
    }
  }
  if (!geometry.has_cell_extensions) return;
  const auto rows_per_token = static_cast<std::size_t>(geometry.token_bytes() - kCellExtensionBytes);
  for_each_page(source, [&](PageBytes page, std::uint32_t first, std::uint32_t cell, std::uint32_t count) {
    const std::byte* from = page.data() + rows_per_token * source.page_tokens + first * kCellExtensionBytes;
    for (std::uint32_t i = 0; i < count; ++i) {
      std::memcpy(cells + (cell + i) * stride + kExtensionInCell, from + i * kCellExtensionBytes, kCellExtensionBytes);
    }
  });
}

std::uint64_t attention_bytes(const AttentionGeometry& geometry, std::uint32_t cells, std::uint32_t streams) {
  const std::uint64_t counts = kCountBytes * (std::uint64_t{streams} + 1);
  if (cells == 0) return counts;
  const std::uint64_t rows = geometry.token_bytes() - (geometry.has_cell_extensions ? kCellExtensionBytes : 0);
  return counts + kLayersBytes + kRowKindBytes * (geometry.keys.size() + geometry.values.size()) +
         (rows + cell_bytes(geometry)) * cells;
}

void write_stream(Writer& out, const Source& source, const AttentionGeometry& geometry, std::uint32_t sequence) {
  out.number(source.cells);
  if (source.cells == 0) return;
  write_cells(out, source, geometry, sequence);
  out.number(std::uint32_t{0});
  out.number(static_cast<std::uint32_t>(geometry.keys.size()));
  // In a page, V of a layer follows its K.
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < geometry.keys.size(); ++i) {
    write_rows(out, source, geometry.keys[i], offset);
    offset += geometry.keys[i].bytes * source.page_tokens;
    if (!geometry.values.empty()) offset += geometry.values[i].bytes * source.page_tokens;
  }
  offset = 0;
  for (std::size_t i = 0; i < geometry.values.size(); ++i) {
    offset += geometry.keys[i].bytes * source.page_tokens;
    write_rows(out, source, geometry.values[i], offset);
    offset += geometry.values[i].bytes * source.page_tokens;
  }
}

// The first stream has the cells: an engine reads them into that of the sequence that it restores.
void write_attention(Writer& out, const Source& source, const AttentionGeometry& geometry, std::uint32_t streams,
                     std::uint32_t sequence) {
  out.number(streams);
  write_stream(out, source, geometry, sequence);
  for (std::uint32_t i = 1; i < streams; ++i) out.number(std::uint32_t{0});
}

void write_recurrent(Writer& out, const RecurrentGeometry& geometry, PageBytes checkpoint) {
  if (!checkpoint.empty()) return out.bytes(checkpoint);
  out.number(std::uint32_t{0});  // cells
  out.number(std::uint32_t{0});  // s_trans
  out.number(geometry.model_layers);
  for (const auto* rows : {&geometry.conv, &geometry.state}) {
    for (const RowKind& kind : *rows) out.row_kind(kind);
  }
}

Status check_pages(std::span<const PageBytes> pages, std::uint64_t bytes, std::uint32_t tokens, std::string_view part) {
  if (tokens == 0 || tokens > kPageTokensMax) {
    return invalid_argument(fmt::format("pages of the {} part have {} tokens: 1 to {}", part, tokens, kPageTokensMax));
  }
  for (const PageBytes& page : pages) {
    if (page.size() == bytes) continue;
    return invalid_argument(
        fmt::format("a page of the {} part has {} bytes, and must have {}", part, page.size(), bytes));
  }
  return Status::ok();
}

// With M-RoPE a cell says where it is: a page in a wrong place, or of an image, is noticed.
Status check_extensions(const Source& source, const AttentionGeometry& geometry) {
  Status status;
  if (!geometry.has_cell_extensions) return status;
  const auto rows_per_token = static_cast<std::size_t>(geometry.token_bytes() - kCellExtensionBytes);
  for_each_page(source, [&](PageBytes page, std::uint32_t first, std::uint32_t cell, std::uint32_t count) {
    const std::byte* extensions = page.data() + rows_per_token * source.page_tokens;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::byte* extension = extensions + (first + i) * kCellExtensionBytes;
      if (is_text_cell(extension, source.begin + cell + i)) continue;
      status = corrupt(fmt::format("a page has no cell of text at position {}", source.begin + cell + i));
    }
  });
  return status;
}

Result<Source> full_source(const AttentionGeometry& geometry, const BlobContents& contents) {
  Source source;
  if (contents.full.empty()) return source;
  LARDER_RETURN_IF_ERROR(
      check_pages(contents.full, geometry.page_bytes(contents.page_size), contents.page_size, "full"));
  const std::uint64_t cells = std::uint64_t{contents.full.size()} * contents.page_size;
  if (cells > contents.end) {
    return invalid_argument(fmt::format("{} pages of {} tokens do not end at position {}", contents.full.size(),
                                        contents.page_size, contents.end));
  }
  source.pages = contents.full;
  source.page_tokens = contents.page_size;
  source.cells = static_cast<std::uint32_t>(cells);
  source.begin = contents.end - source.cells;
  return source;
}

Result<Source> window_source(const AttentionGeometry& geometry, std::uint32_t window_tokens,
                             const BlobContents& contents) {
  Source source;
  if (contents.window.empty()) return source;
  const std::uint32_t tokens = contents.window_kind.page_tokens;
  LARDER_RETURN_IF_ERROR(check_pages(contents.window, geometry.page_bytes(tokens), tokens, "window"));
  const std::uint32_t needed = std::min(window_tokens, contents.end);
  const std::uint64_t given = std::uint64_t{contents.window.size()} * tokens;
  if (given < needed || given > std::uint64_t{window_tokens} + kPageTokensMax) {
    return invalid_argument(fmt::format("{} pages of the window have {} tokens, and {} are needed at position {}",
                                        contents.window.size(), given, needed, contents.end));
  }
  source.pages = contents.window;
  source.page_tokens = tokens;
  source.zeros = std::min(contents.masked_window_cells, contents.end - needed);
  source.cells = needed + source.zeros;
  source.begin = contents.end - source.cells;
  return source;
}

// All that the writer needs, checked.
struct Plan {
  Source full, window;
  bool has_full = false;
  std::size_t bytes = 0;
};

Result<Plan> plan_of(const BlobGeometry& geometry, const BlobContents& contents) {
  if (contents.end >= std::numeric_limits<std::int32_t>::max()) {
    return invalid_argument(fmt::format("a sequence of {} tokens", contents.end));
  }
  if ((!geometry.full && !contents.full.empty()) || (!geometry.window && !contents.window.empty()) ||
      (!geometry.recurrent && !contents.checkpoint.empty())) {
    return invalid_argument("contents for a part that this model does not have");
  }
  Plan plan;
  plan.has_full = geometry.full && !(contents.form.is_partial && geometry.has_partial_form());
  std::uint64_t bytes = contents.form.has_header ? kHeaderBytes : 0;
  if (plan.has_full) {
    const Result<Source> source = full_source(*geometry.full, contents);
    if (!source) return source.status();
    plan.full = *source;
    LARDER_RETURN_IF_ERROR(check_extensions(plan.full, *geometry.full));
    bytes += attention_bytes(*geometry.full, plan.full.cells, geometry.streams);
  } else if (!contents.full.empty()) {
    return invalid_argument("pages of the full part in a partial blob");
  }
  if (geometry.window) {
    const Result<Source> source = window_source(*geometry.window, geometry.window_tokens, contents);
    if (!source) return source.status();
    plan.window = *source;
    LARDER_RETURN_IF_ERROR(check_extensions(plan.window, *geometry.window));
    bytes += attention_bytes(*geometry.window, plan.window.cells, geometry.streams);
  }
  if (geometry.recurrent) {
    const bool is_empty = contents.checkpoint.empty();
    if (!is_empty) LARDER_RETURN_IF_ERROR(check_checkpoint(contents.checkpoint, *geometry.recurrent, contents.end));
    bytes += is_empty ? geometry.recurrent->empty_bytes() : contents.checkpoint.size();
  }
  plan.bytes = static_cast<std::size_t>(bytes);
  return plan;
}

// Writes `count` rows from row `to` of a page on, which holds the first one of them at `from`.
void copy_layers(const AttentionPart& part, const AttentionGeometry& geometry, const CellRun& run, std::uint32_t to,
                 std::uint32_t tokens, std::byte* page) {
  const auto copy = [&](const RowKind& kind, const std::byte* rows) {
    const auto row = static_cast<std::size_t>(kind.bytes);
    std::memcpy(page + to * row, rows + run.cell * row, run.count * row);
    page += tokens * row;
  };
  for (std::size_t i = 0; i < geometry.keys.size(); ++i) {
    copy(geometry.keys[i], part.keys[i]);
    if (!geometry.values.empty()) copy(geometry.values[i], part.values[i]);
  }
  if (!geometry.has_cell_extensions) return;
  const std::size_t stride = cell_bytes(geometry);
  for (std::uint32_t i = 0; i < run.count; ++i) {
    std::memcpy(page + (to + i) * kCellExtensionBytes, part.cells + (run.cell + i) * stride + kExtensionInCell,
                kCellExtensionBytes);
  }
}

}  // namespace

WindowPages window_pages(std::uint32_t page_size, std::uint32_t window_tokens) {
  if (window_tokens % page_size == 0) return {page_size, window_tokens / page_size};
  return {window_tokens, 1};
}

Status cut_page(const AttentionPart& part, const AttentionGeometry& geometry, std::uint32_t end, std::uint32_t tokens,
                std::span<std::byte> page) {
  if (tokens == 0 || tokens > kPageTokensMax || page.size() != geometry.page_bytes(tokens)) {
    return invalid_argument(fmt::format("a page of {} tokens has {} bytes, not {}", tokens,
                                        geometry.page_bytes(std::min(tokens, kPageTokensMax)), page.size()));
  }
  const std::uint32_t begin = end - std::min(tokens, end);
  if (begin == end || begin < part.begin || end > part.end || part.keys.size() != geometry.keys.size() ||
      part.values.size() != geometry.values.size()) {
    return invalid_argument(
        fmt::format("positions [{}, {}) are asked for, and [{}, {}) are there", begin, end, part.begin, part.end));
  }
  const std::uint32_t zeros = tokens - (end - begin);
  if (zeros > 0) std::memset(page.data(), 0, page.size());
  auto run = std::ranges::upper_bound(part.runs, begin, {}, &CellRun::position) - 1;
  for (std::uint32_t at = begin; at < end; ++run) {
    const std::uint32_t skip = at - run->position;
    const CellRun piece{at, run->cell + skip, std::min(run->count - skip, end - at)};
    copy_layers(part, geometry, piece, zeros + (at - begin), tokens, page.data());
    at += piece.count;
  }
  return Status::ok();
}

Result<std::size_t> composed_bytes(const BlobGeometry& geometry, const BlobContents& contents) {
  const Result<Plan> plan = plan_of(geometry, contents);
  if (!plan) return plan.status();
  return plan->bytes;
}

Status compose_blob(const BlobGeometry& geometry, const BlobContents& contents, std::span<std::byte> into) {
  const Result<Plan> plan = plan_of(geometry, contents);
  if (!plan) return plan.status();
  if (into.size() != plan->bytes) {
    return invalid_argument(fmt::format("the blob has {} bytes, the room for it {}", plan->bytes, into.size()));
  }
  Writer out(into);
  if (contents.form.has_header) {
    out.number(kBlobMagic);
    out.number(contents.sequence);
  }
  if (plan->has_full) write_attention(out, plan->full, *geometry.full, geometry.streams, contents.sequence);
  if (geometry.window) write_attention(out, plan->window, *geometry.window, geometry.streams, contents.sequence);
  if (geometry.recurrent) write_recurrent(out, *geometry.recurrent, contents.checkpoint);
  return Status::ok();
}

}  // namespace larder::llama
