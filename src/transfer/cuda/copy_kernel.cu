// SPDX-License-Identifier: Apache-2.0
// Gathers and scatters pages between device memory and mapped host memory: each warp takes tiles in turn.
//
// Bound by the link, not by the chip: a few thousand threads fill it, so the kernel leaves the multiprocessors to the
// engine. Loads and stores are marked as read and written once, so that a copy does not push the engine's data out
// of the L2 cache.
#include "transfer/cuda/copy_launch.h"

namespace larder {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kInFlight = 4;  // loads of a lane before its first store

// Lane-strided copy of `count` vectors; at(i) says where the i-th lies on both sides.
template <class Vector, class At>
__device__ __forceinline__ void copy_vectors(std::byte* dst, const std::byte* src, unsigned count, unsigned lane,
                                             At at) {
  for (unsigned first = lane; first < count; first += kLanes * kInFlight) {
    Vector value[kInFlight];
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      const unsigned i = first + k * kLanes;
      if (i < count) value[k] = __ldcs(reinterpret_cast<const Vector*>(src + at(i).src));
    }
#pragma unroll
    for (unsigned k = 0; k < kInFlight; ++k) {
      const unsigned i = first + k * kLanes;
      if (i < count) __stcs(reinterpret_cast<Vector*>(dst + at(i).dst), value[k]);
    }
  }
}

struct Offsets {
  std::uint64_t dst, src;
};

template <class Vector>
__device__ __forceinline__ void copy_tile(std::byte* dst, const std::byte* src, const CopyGroup& g,
                                          const CopyTile& tile, unsigned lane) {
  const unsigned in_row = tile.width / sizeof(Vector);
  if (tile.rows == 1) {
    copy_vectors<Vector>(dst, src, in_row, lane, [](unsigned i) -> Offsets {
      return {std::uint64_t{i} * sizeof(Vector), std::uint64_t{i} * sizeof(Vector)};
    });
    return;
  }
  copy_vectors<Vector>(dst, src, in_row * tile.rows, lane, [&](unsigned i) -> Offsets {
    const std::uint64_t row = i / in_row;
    const std::uint64_t column = (i - row * in_row) * sizeof(Vector);
    return {row * g.dst_pitch + column, row * g.src_pitch + column};
  });
}

}  // namespace
}  // namespace larder

extern "C" __global__ void __launch_bounds__(256) larder_copy(const __grid_constant__ larder::CopyLaunch launch) {
  using namespace larder;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned warps = gridDim.x * (blockDim.x / kLanes);
  unsigned group = 0;
  // Neighbouring tiles go to different blocks: a piece is read by several multiprocessors at once.
  for (unsigned tile = threadIdx.x / kLanes * gridDim.x + blockIdx.x; tile < launch.tile_count; tile += warps) {
    while (group + 1 < launch.group_count && tile >= launch.groups[group + 1].first_tile) ++group;
    const CopyGroup& g = launch.groups[group];
    const unsigned in_group = tile - g.first_tile;
    const CopyPair pair = launch.pairs[g.first_pair + in_group / g.tiles_per_pair];
    const CopyTile t = tile_of(g, in_group % g.tiles_per_pair);
    std::byte* const dst = pair.dst + t.dst_offset;
    const std::byte* const src = pair.src + t.src_offset;
    switch (g.vector) {
      case 16: copy_tile<uint4>(dst, src, g, t, lane); break;
      case 8: copy_tile<uint2>(dst, src, g, t, lane); break;
      case 4: copy_tile<unsigned int>(dst, src, g, t, lane); break;
      case 2: copy_tile<unsigned short>(dst, src, g, t, lane); break;
      default: copy_tile<unsigned char>(dst, src, g, t, lane); break;
    }
  }
}
