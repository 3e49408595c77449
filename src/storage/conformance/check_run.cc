// SPDX-License-Identifier: Apache-2.0
#include "storage/conformance/check_run.h"

#include <algorithm>
#include <future>
#include <utility>

#include "base/thread_pool.h"

namespace larder::conformance {
namespace {

constexpr std::size_t kMaxFailures = 20;  // the first say what is wrong

std::uint64_t base_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t base = seed;
  for (const char c : name) base = (base ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return base;
}

std::string join(std::string_view what, std::string_view expected, std::string_view seen) {
  return std::string(what) + ": expected " + std::string(expected) + ", saw " + std::string(seen);
}

}  // namespace

bool returns_within(std::chrono::seconds limit, Task call) {
  auto thread = std::make_unique<ThreadPoolExecutor>("conformance", 1, 1);
  const auto returned = std::make_shared<std::promise<void>>();
  std::future<void> future = returned->get_future();
  const Status posted = thread->post([call = std::move(call), returned] {
    try {
      call();
      returned->set_value();
    } catch (...) {
      returned->set_exception(std::current_exception());
    }
  });
  if (!posted.is_ok()) return false;
  if (future.wait_for(limit) == std::future_status::ready) {
    future.get();
    return true;
  }
  (void)thread.release();  // nobody can end it
  return false;
}

CheckRun::CheckRun(StorageHarness& harness, std::uint64_t seed, std::string_view name)
    : harness_(harness), base_(base_of(seed, name)), rng_(base_) {}

CheckRun::~CheckRun() {
  if (outcome_.is_stuck) (void)backend_.release();  // its end would wait for what never ends
}

bool CheckRun::open(const BackendOptions& extra) {
  if (outcome_.is_stuck || !end_backend()) return false;
  const auto opened = std::make_shared<Result<std::unique_ptr<StorageBackend>>>(internal_error("not opened"));
  if (!run_within_limit("opening", [this, extra, opened] { *opened = harness_.open(extra); })) return false;
  if (!expect_ok(opened->status(), "opening the backend")) return false;
  backend_ = std::move(*opened).value();
  return true;
}

Status CheckRun::close(std::chrono::nanoseconds limit) {
  const auto status = std::make_shared<Status>();
  const bool has_ended = run_within_limit("close", [this, limit, status] { *status = backend_->close(limit); });
  return has_ended ? *status : deadline_exceeded("close has not returned");
}

bool CheckRun::end_backend() {
  if (!backend_) return true;
  harness_.drain();
  const auto ended = std::make_shared<std::unique_ptr<StorageBackend>>(std::move(backend_));
  return run_within_limit("close", [ended] { ended->reset(); });
}

CheckOutcome CheckRun::finish() {
  if (backend_ && !outcome_.is_stuck) drop_own_pages();
  if (!outcome_.is_stuck) (void)end_backend();
  if (!outcome_.failures.empty()) {
    outcome_.verdict = Verdict::kFailed;
  } else if (!outcome_.skipped_because.empty()) {
    outcome_.verdict = Verdict::kSkipped;
  }
  return outcome_;
}

void CheckRun::drop_own_pages() {
  if (!backend_->info().supports_clear) return;
  for (std::uint64_t number = 1; number <= 2; ++number) {
    auto promise = std::make_shared<std::promise<Status>>();
    std::future<Status> future = promise->get_future();
    if (!backend_->submit_clear(scope(number), [promise](Status status) { promise->set_value(status); }).is_ok())
      return;
    promise.reset();
    harness_.drain();
    if (future.wait_for(harness_.answer_limit()) != std::future_status::ready) return (void)be_stuck("clear");
  }
}

bool CheckRun::be_stuck(std::string_view what) {
  outcome_.is_stuck = true;
  fail(std::string(what) + ": no answer within " + std::to_string(harness_.answer_limit().count()) + " s");
  return false;
}

bool CheckRun::run_within_limit(std::string_view what, Task call) {
  if (!harness_.is_manual()) return returns_within(harness_.answer_limit(), std::move(call)) || be_stuck(what);
  call();  // its tasks are for this thread
  return true;
}

void CheckRun::fail(std::string text) {
  if (outcome_.failures.size() < kMaxFailures) outcome_.failures.push_back(std::move(text));
}

bool CheckRun::expect(bool is_so, std::string_view what) {
  if (!is_so) fail("not so: " + std::string(what));
  return is_so;
}

bool CheckRun::expect_ok(const Status& status, std::string_view what) {
  if (!status.is_ok()) fail(join(what, "ok", status.to_string()));
  return status.is_ok();
}

bool CheckRun::expect_code(const Status& seen, StatusCode expected, std::string_view what) {
  if (seen.code() != expected) fail(join(what, status_code_name(expected), seen.to_string()));
  return seen.code() == expected;
}

bool CheckRun::expect_equal(std::uint64_t seen, std::uint64_t expected, std::string_view what) {
  if (seen != expected) fail(join(what, std::to_string(expected), std::to_string(seen)));
  return seen == expected;
}

bool CheckRun::expect_equal(std::string_view seen, std::string_view expected, std::string_view what) {
  if (seen != expected) fail(join(what, '"' + std::string(expected) + '"', '"' + std::string(seen) + '"'));
  return seen == expected;
}

bool CheckRun::expect_all_ok(std::span<const Status> statuses, std::string_view what) {
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    if (!statuses[i].is_ok()) {
      return expect_ok(statuses[i],
                       std::string(what) + ", " + std::to_string(i + 1) + " of " + std::to_string(statuses.size()));
    }
  }
  return true;
}

