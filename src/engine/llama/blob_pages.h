// SPDX-License-Identifier: Apache-2.0
// Cuts sequence blobs into pages and checkpoints, and puts blobs together from them.
//
// Rules that the parts obey (what is wrong here is silently wrong in the engine):
//   - pages of the full part restore with a checkpoint of the position where they end, and with no other one
//   - the window part is needed for [end - window_tokens, end), and its pages end where the others end
//   - a blob for a scratch sequence has an empty window and an empty recurrent part; what is missing is restored last,
//     by a partial blob, or the sliding layers hold each cell twice
// A window of a multiple of page_size tokens is kept in pages of page_size; any other one as one page of window_tokens
// rows per restore point, whose rows of positions below 0 are zeros.
//
// Errors: kInvalidArgument: the caller asked for what is not in the blob, or gave pages of a wrong size; the message
// has the numbers. kCorrupt: a checkpoint that does not belong to this model or position; with M-RoPE, a page in a
// wrong place. Without it pages are only rows: that they are the right ones, in order, is for their keys to know.
// Threads: pure.
// Cost: one memcpy per layer, page and run of cells; nothing is allocated by the size of the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/llama/blob_geometry.h"
#include "engine/llama/sequence_blob.h"

namespace larder::llama {

using PageBytes = std::span<const std::byte>;

// How the window part is kept: `pages` pages of `page_tokens` are one window.
struct WindowPages {
  std::uint32_t page_tokens = 0, pages = 0;
};
// Precondition: page_size and window_tokens are above 0.
[[nodiscard]] WindowPages window_pages(std::uint32_t page_size, std::uint32_t window_tokens);

// Writes the page of positions [end - tokens, end) of `part` to `page` (geometry.page_bytes(tokens)). Rows of positions
// below 0 become zeros; all others must be in the part.
[[nodiscard]] Status cut_page(const AttentionPart& part, const AttentionGeometry& geometry, std::uint32_t end,
                              std::uint32_t tokens, std::span<std::byte> page);

// A checkpoint is blob.recurrent->bytes, for a sequence of blob.recurrent->position tokens.

struct BlobContents {
  BlobForm form;
  std::uint32_t sequence = 0;         // in the header and the cells; llama.cpp reads over it
  std::uint32_t end = 0;              // tokens in the restored sequence
  std::uint32_t page_size = 0;        // of the full part
  std::span<const PageBytes> full;    // pages that end at `end`, in order; none: an empty part
  WindowPages window_kind;            // of this model
  std::span<const PageBytes> window;  // the last pages, in order; none: an empty part
  // Cells of zeros before the window, as far as there are positions. The engine masks them; llama-server takes a
  // restored slot only if the oldest cell is older than its window: 1.
  std::uint32_t masked_window_cells = 0;
  PageBytes checkpoint;  // none: an empty part
};

// Size of the blob; kInvalidArgument or kCorrupt if the contents do not fit the geometry or each other.
[[nodiscard]] Result<std::size_t> composed_bytes(const BlobGeometry& geometry, const BlobContents& contents);

// `into` has exactly composed_bytes().
[[nodiscard]] Status compose_blob(const BlobGeometry& geometry, const BlobContents& contents,
                                  std::span<std::byte> into);

}  // namespace larder::llama
