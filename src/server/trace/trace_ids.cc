// SPDX-License-Identifier: Apache-2.0
#include "server/trace/trace_ids.h"

#include <algorithm>

#include "key/field_hasher.h"

namespace larder {
namespace {

constexpr std::string_view kPurpose = "larder request trace 1";
constexpr std::uint64_t kIdMask = (std::uint64_t{1} << 53) - 1;

}  // namespace

TraceIds::TraceIds(std::string_view secret, std::uint64_t block_tokens)
    : secret_(sha256(secret)), block_tokens_(block_tokens) {}

TraceChain TraceIds::chain(const TraceSpace& space) const {
  FieldHasher seed;
  seed.text(kPurpose);
  seed.digest(secret_);
  seed.number(block_tokens_);
  seed.text(space.model);
  seed.text(space.adapter);
  seed.text(space.salt);
  return {seed.finish(), block_tokens_};
}

std::vector<std::uint64_t> TraceIds::of(std::span<const TokenId> prompt, const TraceSpace& space) const {
  std::vector<std::uint64_t> ids;
  TraceChain blocks = chain(space);
  blocks.append(prompt, ids);
  if (const std::optional<std::uint64_t> rest = blocks.rest()) ids.push_back(*rest);
  return ids;
}

TraceChain::TraceChain(const Digest256& seed, std::uint64_t block_tokens) : block_tokens_(block_tokens) {
  begin_block(seed);
}

void TraceChain::begin_block(const Digest256& before) {
  in_block_ = 0;
  hash_ = Sha256();
  hash_.update(before.bytes);
}

void TraceChain::append(std::span<const TokenId> tokens, std::vector<std::uint64_t>& ids) {
  while (!tokens.empty()) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(block_tokens_ - in_block_, tokens.size()));
    hash_.update(tokens.data(), count * sizeof(TokenId));  // little-endian, as the machine is (base/bytes.h)
    in_block_ += count;
    tokens = tokens.subspan(count);
    if (in_block_ < block_tokens_) return;
    const Digest256 digest = hash_.finish();
    ids.push_back(digest.prefix64() & kIdMask);
    begin_block(digest);
  }
}

std::optional<std::uint64_t> TraceChain::rest() const {
  if (in_block_ == 0) return std::nullopt;
  Sha256 copy = hash_;
  return copy.finish().prefix64() & kIdMask;
}

}  // namespace larder
