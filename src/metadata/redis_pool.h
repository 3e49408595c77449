// SPDX-License-Identifier: Apache-2.0
// A bounded number of connections to one Redis server, made when needed and kept.
//
// Threads: any. Under the lock only lists change; connecting and talking happen outside it.
// A server that was restarted leaves connections that look alive: is_fresh() tells the caller whether to try once more.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/ranked_mutex.h"
#include "metadata/real_redis_connection.h"

namespace larder::metadata {

class RedisPool {
 public:
  // A connection for a time; goes back to the pool, or away if it is broken.
  class Loan {
   public:
    Loan(RedisPool& pool, std::unique_ptr<RedisConnection> connection, bool is_fresh)
        : pool_(&pool), connection_(std::move(connection)), is_fresh_(is_fresh) {}
    Loan(Loan&& other) noexcept = default;
    Loan& operator=(Loan&&) = delete;
    ~Loan();
    [[nodiscard]] RedisConnection& operator*() const { return *connection_; }
    [[nodiscard]] RedisConnection* operator->() const { return connection_.get(); }
    [[nodiscard]] bool is_fresh() const { return is_fresh_; }  // made just now

   private:
    RedisPool* pool_;
    std::unique_ptr<RedisConnection> connection_;
    bool is_fresh_;
  };

  // limit > 0.
  RedisPool(RedisAddress address, std::size_t limit, Nanos connect_timeout)
      : address_(std::move(address)), limit_(limit), connect_timeout_(connect_timeout) {}

  // Waits until one of the connections is free, and connects if needed. kDeadlineExceeded, kUnavailable.
  [[nodiscard]] Result<Loan> take(TimePoint deadline) LARDER_EXCLUDES(mutex_);
  // Closes the connections that nobody has.
  void drop_idle() LARDER_EXCLUDES(mutex_);

 private:
  void give_back(std::unique_ptr<RedisConnection> connection) LARDER_EXCLUDES(mutex_);
  void forget_one() LARDER_EXCLUDES(mutex_);

  // constant after construction
  const RedisAddress address_;
  const std::size_t limit_;
  const Nanos connect_timeout_;

  RankedMutex mutex_{LockRank::kMetadata};
  RankedCondition changed_;
  std::vector<std::unique_ptr<RedisConnection>> idle_ LARDER_GUARDED_BY(mutex_);
  std::size_t used_ LARDER_GUARDED_BY(mutex_) = 0;  // lent, or being made
};

}  // namespace larder::metadata
