// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/attention_core.h"

#include <algorithm>
#include <array>

namespace larder::reference {
namespace {

using RowPointers = std::array<const std::byte*, kTile>;

// Scratch of one attention task.
struct Tiles {
  Tiles(const HeadGroup& group, float* scratch)
      : key_stride(round_up(group.key_dim, kLanes)),
        value_stride(round_up(group.value_dim, kLanes)),
        rows(scratch),
        keys(rows + kTile * key_stride),
        values(keys + kTile * key_stride),
        state(values + kTile * value_stride) {}

  std::size_t key_stride;
  std::size_t value_stride;
  float* rows;    // [kTile][key_stride] keys as stored
  float* keys;    // [key_dim][kTile]
  float* values;  // [kTile][value_stride]
  float* state;   // running softmax
};

// Running softmax of `count` query tokens.
struct Softmax {
  Softmax(const HeadGroup& group, std::size_t count, float* memory)
      : stride(round_up(group.value_dim, kLanes)),
        maximum(memory),
        sum(memory + count * group.heads),
        output(sum + count * group.heads) {
    std::fill_n(maximum, count * group.heads, kNoScore);
    std::fill_n(sum, count * group.heads * (1 + stride), 0.0f);
  }

  void write(const HeadGroup& group, std::size_t token, float* to) const {
    for (std::size_t h = 0; h < group.heads; ++h) {
      const std::size_t at = token * group.heads + h;
      const float scale = 1.0f / sum[at];
      for (std::size_t i = 0; i < group.value_dim; ++i)
        to[h * group.output_stride + i] = output[at * stride + i] * scale;
    }
  }

  std::size_t stride;
  float* maximum;
  float* sum;
  float* output;
};

// latent: the rows are both keys and values.
AttendArgs attend_args(const HeadGroup& group, const Tiles& tiles, const Softmax& softmax, std::size_t token,
                       bool latent) {
  AttendArgs args;
  args.query_stride = group.query_stride;
  args.heads = group.heads;
  args.key_dim = group.key_dim;
  args.keys = tiles.keys;
  args.values = latent ? tiles.rows : tiles.values;
  args.value_stride = latent ? tiles.key_stride : tiles.value_stride;
  args.value_dim = tiles.value_stride;
  args.maximum = softmax.maximum + token * group.heads;
  args.sum = softmax.sum + token * group.heads;
  args.output = softmax.output + token * group.heads * softmax.stride;
  args.output_stride = softmax.stride;
  return args;
}

void load_keys(const Kernels& kernels, const HeadGroup& group, const RowPointers& rows, Dtype dtype, Tiles& tiles) {
  kernels.load_rows(rows.data(), dtype, group.key_dim, tiles.rows, tiles.key_stride);
  kernels.transpose_tile(tiles.rows, tiles.key_stride, group.key_dim, tiles.keys);
}

}  // namespace

std::size_t attention_scratch_floats(const HeadGroup& group) {
  const std::size_t key_stride = round_up(group.key_dim, kLanes);
  const std::size_t value_stride = round_up(group.value_dim, kLanes);
  return kTile * (2 * key_stride + value_stride) + kQueryTile * group.heads * (2 + value_stride);
}

void attend_run(const Kernels& kernels, const HeadGroup& group, const PagedKeys& keys, const QueryRun& run,
                float* scratch) {
  Tiles tiles(group, scratch);
  const Softmax softmax(group, run.count, tiles.state);
  const bool latent = keys.keys == keys.values;
  const std::uint64_t first = window_start(run.position, run.window);
  const std::uint64_t last = run.position + run.count;
  for (std::uint64_t tile = first / kTile * kTile; tile < last; tile += kTile) {
    // Only rows that some query of the run sees are touched: pages outside of the window may be gone.
    const std::uint64_t from = std::max(tile, first);
    const std::uint64_t to = std::min(tile + kTile, last);
    RowPointers rows{};
    gather_rows(*keys.keys, keys.slots, from, to, keys.key_offset, rows.data() + (from - tile));
    load_keys(kernels, group, rows, keys.keys->dtype(), tiles);
    if (!latent) {
      gather_rows(*keys.values, keys.slots, from, to, keys.value_offset, rows.data() + (from - tile));
      kernels.load_rows(rows.data(), keys.values->dtype(), group.value_dim, tiles.values, tiles.value_stride);
    }
    for (std::size_t i = 0; i < run.count; ++i) {
      const std::uint64_t position = run.position + i;
      const std::uint64_t visible = std::max(tile, window_start(position, run.window));
      const std::uint64_t end = std::min(tile + kTile, position + 1);
      if (visible >= end) continue;
      AttendArgs args = attend_args(group, tiles, softmax, i, latent);
      args.queries = run.queries + i * run.query_row;
      args.first = static_cast<std::size_t>(visible - tile);
      args.last = static_cast<std::size_t>(end - tile);
      kernels.attend(args);
    }
  }
  for (std::size_t i = 0; i < run.count; ++i) softmax.write(group, i, run.output + i * run.output_row);
}

void attend_rows(const Kernels& kernels, const HeadGroup& group, std::span<const std::byte* const> rows, Dtype dtype,
                 const float* queries, float* output, float* scratch) {
  Tiles tiles(group, scratch);
  const Softmax softmax(group, 1, tiles.state);
  for (std::size_t at = 0; at < rows.size(); at += kTile) {
    RowPointers pointers{};
    const std::size_t count = std::min(kTile, rows.size() - at);
    std::copy_n(rows.data() + at, count, pointers.data());
    load_keys(kernels, group, pointers, dtype, tiles);
    AttendArgs args = attend_args(group, tiles, softmax, 0, true);
    args.queries = queries;
    args.last = count;
    kernels.attend(args);
  }
  softmax.write(group, 0, output);
}

}  // namespace larder::reference
