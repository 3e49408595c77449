// SPDX-License-Identifier: Apache-2.0
// Body of one kernel table; included once by each kernels_<isa>.cc. See kernels.h for what the functions promise.
//
// LARDER_KERNEL_WIDTH floats make one native register. Elementwise work and sums over inputs go register by register;
// reductions over lanes always go through Lanes16, so that every width adds in the same order.
//
// Why pragmas and not -m flags per file: inline functions of the standard headers must stay plain x86-64 (one
// definition rule), so the headers come first and the target starts after them. It is not popped: templates are
// instantiated at the end of the file.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/reference/kernels.h"

#if defined(__x86_64__) && defined(__clang__)
#if LARDER_KERNEL_WIDTH == 16
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl"))), apply_to = function)
#elif LARDER_KERNEL_WIDTH == 8
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#endif
#elif defined(__x86_64__)
#if LARDER_KERNEL_WIDTH == 16
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
#elif LARDER_KERNEL_WIDTH == 8
#pragma GCC target("avx2")
#endif
#endif
#if !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#pragma GCC optimize("O3")  // also in debug builds: a checked model must still run in seconds
#endif

namespace larder::reference {

extern const Kernels LARDER_KERNEL_TABLE;

namespace {

#define LARDER_INLINE inline __attribute__((always_inline))

constexpr std::size_t kWidth = LARDER_KERNEL_WIDTH;
constexpr std::size_t kRegisters = kLanes / kWidth;      // registers per 16 lanes
constexpr std::size_t kRowBlock = kWidth == 16 ? 8 : 4;  // rows that share one load of the weights

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef std::int32_t IntVec __attribute__((vector_size(kWidth * 4)));

LARDER_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
LARDER_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
LARDER_INLINE Vec splat(float x) { return x - Vec{}; }  // "- 0" folds away, "+ 0" would not: -0 + 0 is +0
LARDER_INLINE Vec select(IntVec mask, Vec a, Vec b) { return mask ? a : b; }
LARDER_INLINE Vec max_of(Vec a, Vec b) { return a > b ? a : b; }

struct Lanes16 {
  Vec v[kRegisters];
};

LARDER_INLINE Lanes16 zero_lanes() {
  Lanes16 z;
  for (auto& v : z.v) v = Vec{};
  return z;
}

LARDER_INLINE Lanes16 load_lanes(const float* p) {
  Lanes16 out;
  for (std::size_t i = 0; i < kRegisters; ++i) out.v[i] = load(p + i * kWidth);
  return out;
}

// n < 16 elements; the rest are zeros.
LARDER_INLINE Lanes16 load_partial(const float* p, std::size_t n) {
  float buffer[kLanes] = {};
  std::memcpy(buffer, p, n * sizeof(float));
  return load_lanes(buffer);
}

LARDER_INLINE void store_partial(float* p, const Lanes16& v, std::size_t n) {
  float buffer[kLanes];
  for (std::size_t i = 0; i < kRegisters; ++i) store(buffer + i * kWidth, v.v[i]);
  std::memcpy(p, buffer, n * sizeof(float));
}

typedef float Four __attribute__((vector_size(16)));
LARDER_INLINE Four load_four(const float* p) {
  Four v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The one reduction tree: lanes i and i+8, then i and i+4, i and i+2, 0 and 1.
LARDER_INLINE float sum_lanes(const Lanes16& v) {
  float a[kLanes];
  for (std::size_t i = 0; i < kRegisters; ++i) store(a + i * kWidth, v.v[i]);
  const Four four = (load_four(a) + load_four(a + 8)) + (load_four(a + 4) + load_four(a + 12));
  return (four[0] + four[2]) + (four[1] + four[3]);
}

LARDER_INLINE float max_lanes(const Lanes16& v) {
  float a[kLanes];
  for (std::size_t i = 0; i < kRegisters; ++i) store(a + i * kWidth, v.v[i]);
  const Four x = load_four(a), y = load_four(a + 4), z = load_four(a + 8), w = load_four(a + 12);
  const Four xy = x > y ? x : y, zw = z > w ? z : w;
  const Four four = xy > zw ? xy : zw;
  const float low = four[0] > four[1] ? four[0] : four[1], high = four[2] > four[3] ? four[2] : four[3];
  return low > high ? low : high;
}

// e^x for x <= 88, relative error 2e-7; 0 below -87.3 (Cephes).
LARDER_INLINE Vec exp_bounded(Vec x) {
  const IntVec too_small = x < splat(-87.3f);
  x = max_of(x, splat(-87.3f));
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (x * splat(1.44269504088896341f) + magic) - magic;
  Vec r = x - n * splat(0.693359375f);
  r = r - n * splat(-2.12194440e-4f);
  Vec y = splat(1.9875691500e-4f);
  y = y * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * (r * r) + r + splat(1.0f);
  const IntVec exponent = (__builtin_convertvector(n, IntVec) + 127) << 23;
  return select(too_small, Vec{}, y * (Vec)exponent);
}

LARDER_INLINE Vec silu_vec(Vec x) {
  const Vec negative = -x;
  return x / (splat(1.0f) + exp_bounded(select(negative > splat(88.0f), splat(88.0f), negative)));
}

// Round to bf16 and back.
LARDER_INLINE Vec round_bf16_vec(Vec x) {
  const IntVec bits = (IntVec)x;
  return (Vec)((bits + 0x7fff + ((bits >> 16) & 1)) & (std::int32_t)0xffff0000);
}

template <std::size_t Rows>
LARDER_INLINE void matmul_panel(const float* x, std::size_t x_stride, std::size_t inputs, const float* panel, float* y,
                                std::size_t y_stride) {
  constexpr std::size_t kColumns = 2;
  for (std::size_t c = 0; c < kPanel; c += kColumns * kWidth) {
    Vec sum[Rows][kColumns];
    for (std::size_t r = 0; r < Rows; ++r) sum[r][0] = sum[r][1] = Vec{};
    for (std::size_t k = 0; k < inputs; ++k) {
      const Vec w0 = load(panel + k * kPanel + c);
      const Vec w1 = load(panel + k * kPanel + c + kWidth);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < Rows; ++r) {
        const Vec in = splat(x[r * x_stride + k]);
        sum[r][0] = sum[r][0] + in * w0;
        sum[r][1] = sum[r][1] + in * w1;
      }
    }
    for (std::size_t r = 0; r < Rows; ++r) {
      store(y + r * y_stride + c, sum[r][0]);
      store(y + r * y_stride + c + kWidth, sum[r][1]);
    }
  }
}

template <std::size_t Rows>
void matmul_rows(const float* x, std::size_t x_stride, const MatrixView& w, float* y, std::size_t y_stride) {
  for (std::size_t column = 0; column < w.outputs; column += kPanel) {
    matmul_panel<Rows>(x, x_stride, w.inputs, w.panels + column * w.inputs, y + column, y_stride);
  }
}

template <std::size_t Rows>
void matmul_rest(const float* x, std::size_t x_stride, std::size_t rows, const MatrixView& w, float* y,
                 std::size_t y_stride) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return matmul_rows<Rows>(x, x_stride, w, y, y_stride);
    matmul_rest<Rows - 1>(x, x_stride, rows, w, y, y_stride);
  }
}

