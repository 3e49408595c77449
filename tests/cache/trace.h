// SPDX-License-Identifier: Apache-2.0
// Requests in the order of their arrival, as traces of serving systems record them: lengths in tokens, and the prompt
// as a row of block hashes. Where two prompts have the same hashes from the start, they begin alike.
//
// A replay does not need the tokens: a block of kTraceBlock tokens becomes one page of kTokensPerBlock that follow from
// its hash. What one counts in percent of tokens, so counts the other.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strong.h"

namespace larder::test {

inline constexpr std::uint64_t kTraceBlock = 512;    // tokens of a block
inline constexpr std::uint64_t kTokensPerBlock = 4;  // tokens that stand for them: a page of the small models

struct TraceRequest {
  std::uint64_t input_length = 0, output_length = 0;  // tokens
  std::vector<std::uint64_t> hash_ids;                // one per block, the last one of which may be a part
};
using Trace = std::vector<TraceRequest>;

// A line per request, each a JSON object with input_length, output_length and hash_ids; other members are ignored.
// kInvalidArgument names the line, and what does not fit. Hashes are below 64^4.
[[nodiscard]] Result<Trace> parse_trace(std::string_view text);
// The trace that the environment's LARDER_TRACE names. kNotFound: it names none.
[[nodiscard]] Result<Trace> trace_of_environment();

// Conversations of the same shape as those of Mooncake's trace: two requests in three open one, with a block that all
// share and a length from two blocks to 240, half of them below 13; one in three goes on where its conversation was,
// some hundred requests later, with two blocks more, or with many. Everything follows from the seed.
[[nodiscard]] Trace generate_trace(std::uint64_t seed, std::size_t requests);

// The prompt and the output, scaled: kTokensPerBlock for kTraceBlock, rounded up.
[[nodiscard]] std::vector<TokenId> scaled_prompt(const TraceRequest& request);
[[nodiscard]] std::uint64_t scaled_output(const TraceRequest& request);

// What a cache without limits would find, percent of the prompts' tokens.
[[nodiscard]] double ceiling_of(const Trace& trace);

}  // namespace larder::test
