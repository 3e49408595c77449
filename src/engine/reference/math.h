// SPDX-License-Identifier: Apache-2.0
// Scalar functions with one result on every machine.
//
// Why not libm: glibc picks FMA or non-FMA variants of exp, sin and pow by CPU, and their last bits differ. Here each
// function is a fixed sequence of IEEE additions, multiplications and divisions (this folder is compiled with
// -ffp-contract=off). std::sqrt is kept: IEEE rounds it correctly.
//
// Accuracy: about 1e-15 relative in double. Threads: pure.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace larder::reference {

// 2^k for k in [-1022, 1023].
[[nodiscard]] inline double power_of_two(std::int64_t k) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(k + 1023) << 52);
}

// e^x; 0 below -700, e^700 above 700 (nothing in the engine comes near).
[[nodiscard]] inline double exp_exact(double x) {
  if (x < -700.0) return 0.0;
  if (x > 700.0) x = 700.0;
  const double scaled = x * 1.44269504088896338700;
  const auto n = static_cast<std::int64_t>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double r =
      (x - static_cast<double>(n) * 6.93147180369123816490e-01) - static_cast<double>(n) * 1.90821492927058770002e-10;
  double sum = 1.0;  // Horner form of the Taylor series; |r| <= 0.35, so 14 terms reach double precision
  for (int i = 14; i >= 1; --i) sum = 1.0 + sum * r / static_cast<double>(i);
  return sum * power_of_two(n);
}

// log(1 + y) for y in [0, 1].
[[nodiscard]] inline double log1p_exact(double y) {
  const double s = y / (2.0 + y);  // log(1+y) = 2 atanh(s), s <= 1/3
  const double s2 = s * s;
  double sum = 0.0;
  for (int i = 33; i >= 1; i -= 2) sum = sum * s2 + 1.0 / static_cast<double>(i);
  return 2.0 * s * sum;
}

// log(1 + e^x).
[[nodiscard]] inline double softplus_exact(double x) {
  const double magnitude = x < 0 ? -x : x;
  return (x > 0 ? x : 0.0) + log1p_exact(exp_exact(-magnitude));
}

[[nodiscard]] inline double sigmoid_exact(double x) { return 1.0 / (1.0 + exp_exact(-x)); }

// Natural logarithm for x > 0.
[[nodiscard]] inline double log_exact(double x) {
  std::int64_t exponent = 0;
  while (x >= 2.0) x *= 0.5, ++exponent;
  while (x < 1.0) x *= 2.0, --exponent;
  return static_cast<double>(exponent) * 0.69314718055994530942 + log1p_exact(x - 1.0);
}

struct SinCos {
  double sin = 0.0;
  double cos = 1.0;
};

// Precondition: 0 <= angle < 2^20 (positions times frequencies <= 1). Absolute error about 1e-15.
[[nodiscard]] inline SinCos sin_cos_exact(double angle) {
  // It may round a tie either way: the neighbouring quadrant does as well. NOLINTNEXTLINE(bugprone-incorrect-roundings)
  const auto quadrant = static_cast<std::int64_t>(angle * 0.63661977236758134308 + 0.5);
  const double n = static_cast<double>(quadrant);
  // pi/2 in two parts; the first has 33 bits, so n * it is exact.
  const double r = (angle - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;
  const double r2 = r * r;
  double s = 0.0;
  double c = 0.0;
  for (int i = 17; i >= 3; i -= 2) s = (s + 1.0) * (-r2 / static_cast<double>(i * (i - 1)));
  for (int i = 16; i >= 2; i -= 2) c = (c + 1.0) * (-r2 / static_cast<double>(i * (i - 1)));
  const double sine = r + r * s;
  const double cosine = 1.0 + c;
  switch (quadrant & 3) {
    case 0: return {sine, cosine};
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

[[nodiscard]] inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Round to nearest, ties to even. Finite input only.
[[nodiscard]] inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace larder::reference
