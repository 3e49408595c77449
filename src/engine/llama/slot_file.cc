// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/slot_file.h"

#include <fmt/format.h>

#include <cassert>
#include <cstring>

#include "base/bytes.h"
#include "engine/llama/blob_reader.h"

namespace larder::llama {
namespace {

constexpr std::uint32_t kPackedMark = 0xffffffff, kPackedVersion = 1;
constexpr std::size_t kHeadBytes = 12, kWord = sizeof(TokenId);

std::vector<TokenId> tokens_of(std::span<const std::byte> bytes) {
  std::vector<TokenId> tokens(bytes.size() / kWord);
  if (!bytes.empty()) std::memcpy(tokens.data(), bytes.data(), tokens.size() * kWord);
  return tokens;
}

Result<std::vector<TokenId>> unpack(std::span<const std::byte> words) {
  BlobReader in(words);
  const auto mark = words.empty() ? 0 : in.number<std::uint32_t>("the mark of packed tokens");
  if (mark != kPackedMark) return tokens_of(words);
  const auto version = in.number<std::uint32_t>("the version of packed tokens");
  if (in.ok() && version != kPackedVersion) {
    return unsupported(fmt::format("tokens are packed in version {}, and {} is known", version, kPackedVersion));
  }
  const auto count = in.number<std::uint32_t>("the number of tokens");
  const std::span<const std::byte> tokens = in.take(std::uint64_t{count} * kWord, "the tokens");
  const auto media = in.number<std::uint32_t>("the number of media");
  if (!in.ok()) return in.status();
  if (media != 0) return unsupported(fmt::format("{} images or sounds in the prompt", media));
  if (in.left() != 0) return corrupt(fmt::format("{} bytes follow the packed tokens", in.left()));
  return tokens_of(tokens);
}

}  // namespace

Result<SlotFile> parse_slot_file(std::span<const std::byte> bytes) {
  BlobReader in(bytes);
  const auto magic = in.number<std::uint32_t>("the magic number"), version = in.number<std::uint32_t>("the version");
  if (in.ok() && magic != kSlotFileMagic) {
    return corrupt(fmt::format("a slot file begins with {:#x}, this one with {:#x}", kSlotFileMagic, magic));
  }
  if (in.ok() && version != kSlotFileVersion) {
    return unsupported(fmt::format("a slot file of version {}, and {} is known", version, kSlotFileVersion));
  }
  const auto words = in.number<std::uint32_t>("the number of tokens");
  const std::span<const std::byte> packed = in.take(std::uint64_t{words} * kWord, "the tokens");
  if (!in.ok()) return in.status();
  Result<std::vector<TokenId>> tokens = unpack(packed);
  if (!tokens) return tokens.status();
  return SlotFile{std::move(*tokens), bytes.subspan(in.offset())};
}

std::size_t slot_head_bytes(std::size_t token_count) { return kHeadBytes + token_count * kWord; }

void write_slot_head(std::span<const TokenId> tokens, std::span<std::byte> into) {
  assert(into.size() == slot_head_bytes(tokens.size()));
  store_le(into.data(), kSlotFileMagic);
  store_le(into.data() + 4, kSlotFileVersion);
  store_le(into.data() + 8, static_cast<std::uint32_t>(tokens.size()));
  if (!tokens.empty()) std::memcpy(into.data() + kHeadBytes, tokens.data(), tokens.size() * kWord);
}

}  // namespace larder::llama
