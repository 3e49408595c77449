// SPDX-License-Identifier: Apache-2.0
// Sequences in an engine's memory, as pages and checkpoints need them: what libllama offers, and tests can stand in
// for.
//
// Sequences are numbered from 0. A sequence holds positions [0, n); decode() continues it at n.
// Threads: confined to the engine's thread. Cost: load and save copy their bytes once (2 to 17 GB/s).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong.h"

namespace larder::llama {

class SequenceHost {
 public:
  virtual ~SequenceHost() = default;
  // Computes `tokens` as one batch at positions [position, position + size); the logits behind the last one.
  // kOverloaded: no memory for them.
  [[nodiscard]] virtual Result<std::vector<float>> decode(std::uint32_t sequence, std::uint32_t position,
                                                          std::span<const TokenId> tokens) = 0;
  // A blob with its header (engine/llama/sequence_blob.h).
  [[nodiscard]] virtual Result<std::vector<std::byte>> save(std::uint32_t sequence, bool is_partial) = 0;
  // Replaces the parts that the blob has. kInternal: the engine refused it; the sequence is then empty.
  [[nodiscard]] virtual Status load(std::uint32_t sequence, std::span<const std::byte> blob, bool is_partial) = 0;
  // Positions [begin, end) of `from` are shared with `to`; recurrent state as a whole. Moves no rows.
  virtual void share(std::uint32_t from, std::uint32_t to, std::uint32_t begin, std::uint32_t end) = 0;
  virtual void clear(std::uint32_t sequence) = 0;
  // Tokens are below it.
  [[nodiscard]] virtual std::uint32_t vocabulary_size() const = 0;
};

}  // namespace larder::llama
