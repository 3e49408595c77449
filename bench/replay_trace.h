// SPDX-License-Identifier: Apache-2.0
// A recorded trace of requests, as `larder replay` reads it: Mooncake's JSONL.
//
//   {"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 14, 15]}
//
//   timestamp      milliseconds since the beginning; no line is earlier than the one before it
//   input_length   tokens of the prompt, at least 1; output_length: tokens of the answer
//   hash_ids       one for each block of `block_tokens` tokens of the prompt, the last block perhaps not full; equal
//                  ids are equal blocks
//
// Three members may be missing: tenant, whose it is, as text: requests of different tenants share nothing;
// block_tokens, with which the file is to be read; and output_hash_ids, of the blocks that prompt and answer fill
// together and the prompt alone does not. Others are not looked at.
//
// There is no text in it, so tokens are made of the ids: equal blocks have equal tokens. What the answers said is in
// the trace only where a later prompt repeats it: the first later request that begins with all whole blocks of this
// one, and is longer than its prompt and answer, is taken for the next turn of its conversation, and the answer has
// that one's tokens. Every other answer has tokens of its own. With output_hash_ids nothing of that is guessed but the
// answer's tokens behind the last block that is filled.
//
// Threads: immutable once read. Memory: 8 bytes for each id.
// Source: Mooncake (FAST '25), traces of "Mooncake: A KVCache-centric Disaggregated Architecture".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/strong.h"

namespace larder {

class ReplayTrace {
 public:
  struct Request {
    double arrival_s = 0;  // since the beginning of the trace
    std::uint64_t prompt = 0, output = 0;
    std::string tenant;  // its salt; empty: none
    std::vector<std::uint64_t> blocks, answer_blocks;
    std::size_t next_turn = kNone;  // the request whose prompt repeats the answer
  };
  static constexpr std::size_t kNone = ~std::size_t{0};

  // Reads at most `limit` lines. kNotFound: no such file; kInvalidArgument names the line and what is wrong with it.
  [[nodiscard]] static Result<ReplayTrace> read(const std::string& path, std::uint64_t block_tokens, std::size_t limit);

  [[nodiscard]] const std::vector<Request>& requests() const { return requests_; }
  // Prompt and answer. O(their length).
  void tokens_of(std::size_t request, std::vector<TokenId>& out) const;

 private:
  [[nodiscard]] Status add_line(const std::string& line);
  [[nodiscard]] std::uint64_t whole_blocks(const Request& request) const;
  void find_next_turns();
  // What a block has at [begin, end), appended.
  void append_block(std::uint64_t block, std::uint64_t begin, std::uint64_t end, std::vector<TokenId>& out) const;

  std::uint64_t block_tokens_ = 512;
  std::vector<Request> requests_;
  // A prompt's last block that is not full begins as the block that its next turn has there.
  std::unordered_map<std::uint64_t, std::uint64_t> filled_later_;
};

}  // namespace larder
