// SPDX-License-Identifier: Apache-2.0
// A bounded inbox: many producers, one consumer; the way completions reach the cache thread.
//
// Places. The inbox has `capacity` places. A place is taken by a queued item or by a Ticket. An operation that will
// complete later calls reserve() at *submit*; if that fails with kOverloaded it does not start. Its completion is then
// push(ticket, item), which always fits: a completion is never refused, lost or blocked. A ticket that dies unused
// gives its place back. try_push() is for items that may be refused.
//
//   free --reserve()--> ticket --push(ticket)--> queued --drain()--> free
//   free --try_push()--------------------------> queued
//                       ticket --destroyed-----> free
//
// Threads: reserve, push, try_push, wake: any thread. drain and wait_for: the one consumer thread.
// Lifetime: a ticket may outlive the inbox; a late push then destroys its item and does nothing else.
// Order: items of one producer come out in the order pushed.
// Limits: room for `capacity` items is allocated twice at construction, none later (apart from `out`'s).
// Cost: one short lock (rank kInbox) per call, no system call unless the consumer waits. T: movable, noexcept best.
#pragma once

#include <cassert>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "base/status.h"

namespace larder {

template <class T>
class Inbox {
  struct State {
    explicit State(std::size_t places) : capacity(places) { items.reserve(places); }
    const std::size_t capacity;
    RankedMutex mutex{LockRank::kInbox};
    RankedCondition arrived;
    std::vector<T> items LARDER_GUARDED_BY(mutex);
    std::size_t reserved LARDER_GUARDED_BY(mutex) = 0;  // live tickets; items.size() + reserved <= capacity
    bool woken LARDER_GUARDED_BY(mutex) = false;
    bool closed LARDER_GUARDED_BY(mutex) = false;  // the inbox is gone
  };

 public:
  // One reserved place. Movable, not copyable; empty after it was moved from or used.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept = default;
    Ticket& operator=(Ticket&& other) noexcept {
      if (this != &other) {
        give_back();
        state_ = std::move(other.state_);
      }
      return *this;
    }
    ~Ticket() { give_back(); }
    [[nodiscard]] bool valid() const { return state_ != nullptr; }

   private:
    friend class Inbox;
    explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}
    void give_back() {
      const std::shared_ptr<State> state = std::move(state_);  // outlives the guard: it must not die under its own lock
      if (!state) return;
      LockGuard guard(state->mutex);
      --state->reserved;
    }
    std::shared_ptr<State> state_;
  };

  explicit Inbox(std::size_t capacity) : state_(std::make_shared<State>(capacity)) { drained_.reserve(capacity); }
  ~Inbox() {
    LockGuard guard(state_->mutex);
    state_->closed = true;
  }
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Takes a place for a later push; kOverloaded when all are taken.
  [[nodiscard]] Result<Ticket> reserve() {
    LockGuard guard(state_->mutex);
    if (is_full(*state_)) return overloaded("inbox: no free place");
    ++state_->reserved;
    return Ticket(state_);
  }

  // Queues `item` in the ticket's place and wakes the consumer. Always fits. Precondition: ticket.valid().
  static void push(Ticket ticket, T item) {
    const std::shared_ptr<State> state = std::move(ticket.state_);
    assert(state);
    {
      LockGuard guard(state->mutex);
      --state->reserved;
      if (state->closed) return;  // `item` is a parameter: it dies after the guard
      state->items.push_back(std::move(item));
    }
    state->arrived.notify_one();
  }

  // Queues `item` if a place is free; else kOverloaded, and the item is destroyed.
  [[nodiscard]] Status try_push(T item) {
    {
      LockGuard guard(state_->mutex);
      if (is_full(*state_)) return overloaded("inbox: full");
      state_->items.push_back(std::move(item));
    }
    state_->arrived.notify_one();
    return Status::ok();
  }

  // Consumer: appends all queued items to `out`, in order, and frees their places. The number appended.
  std::size_t drain(std::vector<T>& out) {
    {
      LockGuard guard(state_->mutex);
      std::swap(state_->items, drained_);
    }
    const std::size_t count = drained_.size();
    for (T& item : drained_) out.push_back(std::move(item));
    drained_.clear();
    return count;
  }

  // Consumer: waits until an item is queued, wake() was called, or `duration` (real time) is over.
  // True if there is something to drain. A wake() is consumed.
  bool wait_for(Nanos duration) {
    LockGuard guard(state_->mutex);
    if (state_->items.empty() && !state_->woken) (void)state_->arrived.wait_for(state_->mutex, duration);
    state_->woken = false;
    return !state_->items.empty();
  }

  // Ends the consumer's current wait, or its next one.
  void wake() {
    {
      LockGuard guard(state_->mutex);
      state_->woken = true;
    }
    state_->arrived.notify_one();
  }

  [[nodiscard]] std::size_t capacity() const { return state_->capacity; }
  // Places not free: queued items plus live tickets.
  [[nodiscard]] std::size_t places_taken() const {
    LockGuard guard(state_->mutex);
    return state_->items.size() + state_->reserved;
  }

 private:
  static bool is_full(const State& state) LARDER_REQUIRES(state.mutex) {
    return state.items.size() + state.reserved >= state.capacity;
  }

  const std::shared_ptr<State> state_;
  std::vector<T> drained_;  // owned by the consumer
};

}  // namespace larder
