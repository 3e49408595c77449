// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/crash_pages.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace larder::crash {
namespace {

constexpr std::uint64_t kChainLength = 8;

Digest256 digest_of(std::uint64_t kind, std::uint64_t a, std::uint64_t b) {
  Rng rng((kind * 1'000'003 + a) * 1'000'000'007 + b);
  Digest256 digest;
  for (auto& byte : digest.bytes) byte = static_cast<std::uint8_t>(rng.below(256));
  return digest;
}

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Eight bytes of a page: those at 8 * index.
std::uint64_t word_of(const GroupId& group, PoolName pool, std::uint64_t index) {
  const std::uint64_t page = mix(group.scope * 0x9e3779b97f4a7c15ull + group.number * 16 + static_cast<unsigned>(pool));
  return mix(page + index * 0x9e3779b97f4a7c15ull);
}

}  // namespace

std::string to_text(const GroupId& group) {
  return "group " + std::to_string(group.number) + " of scope " + std::to_string(group.scope);
}

std::vector<PageShape> pages_of(const GroupId& group) {
  Rng rng(group.scope * 977 + group.number);
  constexpr std::size_t kSmall[] = {1, 300, 700, 3000, 3000};
  constexpr std::size_t kLarge[] = {16'384, 16'384, 17'001, 20'480};
  const std::size_t small = kSmall[rng.below(std::size(kSmall))], large = kLarge[rng.below(std::size(kLarge))];
  switch (group.number % 4) {
    case 0: return {{PoolName::kSwa, 700}, {PoolName::kKv, small}};
    case 1: return {{PoolName::kIndexer, small}, {PoolName::kKv, large}};
    case 2: return {{PoolName::kDeepseekV4C4, 0}, {PoolName::kSwa, 700}, {PoolName::kKv, 3000}};
    default: return {{PoolName::kMamba, large}, {PoolName::kSwa, 700}, {PoolName::kKv, 16'384}};
  }
}

PageKey key_of(const GroupId& group) { return digest_of(1, group.scope, group.number); }

std::shared_ptr<const StoreScope> scope_of(std::uint64_t scope) {
  auto out = std::make_shared<StoreScope>();
  out->namespace_digest = digest_of(2, scope, 0);
  for (const PoolName pool :
       {PoolName::kKv, PoolName::kSwa, PoolName::kMamba, PoolName::kIndexer, PoolName::kDeepseekV4C4}) {
    const auto number = static_cast<std::uint64_t>(pool);
    out->set_pool(pool, digest_of(3, scope % 2, number));  // some scopes have equal layouts
  }
  return out;
}

GroupBuffers::GroupBuffers(const GroupId& group, Rng& rng) : group_(group) {
  for (const PageShape& shape : pages_of(group)) {
    Page page{shape, file_store::AlignedBuffer(shape.bytes + kDirectAlignment), nullptr, {}};
    page.bytes = page.memory.data() + (rng.chance(1, 3) ? 8 * (1 + rng.below(500)) : 0);
    const std::size_t first = rng.chance(1, 2) ? shape.bytes : static_cast<std::size_t>(rng.below(shape.bytes + 1));
    if (first > 0) page.pieces.push_back({page.bytes, first});
    if (first < shape.bytes) page.pieces.push_back({page.bytes + first, shape.bytes - first});
    pages_.push_back(std::move(page));
  }
}

void GroupBuffers::fill() {
  for (Page& page : pages_) {
    for (std::size_t at = 0; at < page.shape.bytes; at += 8) {
      const std::uint64_t word = word_of(group_, page.shape.pool, at / 8);
      std::memcpy(page.bytes + at, &word, std::min<std::size_t>(8, page.shape.bytes - at));
    }
  }
}

bool GroupBuffers::is_right(std::size_t i) const {
  const Page& page = pages_.at(i);
  for (std::size_t at = 0; at < page.shape.bytes; at += 8) {
    const std::uint64_t word = word_of(group_, page.shape.pool, at / 8);
    if (std::memcmp(page.bytes + at, &word, std::min<std::size_t>(8, page.shape.bytes - at)) != 0) return false;
  }
  return true;
}

PageGroup GroupBuffers::write_group() const {
  PageGroup out;
  PageKey parent;
  if (group_.number % kChainLength != 0) parent = key_of({group_.scope, group_.number - 1});
  for (const Page& page : pages_) out.items.push_back({page.shape.pool, key_of(group_), page.pieces, parent});
  return out;
}

std::vector<ReadItem> GroupBuffers::read_items() const {
  std::vector<ReadItem> out;
  for (const Page& page : pages_) out.push_back({page.shape.pool, key_of(group_), page.pieces});
  return out;
}

std::uint64_t test_seed() {
  const char* const text = std::getenv("LARDER_TEST_SEED");
  return text == nullptr ? 20240607 : std::strtoull(text, nullptr, 10);
}

}  // namespace larder::crash
