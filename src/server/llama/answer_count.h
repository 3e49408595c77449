// SPDX-License-Identifier: Apache-2.0
// How many tokens the prompt of an answer had, as llama-server says in it: whether it was the prompt that was thought.
//
// Reads an answer as it passes: JSON, or server-sent events. Looks at "usage" (of chats, responses, messages),
// "tokens_evaluated" and "timings", in the answer itself and in its "response" and "message"; of a stream to its end,
// for the error that may come instead of one.
//
// Threads: confined. Limits: the count of an answer with a line that is too long (AnswerLines) is not known.
// Cost: lines that name a count are parsed, until one has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/llama/answer_lines.h"

namespace larder::llama {

class AnswerCount {
 public:
  void feed(std::string_view piece);
  // No more comes.
  void end();

  [[nodiscard]] std::optional<std::uint64_t> prompt_tokens() const { return prompt_; }
  [[nodiscard]] std::optional<std::uint64_t> cached_tokens() const { return cached_; }
  // An event of a stream has brought output: the prompt was computed to its end. The stream's head comes before that,
  // and so do events of its progress.
  [[nodiscard]] bool has_output() const { return has_output_; }
  // An event of a stream has told that the answer failed: llama-server has emptied the slot then, and maybe others.
  [[nodiscard]] bool has_error() const { return has_error_; }
  // Events that brought output: of a stream, about a token each.
  [[nodiscard]] std::uint64_t outputs() const { return outputs_; }

 private:
  void read_line(std::string_view line, bool is_too_long);

  AnswerLines lines_;
  bool is_over_ = false;  // found, or given up
  bool has_output_ = false, has_error_ = false;
  std::uint64_t outputs_ = 0;
  std::optional<std::uint64_t> prompt_, cached_;
};

}  // namespace larder::llama
