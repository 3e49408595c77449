// SPDX-License-Identifier: Apache-2.0
#include "sim/world/pattern.h"

#include <algorithm>
#include <cstring>

#include "base/rng.h"

namespace larder::sim {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

std::uint64_t hash_of(std::span<const TokenId> content, std::uint64_t tokens, std::string_view tenant) {
  std::uint64_t hash = mix(1, tokens);
  for (const TokenId token : content.first(std::min<std::uint64_t>(tokens, content.size())))
    hash = mix(hash, token + 1);
  for (const char c : tenant) hash = mix(hash, static_cast<unsigned char>(c) + 1000u);
  return hash;
}

// The first eight bytes of a layer's plane, from the lowest bit on. Each field is in the hash, too: of a piece shorter
// than eight bytes only that is there.
struct Field {
  unsigned at, bits;
  [[nodiscard]] std::uint64_t put(std::uint64_t value) const { return (value & ((1ull << bits) - 1)) << at; }
  [[nodiscard]] std::uint64_t get(std::uint64_t word) const { return word >> at & ((1ull << bits) - 1); }
};
constexpr Field kHash{0, 24}, kTokens{24, 16}, kPool{40, 5}, kLayer{45, 6}, kPlane{51, 2}, kRank{53, 4}, kSeal{57, 7};
static_assert(kPoolNameCount <= 32);

std::uint64_t sealed(std::uint64_t word) { return word | kSeal.put(mix(3, word) >> 20); }

// Each eight bytes follow from those before them: an addition, so that a page is written in a breath.
constexpr std::uint64_t kStep = 0xd1342543de82ef95ull;

// What the eight bytes at `offset` of a piece are of.
std::string describe(std::uint64_t word, std::size_t offset) {
  word -= offset / 8 * kStep;
  const std::uint64_t bare = word & ~kSeal.put(~std::uint64_t{0});
  if (sealed(bare) != word || kPool.get(word) >= kPoolNameCount) return "what no engine wrote";
  return "what rank " + std::to_string(kRank.get(word)) + " wrote into pool " +
         std::string(pool_name(static_cast<PoolName>(kPool.get(word)))) + ", layer " +
         std::to_string(kLayer.get(word)) + ", plane " + std::to_string(kPlane.get(word)) + ", after " +
         std::to_string(kTokens.get(word)) + " tokens";
}

// Calls use(bytes, size, first word, pool, layer) for each piece of the slot; stops when that returns false.
template <class Use>
void for_each_piece(const ModelSpec& model, DevicePools& pools, ComponentKind c, DeviceSlot slot, std::uint32_t rank,
                    std::uint64_t tokens, std::uint64_t hash, const Use& use) {
  for (const PoolSpec* pool : model.pools_of(c)) {
    const std::uint64_t owner = pool->scope == RankScope::kReplicated ? 0 : rank;
    const auto number = static_cast<std::uint64_t>(pool->name);
    for (std::size_t layer = 0; layer < pool->layers.size(); ++layer) {
      for (std::size_t plane = 0; plane < pool->planes.size(); ++plane) {
        const std::uint64_t all = mix(mix(mix(mix(hash, number), layer), plane), owner);
        const std::uint64_t first = sealed(kHash.put(all >> 8) | kTokens.put(tokens) | kPool.put(number) |
                                           kLayer.put(layer) | kPlane.put(plane) | kRank.put(owner));
        if (!use(pools.page(pool->name, layer, plane, slot), pool->planes[plane].layer_bytes(), first, *pool, layer))
          return;
      }
    }
  }
}

}  // namespace

void Pattern::write(ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens, std::string_view tenant,
                    DeviceSlot slot) const {
  for_each_piece(model_, pools_, c, slot, rank_, tokens, hash_of(content, tokens, tenant),
                 [](std::byte* at, std::size_t size, std::uint64_t word, const PoolSpec&, std::size_t) {
                   std::size_t i = 0;
                   for (; i + 8 <= size; i += 8, word += kStep) std::memcpy(at + i, &word, 8);
                   std::memcpy(at + i, &word, size - i);
                   return true;
                 });
}

std::string Pattern::check(ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens,
                           std::string_view tenant, DeviceSlot slot) const {
  std::string wrong;
  for_each_piece(
      model_, pools_, c, slot, rank_, tokens, hash_of(content, tokens, tenant),
      [&](const std::byte* at, std::size_t size, std::uint64_t word, const PoolSpec& pool, std::size_t layer) {
        for (std::size_t i = 0; i < size; i += 8, word += kStep) {
          if (std::memcmp(at + i, &word, std::min<std::size_t>(8, size - i)) == 0) continue;
          std::uint64_t there = 0;
          std::memcpy(&there, at + i, std::min<std::size_t>(8, size - i));
          wrong = "wrong bytes in pool " + std::string(pool_name(pool.name)) + ", layer " + std::to_string(layer) +
                  ", offset " + std::to_string(i) + ", of the page after " + std::to_string(tokens) +
                  " tokens, in slot " + std::to_string(slot.v) + " of rank " + std::to_string(rank_) + ": " +
                  describe(there, i);
          return false;
        }
        return true;
      });
  return wrong;
}

TokenId next_token(std::span<const TokenId> tokens, std::uint32_t vocab) {
  return static_cast<TokenId>((hash_of(tokens, tokens.size(), "") >> 20) % vocab);
}

}  // namespace larder::sim
