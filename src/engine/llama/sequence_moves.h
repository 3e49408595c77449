// SPDX-License-Identifier: Apache-2.0
// Takes sequences out of an engine and puts them back, by the rules that were found to be exact (self_probe.h proves
// them for a model before it is served). What is not done in this way is silently wrong, or kills the process.
//
// Rules of restoring a sequence of k pages, of which q are shared with another sequence of the engine (q may be 0):
//   1. share(donor, sequence, 0, q), by the caller
//   2. load a blob of pages [q, k) with empty tails into a scratch sequence; share(scratch, sequence, q, k); clear it
//   3. load checkpoint and window of k as a partial blob into the sequence, last of all
// A model of recurrent layers only needs 3; one of full attention only 1 and 2.
// Rules of exporting from position q to k, where the sequence must stand just now (the recurrent state is that of now):
//   1. share(sequence, scratch, q, k); save the scratch sequence; clear it: pages of [q, k), and the checkpoint of k
//   2. save the sequence as a partial blob: the window of k (the scratch sequence has none of it before q)
//
// Threads: the engine's; a SequenceExport may then be read by any. Cost: of an export the bytes of [q, k) and of one
// checkpoint, copied once; of a restore the same, twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/llama/blob_geometry.h"
#include "engine/llama/blob_pages.h"
#include "engine/llama/sequence_blob.h"
#include "engine/llama/sequence_host.h"

namespace larder::llama {

// What a sequence of `end` tokens has from `begin` on, outside of the engine.
class SequenceExport {
 public:
  SequenceExport(SequenceExport&&) = default;  // what points into its bytes still does; of a copy it would not
  SequenceExport& operator=(SequenceExport&&) = default;

  // Preconditions: the sequence holds exactly `end` tokens (or more, where full attention is all), begin < end, the
  // scratch sequence is empty (and is again). kCorrupt: the engine's blobs are not those of this geometry, or of other
  // positions.
  [[nodiscard]] static Result<SequenceExport> take(SequenceHost& host, const BlobGeometry& geometry,
                                                   std::uint32_t sequence, std::uint32_t scratch, std::uint32_t begin,
                                                   std::uint32_t end);

  [[nodiscard]] std::uint32_t begin() const { return begin_; }
  [[nodiscard]] std::uint32_t end() const { return end_; }
  // Writes rows of positions [page_end - tokens, page_end), as cut_page does. Preconditions: the model has the part.
  [[nodiscard]] Status full_page(std::uint32_t page_end, std::uint32_t tokens, std::span<std::byte> page) const;
  [[nodiscard]] Status window_page(std::uint32_t page_end, std::uint32_t tokens, std::span<std::byte> page) const;
  // Of `end`; empty without recurrent layers. Lives as long as this.
  [[nodiscard]] PageBytes checkpoint() const;

 private:
  SequenceExport(const BlobGeometry& geometry, std::uint32_t begin, std::uint32_t end)
      : geometry_(&geometry), begin_(begin), end_(end) {}
  [[nodiscard]] Status parse();

  const BlobGeometry* geometry_;  // outlives this
  std::uint32_t begin_, end_;
  std::vector<std::byte> whole_bytes_, partial_bytes_;  // either may be empty
  SequenceBlob whole_, partial_;                        // point into them
};

// What is restored from. Pages end at `end`; window and checkpoint are those of `end`.
struct RestoreParts {
  std::uint32_t end = 0, page_size = 0;
  std::span<const PageBytes> full;
  WindowPages window_kind;
  std::span<const PageBytes> window;
  PageBytes checkpoint;
};

// Rules 2 and 3. `sequence` holds what rule 1 shared, or nothing; `scratch` is empty, before and after. After an error
// the sequence is to be cleared.
[[nodiscard]] Status restore_sequence(SequenceHost& host, const BlobGeometry& geometry, const RestoreParts& parts,
                                      std::uint32_t sequence, std::uint32_t scratch);

}  // namespace larder::llama
