// SPDX-License-Identifier: Apache-2.0
// The inner loops of the reference engine, compiled once per instruction set.
//
// Contract: all tables compute the same bits. Lanes never change a result: an output element is summed in the order of
// its inputs (or in four interleaved partial sums, combined as (0+1)+(2+3)), and a reduction over lanes always uses 16
// partial sums and one fixed tree, however wide the registers are.
//
// Buffers: rows handed to a kernel may be read up to the next multiple of 16 floats where a comment says "padded".
// Threads: pure. Which table runs is chosen once, by best_kernels().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/pool_spec.h"

namespace larder::reference {

inline constexpr std::size_t kLanes = 16;  // partial sums of a reduction; padding unit of rows
inline constexpr std::size_t kPanel = 32;  // columns of a weight panel
inline constexpr std::size_t kTile = 64;   // tokens of an attention tile, aligned to absolute positions

[[nodiscard]] constexpr std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

// Weights [inputs][outputs], stored as panels [outputs / kPanel][inputs][kPanel], zero padded.
struct MatrixView {
  const float* panels = nullptr;
  std::size_t inputs = 0;
  std::size_t outputs = 0;
};

// One query token, several heads that share the keys, against one tile of kTile keys.
struct AttendArgs {
  const float* queries = nullptr;  // [heads][query_stride], already scaled
  std::size_t query_stride = 0;
  std::size_t heads = 0;
  std::size_t key_dim = 0;
  const float* keys = nullptr;    // [key_dim][kTile], transposed
  const float* values = nullptr;  // [kTile][value_stride]; all finite
  std::size_t value_stride = 0;
  std::size_t value_dim = 0;            // padded
  std::size_t first = 0, last = kTile;  // visible keys of the tile: [first, last), not empty
  // Running softmax, per head; start with maximum kNoScore, the rest 0.
  float* maximum = nullptr;  // [heads]
  float* sum = nullptr;      // [heads]
  float* output = nullptr;   // [heads][output_stride], padded; divide by sum at the end
  std::size_t output_stride = 0;
};
inline constexpr float kNoScore = -3.0e38f;

// One token of a linear recurrence on a state [keys][values] of one head.
struct RecurrenceArgs {
  float* state = nullptr;  // [keys][value_stride], padded
  std::size_t keys = 0;
  std::size_t value_stride = 0;  // multiple of kLanes
  const float* write = nullptr;  // [keys]: k (delta rule) or B (Mamba-2)
  const float* read = nullptr;   // [keys]: q or C
  const float* value = nullptr;  // [value_stride]: v or dt * x, padded
  float decay = 1.0f;
  float beta = 1.0f;        // delta rule only
  bool round_bf16 = false;  // the pool keeps bf16: round after every token
  float* output = nullptr;  // [value_stride]
};

struct Kernels {
  const char* name;
  // y[r][0, round_up(outputs, kPanel)) = x[r] * w, summed over inputs in ascending order.
  void (*matmul)(const float* x, std::size_t x_stride, std::size_t rows, const MatrixView& w, float* y,
                 std::size_t y_stride);
  // y = x / sqrt(mean(x^2) + 1e-6) * weight. In place is fine. n needs no padding.
  void (*rms_norm)(const float* x, const float* weight, float* y, std::size_t n);
  // sqrt(sum(x^2) + 1e-6) of n elements.
  float (*norm2)(const float* x, std::size_t n);
  // y = silu(gate) * up.
  void (*silu_mul)(const float* gate, const float* up, float* y, std::size_t n);
  // x += y.
  void (*add)(float* x, const float* y, std::size_t n);
  // y[c] = sum over taps, ascending, of inputs[tap][c] * weights[tap * stride + c]; then SiLU if asked for.
  void (*conv)(const float* const* inputs, const float* weights, std::size_t stride, std::size_t taps, bool silu,
               float* y, std::size_t channels);
  void (*attend)(const AttendArgs& args);
  // scores[lane] = sum over heads, ascending, of head_weight * relu(q . k), for kTile keys.
  void (*index_scores)(const float* queries, std::size_t query_stride, std::size_t heads, std::size_t dim,
                       const float* head_weights, const float* keys, float* scores);
  void (*delta_rule)(const RecurrenceArgs& args);
  void (*state_space)(const RecurrenceArgs& args);
  // rows[i] points at `dim` elements of dtype (f32 or bf16), or is null: a row of zeros. out: [kTile][stride],
  // stride a multiple of kLanes; columns from dim on are left as they are.
  void (*load_rows)(const std::byte* const* rows, Dtype dtype, std::size_t dim, float* out, std::size_t stride);
  // out[d][i] = in[i][d] for kTile rows, padded.
  void (*transpose_tile)(const float* in, std::size_t stride, std::size_t dim, float* out);
};

// The widest table that this CPU runs.
[[nodiscard]] const Kernels& best_kernels();
// Every table that this CPU runs, narrowest first. For tests: all give the same bits.
[[nodiscard]] std::span<const Kernels* const> supported_kernels();

}  // namespace larder::reference
