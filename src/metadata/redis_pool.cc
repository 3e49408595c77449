// SPDX-License-Identifier: Apache-2.0
#include "metadata/redis_pool.h"

namespace larder::metadata {

RedisPool::Loan::~Loan() {
  if (connection_ != nullptr) pool_->give_back(std::move(connection_));
}

Result<RedisPool::Loan> RedisPool::take(TimePoint deadline) {
  {
    LockGuard guard(mutex_);
    while (used_ >= limit_) {
      const Nanos left = deadline - real_clock().now();
      if (left <= Nanos{0}) {
        return deadline_exceeded("redis " + address_.text() + ": all " + std::to_string(limit_) +
                                 " connections were in use");
      }
      (void)changed_.wait_for(mutex_, left);
    }
    ++used_;
    if (!idle_.empty()) {
      std::unique_ptr<RedisConnection> connection = std::move(idle_.back());
      idle_.pop_back();
      return Loan(*this, std::move(connection), false);
    }
  }
  Result<std::unique_ptr<RedisConnection>> opened = RedisConnection::open(address_, connect_timeout_, deadline);
  if (opened.is_ok()) return Loan(*this, std::move(opened).value(), true);
  forget_one();
  return opened.status();
}

void RedisPool::drop_idle() {
  std::vector<std::unique_ptr<RedisConnection>> dropped;  // closed after the lock
  LockGuard guard(mutex_);
  dropped.swap(idle_);
}

void RedisPool::give_back(std::unique_ptr<RedisConnection> connection) {
  if (connection->is_broken()) connection.reset();
  {
    LockGuard guard(mutex_);
    --used_;
    if (connection != nullptr) idle_.push_back(std::move(connection));
  }
  changed_.notify_one();
}

void RedisPool::forget_one() {
  {
    LockGuard guard(mutex_);
    --used_;
  }
  changed_.notify_one();
}

}  // namespace larder::metadata
