// SPDX-License-Identifier: Apache-2.0
// How many tokens the prompt of an answer had, as llama-server says in it: whether it was the prompt that was thought.
//
// Reads an answer as it passes: JSON, or server-sent events. Looks at "usage" (of chats, responses, messages),
// "tokens_evaluated" and "timings", in the answer itself and in its "response" and "message", and no further once it
// has a number.
//
// Threads: confined. Limits: a line of kMostBytes; the count of an answer with a longer one is not known.
// Cost: lines that name a count are parsed, until one has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace larder::llama {

class AnswerCount {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  void feed(std::string_view piece);
  // No more comes.
  void end();

  [[nodiscard]] std::optional<std::uint64_t> prompt_tokens() const { return prompt_; }
  [[nodiscard]] std::optional<std::uint64_t> cached_tokens() const { return cached_; }

 private:
  void read_line();

  std::string line_;
  bool is_over_ = false;  // found, or given up
  std::optional<std::uint64_t> prompt_, cached_;
};

}  // namespace larder::llama