void matmul(const float* x, std::size_t x_stride, std::size_t rows, const MatrixView& w, float* y,
            std::size_t y_stride) {
  while (rows >= kRowBlock) {
    matmul_rows<kRowBlock>(x, x_stride, w, y, y_stride);
    x += kRowBlock * x_stride;
    y += kRowBlock * y_stride;
    rows -= kRowBlock;
  }
  matmul_rest<kRowBlock - 1>(x, x_stride, rows, w, y, y_stride);
}

LARDER_INLINE float sum_squares(const float* x, std::size_t n) {
  Lanes16 sum = zero_lanes();
  const auto add_squares = [&](const Lanes16& part) __attribute__((always_inline)) {
    for (std::size_t i = 0; i < kRegisters; ++i) sum.v[i] = sum.v[i] + part.v[i] * part.v[i];
  };
  std::size_t at = 0;
  for (; at + kLanes <= n; at += kLanes) add_squares(load_lanes(x + at));
  if (at < n) add_squares(load_partial(x + at, n - at));
  return sum_lanes(sum);
}

// Functors, not lambdas: a lambda without captures gets a plain function too, whose signature the target changes.
struct ScaleOp {
  Vec scale;
  LARDER_INLINE Vec operator()(Vec a, Vec weight) const { return a * scale * weight; }
};
struct SiluMulOp {
  LARDER_INLINE Vec operator()(Vec gate, Vec up) const { return silu_vec(gate) * up; }
};
struct AddOp {
  LARDER_INLINE Vec operator()(Vec a, Vec b) const { return a + b; }
};

