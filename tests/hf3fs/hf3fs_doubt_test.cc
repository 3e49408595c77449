// SPDX-License-Identifier: Apache-2.0
// What the backend may say when it does not know: a service that hangs or is not reached, an executor that ends.
#include <array>
#include <future>
#include <utility>

#include "metadata/memory_journal.h"
#include "storage/hf3fs/hf3fs_backend.h"
#include "tests/hf3fs/doubtful_service.h"
#include "tests/hf3fs/hf3fs_rig.h"

namespace larder::hf3fs_test {
namespace {

using Doubt = Rig;

TEST_F(Doubt, AGroupIsAcknowledgedOnlyWhenItIsConfirmed) {
  auto line = std::make_shared<DoubtfulService>(service_);
  reached_through_ = line;
  open();
  line->confirm_is_lost = true;
  // The second group has nothing of its own: its page is the first one's.
  const std::vector<Status> lost = write({{{PoolName::kKv, 1}, {PoolName::kKv, 2}}, {{PoolName::kKv, 2}}});
  EXPECT_EQ(lost.at(0).code(), StatusCode::kUnavailable) << lost.at(0).to_string();
  EXPECT_EQ(lost.at(1).code(), StatusCode::kUnavailable) << lost.at(1).to_string();
  EXPECT_EQ(presence(PoolName::kKv, {1, 2}), "00");
  line->confirm_is_lost = false;
  clock_.advance(std::chrono::hours(1));  // what was reserved comes back
  for (const Status& status : write({{{PoolName::kKv, 1}, {PoolName::kKv, 2}}, {{PoolName::kKv, 2}}})) {
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  EXPECT_EQ(presence(PoolName::kKv, {1, 2}), "11");
}

// Of a page, these codes would mean that it was declined, or that it is damaged.
TEST_F(Doubt, WhatIsNoServiceSaysNothingAboutPages) {
  auto line = std::make_shared<DoubtfulService>(service_);
  reached_through_ = line;
  open();
  const Page stored{PoolName::kKv, 1};
  ASSERT_TRUE(write({{stored}}).at(0).is_ok());
  for (const StatusCode code : {StatusCode::kUnsupported, StatusCode::kCorrupt}) {
    line->foreign_answer = code;
    EXPECT_EQ(write({{{PoolName::kKv, 2}}}).at(0).code(), StatusCode::kUnavailable);
    EXPECT_EQ(read_one(stored).code(), StatusCode::kUnavailable);
    EXPECT_EQ(presence_status(PoolName::kKv, {1}).code(), StatusCode::kUnavailable);
    line->before_reserve_answers = [&] { line->foreign_answer = code; };  // the confirmation meets it
    line->foreign_answer = StatusCode::kOk;
    EXPECT_EQ(write({{{PoolName::kKv, 3}}}).at(0).code(), StatusCode::kUnavailable);
    line->before_reserve_answers = nullptr;
    line->foreign_answer = StatusCode::kOk;
    clock_.advance(std::chrono::hours(1));  // what was reserved comes back
    EXPECT_TRUE(read_one(stored).is_ok());
  }
}

// Takes tasks and, from one on, drops them: an executor that is shut down.
class EndingExecutor final : public Executor {
 public:
  EndingExecutor(Executor& inner, int runs) : inner_(inner), left_(runs) {}
  [[nodiscard]] Status post(Task task) override {
    return left_.fetch_sub(1) > 0 ? inner_.post(std::move(task)) : Status::ok();
  }

 private:
  Executor& inner_;
  std::atomic<int> left_;
};

TEST_F(Doubt, WhatAnEndingExecutorDropsIsNotAcknowledged) {
  EndingExecutor ending(*threads_, 1);  // the write begins; its end, after the transfer, is dropped
  executor_ = &ending;
  open();
  fault(R"({"op": "write", "count": 1, "delay_ms": 200})");  // so that the end is a task of its own
  EXPECT_EQ(write({{{PoolName::kKv, 1}}}).at(0).code(), StatusCode::kCancelled);
  EXPECT_EQ(totals().stored, 0u);
  backend_.reset();
}

TEST_F(Doubt, StatisticsDoNotWaitForAServiceThatHangs) {
  std::promise<void> release;
  auto line = std::make_shared<DoubtfulService>(service_);
  reached_through_ = line;
  open();
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  line->stats_wait_until = release.get_future().share();
  EXPECT_EQ(backend_->stats().pages, 0u) << "nothing is known yet";
  EXPECT_EQ(backend_->stats().writes, 1u) << "what is counted here is told at once";
  release.set_value();
  for (int tries = 0; tries < 10'000 && backend_->stats().pages == 0; ++tries) {
    (void)std::promise<void>().get_future().wait_for(std::chrono::milliseconds(1));  // that answer, then the next
  }
  EXPECT_EQ(backend_->stats().pages, 1u);
}

// Breaks a promise: its transfers do not end by their deadlines.
class HoldingStore final : public hf3fs::PageStore {
 public:
  std::function<void()> before_open_answers;
  [[nodiscard]] Result<std::shared_ptr<hf3fs::PageFiles>> open_files(const std::string&, std::uint32_t,
                                                                     hf3fs::PageTransfer::Kind) override {
    if (before_open_answers) before_open_answers();
    return std::make_shared<hf3fs::PageFiles>();
  }
  [[nodiscard]] bool has_open(const std::string&, hf3fs::PageTransfer::Kind) const override { return true; }
  [[nodiscard]] Status submit(hf3fs::PageTransfer transfer) override {
    LockGuard guard(mutex_);
    ++ever_;
    held_.push_back(std::move(transfer));
    return Status::ok();
  }
  [[nodiscard]] hf3fs::PageStoreStats stats() const override { return {}; }
  [[nodiscard]] Status close(std::chrono::nanoseconds) override { return Status::ok(); }
  void release() {
    std::vector<hf3fs::PageTransfer> held;
    {
      LockGuard guard(mutex_);
      held.swap(held_);
    }
    for (hf3fs::PageTransfer& transfer : held) transfer.done({});
  }
  [[nodiscard]] std::size_t count() const {
    LockGuard guard(mutex_);
    return held_.size();
  }
  [[nodiscard]] std::size_t ever() const {
    LockGuard guard(mutex_);
    return ever_;
  }

 private:
  mutable RankedMutex mutex_{LockRank::kStorage};
  std::vector<hf3fs::PageTransfer> held_ LARDER_GUARDED_BY(mutex_);
  std::size_t ever_ LARDER_GUARDED_BY(mutex_) = 0;
};

TEST_F(Doubt, ACallerThatWaitsDoesNotWaitForEver) {
  hf3fs::Hf3fsOptions options;
  options.file_path_prefix = mount_ + "/pages";
  options.file_size = 1 << 20;
  options.client_timeout = std::chrono::milliseconds(5);
  auto store = std::make_unique<HoldingStore>();
  HoldingStore& held = *store;
  hf3fs::Hf3fsBackend backend(options, service_, std::move(store), *threads_, real_clock(), {1, 2});
  std::vector<std::byte> bytes(100);
  PageKey key;
  key.bytes[0] = 1;
  WriteRequest write{scope_of(1), {{{{PoolName::kKv, key, {{bytes.data(), bytes.size()}}, {}}}}}, false, {}};
  write.terms.caller_waits = true;
  std::promise<Status> written;
  ASSERT_TRUE(
      backend.submit_write(std::move(write), [&](WriteResult r) { written.set_value(r.groups.at(0)); }).is_ok());
  std::future<Status> answer = written.get_future();
  EXPECT_EQ(answer.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "its transfer has not ended";
  held.release();
  EXPECT_TRUE(answer.get().is_ok()) << "it ended without the caller";

  ReadRequest read{scope_of(1), {{PoolName::kKv, key, {{bytes.data(), bytes.size()}}}}, {}};
  read.terms.caller_waits = true;
  std::promise<Status> came;
  ASSERT_TRUE(backend.submit_read(std::move(read), [&](ReadResult r) { came.set_value(r.items.at(0)); }).is_ok());
  answer = came.get_future();
  EXPECT_EQ(answer.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  held.release();
  EXPECT_TRUE(answer.get().is_ok());
}

// The page of an old reservation may be another's by now, and that one's bytes may be there.
TEST_F(Doubt, AnOldReservationIsNotUsed) {
  ManualClock clock{std::chrono::seconds(1000)};
  auto line = std::make_shared<DoubtfulService>(service_);
  auto store = std::make_unique<HoldingStore>();
  HoldingStore& held = *store;
  hf3fs::Hf3fsOptions options;
  options.file_path_prefix = mount_ + "/pages";
  options.file_size = 1 << 20;
  std::vector<std::byte> bytes(100);
  PageKey key;
  key.bytes[0] = 1;
  hf3fs::Hf3fsBackend backend(options, line, std::move(store), *threads_, clock, {1, 2});
  const auto write = [&] {
    WriteRequest request{scope_of(1), {{{{PoolName::kKv, key, {{bytes.data(), bytes.size()}}, {}}}}}, false, {}};
    std::promise<Status> written;
    std::future<Status> answer = written.get_future();
    EXPECT_TRUE(
        backend.submit_write(std::move(request), [&](WriteResult r) { written.set_value(r.groups.at(0)); }).is_ok());
    for (int tries = 0; tries < 10'000 && held.count() == 0; ++tries) {
      if (answer.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready) break;
    }
    held.release();
    return answer.get();
  };
  line->before_reserve_answers = [&] { clock.advance(std::chrono::seconds(20)); };
  EXPECT_EQ(write().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(held.ever(), 0u) << "no byte was written";
  EXPECT_EQ(totals().reserved + totals().stored, 0u) << "what was reserved is given back";
  line->before_reserve_answers = [&] { clock.advance(std::chrono::seconds(5)); };
  held.before_open_answers = [&] { clock.advance(std::chrono::seconds(20)); };  // files that open slowly: the same
  EXPECT_EQ(write().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(held.ever(), 0u);
  EXPECT_EQ(totals().reserved + totals().stored, 0u);
  held.before_open_answers = nullptr;
  EXPECT_TRUE(write().is_ok());
  EXPECT_EQ(held.ever(), 1u);
  EXPECT_EQ(totals().stored, 1u);
}

// A disk that takes its time.
class SlowJournal final : public metadata::Journal {
 public:
  std::shared_future<void> write_waits_until;  // set while nobody writes
  [[nodiscard]] Status replay(const Visitor& each) override { return disk_.replay(each); }
  [[nodiscard]] Status write(const metadata::JournalBatch& batch, bool synced) override {
    if (write_waits_until.valid()) write_waits_until.wait();
    return disk_.write(batch, synced);
  }
  [[nodiscard]] Status sync() override { return disk_.sync(); }

 private:
  metadata::MemoryDisk disk_;
};

// The defect: pages that somebody had stored without a sync were acknowledged as durable, and nobody synced them.
TEST_F(Doubt, ADurableWriteOfWhatIsThereIsSyncedToo) {
  const auto disk = std::make_shared<metadata::MemoryDisk>();
  auto made = EmbeddedMetadata::create({}, clock_, metadata::open_memory_journal(disk));
  ASSERT_TRUE(made.is_ok()) << made.status().to_string();
  service_ = std::move(made).value();
  const auto line = std::make_shared<DoubtfulService>(service_);
  reached_through_ = line;
  open();
  const std::vector<std::vector<Page>> one = {{{PoolName::kKv, 1}}};
  ASSERT_TRUE(write(one).at(0).is_ok());
  ASSERT_GT(disk->unsynced_writes(), 0u);
  line->confirm_is_lost = true;
  EXPECT_EQ(write(one, 1, true).at(0).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(write(one).at(0).is_ok()) << "it is there";
  line->confirm_is_lost = false;
  EXPECT_TRUE(write({{{PoolName::kKv, 1}, {PoolName::kKv, 2}}}, 1, true).at(0).is_ok());
  EXPECT_EQ(disk->unsynced_writes(), 0u);
  EXPECT_EQ(totals().stored, 2u);
}

TEST_F(Doubt, SubmitDoesNotWaitForTheJournal) {
  auto journal = std::make_unique<SlowJournal>();
  SlowJournal& slow = *journal;
  auto made = EmbeddedMetadata::create({}, clock_, std::move(journal));
  ASSERT_TRUE(made.is_ok()) << made.status().to_string();
  service_ = std::move(made).value();
  open();
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());  // namespace and files are known now
  ASSERT_TRUE(read_one({PoolName::kKv, 1}).is_ok());
  std::promise<void> release, returned;
  slow.write_waits_until = release.get_future().share();
  std::vector<std::byte> bytes(5000);
  std::promise<Status> written;
  {
    ThreadPoolExecutor caller("caller", 1, 1);
    PageKey key;
    key.bytes[0] = 9;
    const Status posted = caller.post([&] {
      WriteRequest request{scope_of(1), {{{{PoolName::kKv, key, {{bytes.data(), bytes.size()}}, {}}}}}, false, {}};
      EXPECT_TRUE(backend_->submit_write(std::move(request), [&](WriteResult r) { written.set_value(r.groups.at(0)); })
                      .is_ok());
      returned.set_value();
    });
    EXPECT_TRUE(posted.is_ok());
    EXPECT_EQ(returned.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
    release.set_value();
  }
  const Status status = written.get_future().get();
  EXPECT_TRUE(status.is_ok()) << status.to_string();
}

// A new process asks the service once what namespaces there are; who asks meanwhile waits for that answer.
TEST_F(Doubt, NobodySaysAbsentBeforeTheServiceHasSpoken) {
  open();
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  std::promise<void> release, answered;
  auto line = std::make_shared<DoubtfulService>(service_);
  line->stats_wait_until = release.get_future().share();
  reached_through_ = line;
  open();
  std::array<std::string, 2> said;
  {
    std::atomic<int> first{0};
    ThreadPoolExecutor clients("clients", 2, 2);
    for (std::string& answer : said) {
      const Status posted = clients.post([&] {
        answer = presence(PoolName::kKv, {1});
        if (first++ == 0) answered.set_value();
      });
      EXPECT_TRUE(posted.is_ok()) << posted.to_string();
    }
    // With the service silent, whoever answers has made it up.
    EXPECT_EQ(answered.get_future().wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    release.set_value();
  }
  EXPECT_EQ(said[0] + said[1], "11");
  EXPECT_EQ(line->stats_asked, 1);
}

// Whoever has not been told of any namespace does not know that there is none.
TEST_F(Doubt, AServiceThatIsNotReachedIsAnErrorAndNoAbsence) {
  open();
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  auto line = std::make_shared<DoubtfulService>(service_);
  reached_through_ = line;
  open();
  line->stats_are_lost = true;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(presence_status(PoolName::kKv, {1}).code(), StatusCode::kUnavailable) << i;
}

// Pages of another geometry lie in files that this process does not read: they are neither promised nor counted.
TEST_F(Doubt, PagesOfAnotherGeometryAreNotPromised) {
  open({{"files", "2"}});
  ASSERT_TRUE(write({{{PoolName::kKv, 1}}}).at(0).is_ok());
  open({{"files", "4"}});
  EXPECT_EQ(presence(PoolName::kKv, {1}), "0");
  EXPECT_EQ(backend_->stats().pages, 0u);
  open({{"files", "2"}, {"chunk_size", "64Ki"}});
  EXPECT_EQ(presence(PoolName::kKv, {1}), "0");
  open({{"files", "2"}});
  EXPECT_EQ(presence(PoolName::kKv, {1}), "1");
  EXPECT_EQ(backend_->stats().pages, 1u);
  EXPECT_TRUE(read_one({PoolName::kKv, 1}).is_ok());
}

}  // namespace
}  // namespace larder::hf3fs_test
