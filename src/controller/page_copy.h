// SPDX-License-Identifier: Apache-2.0
// Copies between host slots and memory of an engine: what a load or a save gives to an executor.
//
// Threads: a PageCopy is filled on the cache thread and run once by an executor's; PageCopier is the cache thread's.
// Lifetime: a copy that waits in the executor outlives the PageCopier; once closed it touches nothing any more.
// Cost: a memcpy of all bytes on one thread of the executor, about 10 GiB/s; without an executor, on the caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/status.h"
#include "controller/op_table.h"
#include "controller/page_places.h"

namespace larder {

class PageCopy {
 public:
  // Bytes of `from` go to `to`. Both have the same sum of sizes.
  void add(std::span<const Segment> from, std::span<const Segment> to);
  // A page for the callback that was given; one of them.
  void set_writer(PageWriter writer) { writer_ = std::move(writer); }
  void set_reader(PageReader reader) { reader_ = std::move(reader); }
  void add_page(PoolName pool, std::uint64_t page, std::vector<Segment> host);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  // Whether it may run: false once it was revoked. Any thread, once.
  [[nodiscard]] bool begin();
  [[nodiscard]] Status run();
  // From here on nothing of it is touched.
  void end() { state_.store(State::kOver, std::memory_order_release); }
  // It will never run, if it has not begun.
  void revoke();
  [[nodiscard]] bool is_running() const { return state_.load(std::memory_order_acquire) == State::kRunning; }

 private:
  enum class State : std::uint8_t { kWaiting, kRunning, kOver };
  struct Piece {
    std::byte* to;
    const std::byte* from;
    std::size_t size;
  };
  struct Page {
    PoolName pool;
    std::uint64_t page;
    std::vector<Segment> host;
  };
  [[nodiscard]] Status call(const Page& page);

  std::vector<Piece> pieces_;
  std::vector<Page> pages_;
  PageWriter writer_;
  PageReader reader_;
  std::uint64_t bytes_ = 0;
  std::atomic<State> state_{State::kWaiting};
};

class PageCopier {
 public:
  // executor: null: copies run inside submit(). All outlive the copier; the executor's tasks may outlive it.
  PageCopier(OpTable& ops, Executor* executor) : ops_(ops), executor_(executor) {}
  // Ends with a TransferDone of the operation, always.
  void submit(OpId id, std::shared_ptr<PageCopy> copy);
  // The operation has ended.
  void forget(OpId id) { copies_.erase(id.v); }
  // Nothing that has not begun will run. Waits for what runs, in real time.
  void close();

 private:
  OpTable& ops_;
  Executor* const executor_;
  std::map<std::uint64_t, std::shared_ptr<PageCopy>> copies_;  // by operation
};

}  // namespace larder
