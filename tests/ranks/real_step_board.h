// SPDX-License-Identifier: Apache-2.0
// Where each of several processes is, in memory that they share. The ranks of a real engine stay within a step of each
// other, because they compute together; in tests this keeps them there.
//
// Threads: any, of any process that has the file. Lifetime: the file's owner removes it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace larder::ranks_test {

class StepBoard {
 public:
  // Makes the file if it is absent; all begin at step 0.
  [[nodiscard]] static Result<StepBoard> open(const std::string& path, std::uint32_t ranks);
  StepBoard(StepBoard&& other) noexcept;
  StepBoard& operator=(StepBoard&&) = delete;
  ~StepBoard();

  void set(std::uint32_t rank, std::uint64_t step);
  [[nodiscard]] std::uint64_t slowest() const;

 private:
  StepBoard(std::uint64_t* steps, std::uint32_t ranks) : steps_(steps), ranks_(ranks) {}
  std::uint64_t* steps_;
  std::uint32_t ranks_;
};

}  // namespace larder::ranks_test