// Applies `op` to 16 lanes at a time of two inputs; handles the tail.
template <class Op>
LARDER_INLINE void map2(const float* a, const float* b, float* y, std::size_t n, Op op) {
  std::size_t at = 0;
  for (; at + kWidth <= n; at += kWidth) store(y + at, op(load(a + at), load(b + at)));
  if (at == n) return;
  const Lanes16 left = load_partial(a + at, n - at);
  const Lanes16 right = load_partial(b + at, n - at);
  Lanes16 out = zero_lanes();
  out.v[0] = op(left.v[0], right.v[0]);
  store_partial(y + at, out, n - at);
}

void rms_norm(const float* x, const float* weight, float* y, std::size_t n) {
  const float mean = sum_squares(x, n) / static_cast<float>(n);
  map2(x, weight, y, n, ScaleOp{splat(1.0f / std::sqrt(mean + 1e-6f))});
}

float norm2(const float* x, std::size_t n) { return std::sqrt(sum_squares(x, n) + 1e-6f); }

void silu_mul(const float* gate, const float* up, float* y, std::size_t n) { map2(gate, up, y, n, SiluMulOp{}); }

void add(float* x, const float* y, std::size_t n) { map2(x, y, x, n, AddOp{}); }

void conv(const float* const* inputs, const float* weights, std::size_t stride, std::size_t taps, bool silu, float* y,
          std::size_t channels) {
  std::size_t at = 0;
  for (; at + kWidth <= channels; at += kWidth) {
    Vec sum{};
    for (std::size_t t = 0; t < taps; ++t) sum = sum + load(inputs[t] + at) * load(weights + t * stride + at);
    store(y + at, silu ? silu_vec(sum) : sum);
  }
  if (at == channels) return;
  Lanes16 out = zero_lanes();
  for (std::size_t t = 0; t < taps; ++t) {
    const Lanes16 in = load_partial(inputs[t] + at, channels - at);
    const Lanes16 w = load_partial(weights + t * stride + at, channels - at);
    out.v[0] = out.v[0] + in.v[0] * w.v[0];
  }
  if (silu) out.v[0] = silu_vec(out.v[0]);
  store_partial(y + at, out, channels - at);
}

// Scores of kTile keys for `Heads` queries; lanes are keys.
template <std::size_t Heads>
LARDER_INLINE void score_tile(const float* queries, std::size_t query_stride, std::size_t dim, const float* keys,
                              float (&scores)[Heads][kTile]) {
  constexpr std::size_t kGroup = kWidth == 16 ? 4 : 2;  // registers of keys at a time
  for (std::size_t at = 0; at < kTile; at += kGroup * kWidth) {
    Vec sum[Heads][kGroup];
    for (std::size_t h = 0; h < Heads; ++h)
      for (auto& s : sum[h]) s = Vec{};
    for (std::size_t d = 0; d < dim; ++d) {
      Vec k[kGroup];
      for (std::size_t i = 0; i < kGroup; ++i) k[i] = load(keys + d * kTile + at + i * kWidth);
#pragma GCC unroll 4
      for (std::size_t h = 0; h < Heads; ++h) {
        const Vec q = splat(queries[h * query_stride + d]);
        for (std::size_t i = 0; i < kGroup; ++i) sum[h][i] = sum[h][i] + q * k[i];
      }
    }
    for (std::size_t h = 0; h < Heads; ++h) {
      for (std::size_t i = 0; i < kGroup; ++i) store(&scores[h][at + i * kWidth], sum[h][i]);
    }
  }
}

LARDER_INLINE void mask_scores(float (&scores)[kTile], std::size_t first, std::size_t last) {
  for (std::size_t i = 0; i < first; ++i) scores[i] = kNoScore;
  for (std::size_t i = last; i < kTile; ++i) scores[i] = kNoScore;
}

