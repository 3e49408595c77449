// SPDX-License-Identifier: Apache-2.0
// The hand-written functions against libm, and the kernels against plain loops.
#include "engine/reference/math.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "engine/reference/kernels.h"
#include "engine/reference/weights.h"

namespace larder::reference {
namespace {

TEST(Math, AgreesWithLibm) {
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    const double x = (rng.uniform() - 0.5) * 60.0;
    EXPECT_NEAR(exp_exact(x) / std::exp(x), 1.0, 1e-14);
    EXPECT_NEAR(softplus_exact(x), std::log1p(std::exp(x)), 1e-13 * (1.0 + std::abs(x)));
    EXPECT_NEAR(log_exact(std::exp(x)), x, 1e-12);
    const double angle = rng.uniform() * 1'000'000.0;
    EXPECT_NEAR(sin_cos_exact(angle).sin, std::sin(angle), 1e-14);
    EXPECT_NEAR(sin_cos_exact(angle).cos, std::cos(angle), 1e-14);
  }
  EXPECT_EQ(exp_exact(-1000.0), 0.0);
  EXPECT_EQ(exp_exact(0.0), 1.0);
}

TEST(Math, Bf16RoundsToNearestEven) {
  EXPECT_EQ(bf16_to_float(float_to_bf16(1.0f)), 1.0f);
  EXPECT_EQ(bf16_to_float(float_to_bf16(1.0f + 1.0f / 256.0f)), 1.0f);                  // tie: to even
  EXPECT_EQ(bf16_to_float(float_to_bf16(1.0f + 3.0f / 256.0f)), 1.0f + 2.0f / 128.0f);  // tie: to even, upwards
  EXPECT_EQ(bf16_to_float(float_to_bf16(-2.5f)), -2.5f);
}

std::vector<float> random_floats(std::uint64_t seed, std::size_t n) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (auto& value : values) value = static_cast<float>(2.0 * rng.uniform() - 1.0);
  return values;
}

TEST(Kernels, MatmulAgreesWithPlainLoops) {
  WeightSource source(9, false);
  for (const std::size_t outputs : {1u, 31u, 32u, 100u}) {
    const std::size_t inputs = 37, rows = 13;
    const Matrix matrix = source.matrix("m", inputs, outputs);
    const std::vector<float> x = random_floats(3, rows * inputs);
    std::vector<float> y(rows * matrix.row_stride());
    best_kernels().matmul(x.data(), inputs, rows, matrix.view(), y.data(), matrix.row_stride());
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t n = 0; n < outputs; ++n) {
        float sum = 0.0f;
        for (std::size_t k = 0; k < inputs; ++k) {
          const float product =
              x[r * inputs + k] * matrix.view().panels[(n / kPanel * inputs + k) * kPanel + n % kPanel];
          sum = sum + product;
        }
        ASSERT_NEAR(y[r * matrix.row_stride() + n], sum, 1e-5f);
      }
    }
  }
}

TEST(Kernels, AttendAgreesWithPlainSoftmax) {
  constexpr std::size_t kDim = 20, kValues = 32, kHeads = 3;
  const std::vector<float> keys = random_floats(1, kDim * kTile), values = random_floats(2, kTile * kValues);
  const std::vector<float> queries = random_floats(3, kHeads * kDim);
  std::vector<float> maximum(kHeads, kNoScore), sum(kHeads, 0.0f), output(kHeads * kValues, 0.0f);
  AttendArgs args;
  args.queries = queries.data();
  args.query_stride = kDim;
  args.heads = kHeads;
  args.key_dim = kDim;
  args.keys = keys.data();
  args.values = values.data();
  args.value_stride = args.value_dim = args.output_stride = kValues;
  args.first = 5;
  args.last = 50;
  args.maximum = maximum.data();
  args.sum = sum.data();
  args.output = output.data();
  best_kernels().attend(args);
  for (std::size_t h = 0; h < kHeads; ++h) {
    std::vector<double> weights(kTile, 0.0);
    double total = 0.0;
    for (std::size_t i = args.first; i < args.last; ++i) {
      double score = 0.0;
      for (std::size_t d = 0; d < kDim; ++d) score += double{queries[h * kDim + d]} * double{keys[d * kTile + i]};
      total += weights[i] = std::exp(score);
    }
    for (std::size_t c = 0; c < kValues; ++c) {
      double expected = 0.0;
      for (std::size_t i = 0; i < kTile; ++i) expected += weights[i] / total * double{values[i * kValues + c]};
      ASSERT_NEAR(output[h * kValues + c] / sum[h], expected, 1e-5);
    }
  }
}

TEST(Kernels, DeltaRuleRecallsWhatItWrote) {
  // With decay 1 and beta 1, reading with the key just written gives the value just written.
  constexpr std::size_t kKeys = 6, kValues = 16;
  std::vector<float> state(kKeys * kValues, 0.0f), output(kValues);
  RecurrenceArgs args;
  args.state = state.data();
  args.keys = kKeys;
  args.value_stride = kValues;
  args.output = output.data();
  for (std::uint64_t token = 0; token < 20; ++token) {
    std::vector<float> key = random_floats(token, kKeys), value = random_floats(100 + token, kValues);
    const float norm = best_kernels().norm2(key.data(), kKeys);
    for (auto& k : key) k /= norm;
    args.write = args.read = key.data();
    args.value = value.data();
    best_kernels().delta_rule(args);
    for (std::size_t c = 0; c < kValues; ++c) ASSERT_NEAR(output[c], value[c], 1e-4f);
  }
}

}  // namespace
}  // namespace larder::reference
