// SPDX-License-Identifier: Apache-2.0
// What the tests of the I/O queues share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/rng.h"
#include "storage/file/io_queue.h"

namespace larder::io_queue_test {

using file_store::IoOperation;
using Kind = IoOperation::Kind;
using Bytes = std::vector<std::byte>;

inline std::uint64_t test_seed() {
  const char* const text = std::getenv("LARDER_TEST_SEED");
  return text == nullptr ? 20240607 : std::strtoull(text, nullptr, 10);
}

inline Bytes random_bytes(Rng& rng, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next_u64());
  return bytes;
}

// The statuses of operations, in the order of their end.
class Answers {
 public:
  struct Answer {
    std::size_t id = 0;
    Status status;
  };

  std::function<void(Status)> take(std::size_t id = 0) {
    return [this, id](Status status) {
      LockGuard guard(mutex_);
      answers_.push_back({id, std::move(status)});
      changed_.notify_all();
    };
  }
  std::size_t count() {
    LockGuard guard(mutex_);
    return answers_.size();
  }
  // False: `count` did not come in a time that is more than enough.
  bool wait_for(std::size_t count) {
    LockGuard guard(mutex_);
    while (answers_.size() < count) {
      if (!changed_.wait_for(mutex_, std::chrono::seconds(60))) return false;
    }
    return true;
  }
  std::vector<Answer> all() {
    LockGuard guard(mutex_);
    return answers_;
  }
  std::size_t count_of(StatusCode code) {
    LockGuard guard(mutex_);
    return static_cast<std::size_t>(
        std::count_if(answers_.begin(), answers_.end(), [&](const Answer& a) { return a.status.code() == code; }));
  }

 private:
  RankedMutex mutex_{LockRank::kStorage};
  RankedCondition changed_;
  std::vector<Answer> answers_ LARDER_GUARDED_BY(mutex_);
};

inline IoOperation operation(Kind kind, const std::shared_ptr<File>& file, std::uint64_t offset,
                             std::vector<Segment> buffers, std::function<void(Status)> done) {
  IoOperation op;
  op.kind = kind;
  op.file = file;
  op.offset = offset;
  op.buffers = std::move(buffers);
  op.done = std::move(done);
  return op;
}

inline std::vector<IoOperation> one(IoOperation op) {
  std::vector<IoOperation> operations;
  operations.push_back(std::move(op));
  return operations;
}

}  // namespace larder::io_queue_test
