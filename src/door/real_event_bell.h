// SPDX-License-Identifier: Apache-2.0
// A bell that an event loop hears: an eventfd, made when somebody asks for it. Until then it costs nothing.
//
// Threads: ring(): any. descriptor(), silence(): one thread. Lifetime: the descriptor is closed with the bell, which
// the last one who may ring holds; so its number is never another file's while somebody may still write to it.
#pragma once

#include <atomic>

#include "base/bell.h"
#include "base/status.h"

namespace larder {

class EventBell final : public Bell {
 public:
  EventBell() = default;
  EventBell(const EventBell&) = delete;
  EventBell& operator=(const EventBell&) = delete;
  ~EventBell() override;

  // Readable from a ring() to the next silence(), and at first. kOverloaded: the process or the system has no more.
  [[nodiscard]] Result<int> descriptor();
  void ring() noexcept override;
  void silence() noexcept override;

 private:
  std::atomic<int> event_{-1};
};

}  // namespace larder
