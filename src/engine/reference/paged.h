// SPDX-License-Identifier: Apache-2.0
// Rows of the device pools, as floats.
//
// Everything that the engine computes from the cache is read back through here, so a bf16 pool gives the same result on
// the run that wrote it and on a run that restored it.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

#include "engine/reference/math.h"
#include "model/model_spec.h"
#include "pool/device_pools.h"

namespace larder::reference {

// The engine computes f32 and bf16 pools; create() refuses others.
inline void store_floats(std::byte* to, Dtype dtype, const float* from, std::size_t n) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t bits = float_to_bf16(from[i]);
    std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
  }
}

inline void load_floats(const std::byte* from, Dtype dtype, float* to, std::size_t n) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
    to[i] = bf16_to_float(bits);
  }
}

// Makes a value what the pool will hold.
inline void round_to(Dtype dtype, float* values, std::size_t n) {
  if (dtype == Dtype::kF32) return;
  for (std::size_t i = 0; i < n; ++i) values[i] = bf16_to_float(float_to_bf16(values[i]));
}

// One plane of one layer of a pool.
class Plane {
 public:
  Plane() = default;
  // Precondition: the model has the pool, the layer in it, and the plane.
  Plane(const DevicePools& pools, PoolName pool, std::uint32_t layer, std::string_view plane)
      : pools_(&pools), pool_(pool) {
    const PoolSpec& spec = *pools.model().find_pool(pool);
    while (spec.layers[layer_index_] != layer) ++layer_index_;
    while (spec.planes[plane_].name != plane) ++plane_;
    const PlaneSpec& plane_spec = spec.planes[plane_];
    dtype_ = plane_spec.dtype;
    row_bytes_ = plane_spec.row_bytes();
    width_ = std::size_t{plane_spec.heads} * plane_spec.head_dim;
    rows_ = plane_spec.rows;
  }

  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] std::size_t width() const { return width_; }  // elements of a row
  [[nodiscard]] std::size_t rows() const { return rows_; }    // per page
  [[nodiscard]] std::size_t row_bytes() const { return row_bytes_; }
  [[nodiscard]] std::byte* row(DeviceSlot slot, std::size_t row) const {
    assert(slot.valid() && row < rows_);
    return pools_->page(pool_, layer_index_, plane_, slot) + row * row_bytes_;
  }
  void write(DeviceSlot slot, std::size_t at, const float* values) const {
    store_floats(row(slot, at), dtype_, values, width_);
  }
  void read(DeviceSlot slot, std::size_t at, float* values) const {
    load_floats(row(slot, at), dtype_, values, width_);
  }

 private:
  const DevicePools* pools_ = nullptr;
  PoolName pool_ = PoolName::kKv;
  std::size_t layer_index_ = 0;
  std::size_t plane_ = 0;
  Dtype dtype_ = Dtype::kF32;
  std::size_t row_bytes_ = 0;
  std::size_t width_ = 0;
  std::size_t rows_ = 0;
};

// Pointers to rows [first, last) of a sequence whose pages are `slots`, `offset` bytes into each row.
// out[0] is row `first`.
inline void gather_rows(const Plane& plane, std::span<const DeviceSlot> slots, std::uint64_t first, std::uint64_t last,
                        std::size_t offset, const std::byte** out) {
  const std::size_t rows = plane.rows();
  for (std::uint64_t at = first; at < last;) {
    const std::size_t in_page = static_cast<std::size_t>(at % rows);
    const std::byte* base = plane.row(slots[static_cast<std::size_t>(at / rows)], in_page) + offset;
    const std::uint64_t end = at - in_page + rows < last ? at - in_page + rows : last;
    for (; at < end; ++at, base += plane.row_bytes()) *out++ = base;
  }
}

}  // namespace larder::reference
