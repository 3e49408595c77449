// SPDX-License-Identifier: Apache-2.0
// The files that llama-server writes for /slots/{id}?action=save and reads for action=restore ("GGSQ", version 3).
//
// Picture (little-endian):
//
//   u32 magic "ggsq", u32 version = 3, u32 words, words x u32, sequence blob without its header
//
// The words are the tokens; or, from newer servers, 0xffffffff, 1, count, tokens, 0 (media). Both are read, the first
// is written, which newer servers read, too.
// Errors: kUnsupported: another version, or media. kCorrupt: anything else that is not such a file.
// Threads: pure. Lifetime: a SlotFile points into the bytes. Cost: a copy of the tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong.h"

namespace larder::llama {

inline constexpr std::uint32_t kSlotFileMagic = 0x67677371;
inline constexpr std::uint32_t kSlotFileVersion = 3;

struct SlotFile {
  std::vector<TokenId> tokens;
  std::span<const std::byte> blob;  // BlobForm{has_header = false}
};

[[nodiscard]] Result<SlotFile> parse_slot_file(std::span<const std::byte> bytes);

// What stands before the blob.
[[nodiscard]] std::size_t slot_head_bytes(std::size_t token_count);
// Preconditions: into.size() == slot_head_bytes(tokens.size()), and fewer than 2^31 tokens.
void write_slot_head(std::span<const TokenId> tokens, std::span<std::byte> into);

}  // namespace larder::llama
