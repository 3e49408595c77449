// SPDX-License-Identifier: Apache-2.0
// What one launch of the copy kernel copies, and how it is cut into tiles. Shared by the host, the kernel and the fake
// driver, so that the arithmetic of the kernel is tested where there is no GPU. Plain types only: nvcc reads this file.
//
//   launch ──► groups of pieces of one shape ──► pieces (CopyPair) ──► tiles, one warp each
//
// A piece is `rows` rows of `width` bytes, consecutive rows a pitch apart on each side. Rows of a tile's size and more
// are cut; of smaller ones a tile takes several.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define LARDER_ON_DEVICE __host__ __device__
#else
#define LARDER_ON_DEVICE
#endif

namespace larder {

// 4 KiB: eight loads of 16 bytes for each lane of a warp, four of them under way at once. Measured on an H200: a warp
// that has 4 KiB of its own keeps the link as full with 4 KiB pieces as with 2 MiB ones; a block for each piece does
// not.
inline constexpr std::uint32_t kTileBytes = 4096;
inline constexpr std::uint32_t kMaxCopyGroups = 32;  // of a launch: the parameters of a kernel end at 4 KiB

struct CopyPair {
  std::byte* dst;
  const std::byte* src;
};

struct CopyGroup {
  std::uint32_t first_tile;  // of the launch
  std::uint32_t first_pair;  // of the launch; pair_count follow
  std::uint32_t pair_count;
  std::uint32_t tiles_per_pair;
  std::uint32_t width;          // bytes of a row, at least 1
  std::uint32_t rows;           // at least 1
  std::uint32_t rows_per_tile;  // 0: rows are cut
  std::uint32_t vector;         // bytes that a lane moves at once: what all addresses, pitches and widths divide by
  std::uint64_t dst_pitch;
  std::uint64_t src_pitch;
};

struct CopyLaunch {
  const CopyPair* pairs;  // pinned; unchanged until the launch has completed
  std::uint32_t tile_count;
  std::uint32_t group_count;
  CopyGroup groups[kMaxCopyGroups];
};

struct CopyTile {
  std::uint64_t dst_offset;  // bytes into the piece
  std::uint64_t src_offset;
  std::uint32_t width;  // bytes of each of its rows
  std::uint32_t rows;
};

LARDER_ON_DEVICE inline std::uint32_t tiles_in_row(const CopyGroup& g) {
  return (g.width + kTileBytes - 1) / kTileBytes;
}

// Fills in what follows from width and rows. Precondition: rows * tiles_in_row() fits 32 bits.
LARDER_ON_DEVICE inline void cut_into_tiles(CopyGroup& g) {
  g.rows_per_tile = g.rows > 1 && g.width < kTileBytes ? kTileBytes / g.width : 0;
  g.tiles_per_pair = g.rows_per_tile == 0 ? g.rows * tiles_in_row(g) : (g.rows + g.rows_per_tile - 1) / g.rows_per_tile;
}

// The index-th tile of a piece of the group. Precondition: index < tiles_per_pair.
LARDER_ON_DEVICE inline CopyTile tile_of(const CopyGroup& g, std::uint32_t index) {
  CopyTile tile;
  if (g.rows_per_tile == 0) {
    const std::uint32_t per_row = tiles_in_row(g);
    const std::uint64_t row = index / per_row;
    const std::uint32_t offset = index % per_row * kTileBytes;
    tile.dst_offset = row * g.dst_pitch + offset;
    tile.src_offset = row * g.src_pitch + offset;
    tile.width = g.width - offset < kTileBytes ? g.width - offset : kTileBytes;
    tile.rows = 1;
    return tile;
  }
  const std::uint32_t first = index * g.rows_per_tile;
  tile.dst_offset = first * g.dst_pitch;
  tile.src_offset = first * g.src_pitch;
  tile.width = g.width;
  tile.rows = g.rows - first < g.rows_per_tile ? g.rows - first : g.rows_per_tile;
  return tile;
}

// What the kernel does, for the host: row(dst, src, bytes, group) for each row of each tile, in order.
template <class Row>
void for_each_row(const CopyLaunch& launch, Row&& row) {
  for (std::uint32_t i = 0; i < launch.group_count; ++i) {
    const CopyGroup& g = launch.groups[i];
    for (std::uint32_t t = 0; t < g.pair_count * g.tiles_per_pair; ++t) {
      const CopyPair pair = launch.pairs[g.first_pair + t / g.tiles_per_pair];
      const CopyTile tile = tile_of(g, t % g.tiles_per_pair);
      for (std::uint32_t r = 0; r < tile.rows; ++r) {
        row(pair.dst + tile.dst_offset + r * g.dst_pitch, pair.src + tile.src_offset + r * g.src_pitch, tile.width, g);
      }
    }
  }
}

}  // namespace larder
