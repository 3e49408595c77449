// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/real_step_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace larder::ranks_test {

Result<StepBoard> StepBoard::open(const std::string& path, std::uint32_t ranks) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return unavailable(path + ": " + std::strerror(errno));
  const std::size_t bytes = ranks * sizeof(std::uint64_t);
  void* memory = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const int error = errno;
  ::close(file);
  if (memory == MAP_FAILED) return unavailable(path + ": " + std::strerror(error));
  return StepBoard(static_cast<std::uint64_t*>(memory), ranks);
}

StepBoard::StepBoard(StepBoard&& other) noexcept : steps_(std::exchange(other.steps_, nullptr)), ranks_(other.ranks_) {}

StepBoard::~StepBoard() {
  if (steps_ != nullptr) ::munmap(steps_, ranks_ * sizeof(std::uint64_t));
}

void StepBoard::set(std::uint32_t rank, std::uint64_t step) {
  std::atomic_ref<std::uint64_t>(steps_[rank]).store(step, std::memory_order_release);
}

std::uint64_t StepBoard::slowest() const {
  std::uint64_t slowest = ~std::uint64_t{0};
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    slowest = std::min(slowest, std::atomic_ref<std::uint64_t>(steps_[rank]).load(std::memory_order_acquire));
  }
  return slowest;
}

}  // namespace larder::ranks_test
