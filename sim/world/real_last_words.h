// SPDX-License-Identifier: Apache-2.0
// What was under way when the process died: a seed that nobody sees cannot be replayed.
//
// Threads: confined. One per process at a time.
#pragma once

#include <string_view>

namespace larder::sim {

// While it lives, a signal that ends the process (SIGABRT, SIGSEGV, ..., also SIGINT and SIGTERM, for what does not
// end) and a sanitizer's report first write its text to standard error. Then the signal does what it did before.
class LastWords {
 public:
  LastWords();
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
  // At most 500 bytes; the rest is cut off.
  void set(std::string_view text);
};

}  // namespace larder::sim
