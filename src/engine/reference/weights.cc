// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/weights.h"

#include <cmath>

namespace larder::reference {
namespace {

constexpr double kUniformDeviation = 0.57735026918962576451;  // standard deviation of uniform(-1, 1)

double symmetric(Rng& rng) { return 2.0 * rng.uniform() - 1.0; }

}  // namespace

Matrix::Matrix(std::size_t inputs, std::size_t outputs)
    : panels_(inputs * round_up(outputs, kPanel), 0.0f), inputs_(inputs), outputs_(outputs) {}

Rng WeightSource::rng_for(std::string_view name) const {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over seed, layer and name
  const auto mix = [&hash](std::uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (int shift = 0; shift < 64; shift += 8) mix((seed_ >> shift) & 0xff);
  for (int shift = 0; shift < 32; shift += 8) mix((layer_ >> shift) & 0xff);
  for (const char c : name) mix(static_cast<unsigned char>(c));
  return Rng(hash);
}

Matrix WeightSource::matrix(std::string_view name, std::size_t inputs, std::size_t outputs, double gain) {
  parameters_ += std::uint64_t{inputs} * round_up(outputs, kPanel);
  if (counting_) return {};
  Rng rng = rng_for(name);
  Matrix matrix(inputs, outputs);
  const double scale = gain / (kUniformDeviation * std::sqrt(static_cast<double>(inputs)));
  for (std::size_t k = 0; k < inputs; ++k) {
    for (std::size_t n = 0; n < outputs; ++n) matrix.set(k, n, static_cast<float>(scale * symmetric(rng)));
  }
  return matrix;
}

Vector WeightSource::vector(std::string_view name, std::size_t size, double mean, double spread) {
  parameters_ += size;
  if (counting_) return {};
  Rng rng = rng_for(name);
  Vector values(round_up(size, kLanes), 0.0f);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(mean + spread * symmetric(rng));
  return values;
}

Vector WeightSource::table(std::string_view name, std::size_t rows, std::size_t columns) {
  const std::size_t stride = round_up(columns, kLanes);
  parameters_ += std::uint64_t{rows} * stride;
  if (counting_) return {};
  Rng rng = rng_for(name);
  Vector values(rows * stride, 0.0f);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      values[r * stride + c] = static_cast<float>(symmetric(rng) / kUniformDeviation);
    }
  }
  return values;
}

}  // namespace larder::reference
