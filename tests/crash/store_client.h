// SPDX-License-Identifier: Apache-2.0
// Talks to a file store on behalf of a crash test: opens it, waits for answers, checks what it reads.
//
// Threads: confined; answers may come from any thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/file_system.h"
#include "storage/backend.h"
#include "storage/factory.h"
#include "tests/crash/crash_pages.h"
#include "tests/crash/promises.h"

namespace larder::crash {

[[nodiscard]] Result<std::unique_ptr<StorageBackend>> open_file_store(const BackendOptions& options, FileSystem& files,
                                                                      Clock& clock, Executor& executor);

// Runs what was posted, where the executor must be told to.
using Drain = std::function<void()>;

template <class Result, class Submit>
Result wait_for(const Drain& drain, const Submit& submit) {
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> future = promise->get_future();
  const Status submitted = submit([promise](Result result) { promise->set_value(std::move(result)); });
  EXPECT_TRUE(submitted.is_ok()) << submitted.to_string();
  if (!submitted.is_ok()) return {};
  promise.reset();
  if (drain) drain();
  return future.get();  // throws, and so fails the test, if the callback was dropped unrun
}

// One status per page; kOk only for right bytes. A page that was given with wrong ones fails the test.
[[nodiscard]] std::vector<Status> read_pages(StorageBackend& store, const GroupId& group, const Drain& drain, Rng& rng,
                                             const std::string& where);
// The statuses of the groups.
[[nodiscard]] WriteResult write_groups(StorageBackend& store, const std::vector<GroupId>& groups, bool is_durable,
                                       const Drain& drain, Rng& rng);

struct CheckTally {
  std::uint64_t whole = 0, absent = 0, torn = 0;
};
// Compares a restarted store with what was promised, and tells `promises` what it found. `tolerated`: so many groups
// may have lost pages. If the store says that it does not keep groups whole (fsync = off), the others may be there in
// part. Groups that no one wrote are looked for, too.
CheckTally check_promises(StorageBackend& store, Promises& promises, const Drain& drain, Rng& rng,
                          const std::string& where, std::size_t tolerated = 0);

// The log is silent while it lives: tests that inject thousands of faults would fill it.
class QuietLog {
 public:
  QuietLog();
  ~QuietLog();
};

}  // namespace larder::crash
