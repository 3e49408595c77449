// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/blob_geometry.h"

#include <fmt/format.h>

#include <iterator>

namespace larder::llama {
namespace {

// cell count, s_trans, layer count; per row kind: type, row bytes; per cell: position, number of sequences.
constexpr std::uint64_t kRecurrentHeadBytes = 12, kStateRowKindBytes = 12, kRecurrentCellBytes = 8;

std::uint64_t sum_of(const std::vector<RowKind>& rows) {
  std::uint64_t bytes = 0;
  for (const RowKind& row : rows) bytes += row.bytes;
  return bytes;
}

// Runs of equal layers are written once: "24x1:512".
void append_rows(std::string& text, std::string_view name, const std::vector<RowKind>& rows) {
  fmt::format_to(std::back_inserter(text), " {}", name);
  for (std::size_t i = 0; i < rows.size();) {
    std::size_t end = i;
    while (end < rows.size() && rows[end] == rows[i]) ++end;
    fmt::format_to(std::back_inserter(text), " {}x{}:{}", end - i, rows[i].type, rows[i].bytes);
    i = end;
  }
}

void append_attention(std::string& text, std::string_view name, const AttentionGeometry& part) {
  fmt::format_to(std::back_inserter(text), "{}{}", text.empty() ? "" : "; ", name);
  append_rows(text, "k", part.keys);
  append_rows(text, "v", part.values);
  if (part.has_cell_extensions) text += " ext";
}

}  // namespace

std::uint64_t AttentionGeometry::token_bytes() const {
  return sum_of(keys) + sum_of(values) + (has_cell_extensions ? kCellExtensionBytes : 0);
}

std::uint64_t RecurrentGeometry::empty_bytes() const {
  return kRecurrentHeadBytes + kStateRowKindBytes * (conv.size() + state.size());
}

std::uint64_t RecurrentGeometry::checkpoint_bytes() const {
  return empty_bytes() + kRecurrentCellBytes + sum_of(conv) + sum_of(state);
}

std::string BlobGeometry::to_text() const {
  std::string text;
  if (full) append_attention(text, "full", *full);
  if (window) append_attention(text, fmt::format("window {}", window_tokens), *window);
  if (recurrent) {
    fmt::format_to(std::back_inserter(text), "{}recurrent of {}", text.empty() ? "" : "; ", recurrent->model_layers);
    append_rows(text, "conv", recurrent->conv);
    append_rows(text, "state", recurrent->state);
  }
  return text;
}

}  // namespace larder::llama
