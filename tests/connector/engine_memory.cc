// SPDX-License-Identifier: Apache-2.0
#include "tests/connector/engine_memory.h"

#include <algorithm>
#include <cstring>

#include "base/rng.h"

namespace larder::connector_test {

namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) { return Rng(hash * 31 + value).next_u64(); }

}  // namespace

Tokens tokens_from(std::uint64_t seed, std::size_t count) {
  Rng rng(seed);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(50));
  return tokens;
}

EngineMemory::EngineMemory(const ModelSpec& model, HostLayout layout, std::string tenant)
    : model_(model), layout_(layout), tenant_(std::move(tenant)) {}

std::vector<Segment> EngineMemory::pieces_of(Page& page) const {
  const PoolSpec& pool = *page.pool;
  std::vector<Segment> pieces;
  const auto piece = [&](std::size_t layer, std::size_t plane, std::size_t row, std::size_t head, std::size_t size) {
    const PlaneSpec& p = pool.planes[plane];
    std::byte* const base = page.tensors[layer * pool.planes.size() + plane].data();
    pieces.push_back({base + row * p.row_bytes() + head * p.head_bytes(), size});
  };
  const std::size_t layers = pool.layers.size();
  if (layout_ == HostLayout::kLayerFirst) {
    for (std::size_t l = 0; l < layers; ++l) {
      for (std::size_t p = 0; p < pool.planes.size(); ++p) piece(l, p, 0, 0, pool.planes[p].layer_bytes());
    }
    return pieces;
  }
  for (std::size_t p = 0; p < pool.planes.size(); ++p) {
    const PlaneSpec& plane = pool.planes[p];
    if (layout_ == HostLayout::kPageFirstDirect) {
      for (std::size_t l = 0; l < layers; ++l) piece(l, p, 0, 0, plane.layer_bytes());
    } else if (layout_ == HostLayout::kPageFirst) {
      for (std::size_t row = 0; row < plane.rows; ++row) {
        for (std::size_t l = 0; l < layers; ++l) piece(l, p, row, 0, plane.row_bytes());
      }
    } else {
      for (std::size_t head = 0; head < plane.heads; ++head) {
        for (std::size_t row = 0; row < plane.rows; ++row) {
          for (std::size_t l = 0; l < layers; ++l) piece(l, p, row, head, plane.head_bytes());
        }
      }
    }
  }
  return pieces;
}

void EngineMemory::add(const PoolSpec& pool, std::uint64_t page) {
  if (pool.page_bytes() == 0) return;
  Page& added = pages_.emplace_back();
  added.pool = &pool;
  added.page = page;
  for (std::size_t l = 0; l < pool.layers.size(); ++l) {
    for (const PlaneSpec& plane : pool.planes) added.tensors.emplace_back(plane.layer_bytes(), std::byte{0xdd});
  }
  added.segments = pieces_of(added);
  places_.push_back({pool.name, page, added.segments});
}

void EngineMemory::reserve(const PageNeeds& needs) {
  for (const PoolSpec& pool : model_.pools) {
    if (pool.component == ComponentKind::kMamba) {
      for (const std::uint64_t point : needs.states) add(pool, point - 1);
      continue;
    }
    const std::uint64_t from = pool.component == ComponentKind::kFull ? needs.full_from : needs.window_from;
    for (std::uint64_t page = from; page < needs.end; ++page) add(pool, page);
  }
}

std::uint64_t EngineMemory::seed_of(const Tokens& tokens, const PoolSpec& pool, std::uint64_t page) const {
  std::uint64_t seed = static_cast<std::uint64_t>(pool.name) + 1;
  for (const char c : tenant_) seed = mix(seed, static_cast<unsigned char>(c));
  for (std::size_t i = 0; i < (page + 1) * model_.page_size; ++i) seed = seed * 1'099'511'628'211u + tokens[i] + 1;
  return mix(seed, page);
}

void EngineMemory::fill(const Tokens& tokens, Page& page) const {
  Rng rng(seed_of(tokens, *page.pool, page.page));
  for (std::vector<std::byte>& tensor : page.tensors) {
    std::size_t i = 0;
    for (; i + 8 <= tensor.size(); i += 8) {
      const std::uint64_t word = rng.next_u64();
      std::memcpy(tensor.data() + i, &word, 8);
    }
    for (; i < tensor.size(); ++i) tensor[i] = static_cast<std::byte>(rng.below(256));
  }
}

void EngineMemory::compute(const Tokens& tokens, const PageNeeds& needs) {
  const std::size_t first = pages_.size();
  reserve(needs);
  for (std::size_t i = first; i < pages_.size(); ++i) fill(tokens, pages_[i]);
}

std::string EngineMemory::difference(const Tokens& tokens) const {
  for (const Page& page : pages_) {
    Page truth;
    truth.pool = page.pool;
    truth.page = page.page;
    for (const auto& tensor : page.tensors) truth.tensors.emplace_back(tensor.size());
    fill(tokens, truth);
    if (truth.tensors != page.tensors) {
      return "page " + std::to_string(page.page) + " of " + std::string(pool_name(page.pool->name)) + " differs";
    }
  }
  return "";
}

std::vector<std::byte> EngineMemory::host_page(const Tokens& tokens, const PoolSpec& pool, std::uint64_t page) const {
  Page truth;
  truth.pool = &pool;
  truth.page = page;
  for (std::size_t l = 0; l < pool.layers.size(); ++l) {
    for (const PlaneSpec& plane : pool.planes) truth.tensors.emplace_back(plane.layer_bytes());
  }
  fill(tokens, truth);
  std::vector<std::byte> bytes(pool.page_bytes());
  for (std::size_t l = 0; l < pool.layers.size(); ++l) {
    for (std::size_t p = 0; p < pool.planes.size(); ++p) {
      const PlaneSpec& plane = pool.planes[p];
      const std::byte* const tensor = truth.tensors[l * pool.planes.size() + p].data();
      for (std::size_t row = 0; row < plane.rows; ++row) {
        for (std::size_t head = 0; head < plane.heads; ++head) {
          std::memcpy(bytes.data() + chunk_offset(pool, layout_, p, l, row, head),
                      tensor + row * plane.row_bytes() + head * plane.head_bytes(), plane.head_bytes());
        }
      }
    }
  }
  return bytes;
}

}  // namespace larder::connector_test
