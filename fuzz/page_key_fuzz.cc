// SPDX-License-Identifier: Apache-2.0
// The chain of page keys (key/page_key.h).
//
// Fed: page size, unit, seed or none, tokens, and where to cut the work into pieces.
// Checked: hashing at once, piece by piece with extend(), and pages only with append_pages() give the same keys, and
// so does page_key() page by page. A key changes with any token of its page or of one before, with the seed, and with
// the unit; it does not with a token behind its page. Hex goes there and back.
#include "fuzz/fuzz_input.h"
#include "key/page_key.h"

namespace larder::fuzz {
namespace {

struct Shape {
  std::uint32_t page_size;
  std::optional<PageKey> seed;
  KeyUnit unit;
};

std::vector<PageKey> at_once(const Shape& shape, std::span<const TokenId> tokens) {
  PageKeyChain chain(shape.page_size, shape.seed, shape.unit);
  chain.extend(tokens);
  return {chain.keys().begin(), chain.keys().end()};
}

// Tokens that one page needs, beginning with its first: a bigram reads one more than its page has.
std::size_t page_tokens(const Shape& shape) { return shape.page_size + (shape.unit == KeyUnit::kBigram ? 1 : 0); }

std::vector<PageKey> page_by_page(const Shape& shape, std::span<const TokenId> tokens) {
  std::vector<PageKey> keys;
  std::optional<PageKey> prior = shape.seed;
  for (std::size_t at = 0; at + page_tokens(shape) <= tokens.size(); at += shape.page_size) {
    keys.push_back(page_key(tokens.subspan(at, page_tokens(shape)), prior, shape.unit));
    prior = keys.back();
  }
  return keys;
}

// In pieces, by both ways to go on.
std::vector<PageKey> in_pieces(const Shape& shape, std::span<const TokenId> tokens, FuzzInput& choices) {
  PageKeyChain chain(shape.page_size, shape.seed, shape.unit);
  for (int piece = 0; piece < 8; ++piece) {
    const auto end = static_cast<std::size_t>(choices.below(tokens.size() + 1));
    const std::size_t done = chain.size() * shape.page_size;
    if (choices.flag()) {
      chain.extend(tokens.first(std::max(end, done)));
    } else if (end > done) {
      chain.append_pages(tokens.subspan(done, end - done));
    }
  }
  chain.extend(tokens);
  return {chain.keys().begin(), chain.keys().end()};
}

void check_sensitivity(const Shape& shape, std::vector<TokenId> tokens, const std::vector<PageKey>& keys,
                       FuzzInput& choices) {
  if (keys.empty()) return;
  const auto changed = static_cast<std::size_t>(choices.below(tokens.size()));
  tokens[changed] ^= static_cast<TokenId>(1 + choices.below(255));
  const std::vector<PageKey> others = at_once(shape, tokens);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool is_touched = changed < i * shape.page_size + page_tokens(shape);
    fuzz_check((others[i] != keys[i]) == is_touched, "a key follows the wrong tokens");
  }
  Shape other = shape;
  other.seed = shape.seed ? std::nullopt : std::optional<PageKey>(keys[0]);
  fuzz_check(at_once(other, tokens)[0] != others[0], "a key does not follow its seed");
}

void run(FuzzInput input) {
  Shape shape{static_cast<std::uint32_t>(1 + input.below(70)), std::nullopt,
              input.flag() ? KeyUnit::kBigram : KeyUnit::kToken};
  if (input.flag()) {
    shape.seed.emplace();
    shape.seed->bytes[0] = input.number<std::uint8_t>();
    shape.seed->bytes[31] = input.number<std::uint8_t>();
  }
  FuzzInput choices = input.part(24);
  std::vector<TokenId> tokens;
  while (!input.empty()) tokens.push_back(input.flag() ? input.number<std::uint32_t>() : input.number<std::uint8_t>());

  const std::vector<PageKey> keys = at_once(shape, tokens);
  fuzz_check(keys == page_by_page(shape, tokens), "the chain is not page after page");
  fuzz_check(keys == in_pieces(shape, tokens, choices), "a chain in pieces is another");
  check_sensitivity(shape, tokens, keys, choices);
  for (const PageKey& key : keys) {
    const Result<Digest256> again = Digest256::from_hex(key.hex());
    fuzz_check(again.is_ok() && *again == key, "hex does not come back");
  }
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
