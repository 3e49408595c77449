// SPDX-License-Identifier: Apache-2.0
// How many tokens an answer had, as llama-server says in it; of one that was cut off, how many events had come.
//
// Reads an answer as it passes: JSON, or server-sent events, of which the last that names a count tells.
// Threads: confined. Limits: a line of kMostBytes; a longer one tells nothing.
// Cost: a line is looked through for four names; one is parsed, at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace larder::llama {

class OutputCount {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  void feed(std::string_view piece);
  // No more comes.
  void end();

  // Of all answers together. After end().
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }

 private:
  void read_line();

  std::string line_, last_;  // last_: names a count
  bool is_too_long_ = false;
  std::uint64_t events_ = 0, tokens_ = 0;
};

}  // namespace larder::llama