void CheckRun::skip(std::string reason) { outcome_.skipped_because = std::move(reason); }

void CheckRun::leave_out(std::string_view part, std::string_view reason) {
  std::string text = std::string(part) + ": " + std::string(reason);
  auto& left_out = outcome_.left_out;
  if (std::find(left_out.begin(), left_out.end(), text) == left_out.end()) left_out.push_back(std::move(text));
}

bool CheckRun::can_count_pages() {
  if (!harness_.is_own_store()) {
    leave_out("page counts", "others may use the store");
  } else if (!backend_->info().counts_pages) {
    leave_out("page counts", "the backend has none");
  } else {
    return true;
  }
  return false;
}

bool CheckRun::can_clear() {
  if (!backend_->info().supports_clear) leave_out("clear", "the backend does not support it");
  return backend_->info().supports_clear;
}

template <class ResultType, class Submit>
bool CheckRun::run(const Submit& submit, std::shared_ptr<void> buffers, std::string_view what, ResultType& out) {
  const std::string place(what);
  if (outcome_.is_stuck) return false;
  auto promise = std::make_shared<std::promise<ResultType>>();
  std::future<ResultType> future = promise->get_future();
  const Status submitted =
      submit([promise, buffers = std::move(buffers)](ResultType result) { promise->set_value(std::move(result)); });
  if (!expect_ok(submitted, "submitting " + place)) return false;
  promise.reset();
  harness_.drain();
  if (future.wait_for(harness_.answer_limit()) != std::future_status::ready) return be_stuck(place);
  try {
    out = future.get();
  } catch (const std::future_error&) {  // the callback was destroyed
    return expect(false, place + ": its callback runs exactly once (it was dropped)");
  }
  return true;
}

ExistsResult CheckRun::exists(ExistsRequest request) {
  const std::size_t keys = request.keys.size();
  const std::vector<PoolName> pools = request.pools;
  ExistsResult out;
  out.status = internal_error("no answer");
  (void)run(
      [&](StorageBackend::ExistsDone done) { return backend_->submit_exists(std::move(request), std::move(done)); },
      nullptr, "exists", out);
  if (!out.status.is_ok()) return out;
  bool is_right = out.presence.size() == pools.size();
  for (std::size_t i = 0; is_right && i < pools.size(); ++i) {
    is_right = out.presence[i].pool == pools[i] && out.presence[i].present.size() <= keys;
    if (is_right) out.presence[i].present.resize(keys, false);  // a missing tail counts as absent
  }
  if (expect(is_right, "exists: one answer for each pool, in the order of the request")) return out;
  return {internal_error("presence of another shape"), {}};
}

