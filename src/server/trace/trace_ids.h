// SPDX-License-Identifier: Apache-2.0
// Names for the blocks of prompts, in traces that others may see.
//
//   digest(0) = SHA-256(purpose, secret, tokens of a block, model, adapter, salt)       each with its length in front
//   digest(i) = SHA-256(digest(i-1) || tokens of block i)                               as page keys (key/page_key.h)
//   id(i)     = the lowest 53 bits of digest(i)                                         JSON's numbers hold no more
//
// So an id stands for its block and all before it, in one namespace; and without the secret nobody can tell whether a
// prompt that they have thought of is among those of a file.
// Limits: of 10 million different blocks, two have one id in 1 file of 180.
// Threads: TraceIds is immutable, a TraceChain confined. Cost: about 5 ns a token.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/strong.h"
#include "key/sha256.h"

namespace larder {

// What must be equal, beside tokens, for one prompt to use what another has left.
struct TraceSpace {
  std::string_view model{}, adapter{}, salt{};
  bool is_private = false;  // it is used for nothing else, and uses nothing: a TraceRecorder gives it a salt of its own
};

// The blocks of one text as it grows.
class TraceChain {
 public:
  TraceChain(const Digest256& seed, std::uint64_t block_tokens);

  // Appends the ids of the blocks that are full now.
  void append(std::span<const TokenId> tokens, std::vector<std::uint64_t>& ids);
  // Of the tokens behind the last full block; nullopt: there are none.
  [[nodiscard]] std::optional<std::uint64_t> rest() const;

 private:
  void begin_block(const Digest256& before);

  std::uint64_t block_tokens_;
  std::uint64_t in_block_ = 0;  // tokens of the block that hash_ has
  Sha256 hash_;
};

class TraceIds {
 public:
  // block_tokens > 0.
  TraceIds(std::string_view secret, std::uint64_t block_tokens);

  [[nodiscard]] TraceChain chain(const TraceSpace& space) const;
  // One for each block of `prompt`; the last may be smaller.
  [[nodiscard]] std::vector<std::uint64_t> of(std::span<const TokenId> prompt, const TraceSpace& space) const;
  [[nodiscard]] std::uint64_t block_tokens() const { return block_tokens_; }

 private:
  Digest256 secret_;
  std::uint64_t block_tokens_;
};

}  // namespace larder
