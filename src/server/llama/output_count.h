// SPDX-License-Identifier: Apache-2.0
// How many tokens an answer had, as llama-server says in it; of one that was cut off, how many events had come.
//
// Reads an answer as it passes: JSON, or server-sent events, of which the last that names a count tells.
// Threads: confined. Limits: a line that is too long (AnswerLines) tells nothing, and counts above kMost are none.
// Cost: a line is looked through for four names; one is parsed, at the end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/llama/answer_lines.h"

namespace larder::llama {

class OutputCount {
 public:
  static constexpr std::uint64_t kMost = 100'000'000;  // tokens that a trace may have of one answer

  void feed(std::string_view piece);
  // No more comes.
  void end();

  // Of all answers together. After end().
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }

 private:
  void read_line(std::string line);

  AnswerLines lines_;
  std::string last_;  // names a count
  std::uint64_t events_ = 0, tokens_ = 0;
};

}  // namespace larder::llama
