// SPDX-License-Identifier: Apache-2.0
// Seeded weights: a pure function of (seed, layer, tensor name, shape), the same on every machine.
//
// Uniform numbers, not normal ones: they need no libm. Threads: confined to create(); the results are immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "engine/reference/kernels.h"

namespace larder::reference {

using Vector = std::vector<float>;

// Owns the panels of a MatrixView.
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::size_t inputs, std::size_t outputs);
  void set(std::size_t input, std::size_t output, float value) {
    panels_[(output / kPanel * inputs_ + input) * kPanel + output % kPanel] = value;
  }
  [[nodiscard]] MatrixView view() const { return {panels_.data(), inputs_, outputs_}; }
  [[nodiscard]] std::size_t outputs() const { return outputs_; }
  // Floats that one row of a product takes in a buffer.
  [[nodiscard]] std::size_t row_stride() const { return round_up(outputs_, kPanel); }

 private:
  Vector panels_;
  std::size_t inputs_ = 0;
  std::size_t outputs_ = 0;
};

class WeightSource {
 public:
  // With counting set, tensors stay empty and only parameters() grows: how create() learns the size before it
  // allocates.
  WeightSource(std::uint64_t seed, bool counting) : seed_(seed), counting_(counting) {}

  // Layers number from 0; tensors outside of any layer (embedding, heads) use kNoLayer.
  static constexpr std::uint32_t kNoLayer = 0xffffffffu;
  void enter_layer(std::uint32_t layer) { layer_ = layer; }

  // Entries have standard deviation gain / sqrt(inputs): unit inputs give outputs of size `gain`.
  [[nodiscard]] Matrix matrix(std::string_view name, std::size_t inputs, std::size_t outputs, double gain = 1.0);
  // mean + spread * uniform(-1, 1), padded with zeros to a multiple of kLanes.
  [[nodiscard]] Vector vector(std::string_view name, std::size_t size, double mean, double spread);
  // [rows][stride], standard deviation 1; stride is `columns` padded to kLanes.
  [[nodiscard]] Vector table(std::string_view name, std::size_t rows, std::size_t columns);

  [[nodiscard]] std::uint64_t parameters() const { return parameters_; }

 private:
  [[nodiscard]] Rng rng_for(std::string_view name) const;

  const std::uint64_t seed_;
  const bool counting_;
  std::uint32_t layer_ = kNoLayer;
  std::uint64_t parameters_ = 0;
};

}  // namespace larder::reference
