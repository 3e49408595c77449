// SPDX-License-Identifier: Apache-2.0
// Reads llama.cpp's sequence blobs (llama_state_seq_get_data_ext, and what follows the tokens of a slot file).
//
// Picture (little-endian):
//
//   [u32 magic, i32 sequence]                                         only if BlobForm::has_header
//   full, window: u32 streams; per stream u32 cells, which one of them has, and behind it:
//                 per cell:  i32 position, u32 sequences = 1, [i32 x, i32 y, i32 token], i32 sequence
//                 u32 v_trans = 0, u32 layers
//                 per layer: i32 type, u64 row bytes, K rows of all cells;  then the same for V
//   recurrent:    u32 cells <= 1; per cell: i32 position, u32 sequences = 0;  u32 s_trans = 0, u32 layers of the model
//                 per recurrent layer: i32 type, u64 row bytes, row;  then the same for the recurrent state
//
// The format has no version, no checksum and no lengths, so everything in it is checked, to the last byte: against a
// known geometry, or, for a model's first blob, by the one way in which it can be taken apart. Rows are not looked at:
// who keeps them protects them by a checksum of their own.
//
// Cells stand in the order of the engine's memory, which is not that of positions once memory has been used again;
// `runs` put them in order. A part holds each position of [begin, end) once, or it is refused.
// Refused as well: cells in several streams, transposed V (switch flash attention on), cells of images, shared cells,
// an indexer's part.
//
// Errors: kCorrupt: the bytes are not such a blob. kUnsupported: they are, and of a kind that cannot be cut into pages.
// Threads: pure. Lifetime: a SequenceBlob points into the bytes. Cost: a pass over the cells' heads, not over rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/llama/blob_geometry.h"

namespace larder::llama {

inline constexpr std::uint32_t kBlobMagic = 0xaf143cd8;

struct BlobForm {
  bool has_header = true;   // get_data and set_data have it, slot files do not
  bool is_partial = false;  // PARTIAL_ONLY: without the full part. No difference for a model that has only that.
};

// `count` cells from `cell` on that hold the positions from `position` on.
struct CellRun {
  std::uint32_t position = 0, cell = 0, count = 0;
};

struct AttentionPart {
  std::uint32_t begin = 0, end = 0;  // positions; equal if there are no cells
  std::vector<CellRun> runs;         // by position, without gaps
  const std::byte* cells = nullptr;
  std::vector<const std::byte*> keys, values;  // per layer: the row of cell 0
};

struct RecurrentPart {
  std::span<const std::byte> bytes;       // the whole part: a checkpoint, if there is a position
  std::optional<std::uint32_t> position;  // restores a sequence of this many tokens: the last one's position + 1
};

struct SequenceBlob {
  std::optional<AttentionPart> full, window;
  std::optional<RecurrentPart> recurrent;
};

[[nodiscard]] Result<SequenceBlob> parse_sequence_blob(std::span<const std::byte> bytes, const BlobGeometry& geometry,
                                                       BlobForm form);

// The geometry of a model from one of its whole blobs, of two tokens or more. `window_tokens` is what the model's file
// says about its sliding window: 0 if it has none, and then a second attention part is refused.
[[nodiscard]] Result<BlobGeometry> learn_geometry(std::span<const std::byte> bytes, bool has_header,
                                                  std::uint32_t window_tokens);

// Whether a cell's extension is that of text at `position`: x = y = position with M-RoPE, zeros without.
[[nodiscard]] bool is_text_cell(const std::byte* extension, std::uint32_t position);

// A recurrent part by itself, as it is stored: kCorrupt unless it is whole, has this geometry, and restores a sequence
// of `position` tokens.
[[nodiscard]] Status check_checkpoint(std::span<const std::byte> bytes, const RecurrentGeometry& geometry,
                                      std::uint32_t position);

}  // namespace larder::llama
