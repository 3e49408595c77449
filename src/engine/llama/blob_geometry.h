// SPDX-License-Identifier: Apache-2.0
// What is constant in the sequence blobs of one model with one set of cache settings: layers, row types, row bytes.
//
// A sequence blob (llama_state_seq_get_data_ext) is a chain of parts, each optional:
//
//   full        attention over all positions: one row of K per layer and cell, then one row of V (none with MLA)
//   window      the same for the sliding-window layers; only cells that are still inside of the window
//   recurrent   one row of convolution state and one of recurrent state per recurrent layer, for the last position
//
// A page of an attention part is its rows for some consecutive tokens:
//
//   for each layer: K rows, V rows (token by token); then, if cells have them, the 12 extension bytes of each token
//
// A checkpoint is the recurrent part as it stands in the blob, its position included.
// Threads: values. Cost of all calls: a pass over the layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace larder::llama {

inline constexpr std::uint32_t kBlobLayersMax = 1024;
inline constexpr std::uint64_t kRowBytesMax = std::uint64_t{1} << 30;
inline constexpr std::uint32_t kPageTokensMax = std::uint32_t{1} << 16;
inline constexpr std::uint32_t kWindowTokensMax = kPageTokensMax;
inline constexpr std::size_t kPlainCellBytes = 12;      // position, number of sequences, sequence
inline constexpr std::size_t kCellExtensionBytes = 12;  // M-RoPE's x and y, and the token

// One row of one layer: ggml's number of the type, and the bytes of a row.
struct RowKind {
  std::int32_t type = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const RowKind&, const RowKind&) = default;
};

struct AttentionGeometry {
  std::vector<RowKind> keys;
  std::vector<RowKind> values;       // as many as keys, or none
  bool has_cell_extensions = false;  // kCellExtensionBytes per cell

  // All rows of one token, its extension included.
  [[nodiscard]] std::uint64_t token_bytes() const;
  [[nodiscard]] std::uint64_t page_bytes(std::uint32_t tokens) const { return token_bytes() * tokens; }
  friend bool operator==(const AttentionGeometry&, const AttentionGeometry&) = default;
};

struct RecurrentGeometry {
  std::uint32_t model_layers = 0;  // of the whole model, not of this part
  std::vector<RowKind> conv;       // one per recurrent layer
  std::vector<RowKind> state;      // as many

  // The part with its one cell; without it (of a sequence that has computed nothing).
  [[nodiscard]] std::uint64_t checkpoint_bytes() const;
  [[nodiscard]] std::uint64_t empty_bytes() const;
  friend bool operator==(const RecurrentGeometry&, const RecurrentGeometry&) = default;
};

struct BlobGeometry {
  std::optional<AttentionGeometry> full;
  std::optional<AttentionGeometry> window;
  std::uint32_t window_tokens = 0;  // of the sliding layers, as the model's file has it; 0 without them
  std::optional<RecurrentGeometry> recurrent;
  // Of the attention parts: 1 with kv_unified, else one per sequence of the context, of which a blob fills one. Pages
  // are the same, whatever it is.
  std::uint32_t streams = 1;

  // A blob of the changing parts only is smaller than the whole one, and the model can be rolled back with it.
  [[nodiscard]] bool has_partial_form() const { return window || recurrent; }
  // All but the streams: "full k 2x1:256 v 2x1:256; ...". Geometries that differ in it have different texts.
  [[nodiscard]] std::string to_text() const;
  friend bool operator==(const BlobGeometry&, const BlobGeometry&) = default;
};

}  // namespace larder::llama
