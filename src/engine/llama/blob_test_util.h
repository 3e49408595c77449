// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of engine/llama: blobs as llama.cpp writes them, with cells in any order, and rows whose bytes
// tell layer, position and side. Written apart from blob_pages.cc, so that the two check each other.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "engine/llama/blob_geometry.h"
#include "engine/llama/blob_pages.h"
#include "engine/llama/sequence_blob.h"

namespace larder::llama::blob_test {

using Bytes = std::vector<std::byte>;

struct NamedGeometry {
  std::string name;
  BlobGeometry geometry;
};

[[nodiscard]] inline std::vector<RowKind> rows(std::size_t layers, std::int32_t type, std::uint64_t bytes) {
  return std::vector<RowKind>(layers, RowKind{type, bytes});
}

// The shapes of the models that llama.cpp runs.
[[nodiscard]] inline std::vector<NamedGeometry> all_geometries() {
  const AttentionGeometry dense{rows(3, 1, 32), rows(3, 8, 24), false};
  const AttentionGeometry latent{rows(2, 1, 40), {}, false};
  const AttentionGeometry sliding{rows(5, 1, 16), rows(5, 1, 16), false};
  AttentionGeometry uneven{rows(2, 1, 32), rows(2, 1, 16), false};
  uneven.keys[1].bytes = 48;
  AttentionGeometry rope = dense;
  rope.has_cell_extensions = true;
  const RecurrentGeometry state{6, rows(3, 0, 20), rows(3, 0, 64)};
  const RecurrentGeometry convolution{4, rows(2, 0, 24), rows(2, 0, 0)};
  return {{"dense", {dense, {}, 0, {}}},
          {"uneven", {uneven, {}, 0, {}}},
          {"latent", {latent, {}, 0, {}}},
          {"sliding", {dense, sliding, 8, {}}},
          {"hybrid", {dense, {}, 0, state}},
          {"hybrid_rope", {rope, {}, 0, state}},
          {"hybrid_latent", {latent, {}, 0, state}},
          {"hybrid_sliding", {dense, sliding, 6, state}},
          {"short_convolution", {dense, {}, 0, convolution}},
          {"recurrent", {{}, {}, 0, state}},
          {"streams", {uneven, sliding, 8, convolution, 3}}};
}

// What byte `at` of a row must be.
[[nodiscard]] inline std::byte row_byte(unsigned part, std::size_t layer, std::uint32_t position, std::size_t at) {
  return static_cast<std::byte>(part * 89 + layer * 37 + position * 11 + at * 3 + 1);
}

class BlobWriter {
 public:
  explicit BlobWriter(const BlobGeometry& geometry) : geometry_(geometry) {}

  // Cells in the order of `positions`; the window in the same order, as far as it is inside.
  [[nodiscard]] Bytes write(const std::vector<std::uint32_t>& positions, BlobForm form = {}) {
    bytes_.clear();
    const std::uint32_t last = positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
    if (form.has_header) {
      number(kBlobMagic);
      number(std::uint32_t{3});
    }
    if (geometry_.full && !(form.is_partial && geometry_.has_partial_form())) attention(*geometry_.full, positions, 1);
    if (geometry_.window) {
      std::vector<std::uint32_t> inside;
      for (const std::uint32_t p : positions) {
        if (last - p < geometry_.window_tokens) inside.push_back(p);
      }
      attention(*geometry_.window, inside, 3);
    }
    if (geometry_.recurrent) recurrent(*geometry_.recurrent, positions.empty() ? 0 : 1, last);
    return bytes_;
  }
  [[nodiscard]] Bytes write(std::uint32_t tokens, BlobForm form = {}) {
    std::vector<std::uint32_t> positions(tokens);
    std::iota(positions.begin(), positions.end(), 0u);
    return write(positions, form);
  }
  // Offsets in the last blob of bytes that are no rows.
  [[nodiscard]] const std::vector<std::size_t>& metadata() const { return metadata_; }

 private:
  template <class T>
  void number(T value) {
    if (bytes_.empty()) metadata_.clear();
    for (std::size_t i = 0; i < sizeof value; ++i) {
      metadata_.push_back(bytes_.size());
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void row(unsigned part, std::size_t layer, std::uint32_t position, std::uint64_t size) {
    for (std::size_t i = 0; i < size; ++i) bytes_.push_back(row_byte(part, layer, position, i));
  }
  void kind(const RowKind& kind) {
    number(static_cast<std::uint32_t>(kind.type));
    number(kind.bytes);
  }
  void attention(const AttentionGeometry& part, const std::vector<std::uint32_t>& positions, unsigned side) {
    number(geometry_.streams);
    for (std::uint32_t i = 0; i < geometry_.streams; ++i) {
      number(i == 0 ? static_cast<std::uint32_t>(positions.size()) : 0);
      if (i == 0 && !positions.empty()) stream(part, positions, side);
    }
  }
  void stream(const AttentionGeometry& part, const std::vector<std::uint32_t>& positions, unsigned side) {
    for (const std::uint32_t position : positions) {
      number(position);
      number(std::uint32_t{1});
      if (part.has_cell_extensions) {
        number(position);
        number(position);
        number(position * 7 + 1);
      }
      number(std::uint32_t{3});
    }
    number(std::uint32_t{0});
    number(static_cast<std::uint32_t>(part.keys.size()));
    for (const auto* rows : {&part.keys, &part.values}) {
      for (std::size_t layer = 0; layer < rows->size(); ++layer) {
        kind((*rows)[layer]);
        for (const std::uint32_t position : positions) row(side, layer, position, (*rows)[layer].bytes);
      }
      ++side;
    }
  }
  void recurrent(const RecurrentGeometry& part, std::uint32_t cells, std::uint32_t position) {
    number(cells);
    if (cells > 0) {
      number(position);
      number(std::uint32_t{0});
    }
    number(std::uint32_t{0});
    number(part.model_layers);
    unsigned side = 5;
    for (const auto* rows : {&part.conv, &part.state}) {
      for (std::size_t layer = 0; layer < rows->size(); ++layer) {
        kind((*rows)[layer]);
        if (cells > 0) row(side, layer, position, (*rows)[layer].bytes);
      }
      ++side;
    }
  }

  const BlobGeometry geometry_;
  Bytes bytes_;
  std::vector<std::size_t> metadata_;
};

}  // namespace larder::llama::blob_test
