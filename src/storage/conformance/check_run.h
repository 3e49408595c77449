// SPDX-License-Identifier: Apache-2.0
// One conformance check at work: a backend, ways to talk to it, and what was found.
//
// A check says what it expects; what differs is noted as "what: expected X, saw Y", and the check goes on or returns as
// it likes. Every wait has a limit: a backend that does not answer, open or close within the harness's answer_limit()
// is stuck, and each further operation of the check fails at once. (Not so where the harness drains by hand: it opens
// and closes on the checking thread.) The buffers of an operation live until its callback has run, however long.
// Threads: confined to the checking thread, but for key(), scope(), seed() and backend().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/rng.h"
#include "base/status.h"
#include "storage/conformance/harness.h"

namespace larder::conformance {

enum class Verdict : std::uint8_t { kOk, kFailed, kSkipped };

struct CheckOutcome {
  Verdict verdict = Verdict::kOk;
  std::string skipped_because{};
  std::vector<std::string> failures{};  // what was expected and seen
  std::vector<std::string> left_out{};  // parts that could not be checked here, and why
  // A call was never answered: the backend was left open on purpose, and its harness must not be destroyed.
  bool is_stuck = false;
};

// Runs `call` on a thread of its own. False: it has not returned within the limit; what it uses stays in use for ever.
[[nodiscard]] bool returns_within(std::chrono::seconds limit, Task call);

// A page as a check names it.
struct PageSpec {
  PoolName pool;
  std::uint64_t key;
  std::size_t bytes;
  std::uint64_t salt = 0;
};

class CheckRun {
 public:
  // `name`: of the check; with the seed it makes keys and namespaces that no other check has.
  CheckRun(StorageHarness& harness, std::uint64_t seed, std::string_view name);
  ~CheckRun();
  CheckRun(const CheckRun&) = delete;
  CheckRun& operator=(const CheckRun&) = delete;

  // Opens, or reopens: the old one ends first. False: noted; the check returns.
  [[nodiscard]] bool open(const BackendOptions& extra = {});
  // The backend's close(). kDeadlineExceeded, too, if it has not returned, which is noted.
  [[nodiscard]] Status close(std::chrono::nanoseconds limit);
  // Clears the check's namespaces if the store is shared with others: what they hold stays as it was. A backend that is
  // closed, or cannot clear, keeps the pages.
  void drop_own_pages();
  // Drops what the check wrote, closes, and tells what was found. Once, at the end.
  [[nodiscard]] CheckOutcome finish();

  // Each answers whether it was as expected.
  bool expect(bool is_so, std::string_view what);
  bool expect_ok(const Status& status, std::string_view what);
  bool expect_code(const Status& seen, StatusCode expected, std::string_view what);
  bool expect_equal(std::uint64_t seen, std::uint64_t expected, std::string_view what);
  bool expect_equal(std::string_view seen, std::string_view expected, std::string_view what);
  // All ok; names the first that is not.
  bool expect_all_ok(std::span<const Status> statuses, std::string_view what);
  void skip(std::string reason);
  // A part of the check that cannot be done here.
  void leave_out(std::string_view part, std::string_view reason);

  // Can pages and bytes be compared? If not, notes why.
  [[nodiscard]] bool can_count_pages();
  // Can the backend clear? If not, notes it.
  [[nodiscard]] bool can_clear();

  // Submit, drain, wait. A refused submit, a dropped callback and a wrong number of statuses are noted; the result then
  // has the right number of statuses, not ok.
  ExistsResult exists(ExistsRequest request);
  ReadResult read(ReadRequest request, std::shared_ptr<void> buffers = nullptr);
  WriteResult write(WriteRequest request, std::shared_ptr<void> buffers = nullptr);
  Status clear(std::shared_ptr<const StoreScope> scope);

  // Writes groups of pages; one status per group.
  std::vector<Status> write_groups(const std::vector<std::vector<PageSpec>>& groups, std::uint64_t scope_number = 1,
                                   bool durable = false);
  // Reads each page into 1 to 4 pieces, and compares the content of those that came.
  std::vector<Status> read_pages(const std::vector<PageSpec>& pages, std::uint64_t scope_number = 1);
  Status read_page(const PageSpec& page, std::uint64_t scope_number = 1) { return read_pages({page}, scope_number)[0]; }
  // "1011": presence of each key in the pool.
  std::string presence(PoolName pool, const std::vector<std::uint64_t>& keys, std::uint64_t scope_number = 1);

  [[nodiscard]] PageKey key(std::uint64_t number) const { return check_key(base_, number); }
  [[nodiscard]] std::shared_ptr<const StoreScope> scope(std::uint64_t number = 1) const {
    return check_scope(base_, number);
  }
  [[nodiscard]] StorageBackend& backend() { return *backend_; }
  [[nodiscard]] StorageHarness& harness() { return harness_; }
  [[nodiscard]] std::uint64_t seed() const { return base_; }
  [[nodiscard]] Rng& rng() { return rng_; }
  [[nodiscard]] bool is_stuck() const { return outcome_.is_stuck; }
  // Operations are in flight that do not end: nothing is closed or freed any more.
  void set_stuck() { outcome_.is_stuck = true; }

 private:
  template <class ResultType, class Submit>
  bool run(const Submit& submit, std::shared_ptr<void> buffers, std::string_view what, ResultType& out);
  void fail(std::string text);
  // Notes it. False.
  bool be_stuck(std::string_view what);
  // Runs a call that has no limit of its own. False: it has not returned, which is noted.
  [[nodiscard]] bool run_within_limit(std::string_view what, Task call);
  [[nodiscard]] bool end_backend();

  StorageHarness& harness_;
  const std::uint64_t base_;
  Rng rng_;
  std::unique_ptr<StorageBackend> backend_;
  CheckOutcome outcome_;
};

}  // namespace larder::conformance