// Turns scores into weights exp(score - maximum) and updates the running maximum and sum. Returns what the old output
// has to be multiplied with.
LARDER_INLINE float soften(float (&scores)[kTile], float& maximum, float& sum) {
  Lanes16 top = load_lanes(scores);
  for (std::size_t at = kLanes; at < kTile; at += kLanes) {
    for (std::size_t i = 0; i < kRegisters; ++i) top.v[i] = max_of(top.v[i], load(scores + at + i * kWidth));
  }
  const float tile_maximum = max_lanes(top);
  const float new_maximum = tile_maximum > maximum ? tile_maximum : maximum;
  const Vec shift = splat(new_maximum);
  const Vec rescale = exp_bounded(splat(maximum) - shift);
  Lanes16 total = zero_lanes();
  for (std::size_t at = 0; at < kTile; at += kLanes) {
    for (std::size_t i = 0; i < kRegisters; ++i) {
      const Vec weight = exp_bounded(load(scores + at + i * kWidth) - shift);
      store(scores + at + i * kWidth, weight);
      total.v[i] = total.v[i] + weight;
    }
  }
  maximum = new_maximum;
  sum = sum * rescale[0] + sum_lanes(total);
  return rescale[0];
}

template <std::size_t Heads>
void attend_heads(const AttendArgs& a, std::size_t head) {
  float weights[Heads][kTile];
  float rescale[Heads];
  score_tile<Heads>(a.queries + head * a.query_stride, a.query_stride, a.key_dim, a.keys, weights);
  for (std::size_t h = 0; h < Heads; ++h) {
    if (a.first > 0 || a.last < kTile) mask_scores(weights[h], a.first, a.last);
    rescale[h] = soften(weights[h], a.maximum[head + h], a.sum[head + h]);
  }
  // Weights outside [first, last) are exact zeros, so rounding the range to whole quads adds nothing.
  const std::size_t begin = a.first / 4 * 4;
  const std::size_t end = round_up(a.last, 4);
  for (std::size_t c = 0; c < a.value_dim; c += kWidth) {
    Vec sum[Heads][4];
    for (std::size_t h = 0; h < Heads; ++h)
      for (auto& s : sum[h]) s = Vec{};
    for (std::size_t i = begin; i < end; i += 4) {
#pragma GCC unroll 4
      for (std::size_t part = 0; part < 4; ++part) {
        const Vec v = load(a.values + (i + part) * a.value_stride + c);
#pragma GCC unroll 2
        for (std::size_t h = 0; h < Heads; ++h) sum[h][part] = sum[h][part] + splat(weights[h][i + part]) * v;
      }
    }
    for (std::size_t h = 0; h < Heads; ++h) {
      float* out = a.output + (head + h) * a.output_stride + c;
      store(out, load(out) * splat(rescale[h]) + ((sum[h][0] + sum[h][1]) + (sum[h][2] + sum[h][3])));
    }
  }
}

void attend(const AttendArgs& args) {
  std::size_t head = 0;
  for (; head + 2 <= args.heads; head += 2) attend_heads<2>(args, head);
  if (head < args.heads) attend_heads<1>(args, head);
}

void index_scores(const float* queries, std::size_t query_stride, std::size_t heads, std::size_t dim,
                  const float* head_weights, const float* keys, float* scores) {
  for (std::size_t h = 0; h < heads; ++h) {
    float products[1][kTile];
    score_tile<1>(queries + h * query_stride, query_stride, dim, keys, products);
    const Vec weight = splat(head_weights[h]);
    for (std::size_t at = 0; at < kTile; at += kWidth) {
      const Vec term = max_of(load(products[0] + at), Vec{}) * weight;
      store(scores + at, h == 0 ? term : load(scores + at) + term);
    }
  }
}

// sum over keys of state[key][c] * by[key], in four interleaved partial sums.
struct PartialSums {
  Vec v[4] = {};
  LARDER_INLINE Vec total() const { return (v[0] + v[1]) + (v[2] + v[3]); }
};

template <class Step>
LARDER_INLINE void over_keys(std::size_t keys, Step step) {
  std::size_t k = 0;
  for (; k + 4 <= keys; k += 4) {
    step(k, 0);
    step(k + 1, 1);
    step(k + 2, 2);
    step(k + 3, 3);
  }
  for (; k < keys; ++k) step(k, k % 4);
}

