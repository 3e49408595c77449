// SPDX-License-Identifier: Apache-2.0
// Cuts an answer of llama-server, which comes in pieces, into lines: JSON, or server-sent events.
//
// Threads: confined. Limits: of a line of more than kMostBytes nothing is kept but that it was there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace larder::llama {

inline constexpr std::string_view kEventData = "data:";  // what an event's line begins with

class AnswerLines {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  // on_line(std::string line, bool is_too_long), once for each line that has ended; a line that is too long is empty.
  template <class OnLine>
  void feed(std::string_view piece, OnLine on_line) {
    while (!piece.empty()) {
      const std::size_t end = std::min(piece.find('\n'), piece.size());
      is_too_long_ = is_too_long_ || line_.size() + end > kMostBytes;
      if (is_too_long_) {
        line_.clear();
      } else {
        line_.append(piece.substr(0, end));
      }
      if (end == piece.size()) return;
      this->end(on_line);
      piece.remove_prefix(end + 1);
    }
  }
  // No more comes: what is there is the last line.
  template <class OnLine>
  void end(OnLine on_line) {
    on_line(std::exchange(line_, {}), std::exchange(is_too_long_, false));
  }

 private:
  std::string line_;
  bool is_too_long_ = false;
};

}  // namespace larder::llama
