// SPDX-License-Identifier: Apache-2.0
// What tests of shared stores have in common: a directory, executors, ways to open both roles, and to wait for a role.
//
// Threads: the test's; callbacks come from elsewhere. Every wait is for a condition, and has a limit that only a
// failure reaches.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "storage/conformance/harness.h"
#include "storage/factory.h"
#include "storage/shared/shared_backend.h"
#include "tests/support/passing_backend.h"
#include "tests/support/temporary_directory.h"

namespace larder::shared_tests {

using conformance::PageBuffer;
inline constexpr std::chrono::seconds kAnswerLimit{60};

// Counts what happens elsewhere, and waits until enough has.
class Counter {
 public:
  void add() {
    {
      LockGuard guard(mutex_);
      ++count_;
    }
    changed_.notify_all();
  }
  // False: not so many within the limit.
  [[nodiscard]] bool wait_for(std::uint64_t count) {
    LockGuard guard(mutex_);
    while (count_ < count) {
      if (!changed_.wait_for(mutex_, kAnswerLimit) && count_ < count) return false;
    }
    return true;
  }

 private:
  RankedMutex mutex_{LockRank::kMetrics};
  RankedCondition changed_;
  std::uint64_t count_ LARDER_GUARDED_BY(mutex_) = 0;
};

// The roles that a backend has told of.
class RoleWatch {
 public:
  [[nodiscard]] std::function<void(SharedRole)> listener() {
    return [state = state_](SharedRole role) {
      {
        LockGuard guard(state->mutex);
        state->role = role;
        ++state->changes;
      }
      state->changed.notify_all();
    };
  }
  // False: it has not got that role within the limit.
  [[nodiscard]] bool wait_for(SharedRole wanted) {
    LockGuard guard(state_->mutex);
    while (state_->role != wanted) {
      if (!state_->changed.wait_for(state_->mutex, kAnswerLimit) && state_->role != wanted) return false;
    }
    return true;
  }
  // Until it has told of so many.
  [[nodiscard]] bool wait_for_changes(std::uint64_t changes) {
    LockGuard guard(state_->mutex);
    while (state_->changes < changes) {
      if (!state_->changed.wait_for(state_->mutex, kAnswerLimit) && state_->changes < changes) return false;
    }
    return true;
  }
  [[nodiscard]] std::uint64_t changes() {
    LockGuard guard(state_->mutex);
    return state_->changes;
  }
  // Until it has one; kSeeking: it has not got one within the limit.
  [[nodiscard]] SharedRole wait_for_role() {
    LockGuard guard(state_->mutex);
    while (state_->role == SharedRole::kSeeking) {
      if (!state_->changed.wait_for(state_->mutex, kAnswerLimit)) break;
    }
    return state_->role;
  }

 private:
  struct State {
    RankedMutex mutex{LockRank::kMetrics};
    RankedCondition changed;
    SharedRole role LARDER_GUARDED_BY(mutex) = SharedRole::kSeeking;
    std::uint64_t changes LARDER_GUARDED_BY(mutex) = 0;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Tells of each operation after the inner backend has taken it.
class HookedBackend final : public support::PassingBackend {
 public:
  HookedBackend(std::unique_ptr<StorageBackend> inner, std::function<void()> on_submit)
      : PassingBackend(std::move(inner)), on_submit_(std::move(on_submit)) {}
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return told(inner_->submit_exists(std::move(request), std::move(done)));
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return told(inner_->submit_read(std::move(request), std::move(done)));
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return told(inner_->submit_write(std::move(request), std::move(done)));
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return told(inner_->submit_clear(std::move(scope), std::move(done)));
  }

 private:
  Status told(Status status) {
    on_submit_();
    return status;
  }
  const std::function<void()> on_submit_;
};

// What the backends of one process use. A test's, or a helper process's.
class Environment {
 public:
  Environment();
  // memory: the directory does not matter.
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> create(const std::string& kind, const std::string& directory);
  [[nodiscard]] Result<std::unique_ptr<SharedBackend>> open(const SharedStoreOptions& options, OpenInner open_inner) {
    return open_shared_store(options, std::move(open_inner), copies, real_clock());
  }

  ThreadPoolExecutor copies{"copies", 2, 1000};  // of clients
  ThreadPoolExecutor inner{"inner", 2, 1000};    // of inner backends

 private:
  BackendFactory factory_;
};

[[nodiscard]] inline SharedStoreOptions options_in(const std::string& directory) {
  SharedStoreOptions options;
  options.directory = directory;
  options.arena_bytes = std::size_t{1} << 20;
  return options;
}

// Pages of one key each, whose bytes follow from the number.
[[nodiscard]] inline PageKey key_of(std::uint64_t number) { return conformance::check_key(3, number); }
[[nodiscard]] inline std::shared_ptr<const StoreScope> scope_of_tests() { return conformance::check_scope(3, 1); }

// An operation under way, and the buffers that it uses.
template <class ResultType>
struct Pending {
  std::future<ResultType> result;
  // What it came to. Fails the test if it does not come.
  [[nodiscard]] ResultType wait() {
    EXPECT_EQ(result.wait_for(kAnswerLimit), std::future_status::ready) << "an operation was not answered";
    return result.get();
  }
};
struct ClearDone {
  Status status;
};
[[nodiscard]] Pending<WriteResult> start_write(StorageBackend& backend, std::uint64_t number, std::size_t bytes,
                                               bool durable = false, const ClearMark& as_of = {});
[[nodiscard]] Pending<ClearDone> start_clear(StorageBackend& backend, std::shared_ptr<const StoreScope> scope);
[[nodiscard]] Pending<ExistsResult> start_exists(StorageBackend& backend, std::uint64_t number);
// The result's status is kCorrupt, too, if the bytes are wrong.
[[nodiscard]] Pending<ReadResult> start_read(StorageBackend& backend, std::uint64_t number, std::size_t bytes);

[[nodiscard]] inline Status write_page(StorageBackend& backend, std::uint64_t number, std::size_t bytes,
                                       bool durable = false, const ClearMark& as_of = {}) {
  return start_write(backend, number, bytes, durable, as_of).wait().groups.at(0);
}
// null: the whole store.
[[nodiscard]] inline Status clear_store(StorageBackend& backend, std::shared_ptr<const StoreScope> scope = nullptr) {
  return start_clear(backend, std::move(scope)).wait().status;
}
[[nodiscard]] inline Status read_page(StorageBackend& backend, std::uint64_t number, std::size_t bytes) {
  return start_read(backend, number, bytes).wait().items.at(0);
}

}  // namespace larder::shared_tests
