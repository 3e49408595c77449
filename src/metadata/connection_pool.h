// SPDX-License-Identifier: Apache-2.0
// A bounded number of connections to one server, kept for the next call; who takes one makes it where none is idle.
//
// Threads: any. Under the lock only lists change; connecting and talking happen outside it. Lifetime: outlives its
// loans.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"

namespace larder::metadata {

template <class Connection>
class ConnectionPool {
 public:
  // The right to one connection, and that connection; at its end both go back.
  class Loan {
   public:
    Loan(Loan&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), connection_(std::move(other.connection_)) {}
    Loan& operator=(Loan&&) = delete;
    ~Loan() {
      if (pool_ != nullptr) pool_->give_back(std::move(connection_));
    }
    // Null: none was idle. Whoever has the loan makes one, and takes out one that is broken.
    [[nodiscard]] std::unique_ptr<Connection>& connection() { return connection_; }
    [[nodiscard]] Connection* operator->() const { return connection_.get(); }

   private:
    friend class ConnectionPool;
    Loan(ConnectionPool& pool, std::unique_ptr<Connection> connection)
        : pool_(&pool), connection_(std::move(connection)) {}

    ConnectionPool* pool_;
    std::unique_ptr<Connection> connection_;
  };

  // limit > 0.
  explicit ConnectionPool(std::size_t limit) : limit_(limit) { idle_.reserve(limit); }  // giving back cannot fail

  // Waits until less than `limit` are lent; the last one used is lent first. Nothing: `deadline` of `clock` is over.
  [[nodiscard]] std::optional<Loan> take(Clock& clock, TimePoint deadline) LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    while (lent_ >= limit_) {
      const Nanos left = deadline - clock.now();
      if (left <= Nanos{0}) return std::nullopt;
      (void)returned_.wait_for(mutex_, left);
    }
    ++lent_;
    return Loan(*this, pop_idle());
  }
  // Closes the connections that nobody has. Needs no memory.
  void drop_idle() LARDER_EXCLUDES(mutex_) {
    for (std::unique_ptr<Connection> dropped = take_idle(); dropped != nullptr;) dropped = take_idle();
  }

 private:
  void give_back(std::unique_ptr<Connection> connection) LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    --lent_;
    if (connection != nullptr) idle_.push_back(std::move(connection));
    returned_.notify_one();
  }

  // Null: none is idle.
  [[nodiscard]] std::unique_ptr<Connection> pop_idle() LARDER_REQUIRES(mutex_) {
    if (idle_.empty()) return nullptr;
    std::unique_ptr<Connection> connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }
  [[nodiscard]] std::unique_ptr<Connection> take_idle() LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    return pop_idle();
  }

  const std::size_t limit_;

  RankedMutex mutex_{LockRank::kMetadata};
  RankedCondition returned_;
  std::vector<std::unique_ptr<Connection>> idle_ LARDER_GUARDED_BY(mutex_);
  std::size_t lent_ LARDER_GUARDED_BY(mutex_) = 0;
};

}  // namespace larder::metadata
