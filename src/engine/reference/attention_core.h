// SPDX-License-Identifier: Apache-2.0
// Softmax attention over paged keys, as a pure function of positions.
//
// The running softmax goes through tiles of kTile keys. Tiles of a contiguous range are aligned to absolute positions;
// tiles of a chosen list are aligned to the list, which is itself a function of the position. So the order of every sum
// is fixed by the query's position, whatever the chunk it came in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/reference/paged.h"
#include "engine/reference/round.h"

namespace larder::reference {

// Standard deviation of attention scores. So high that a head looks at few tokens: then every token is the choice of
// some head at some later position, and a changed prefix reaches the logits (reference_engine_test.cc measures it).
inline constexpr double kAttentionScoreGain = 6.0;

// Heads that share their keys, for one query token: queries [heads][query_stride], scaled; output
// [heads][output_stride].
struct HeadGroup {
  std::size_t heads = 0;
  std::size_t key_dim = 0;
  std::size_t value_dim = 0;
  std::size_t query_stride = 0;
  std::size_t output_stride = 0;
};

// Keys and values of a sequence. MLA keeps one latent for both: then `values` is the same plane.
struct PagedKeys {
  const Plane* keys = nullptr;
  const Plane* values = nullptr;
  std::size_t key_offset = 0;  // bytes into a row: the key head
  std::size_t value_offset = 0;
  std::span<const DeviceSlot> slots;
};

// Query tokens at consecutive positions; token i: queries + i * query_row, output + i * output_row.
struct QueryRun {
  const float* queries = nullptr;
  std::size_t query_row = 0;
  float* output = nullptr;
  std::size_t output_row = 0;
  std::uint64_t position = 0;  // of token 0
  std::size_t count = 0;       // <= kQueryTile
  std::uint64_t window = 0;    // a query at p sees (p - window, p]; 0: [0, p]
};

// Floats that attend_run / attend_rows need.
[[nodiscard]] std::size_t attention_scratch_floats(const HeadGroup& group);

void attend_run(const Kernels& kernels, const HeadGroup& group, const PagedKeys& keys, const QueryRun& run,
                float* scratch);

// One token against `rows` (keys whose first value_dim elements are the values).
void attend_rows(const Kernels& kernels, const HeadGroup& group, std::span<const std::byte* const> rows, Dtype dtype,
                 const float* queries, float* output, float* scratch);

// First key that a query at `position` sees.
[[nodiscard]] constexpr std::uint64_t window_start(std::uint64_t position, std::uint64_t window) {
  return window == 0 || position < window ? 0 : position + 1 - window;
}

}  // namespace larder::reference
