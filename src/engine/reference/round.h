// SPDX-License-Identifier: Apache-2.0
// One pass of the engine over at most kRoundRows tokens of a batch, and the buffers that its layers share.
//
// A step longer than a round is cut into several; the exactness contract makes that invisible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/reference/kernels.h"
#include "engine/reference/reference_engine.h"

namespace larder::reference {

inline constexpr std::size_t kRoundRows = 1024;  // tokens; bounds the buffers
inline constexpr std::size_t kRowTile = 32;      // rows of one matrix task
inline constexpr std::size_t kQueryTile = 32;    // query tokens that share a tile of keys

// A run of tokens of one sequence.
struct Segment {
  const SequenceStep* step = nullptr;
  std::size_t index = 0;      // of the step in the batch
  std::uint64_t start = 0;    // position of the first token
  std::size_t first_row = 0;  // rows [first_row, first_row + count) of the round
  std::size_t count = 0;
  bool failed = false;     // its gate failed: its pages must not be written any more
  bool ends_step = false;  // the last token of the step is here

  [[nodiscard]] std::uint64_t end() const { return start + count; }
};

struct RowTile {
  std::size_t first = 0;
  std::size_t count = 0;
};

// Query tokens of one segment; first counts from the segment's first row.
struct QueryTile {
  std::size_t segment = 0;
  std::size_t first = 0;
  std::size_t count = 0;
};

// cos and sin of position * frequency for the rows of a round: [rows][dim / 2].
struct RopeTable {
  std::size_t dim = 0;
  std::vector<double> frequencies;
  std::vector<float> cos;
  std::vector<float> sin;
};

struct Round {
  const Kernels* kernels = nullptr;
  std::size_t page_size = 0;
  std::vector<Segment> segments;
  std::vector<std::uint32_t> segment_of;  // row -> segment
  std::vector<RowTile> row_tiles;
  std::vector<QueryTile> query_tiles;  // of kQueryTile
  std::size_t rows = 0;

  // [rows][stride]; a mixer's strides are its own, the buffers fit the largest.
  float* x = nullptr;  // residual stream
  std::size_t x_stride = 0;
  float* projected = nullptr;
  float* aux = nullptr;
  float* mixed = nullptr;       // output of the mixer, before its output matrix
  std::vector<float*> scratch;  // per worker
  std::vector<RopeTable> ropes;

  [[nodiscard]] std::uint64_t position(std::size_t row) const {
    const Segment& segment = segments[segment_of[row]];
    return segment.start + (row - segment.first_row);
  }
  // Rotates the dim elements at `values`: pairs (i, i + dim/2), by the row's position.
  void rotate(std::size_t rope, std::size_t row, float* values) const {
    const RopeTable& table = ropes[rope];
    const std::size_t half = table.dim / 2;
    const float* c = table.cos.data() + row * half;
    const float* s = table.sin.data() + row * half;
    for (std::size_t i = 0; i < half; ++i) {
      const float a = values[i];
      const float b = values[i + half];
      values[i] = a * c[i] - b * s[i];
      values[i + half] = a * s[i] + b * c[i];
    }
  }
  // The index that rotate() takes, creating the table if need be. Only while the engine is built.
  [[nodiscard]] std::size_t rope_index(std::size_t dim);
  // Fills the tables for the rows of this round.
  void compute_ropes();
  // Derives segment_of and the tiles from segments.
  void lay_out();
};

}  // namespace larder::reference
