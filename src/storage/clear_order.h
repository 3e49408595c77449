// SPDX-License-Identifier: Apache-2.0
// The order of writes and clears: a page that came into being before a clear is not there after it.
//
// Purpose: writes wait in queues, are under way in the backend, or are kept for another try, by this process or by
// another one; a clear comes in between. Every write says as of which clear its pages are (WriteRequest::as_of), and
// one ClearOrder in front of the backend keeps the rule for all of them:
//
//   write, as of a clear ──► its namespace was cleared since? kCancelled ──► counted ──► inner backend ──► done,
//   uncounted clear ──► [kept: ClearKeeper] ──► the next mark begins ──► waits for earlier writes ──► inner backend ──►
//   done
//
// A clear waits without a thread: whoever ends the last write that it waits for passes it on. Writes that come after
// its mark, and those of other namespaces, do not wait for it. A write that hangs holds up the clears of its namespace
// and of the whole store until it ends, also when nobody waits for them any more: their callers' deadlines are theirs.
//
// Threads: all methods from any thread. One lock, rank kStorage, never held over a call or a callback.
// Lifetime: executor and keeper's needs outlive it; handles of tell() may outlive it.
// Limits: kMostClears clears at once, more are refused with kOverloaded; the last ClearHistory::kMostNamespaces clears
// of namespaces are remembered, and before them all namespaces count as cleared.
// Errors: as the port says. A clear whose mark cannot be kept fails with the keeper's error, and has cleared nothing;
// one that still waits when close() or the destructor begins ends kCancelled, and clears nothing. Cost: a write costs
// two short locks and three allocations; a clear two more, and what the keeper does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/executor.h"
#include "storage/backend.h"

namespace larder {

// Which clears a store has seen. Threads: a value.
struct ClearHistory {
  static constexpr std::size_t kMostNamespaces = 1024;
  // What is known of a store whose past is not: a number of its own, and no clears. Two at one moment draw apart by
  // `salt`.
  [[nodiscard]] static ClearHistory anew(const Clock& clock, std::uint64_t salt);

  // Begins a clear of the namespace (null: of all). Its mark's count. Without memory all stays as it was.
  std::uint64_t begin(const Digest256* namespace_digest);
  // The count of the last clear of the namespace: what is as of an earlier one was cleared.
  [[nodiscard]] std::uint64_t cleared_at(const Digest256& namespace_digest) const;

  std::uint64_t store = 0;
  std::uint64_t count = 0;                          // of the last clear
  std::uint64_t floor = 0;                          // all namespaces count as cleared then
  std::uint64_t whole = 0;                          // of the last clear of all
  std::map<Digest256, std::uint64_t> namespaces{};  // above the floor
  friend bool operator==(const ClearHistory&, const ClearHistory&) = default;
};

// Keeps the history for who orders the same store's clears next. Threads: one save at a time, on any thread.
class ClearKeeper {
 public:
  virtual ~ClearKeeper() = default;
  // May block. Not ok: says what, where, and how to mend it; the clear fails with that.
  [[nodiscard]] virtual Status save(const ClearHistory& history) = 0;
};

// The counts of clear_mark() and emptied_mark(), in memory that another process reads. They are written before the
// clear is passed on, and before it is answered: so who has heard of that clear, by whatever way, finds them as they
// are.
struct ClearWords {
  std::atomic<std::uint64_t> count{0}, emptied{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "two processes share them");

class ClearOrder final : public StorageBackend {
 public:
  static constexpr std::size_t kMostClears = 1024;

  // keeper: null, or saves on the executor (on the thread that clears, where that refuses) before a clear begins; then
  // there is an executor. Precondition: inner, history.store.
  ClearOrder(std::unique_ptr<StorageBackend> inner, ClearHistory history, std::unique_ptr<ClearKeeper> keeper = nullptr,
             Executor* executor = nullptr);
  ~ClearOrder() override;
  ClearOrder(const ClearOrder&) = delete;
  ClearOrder& operator=(const ClearOrder&) = delete;

  [[nodiscard]] const BackendInfo& info() const override { return inner_->info(); }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return inner_->submit_exists(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return inner_->submit_read(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  // The inner backend's; `queued` counts clears that wait here, too.
  [[nodiscard]] BackendStats stats() const override;
  [[nodiscard]] ClearMark clear_mark() const override;
  [[nodiscard]] ClearMark emptied_mark() const override;
  [[nodiscard]] Status register_memory(std::span<const Segment> regions) override {
    return inner_->register_memory(regions);
  }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

  // Writes the counts there, now and with each clear, until the handle goes.
  class Told {
   public:
    virtual ~Told() = default;
  };
  [[nodiscard]] std::unique_ptr<Told> tell(std::shared_ptr<ClearWords> words);

 private:
  class State;

  const std::shared_ptr<State> state_;           // shared with what is in flight
  const std::unique_ptr<StorageBackend> inner_;  // after state_: it goes first, and its callbacks still find that
};

}  // namespace larder
