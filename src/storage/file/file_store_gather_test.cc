// SPDX-License-Identifier: Apache-2.0
// Small writes while the disk is busy: they wait, go as one record, and stay groups of their own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/rng.h"
#include "tests/support/failing_file_store.h"

namespace larder {
namespace {

constexpr std::size_t kPage = 1000;

// A store on simulated files whose disk stands still until run().
class GatherTest : public file_store::FailureTest {
 protected:
  void SetUp() override {
    FailureTest::SetUp();
    reopen();
    write(0);
    run();  // there is a segment now
    ASSERT_EQ(status_of_[0].code(), StatusCode::kOk);
    backend_before_ = backend_->stats().written_bytes;
  }
  void TearDown() override {
    run();
    FailureTest::TearDown();
  }
  void reopen() {
    if (backend_) {
      ASSERT_TRUE(backend_->close(std::chrono::nanoseconds(0)).is_ok());
    }
    backend_.reset();
    open(executor_, {{"segment_size", "auto"}});
  }
  void run() { executor_.run_all(); }

  // The content's bytes are of its number.
  void write(std::uint64_t i, bool is_durable = false, std::size_t items = 1) {
    WriteRequest request{scope_, {}, is_durable, {}};
    request.groups.emplace_back();
    for (std::size_t n = 0; n < items; ++n) {
      auto& content = contents_[i + n];
      content.assign(kPage, static_cast<std::byte>(i + n));
      request.groups[0].items.push_back({PoolName::kKv, key(i + n), {{content.data(), content.size()}}, {}});
    }
    status_of_[i] = internal_error("not done");
    const Status taken = backend_->submit_write(std::move(request),
                                                [this, i](WriteResult result) { status_of_[i] = result.groups.at(0); });
    ASSERT_TRUE(taken.is_ok()) << taken.to_string();
  }
  // Reads page i; wrong bytes fail the test.
  StatusCode read(std::uint64_t i) {
    std::vector<std::byte> content(kPage);
    Status status = internal_error("not done");
    EXPECT_TRUE(backend_
                    ->submit_read({scope_, {{PoolName::kKv, key(i), {{content.data(), content.size()}}}}, {}},
                                  [&](ReadResult result) { status = result.items.at(0); })
                    .is_ok());
    run();
    EXPECT_TRUE(!status.is_ok() || content == std::vector<std::byte>(kPage, static_cast<std::byte>(i))) << i;
    return status.code();
  }
  [[nodiscard]] std::uint64_t written() const { return backend_->stats().written_bytes - backend_before_; }

