// SPDX-License-Identifier: Apache-2.0
// Checks with many threads at once: callbacks, visibility of groups, and never wrong bytes.
#include <atomic>
#include <future>

#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "storage/conformance/checks.h"

namespace larder::conformance {
namespace {

// What the callbacks of a check share. They may run when the check has long returned, if a backend is stuck.
struct Tally {
  std::atomic<std::uint64_t> submitted{0}, refused{0}, completed{0}, wrong{0}, torn{0}, seen{0};
  std::atomic<bool> is_over{false}, is_stuck{false};
  RankedMutex mutex{LockRank::kMetrics};
  std::string odd LARDER_GUARDED_BY(mutex);  // the first status that should not be
  void note_odd(const Status& status) {
    LockGuard guard(mutex);
    if (odd.empty()) odd = status.to_string();
  }
};

// Runs each task on a thread of its own; returns when all have ended.
template <class Work>
bool run_threads(CheckRun& run, std::size_t count, const Work& work) {
  bool is_ok = true;
  ThreadPoolExecutor threads("checks", count, count);
  for (std::size_t i = 0; i < count; ++i) {
    is_ok = run.expect_ok(threads.post([&work, i] { work(i); }), "starting a thread") && is_ok;
  }
  return is_ok;
}

// Submits and waits. False: refused, dropped or not in time, which is noted.
template <class ResultType, class Submit>
bool answer_of(CheckRun& run, const std::shared_ptr<Tally>& tally, std::shared_ptr<void> buffers, const Submit& submit,
               ResultType& out) {
  auto promise = std::make_shared<std::promise<ResultType>>();
  std::future<ResultType> future = promise->get_future();
  const Status status = submit([promise, buffers](ResultType result) { promise->set_value(std::move(result)); });
  if (!status.is_ok()) {
    tally->note_odd(status);
    return false;
  }
  promise.reset();
  if (future.wait_for(run.harness().answer_limit()) != std::future_status::ready) {
    tally->is_stuck.store(true);
    tally->note_odd(deadline_exceeded("no answer"));
    return false;
  }
  try {
    out = future.get();
    return true;
  } catch (const std::future_error&) {
    tally->note_odd(internal_error("a callback was dropped"));
    return false;
  }
}

constexpr std::uint64_t kGroups = 60;
constexpr std::size_t kSwaBytes = 3000, kKvBytes = 40'000;

void write_one_by_one(CheckRun& run, const std::shared_ptr<Tally>& tally, std::atomic<std::uint64_t>& at) {
  Rng rng(run.seed());
  for (std::uint64_t number = 0; number < kGroups; ++number) {
    at.store(number);
    const PageKey key = run.key(number);
    auto swa = std::make_shared<PageBuffer>(kSwaBytes, 2, rng), kv = std::make_shared<PageBuffer>(kKvBytes, 2, rng);
    swa->fill(key, PoolName::kSwa);
    kv->fill(key, PoolName::kKv);
    WriteRequest request{run.scope(),
                         {{{{PoolName::kSwa, key, swa->segments()}, {PoolName::kKv, key, kv->segments()}}}}};
    WriteResult result;
    const bool is_done = answer_of(
        run, tally, std::make_shared<std::pair<decltype(swa), decltype(kv)>>(swa, kv),
        [&](StorageBackend::WriteDone done) { return run.backend().submit_write(std::move(request), std::move(done)); },
        result);
    if (!is_done) break;
    for (const Status& group : result.groups) {
      if (!group.is_ok()) tally->note_odd(group);
    }
  }
  tally->is_over.store(true);
}

// The items of a read are looked at one after the other: when the first is there, its group is, and so is the second.
void look_at_groups(CheckRun& run, const std::shared_ptr<Tally>& tally, const std::atomic<std::uint64_t>& at,
                    bool is_anchor_first) {
  Rng rng(run.seed() + (is_anchor_first ? 1 : 2));
  while (!tally->is_over.load()) {
    const PageKey key = run.key(at.load());
    auto swa = std::make_shared<PageBuffer>(kSwaBytes, 1, rng), kv = std::make_shared<PageBuffer>(kKvBytes, 1, rng);
    ReadRequest request{run.scope(), {{PoolName::kSwa, key, swa->segments()}, {PoolName::kKv, key, kv->segments()}}};
    if (is_anchor_first) std::swap(request.items[0], request.items[1]);
    ReadResult result;
    const bool is_done = answer_of(
        run, tally, std::make_shared<std::pair<decltype(swa), decltype(kv)>>(swa, kv),
        [&](StorageBackend::ReadDone done) { return run.backend().submit_read(std::move(request), std::move(done)); },
        result);
    if (!is_done || result.items.size() != 2) return;
    if (!result.items[0].is_ok()) continue;
    ++tally->seen;
    if (!result.items[1].is_ok()) ++tally->torn;
    const PageBuffer& first = is_anchor_first ? *kv : *swa;
    if (!first.holds(key, is_anchor_first ? PoolName::kKv : PoolName::kSwa)) ++tally->wrong;
  }
}

}  // namespace

void check_groups_are_seen_whole(CheckRun& run) {
  if (run.harness().is_manual()) return run.skip("needs a harness with threads");
  const std::uint64_t evicted_before = run.backend().stats().evicted;
  const auto tally = std::make_shared<Tally>();
  std::atomic<std::uint64_t> at{0};
  const bool has_run = run_threads(run, 3, [&](std::size_t thread) {
    if (thread == 0) return write_one_by_one(run, tally, at);
    look_at_groups(run, tally, at, thread == 1);
  });
  if (tally->is_stuck.load()) run.set_stuck();
  if (!has_run) return;
  run.expect_equal(tally->wrong, 0, "reads that were ok with WRONG BYTES");
  {
    LockGuard guard(tally->mutex);
    run.expect_equal(tally->odd, "", "errors of operations");
  }
  if (run.backend().stats().evicted != evicted_before) {
    return run.leave_out("halves of groups", "the store evicted pages meanwhile");
  }
  run.expect_equal(
      tally->torn, 0,
      "groups of which one page was there and the next was not, in " + std::to_string(tally->seen) + " reads");
}

namespace {

constexpr std::size_t kThreads = 4;
constexpr int kRounds = 60;
constexpr std::uint64_t kKeys = 40;

// A group of two pages with buffers of its own.
struct Pages {
  std::unique_ptr<PageBuffer> swa, kv;
  PageKey key;
};

Status submit_group_write(CheckRun& run, const std::shared_ptr<Tally>& tally, const std::shared_ptr<Pages>& pages,
                          bool durable) {
  pages->swa->fill(pages->key, PoolName::kSwa);
  pages->kv->fill(pages->key, PoolName::kKv);
  WriteRequest request{
      run.scope(),
      {{{{PoolName::kSwa, pages->key, pages->swa->segments()}, {PoolName::kKv, pages->key, pages->kv->segments()}}}},
      durable};
  return run.backend().submit_write(std::move(request), [tally, pages](WriteResult result) {
    const Status status = result.groups.size() == 1 ? result.groups[0] : internal_error("no status of the group");
    // A clear may overtake it.
    if (!status.is_ok() && status.code() != StatusCode::kCancelled) tally->note_odd(status);
    ++tally->completed;
  });
}

Status submit_group_read(CheckRun& run, const std::shared_ptr<Tally>& tally, const std::shared_ptr<Pages>& pages) {
  ReadRequest request{
      run.scope(),
      {{PoolName::kKv, pages->key, pages->kv->segments()}, {PoolName::kSwa, pages->key, pages->swa->segments()}}};
  return run.backend().submit_read(std::move(request), [tally, pages](ReadResult result) {
    result.items.resize(2, internal_error("no status of the page"));
    if (result.items[0].is_ok() && !pages->kv->holds(pages->key, PoolName::kKv)) ++tally->wrong;
    if (result.items[1].is_ok() && !pages->swa->holds(pages->key, PoolName::kSwa)) ++tally->wrong;
    for (const Status& item : result.items) {
      if (!item.is_ok() && item.code() != StatusCode::kNotFound) tally->note_odd(item);
    }
    ++tally->completed;
  });
}

void submit_many(CheckRun& run, const std::shared_ptr<Tally>& tally, std::uint64_t seed) {
  Rng rng(seed);
  const bool is_clearing = run.backend().info().supports_clear;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t number = rng.below(kKeys);
    auto pages = std::make_shared<Pages>();
    pages->swa = std::make_unique<PageBuffer>(200 + number, 1 + rng.below(3), rng);
    pages->kv = std::make_unique<PageBuffer>(5000 + 13 * number, 1 + rng.below(3), rng);
    pages->key = run.key(number);
    Status status;
    if (rng.chance(1, 50) && is_clearing) {
      status = run.backend().submit_clear(run.scope(), [tally](Status) { ++tally->completed; });
    } else if (rng.chance(1, 2)) {
      status = submit_group_write(run, tally, pages, rng.chance(1, 8));
    } else {
      status = submit_group_read(run, tally, pages);
    }
    if (!status.is_ok() && status.code() != StatusCode::kOverloaded) tally->note_odd(status);
    ++(status.is_ok() ? tally->submitted : tally->refused);
  }
}

}  // namespace

// Writers with overlapping keys, readers, lookups, a clear now and then.
void check_concurrent_readers_and_writers(CheckRun& run) {
  if (run.harness().is_manual()) return run.skip("needs a harness with threads");
  const auto tally = std::make_shared<Tally>();
  const bool has_run =
      run_threads(run, kThreads, [&](std::size_t thread) { submit_many(run, tally, run.seed() + thread); });
  if (!has_run) return;
  if (!run.expect_ok(run.close(run.harness().answer_limit()), "close, which waits for all operations"))
    return run.set_stuck();
  run.expect_equal(tally->completed, tally->submitted, "callbacks, one for each operation that was taken");
  run.expect(tally->submitted >= kThreads * kRounds / 4, "most operations are taken, not refused as too many");
  run.expect_equal(tally->wrong, 0, "reads that were ok with WRONG BYTES");
  {
    LockGuard guard(tally->mutex);
    run.expect_equal(tally->odd, "", "errors of operations");
  }
  run.expect_equal(run.backend().stats().corrupt, 0, "stats: corrupt");
  (void)run.open();  // so that the pages can be dropped
}

}  // namespace larder::conformance
