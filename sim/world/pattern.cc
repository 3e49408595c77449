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

// Eight bytes of the pattern follow from the eight before them: an addition, so that a page is written in a breath.
constexpr std::uint64_t kStep = 0xd1342543de82ef95ull;

// Calls use(bytes, size, seed, pool, layer) for each piece of the slot; stops when that returns false.
template <class Use>
void for_each_piece(const ModelSpec& model, DevicePools& pools, ComponentKind c, DeviceSlot slot, std::uint64_t hash,
                    const Use& use) {
  for (const PoolSpec* pool : model.pools_of(c)) {
    for (std::size_t layer = 0; layer < pool->layers.size(); ++layer) {
      for (std::size_t plane = 0; plane < pool->planes.size(); ++plane) {
        const std::uint64_t seed = mix(mix(mix(hash, static_cast<std::uint64_t>(pool->name)), layer), plane);
        if (!use(pools.page(pool->name, layer, plane, slot), pool->planes[plane].layer_bytes(), seed, *pool, layer))
          return;
      }
    }
  }
}

}  // namespace

void Pattern::write(ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens, std::string_view tenant,
                    DeviceSlot slot) const {
  for_each_piece(model_, pools_, c, slot, hash_of(content, tokens, tenant),
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
      model_, pools_, c, slot, hash_of(content, tokens, tenant),
      [&](const std::byte* at, std::size_t size, std::uint64_t word, const PoolSpec& pool, std::size_t layer) {
        for (std::size_t i = 0; i < size; i += 8, word += kStep) {
          if (std::memcmp(at + i, &word, std::min<std::size_t>(8, size - i)) == 0) continue;
          wrong = "wrong bytes in pool " + std::string(pool_name(pool.name)) + ", layer " + std::to_string(layer) +
                  ", offset " + std::to_string(i) + ", of the page after " + std::to_string(tokens) +
                  " tokens, in slot " + std::to_string(slot.v);
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
