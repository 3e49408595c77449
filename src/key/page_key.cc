// SPDX-License-Identifier: Apache-2.0
#include "key/page_key.h"

#include <array>
#include <cassert>
#include <cstddef>

#include "key/sha256.h"

namespace larder {
namespace {

// Units of one page hold units + 1 raw tokens in bigram mode: the last unit reaches one token over.
std::size_t raw_tokens(std::size_t units, KeyUnit unit) { return unit == KeyUnit::kBigram ? units + 1 : units; }

std::size_t whole_units(std::size_t raw, KeyUnit unit) {
  if (unit == KeyUnit::kToken) return raw;
  return raw == 0 ? 0 : raw - 1;
}

// Each token but the ends belongs to two units, so the message is packed, a stack buffer at a time.
void update_bigrams(Sha256& hash, std::span<const TokenId> tokens) {
  constexpr std::size_t kUnitsPerChunk = 64;
  std::array<TokenId, 2 * kUnitsPerChunk> chunk;
  const std::size_t units = whole_units(tokens.size(), KeyUnit::kBigram);
  std::size_t filled = 0;
  for (std::size_t i = 0; i < units; ++i) {
    chunk[filled++] = tokens[i];
    chunk[filled++] = tokens[i + 1];
    if (filled == chunk.size() || i + 1 == units) {
      hash.update(chunk.data(), filled * sizeof(TokenId));
      filled = 0;
    }
  }
}

}  // namespace

PageKey page_key(std::span<const TokenId> tokens, const std::optional<PageKey>& prior, KeyUnit unit) {
  Sha256 hash;
  if (prior) hash.update(prior->bytes);
  if (unit == KeyUnit::kBigram) {
    update_bigrams(hash, tokens);
  } else {
    hash.update(tokens.data(), tokens.size_bytes());  // little-endian already: base/bytes.h asserts it of the machine
  }
  return hash.finish();
}

PageKeyChain::PageKeyChain(std::uint32_t page_size, std::optional<PageKey> seed, KeyUnit unit)
    : page_size_(page_size), unit_(unit), prior_(seed) {
  assert(page_size > 0);
}

void PageKeyChain::extend(std::span<const TokenId> tokens) {
  const std::size_t hashed = keys_.size() * page_size_;
  if (tokens.size() <= hashed) return;
  append_pages(tokens.subspan(hashed));
}

void PageKeyChain::append_pages(std::span<const TokenId> tokens) {
  const std::size_t pages = whole_units(tokens.size(), unit_) / page_size_;
  for (std::size_t i = 0; i < pages; ++i) {
    prior_ = page_key(tokens.subspan(i * page_size_, raw_tokens(page_size_, unit_)), prior_, unit_);
    keys_.push_back(*prior_);
  }
}

std::int64_t event_block_hash(const PageKey& key) {
  std::uint64_t value = 0;  // hex digits read left to right: the first byte is the most significant
  for (std::size_t i = 0; i < 8; ++i) value = (value << 8) | key.bytes[i];
  return static_cast<std::int64_t>(value);
}

}  // namespace larder
