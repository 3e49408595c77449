// SPDX-License-Identifier: Apache-2.0
#include "storage/conformance/harness.h"

namespace larder::conformance {
namespace {

// Not a hash: only bytes that differ wherever anything differs.
std::byte content_byte(const PageKey& key, PoolName pool, std::uint64_t salt, std::size_t i) {
  const auto word = key.prefix64() ^ (salt * 0x9e3779b97f4a7c15ull) ^ (static_cast<std::uint64_t>(pool) << 56);
  const std::uint64_t mixed = (word + i / 8) * 0xbf58476d1ce4e5b9ull;
  return static_cast<std::byte>(mixed >> (8 * (i % 8)));
}

}  // namespace

PageBuffer::PageBuffer(std::size_t bytes, std::size_t pieces, Rng& rng) {
  for (std::size_t i = 0; i < pieces; ++i) {
    const bool is_last = i + 1 == pieces;
    const std::size_t size = is_last ? bytes : static_cast<std::size_t>(rng.below(bytes + 1));
    bytes -= size;
    pieces_.emplace_back(size);
  }
  for (auto& piece : pieces_) segments_.push_back({piece.data(), piece.size()});
}

void PageBuffer::fill(const PageKey& key, PoolName pool, std::uint64_t salt) {
  std::size_t i = 0;
  for (auto& piece : pieces_) {
    for (std::byte& b : piece) b = content_byte(key, pool, salt, i++);
  }
}

bool PageBuffer::holds(const PageKey& key, PoolName pool, std::uint64_t salt) const {
  std::size_t i = 0;
  for (const auto& piece : pieces_) {
    for (const std::byte b : piece) {
      if (b != content_byte(key, pool, salt, i++)) return false;
    }
  }
  return true;
}

PageKey check_key(std::uint64_t base, std::uint64_t number) {
  Rng rng((base * 0x9e3779b97f4a7c15ull) ^ (number + 77));
  PageKey key;
  for (auto& b : key.bytes) b = static_cast<std::uint8_t>(rng.below(256));
  return key;
}

std::shared_ptr<const StoreScope> check_scope(std::uint64_t base, std::uint64_t number) {
  auto scope = std::make_shared<StoreScope>();
  scope->namespace_digest = check_key(base, 1'000'000 + number);
  for (const PoolName pool :
       {PoolName::kKv, PoolName::kSwa, PoolName::kMamba, PoolName::kIndexer, PoolName::kDeepseekV4C4}) {
    scope->set_pool(pool, check_key(base, 2'000'000 + static_cast<std::uint64_t>(pool)));
  }
  return scope;
}

}  // namespace larder::conformance