ReadResult CheckRun::read(ReadRequest request, std::shared_ptr<void> buffers) {
  const std::size_t count = request.items.size();
  ReadResult out;
  if (run([&](StorageBackend::ReadDone done) { return backend_->submit_read(std::move(request), std::move(done)); },
          std::move(buffers), "read", out)) {
    expect_equal(out.items.size(), count, "read: number of statuses");
  }
  out.items.resize(count, internal_error("no status"));
  return out;
}

WriteResult CheckRun::write(WriteRequest request, std::shared_ptr<void> buffers) {
  const std::size_t count = request.groups.size();
  WriteResult out;
  if (run([&](StorageBackend::WriteDone done) { return backend_->submit_write(std::move(request), std::move(done)); },
          std::move(buffers), "write", out)) {
    expect_equal(out.groups.size(), count, "write: number of statuses");
  }
  out.groups.resize(count, internal_error("no status"));
  return out;
}

Status CheckRun::clear(std::shared_ptr<const StoreScope> scope) {
  Status out = internal_error("no answer");
  (void)run([&](StorageBackend::ClearDone done) { return backend_->submit_clear(std::move(scope), std::move(done)); },
            nullptr, "clear", out);
  return out;
}

std::vector<Status> CheckRun::write_groups(const std::vector<std::vector<PageSpec>>& groups, std::uint64_t scope_number,
                                           bool durable) {
  auto buffers = std::make_shared<std::vector<std::unique_ptr<PageBuffer>>>();
  WriteRequest request{scope(scope_number), {}, durable};
  request.terms.caller_waits = rng_.chance(1, 3);
  for (const auto& group : groups) {
    PageGroup& out = request.groups.emplace_back();
    for (const PageSpec& page : group) {
      buffers->push_back(std::make_unique<PageBuffer>(page.bytes, 1 + rng_.below(4), rng_));
      buffers->back()->fill(key(page.key), page.pool, page.salt);
      out.items.push_back({page.pool, key(page.key), buffers->back()->segments()});
    }
  }
  return write(std::move(request), buffers).groups;
}

std::vector<Status> CheckRun::read_pages(const std::vector<PageSpec>& pages, std::uint64_t scope_number) {
  auto buffers = std::make_shared<std::vector<std::unique_ptr<PageBuffer>>>();
  ReadRequest request{scope(scope_number), {}};
  request.terms.caller_waits = rng_.chance(1, 3);
  for (const PageSpec& page : pages) {
    buffers->push_back(std::make_unique<PageBuffer>(page.bytes, 1 + rng_.below(4), rng_));
    request.items.push_back({page.pool, key(page.key), buffers->back()->segments()});
  }
  ReadResult result = read(std::move(request), buffers);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (!result.items[i].is_ok()) continue;
    expect((*buffers)[i]->holds(key(pages[i].key), pages[i].pool, pages[i].salt),
           "a read that is ok gives the bytes that were written (WRONG BYTES: pool " +
               std::string(pool_name(pages[i].pool)) + ", page " + std::to_string(pages[i].key) + ")");
  }
  return std::move(result.items);
}

std::string CheckRun::presence(PoolName pool, const std::vector<std::uint64_t>& keys, std::uint64_t scope_number) {
  ExistsRequest request{scope(scope_number), {}, {pool}};
  for (const std::uint64_t number : keys) request.keys.push_back(key(number));
  const ExistsResult result = exists(std::move(request));
  if (!result.status.is_ok()) return result.status.to_string();
  std::string out;
  for (const bool is_there : result.presence[0].present) out += is_there ? '1' : '0';
  return out;
}

}  // namespace larder::conformance