  ManualExecutor executor_;
  std::uint64_t backend_before_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> contents_;
  std::map<std::uint64_t, Status> status_of_;
};

TEST_F(GatherTest, WritesOfABusyDiskGoTogether) {
  for (std::uint64_t i = 1; i <= 8; ++i) write(i);
  EXPECT_EQ(written(), 2 * 4096u) << "two are under way, the others wait";
  EXPECT_EQ(backend_->stats().queued, 8u);
  run();
  for (std::uint64_t i = 1; i <= 8; ++i) EXPECT_EQ(status_of_[i].code(), StatusCode::kOk) << i;
  // One head of 128 + 80 + 6 * 128 bytes and six pages of 1000, each at a multiple of 64.
  EXPECT_EQ(written(), 2 * 4096u + 8192);
  for (std::uint64_t i = 0; i <= 8; ++i) EXPECT_EQ(read(i), StatusCode::kOk) << i;
  reopen();
  for (std::uint64_t i = 0; i <= 8; ++i) EXPECT_EQ(read(i), StatusCode::kOk) << i;
}

TEST_F(GatherTest, AnIdleDiskGetsEachAtOnce) {
  for (std::uint64_t i = 1; i <= 10; ++i) {
    write(i);
    run();  // of the write: one task, which waits for the disk
    EXPECT_EQ(written(), i * 4096);
  }
}

// Groups that gathered are read from heads, not from a footer: each is whole, and in the order of its coming.
TEST_F(GatherTest, GroupsStayGroups) {
  for (std::uint64_t i = 1; i <= 30; i += 3) write(i, false, 3);
  run();
  files_->inner.crash();  // with fsync = segment nothing of it was synced: what is there must be whole groups
  backend_.reset();
  reopen();
  std::size_t found = 0;
  for (std::uint64_t i = 1; i <= 30; i += 3) {
    const StatusCode first = read(i);
    found += first == StatusCode::kOk ? 1 : 0;
    for (std::uint64_t n = 1; n < 3; ++n) EXPECT_EQ(read(i + n), first) << i + n;
  }
  RecordProperty("groups_found", static_cast<int>(found));
}

TEST_F(GatherTest, OneFailedWriteFailsWhatItCarried) {
  for (std::uint64_t i = 1; i <= 10; ++i) write(i);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(executor_.run_one());  // those that were under way
  EXPECT_EQ(status_of_[2].code(), StatusCode::kOk);
  files_->inner.fail_nth(1, sim::FileFault::kWriteTorn);
  run();
  // Which of them the failed write carried depends on when they gathered; at least one, and each has its own answer.
  std::size_t failed = 0;
  for (std::uint64_t i = 3; i <= 10; ++i) {
    ASSERT_NE(status_of_[i].code(), StatusCode::kInternal) << i << ": no answer";
    failed += status_of_[i].is_ok() ? 0 : 1;
    EXPECT_EQ(read(i), status_of_[i].is_ok() ? StatusCode::kOk : StatusCode::kNotFound) << i;
  }
  EXPECT_GT(failed, 0u);
  for (std::uint64_t i = 3; i <= 10; ++i) write(i);
  run();
  reopen();
  for (std::uint64_t i = 0; i <= 10; ++i) EXPECT_EQ(read(i), StatusCode::kOk) << i;
}

// Nobody waits for a sync that he did not ask for, nor fails with it.
TEST_F(GatherTest, DurableOnesGoAlone) {
  for (std::uint64_t i = 1; i <= 12; ++i) write(i, i % 2 == 0);
  run();
  EXPECT_EQ(written(), 12 * 4096u) << "every other one is durable: none has a neighbour of its kind";
  for (std::uint64_t i = 1; i <= 12; ++i) EXPECT_EQ(status_of_[i].code(), StatusCode::kOk) << i;
  files_->inner.crash();
  backend_.reset();
  reopen();
  for (std::uint64_t i = 2; i <= 12; i += 2) EXPECT_EQ(read(i), StatusCode::kOk) << i << ": acknowledged as durable";
}

// Of two durable writes, one counts on a page in another segment, too: the sync of that one is nothing to the other.
TEST_F(GatherTest, DurableOnesWithOtherSegmentsGoAlone) {
  for (std::uint64_t i = 20; i < 22; ++i) write(i);  // enough to keep the disk busy
  contents_[0].assign(kPage, std::byte{0});
  contents_[30].assign(kPage, std::byte{30});
  WriteRequest both{scope_, {}, true, {}};
  both.groups.push_back({{{PoolName::kKv, key(0), {{contents_[0].data(), kPage}}, {}},
                          {PoolName::kKv, key(30), {{contents_[30].data(), kPage}}, {}}}});
  Status answer = internal_error("not done");
  ASSERT_TRUE(
      backend_->submit_write(std::move(both), [&](WriteResult result) { answer = result.groups.at(0); }).is_ok());
  write(31, true);
  write(32, true);
  run();
  EXPECT_EQ(written(), 2 * 4096u + 4096 + 4096) << "two durable ones together, and one alone";
  EXPECT_TRUE(answer.is_ok()) << answer.to_string();
  for (const std::uint64_t i : {31, 32}) EXPECT_EQ(status_of_[i].code(), StatusCode::kOk) << i;
  files_->inner.crash();
  backend_.reset();
  reopen();
  for (const std::uint64_t i : {0, 30, 31, 32}) EXPECT_EQ(read(i), StatusCode::kOk) << i << ": acknowledged as durable";
}

// The same page twice, both waiting: one copy in the index, two answers.
TEST_F(GatherTest, OnePageTwice) {
  for (std::uint64_t i = 1; i <= 2; ++i) write(i);
  contents_[9].assign(kPage, std::byte{9});
  std::vector<Status> answers(2, internal_error("not done"));
  for (Status& answer : answers) {
    WriteRequest request{scope_, {}, true, {}};
    request.groups.push_back({{{PoolName::kKv, key(9), {{contents_[9].data(), kPage}}, {}}}});
    ASSERT_TRUE(
        backend_->submit_write(std::move(request), [&answer](WriteResult result) { answer = result.groups.at(0); })
            .is_ok());
  }
  run();
  for (const Status& answer : answers) EXPECT_TRUE(answer.is_ok()) << answer.to_string();
  EXPECT_EQ(backend_->stats().pages, 4u);
  files_->inner.crash();
  backend_.reset();
  reopen();
  EXPECT_EQ(read(9), StatusCode::kOk);
}

// Many callers, several sizes, in any order of tasks: each gets its answer, and what is said to be there is there.
TEST_F(GatherTest, AnyOrderOfTasks) {
  const char* const fixed = std::getenv("LARDER_TEST_SEED");
  const std::uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : 1;
  for (std::uint64_t seed = first; seed < first + (fixed != nullptr ? 1 : 50); ++seed) {
    SCOPED_TRACE("replay with LARDER_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    sim::SimFileSystem files(seed);
    ManualExecutor executor(4096, seed);
    auto opened = factory_.create("file", {{"directory", "/d"}, {"segment_size", "64Ki"}, {"max_size", "64Mi"}},
                                  {&files, &clock_, &executor, {}});
    ASSERT_TRUE(opened.is_ok());
    std::map<std::uint64_t, std::vector<std::byte>> contents;
    std::map<std::uint64_t, Status> answers;
    for (std::uint64_t i = 0; i < 100; ++i) {
      auto& content = contents[i];
      content.assign(static_cast<std::size_t>(rng.below(6000)), static_cast<std::byte>(i));
      WriteRequest request{scope_, {}, rng.below(4) == 0, {}};
      request.groups.push_back({{{PoolName::kKv, key(i), {{content.data(), content.size()}}, {}}}});
      ASSERT_TRUE((*opened)
                      ->submit_write(std::move(request),
                                     [&answers, i](WriteResult result) { answers[i] = result.groups.at(0); })
                      .is_ok());
      for (std::uint64_t step = rng.below(4); step > 0; --step) (void)executor.run_one();
    }
    executor.run_all();
    ASSERT_EQ(answers.size(), 100u);
    std::vector<std::byte> got;
    for (std::uint64_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(answers[i].is_ok()) << i << ": " << answers[i].to_string();
      got.assign(contents[i].size(), std::byte{0xee});
      Status status = internal_error("not done");
      ASSERT_TRUE((*opened)
                      ->submit_read({scope_, {{PoolName::kKv, key(i), {{got.data(), got.size()}}}}, {}},
                                    [&](ReadResult result) { status = result.items.at(0); })
                      .is_ok());
      executor.run_all();
      ASSERT_TRUE(status.is_ok()) << i << ": " << status.to_string();
      ASSERT_EQ(got, contents[i]) << i;
    }
    executor.run_all();
    ASSERT_TRUE((*opened)->close(std::chrono::nanoseconds(0)).is_ok());
  }
}

}  // namespace
}  // namespace larder
