// SPDX-License-Identifier: Apache-2.0
// Rows 5 to 8 of the fake's contract: jobs and the order of completions, partial batches, slots, waiting.
#include <future>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "tests/hf3fs_fake/fake_fixture.h"

namespace larder::hf3fs {
namespace {

class Rows05To08 : public FakeHf3fsTest {
 protected:
  // Writes `count` pages of 4 KiB; tags 0..count-1.
  void prep_pages(const Hf3fsIor& ring, const Hf3fsIov& iov, int fd, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto slot = prep(ring, iov, i * 4096, fd, i * 4096, 4096, i);
      ASSERT_TRUE(slot.is_ok()) << slot.status().to_string();
    }
  }
  static std::vector<std::uint64_t> tags(const std::vector<Hf3fsCqe>& cqes) {
    std::vector<std::uint64_t> all;
    for (const auto& cqe : cqes) all.push_back(reinterpret_cast<std::uint64_t>(cqe.userdata));
    return all;
  }
  // Tags in the order of their completions, of a fresh ring under `seed`.
  std::vector<std::uint64_t> order_of(std::uint64_t seed, int io_depth) {
    fake_.reset();
    configure((R"({"mode": "sim", "chunk_bytes": 65536, "seed": )" + std::to_string(seed) + "}").c_str());
    const int fd = open_file("f" + std::to_string(seed));
    const Hf3fsIov iov = make_iov();
    const Hf3fsIor ring = make_ring(false, 16, io_depth);
    prep_pages(ring, iov, fd, 6);
    expect_ok(library_->submit(ring));
    (void)fake_.step(10'000);
    trace_ = stats().trace_hash;
    return tags(reap(ring, 6));
  }
  std::uint64_t trace_ = 0;
};

TEST_F(Rows05To08, Row05JobsAreCutByDepth) {
  configure(R"({"mode": "sync"})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  struct Case {
    int depth;
    std::uint64_t jobs, largest, completed;
  };
  std::uint64_t before = 0;
  for (const Case& each : {Case{0, 1, 5, 5}, Case{-2, 3, 5, 5}, Case{2, 2, 5, 4}, Case{-64, 1, 5, 5}}) {
    const Hf3fsIor ring = make_ring(false, 16, each.depth);
    prep_pages(ring, iov, fd, 5);
    expect_ok(library_->submit(ring));
    EXPECT_EQ(stats().jobs - before, each.jobs) << "depth " << each.depth;
    EXPECT_EQ(stats().largest_job, each.largest);
    EXPECT_EQ(reap(ring, 0).size(), each.completed);
    before = stats().jobs;
  }
}

TEST_F(Rows05To08, Row05CompletionsOfAJobAppearTogether) {
  configure(R"({"mode": "sim"})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor ring = make_ring(false, 16, 0);
  prep_pages(ring, iov, fd, 6);
  expect_ok(library_->submit(ring));
  std::size_t seen = 0;
  for (int events = 0; events < 100 && seen == 0; ++events) {
    ASSERT_EQ(fake_.step(1), 1u);
    seen = reap(ring, 0).size();
  }
  EXPECT_EQ(seen, 6u) << "all at once, at the end of the job";
}

TEST_F(Rows05To08, Row05OrderIsPermutedWithinAndAcrossJobs) {
  const std::vector<std::uint64_t> asked = {0, 1, 2, 3, 4, 5};
  for (const int depth : {0, -1}) {
    std::set<std::vector<std::uint64_t>> orders;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      const auto order = order_of(seed, depth);
      EXPECT_EQ(std::set<std::uint64_t>(order.begin(), order.end()),
                std::set<std::uint64_t>(asked.begin(), asked.end()));
      orders.insert(order);
    }
    EXPECT_GT(orders.size(), 6u) << "depth " << depth;
  }
}

TEST_F(Rows05To08, Row05SameSeedSameTrace) {
  const auto order = order_of(7, -2);
  const std::uint64_t trace = trace_;
  EXPECT_NE(trace, 0u);
  EXPECT_EQ(order_of(7, -2), order);
  EXPECT_EQ(trace_, trace);
  std::set<std::uint64_t> traces;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    (void)order_of(seed, -2);
    traces.insert(trace_);
  }
  EXPECT_GT(traces.size(), 4u);
}

TEST_F(Rows05To08, Row06PartialBatchOfAPositiveDepthWaitsForEver) {
  configure(R"({"mode": "sim"})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor ring = make_ring(false, 16, 4);
  prep_pages(ring, iov, fd, 3);
  expect_ok(library_->submit(ring));
  fake_.advance(3'600'000);
  EXPECT_EQ(fake_.step(1000), 0u);
  ASSERT_TRUE(prep(ring, iov, 0x8000, fd, 0x8000, 4096, 3).is_ok());
  EXPECT_GT(fake_.step(1000), 0u);
  EXPECT_EQ(reap(ring, 0).size(), 4u) << "the fourth sets the batch free";
}

TEST_F(Rows05To08, Row06TimeoutOfANegativeDepthIsASwitch) {
  configure(R"({"mode": "sim", "defects": ["D1"]})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor broken = make_ring(false, 16, -8, 0, 5);
  prep_pages(broken, iov, fd, 3);
  expect_ok(library_->submit(broken));
  fake_.advance(3'600'000);
  EXPECT_EQ(fake_.step(1000), 0u) << "D1: a partial batch with a time-out is never sent";

  configure(R"({"defects": []})");
  const Hf3fsIor documented = make_ring(false, 16, -8, 0, 5);
  prep_pages(documented, iov, fd, 3);
  expect_ok(library_->submit(documented));
  (void)fake_.step(1000);
  EXPECT_EQ(reap(documented, 0).size(), 3u) << "as documented: after the time-out, to which the steps move the clock";
}

TEST_F(Rows05To08, Row07SlotsAreFreedByTheReaper) {
  configure(R"({"mode": "sync", "shuffle": false})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor ring = make_ring(false, 4);
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(prep(ring, iov, i * 4096, fd, 0, 16, i).value_or(-1), static_cast<int>(i)) << "lowest first";
  }
  expect_ok(library_->submit(ring));
  EXPECT_EQ(stats().completed, 4u);
  EXPECT_EQ(prep(ring, iov, 0, fd, 0, 16).status().code(), StatusCode::kOverloaded) << "completed, but not reaped";
  ASSERT_EQ(reap(ring, 2, 0, 2).size(), 2u);
  EXPECT_EQ(prep(ring, iov, 0, fd, 0, 16).value_or(-1), 0) << "the lowest free one again";
  EXPECT_EQ(prep(ring, iov, 0, fd, 0, 16).value_or(-1), 1);
  EXPECT_EQ(prep(ring, iov, 0, fd, 0, 16).status().code(), StatusCode::kOverloaded);
}

TEST_F(Rows05To08, Row08WaitReturnsWhatThereIsAtTheDeadline) {
  configure(R"({"mode": "sync"})");
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor ring = make_ring(false, 16, -1);
  EXPECT_EQ(reap(ring, 1, 10).size(), 0u) << "no error, nothing";
  prep_pages(ring, iov, fd, 3);
  expect_ok(library_->submit(ring));
  EXPECT_EQ(reap(ring, 5, 10).size(), 3u) << "fewer than asked for";
  prep_pages(ring, iov, fd, 3);
  expect_ok(library_->submit(ring));
  EXPECT_EQ(reap(ring, 1, 5000).size(), 3u) << "more than asked for";
  prep_pages(ring, iov, fd, 3);
  expect_ok(library_->submit(ring));
  EXPECT_EQ(reap(ring, 9, 5000, 2).size(), 2u) << "never more than fit; the rest stays";
  EXPECT_EQ(reap(ring, 0, 5000).size(), 1u);
}

TEST_F(Rows05To08, Row08DeadlineIsRealtimeAndWaitsToIt) {
  const Hf3fsIor ring = make_ring(false);
  const auto start = real_clock().now();
  EXPECT_EQ(reap(ring, 1, 40).size(), 0u);
  EXPECT_GE(real_clock().now() - start, std::chrono::milliseconds(38));
  // A deadline by another clock has passed since 1970.
  std::vector<Hf3fsCqe> cqes(4);
  const struct timespec monotonic = {12345, 0};
  const auto count = library_->wait(ring, cqes, 1, monotonic);
  ASSERT_TRUE(count.is_ok());
  EXPECT_EQ(*count, 0u);
}

TEST_F(Rows05To08, Row08WithoutDeadlineItBlocks) {
  const int fd = open_file("f");
  const Hf3fsIov iov = make_iov();
  const Hf3fsIor ring = make_ring(false);
  fault(R"({"hold": "before"})");
  ASSERT_TRUE(prep(ring, iov, 0, fd, 0, 4096, 5).is_ok());
  expect_ok(library_->submit(ring));
  auto* wait = reinterpret_cast<wait_for_ios_fn*>(library_->symbol("hf3fs_wait_for_ios"));
  std::promise<int> waited;
  std::future<int> answer = waited.get_future();
  ThreadPoolExecutor pool("waiter", 1, 4);
  expect_ok(pool.post([&] {
    Hf3fsCqe cqe{};
    waited.set_value(wait(&ring, &cqe, 1, 1, nullptr));
  }));
  EXPECT_EQ(answer.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  EXPECT_EQ(fake_.release(), 1u);
  EXPECT_EQ(answer.get(), 1);
}

}  // namespace
}  // namespace larder::hf3fs
