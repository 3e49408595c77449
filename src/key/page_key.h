// SPDX-License-Identifier: Apache-2.0
// The page-key chain (rule 4).
//
//   key(i) = SHA-256( key(i-1) as 32 raw bytes, absent for the first page of an unseeded chain
//                     || for each token of page i: u32 little-endian )      bigram mode: both tokens of each unit
//
// With an empty seed the chain equals SGLang HiCache's, byte for byte (golden values in page_key_test.cc). With a seed
// (the namespace digest) it cannot meet the chain of another model, layout, adapter or tenant.
//
// Incremental: PageKeyChain keeps its last digest, so extending a hashed prefix costs only the new pages.
// Cost: about 0.3 us per 64-token page with SHA-NI. No allocation per page beyond the output vector.
// Threads: PageKeyChain is confined; the free functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/strong.h"

namespace larder {

using PageKey = Digest256;

enum class KeyUnit : std::uint8_t { kToken, kBigram };

// Hash of one page (or of a partial last page). `prior` absent: unseeded head of a chain.
// kBigram: tokens holds n+1 raw tokens for n units.
[[nodiscard]] PageKey page_key(std::span<const TokenId> tokens, const std::optional<PageKey>& prior,
                               KeyUnit unit = KeyUnit::kToken);

class PageKeyChain {
 public:
  // page_size in tokens, > 0. seed: the namespace digest, or nullopt for the reference's unseeded chain.
  PageKeyChain(std::uint32_t page_size, std::optional<PageKey> seed, KeyUnit unit = KeyUnit::kToken);

  // Hashes the whole pages of `tokens` beyond those already hashed. `tokens` is the full token sequence from position 0
  // (its head must be what was hashed before; only the new pages are read). Partial last pages wait.
  void extend(std::span<const TokenId> tokens);
  // Continues with the next pages only: tokens of pages size()..; whole pages are consumed, the rest is ignored.
  void append_pages(std::span<const TokenId> tokens);

  [[nodiscard]] std::span<const PageKey> keys() const { return keys_; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  [[nodiscard]] std::uint32_t page_size() const { return page_size_; }

 private:
  std::uint32_t page_size_;
  KeyUnit unit_;
  std::optional<PageKey> prior_;
  std::vector<PageKey> keys_;
};

// First 16 hex characters as a signed 64-bit integer: the block hash of the reference's KV events.
[[nodiscard]] std::int64_t event_block_hash(const PageKey& key);

}  // namespace larder