void delta_rule(const RecurrenceArgs& a) {
  const Vec decay = splat(a.decay);
  for (std::size_t c = 0; c < a.value_stride; c += kWidth) {
    float* state = a.state + c;
    PartialSums recalled;
    over_keys(
        a.keys, [&](std::size_t k, std::size_t part) __attribute__((always_inline)) {
          const Vec s = load(state + k * a.value_stride) * decay;
          store(state + k * a.value_stride, s);
          recalled.v[part] = recalled.v[part] + s * splat(a.write[k]);
        });
    const Vec change = (load(a.value + c) - recalled.total()) * splat(a.beta);
    PartialSums read;
    over_keys(
        a.keys, [&](std::size_t k, std::size_t part) __attribute__((always_inline)) {
          Vec s = load(state + k * a.value_stride) + change * splat(a.write[k]);
          if (a.round_bf16) s = round_bf16_vec(s);
          store(state + k * a.value_stride, s);
          read.v[part] = read.v[part] + s * splat(a.read[k]);
        });
    store(a.output + c, read.total());
  }
}

void state_space(const RecurrenceArgs& a) {
  const Vec decay = splat(a.decay);
  for (std::size_t c = 0; c < a.value_stride; c += kWidth) {
    float* state = a.state + c;
    const Vec value = load(a.value + c);
    PartialSums read;
    over_keys(
        a.keys, [&](std::size_t k, std::size_t part) __attribute__((always_inline)) {
          Vec s = load(state + k * a.value_stride) * decay + value * splat(a.write[k]);
          if (a.round_bf16) s = round_bf16_vec(s);
          store(state + k * a.value_stride, s);
          read.v[part] = read.v[part] + s * splat(a.read[k]);
        });
    store(a.output + c, read.total());
  }
}

LARDER_INLINE void load_row_bf16(const std::byte* row, std::size_t dim, float* out) {
  for (std::size_t d = 0; d < dim; ++d) {
    std::uint16_t bits;
    std::memcpy(&bits, row + d * sizeof bits, sizeof bits);
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    std::memcpy(out + d, &wide, sizeof wide);
  }
}

// In registers: a call of memcpy per row costs more than the row.
LARDER_INLINE void load_row_f32(const std::byte* row, std::size_t dim, float* out) {
  std::size_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) {
    Vec v;
    std::memcpy(&v, row + d * sizeof(float), sizeof v);
    store(out + d, v);
  }
  for (; d < dim; ++d) std::memcpy(out + d, row + d * sizeof(float), sizeof(float));
}

void load_rows(const std::byte* const* rows, Dtype dtype, std::size_t dim, float* out, std::size_t stride) {
  for (std::size_t i = 0; i < kTile; ++i, out += stride) {
    if (rows[i] == nullptr) {
      for (std::size_t d = 0; d < stride; d += kWidth) store(out + d, Vec{});
    } else if (dtype == Dtype::kF32) {
      load_row_f32(rows[i], dim, out);
    } else {
      load_row_bf16(rows[i], dim, out);
    }
  }
}

// 4 x 4 blocks in registers. Reads rows up to the next multiple of 4 (they are padded).
void transpose_tile(const float* in, std::size_t stride, std::size_t dim, float* out) {
  for (std::size_t i = 0; i < kTile; i += 4) {
    const float* row = in + i * stride;
    for (std::size_t d = 0; d < dim; d += 4) {
      const Four r0 = load_four(row + d), r1 = load_four(row + stride + d);
      const Four r2 = load_four(row + 2 * stride + d), r3 = load_four(row + 3 * stride + d);
      const Four a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), b = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
      const Four c = __builtin_shufflevector(r2, r3, 0, 4, 1, 5), e = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      const Four columns[4] = {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                               __builtin_shufflevector(b, e, 0, 1, 4, 5), __builtin_shufflevector(b, e, 2, 3, 6, 7)};
      const std::size_t count = dim - d < 4 ? dim - d : 4;
      for (std::size_t j = 0; j < count; ++j) std::memcpy(out + (d + j) * kTile + i, &columns[j], sizeof(Four));
    }
  }
}

}  // namespace

const Kernels LARDER_KERNEL_TABLE = {
    .name = LARDER_KERNEL_NAME,
    .matmul = matmul,
    .rms_norm = rms_norm,
    .norm2 = norm2,
    .silu_mul = silu_mul,
    .add = add,
    .conv = conv,
    .attend = attend,
    .index_scores = index_scores,
    .delta_rule = delta_rule,
    .state_space = state_space,
    .load_rows = load_rows,
    .transpose_tile = transpose_tile,
};

}  // namespace larder::reference

#if defined(__x86_64__) && defined(__clang__) && LARDER_KERNEL_WIDTH > 4
#pragma clang attribute pop
#endif
