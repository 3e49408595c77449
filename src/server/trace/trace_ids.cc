// SPDX-License-Identifier: Apache-2.0
#include "server/trace/trace_ids.h"

#include <algorithm>

#include "key/field_hasher.h"
#include "key/page_key.h"
#include "key/sha256.h"

namespace larder {
namespace {

constexpr std::string_view kPurpose = "larder request trace 1";
constexpr std::uint64_t kIdMask = (std::uint64_t{1} << 53) - 1;

}  // namespace

TraceIds::TraceIds(std::string_view secret, std::uint64_t block_tokens)
    : secret_(sha256(secret)), block_tokens_(block_tokens) {}

std::vector<std::uint64_t> TraceIds::of(std::span<const TokenId> prompt, const TraceSpace& space) const {
  FieldHasher seed;
  seed.text(kPurpose);
  seed.digest(secret_);
  seed.number(block_tokens_);
  seed.text(space.model);
  seed.text(space.adapter);
  seed.text(space.salt);
  PageKey digest = seed.finish();
  std::vector<std::uint64_t> ids;
  ids.reserve(static_cast<std::size_t>((prompt.size() + block_tokens_ - 1) / block_tokens_));
  while (!prompt.empty()) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(block_tokens_, prompt.size()));
    digest = page_key(prompt.first(size), digest);
    ids.push_back(digest.prefix64() & kIdMask);
    prompt = prompt.subspan(size);
  }
  return ids;
}

}  // namespace larder
