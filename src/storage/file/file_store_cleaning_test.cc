// SPDX-License-Identifier: Apache-2.0
// What cleaning segments must not cost: pages that were acknowledged as durable, and room on the list of clears.
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

// A store that holds a few pages for good among many that come and go, so that what it cleans is the former.
class CleaningTest : public FailureTest {
 protected:
  static constexpr std::size_t kPage = 8000;
  static constexpr std::uint64_t kKept = 12, kSteps = 600;

  void reopen() { open(executor_, {{"max_size", "1Mi"}}); }
  // Whether the next sync is the first one behind a move.
  bool has_just_moved() {
    const std::uint64_t before = std::exchange(moved_, backend_->stats().moved);
    return moved_ > before;
  }
  // Writes until `until` holds. False: it never did.
  bool churn(const std::function<bool()>& until) {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      (void)put(1000 + next_++, kPage);
      clock_.advance(std::chrono::seconds(1));  // a back-off ends
      if (step % 7 == 0 && kept_ < kKept) {
        EXPECT_TRUE(put(kept_, kPage, true).is_ok()) << kept_;
        ++kept_;
      }
      touch_kept();  // they are never the coldest
      if (until()) return true;
    }
    return false;
  }
  void touch_kept() {
    for (std::uint64_t i = 0; i < kept_; ++i) ASSERT_TRUE(get(i, kPage).is_ok()) << i;
  }
  std::string lost() {
    std::string out;
    for (std::uint64_t i = 0; i < kept_; ++i) {
      if (!get(i, kPage).is_ok()) out += " " + std::to_string(i);
    }
    return out;
  }

  InlineExecutor executor_;
  std::uint64_t next_ = 0, kept_ = 0, moved_ = 0;
};

TEST_F(CleaningTest, AFailedSyncLosesNoOldCopy) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(seed);
    next_ = kept_ = moved_ = 0;
    reopen();
    bool has_failed = false;
    files_->before_sync = [&](const std::string& path) {
      if (!backend_ || !has_just_moved() || kept_ < kKept || has_failed) return Status::ok();
      has_failed = true;
      return status_from_errno(EIO, "fdatasync", path);
    };
    ASSERT_TRUE(churn([&] { return has_failed; })) << "nothing was cleaned";
    const std::uint64_t moved = backend_->stats().moved;
    if (seed % 2 == 0) {  // what could not be cleaned is cleaned later
      ASSERT_TRUE(churn([&] { return backend_->stats().moved > moved + kKept; }));
      EXPECT_LE(backend_->stats().physical_bytes, std::uint64_t{1} << 20);
    }
    cut_power();
    reopen();
    EXPECT_EQ(lost(), "") << "durable pages are gone, of " << kKept;
  }
}

// The defect: for a second the disk could not be read, and a segment full of good pages was dropped.
TEST_F(CleaningTest, ADiskThatCannotBeReadForAWhileLosesNothing) {
  reopen();
  ASSERT_TRUE(churn([&] { return kept_ == kKept && backend_->stats().moved > kKept; }));
  std::uint64_t refused = 0;
  for (std::uint64_t step = 0; step < kSteps && refused == 0; ++step) {
    touch_kept();
    files_->before_read = [&](const std::string& path) {
      ++refused;
      return status_from_errno(EIO, "read", path);
    };
    (void)put(1000 + next_++, kPage);  // now and then it cleans
    files_->before_read = nullptr;
  }
  EXPECT_GT(refused, 1u) << "nothing was cleaned";
  EXPECT_EQ(lost(), "") << "of " << kKept;
}

// One page that can never be read does not keep its segment for ever.
TEST_F(CleaningTest, ABadSpotOfTheDiskIsGivenUp) {
  reopen();
  ASSERT_TRUE(churn([&] { return kept_ == kKept && backend_->stats().moved > kKept; }));
  std::string bad;  // whichever is cleaned first
  files_->before_read = [&](const std::string& path) {
    if (bad.empty() && path.find("segment-") != std::string::npos) bad = path;
    return path == bad ? status_from_errno(EIO, "read", path) : Status::ok();
  };
  kept_ = 0;  // not read by the test itself
  for (std::uint64_t step = 0; step < kSteps && (bad.empty() || files_->stat(bad).is_ok()); ++step) {
    (void)put(1000 + next_++, kPage);
    clock_.advance(std::chrono::seconds(1));
  }
  EXPECT_FALSE(bad.empty());
  EXPECT_FALSE(files_->stat(bad).is_ok());
}

// The defect: pages that are moved again and again kept every clear since they were written on the list of those that
// opening must know, and when that is full no namespace can be cleared.
TEST_F(CleaningTest, AnOldPageKeepsNoClearOnTheList) {
  reopen();
  std::uint64_t cleared = 0;
  const auto clear_another = [&] {
    auto scope = std::make_shared<StoreScope>();
    store_le<std::uint64_t>(scope->namespace_digest.bytes.data() + 8, ++cleared);
    Status status = internal_error("no callback");
    EXPECT_TRUE(backend_->submit_clear(scope, [&](Status s) { status = s; }).is_ok());
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  };
  ASSERT_TRUE(churn([&] { return kept_ == kKept; }));
  for (int i = 0; i < 20; ++i) {
    clear_another();
    const std::uint64_t moved = backend_->stats().moved;
    ASSERT_TRUE(churn([&] { return backend_->stats().moved > moved + kKept; }));
  }
  const auto listed = [&] {
    const auto file = files_->open("/d/CLEARED", {}).value();
    std::vector<std::byte> bytes(static_cast<std::size_t>(file->size_bytes().value()));
    EXPECT_TRUE(read_exactly(*file, bytes, 0).is_ok());
    return decode_cleared(bytes).value().size();
  };
  clear_another();
  EXPECT_LE(listed(), 10u) << "of " << cleared;
  backend_.reset();
  reopen();
  clear_another();
  EXPECT_LE(listed(), 10u) << "of " << cleared << ", after opening it again";
  EXPECT_EQ(lost(), "");
}

// Room is made by cleaning alone, for all segments are about as full as each other; and then cleaning fails.
class FailedCleaningTest : public FailureTest {
 protected:
  static constexpr std::size_t kPage = 8000;
  static constexpr std::uint64_t kSegmentPages = 7;  // of 64 KiB

  void fill(const std::string& high_watermark = "95") {
    files_ = std::make_unique<sim::HookedFiles>(3);
    open(executor_,
         {{"max_size", "1Mi"}, {"open_files", "1"}, {"high_watermark", high_watermark}, {"low_watermark", "70"}});
    for (int i = 0; i < 600; ++i) (void)put_one();
    ASSERT_GT(backend_->stats().moved, 0u) << "nothing was cleaned";
    before_ = backend_->stats().pages;
  }
  // Pages are used in any order, so that those of a segment do not go together.
  Status put_one() {
    is_cleaning_ = false;
    const Status status = put(next_++, kPage);
    for (int i = 0; i < 3; ++i) (void)get(rng_.below(next_), kPage);
    return status;
  }
  // While something fails.
  void put_some(int pages = 60) {
    for (int i = 0; i < pages; ++i) (void)put_one();
    EXPECT_GE(backend_->stats().pages + 4 * kSegmentPages, before_) << "pages are left";
  }
  // What failed is over.
  void expect_goes_on() {
    files_->before_create = files_->before_open = files_->before_read = nullptr;
    clock_.advance(std::chrono::minutes(2));
    std::uint64_t stored = 0;
    for (int i = 0; i < 40; ++i) stored += put_one().is_ok() ? 1 : 0;
    EXPECT_GE(stored, 39u);
  }

  InlineExecutor executor_;
  Rng rng_{5};
  std::uint64_t next_ = 0, before_ = 0;  // before_: pages
  bool is_cleaning_ = false;             // has read something since the last write began
};

// The defects: whatever kept cleaning from moving pages, it was taken for want of room to move them to, and nearly
// everything was evicted to make some.
TEST_F(FailedCleaningTest, TooFewDescriptorsEvictLittle) {
  fill();
  std::uint64_t failed = 0;
  files_->before_open = [&](const std::string& path) { return ++failed, status_from_errno(EMFILE, "open", path); };
  put_some();
  EXPECT_GT(failed, 0u);
  expect_goes_on();
}

TEST_F(FailedCleaningTest, AnUnreadableDiskEvictsLittle) {
  fill();
  std::uint64_t failed = 0;
  files_->before_read = [&](const std::string& path) { return ++failed, status_from_errno(EIO, "read", path); };
  put_some();
  for (int i = 0; i < 40; ++i) {  // after a minute, one segment at a time is given up
    clock_.advance(std::chrono::seconds(3));
    put_some(1);
  }
  EXPECT_GT(failed, 0u);
  expect_goes_on();
}

TEST_F(FailedCleaningTest, AMoveThatCannotBeWrittenEvictsLittle) {
  for (const auto& [error, high_watermark] : {std::pair{EIO, "95"}, {EIO, "80"}, {ENOSPC, "95"}, {ENOSPC, "80"}}) {
    SCOPED_TRACE(std::string(error == EIO ? "EIO" : "ENOSPC") + ", from " + high_watermark + " percent");
    fill(high_watermark);
    std::uint64_t failed = 0;
    files_->before_read = [&](const std::string&) { return is_cleaning_ = true, Status::ok(); };
    files_->before_create = [&](const std::string& path) {
      if (!is_cleaning_) return Status::ok();
      return ++failed, status_from_errno(error, "open", path);
    };
    put_some();
    EXPECT_GT(failed, 0u);
    expect_goes_on();
    backend_.reset();
  }
}

TEST_F(FailedCleaningTest, FilesThatDoNotGoEvictLittle) {
  fill();
  std::uint64_t failed = 0;
  files_->before_remove = [&](const std::string& path) { return ++failed, status_from_errno(EPERM, "unlink", path); };
  put_some();
  EXPECT_GT(failed, 0u);
  files_->before_remove = nullptr;
  expect_goes_on();
}

// The defect: close() waited until all of it had been cleaned, whatever its limit was.
TEST_F(FailureTest, CloseDoesNotWaitForMaintenance) {
  constexpr std::size_t kPage = 8000;
  InlineExecutor inline_executor;
  open(inline_executor, {{"max_size", "16Mi"}});
  const auto scope = scope_, other = std::make_shared<StoreScope>(*scope_);
  other->namespace_digest.bytes[0] = 2;
  for (std::uint64_t i = 0; i < 300; ++i) {
    scope_ = i % 3 == 0 ? scope : other;
    ASSERT_TRUE(put(i, kPage).is_ok()) << i;
  }
  ASSERT_TRUE(backend_->submit_clear(other, [](const Status& s) { EXPECT_TRUE(s.is_ok()) << s.to_string(); }).is_ok());
  backend_.reset();  // a third of each segment is alive
  const BackendOptions options = {{"max_size", "16Mi"}, {"high_watermark", "13"}, {"low_watermark", "13"}};
  ManualExecutor executor;
  open(executor, options);
  const auto moved = [&] { return backend_->stats().moved; };
  while (moved() == 0) ASSERT_TRUE(executor.run_one()) << "nothing was cleaned";
  const std::uint64_t before = moved();
  EXPECT_EQ(backend_->close(Nanos(0)).code(), StatusCode::kDeadlineExceeded);
  executor.run_all();
  EXPECT_LE(moved(), before + 20);
  EXPECT_TRUE(backend_->close(Nanos(0)).is_ok());
  open(executor, options);
  executor.run_all();
  EXPECT_GT(moved(), 20u) << "the next one goes on";
}

// The newest task first, mostly: what was posted long ago, such as a seal, waits as behind a slow disk.
class NewestFirst final : public Executor {
 public:
  explicit NewestFirst(std::uint64_t seed, std::size_t most = 4096) : rng_(seed), most_(most) {}
  Status post(Task task) override {
    if (tasks_.size() >= most_) return overloaded("the executor is full");
    return tasks_.push_back(std::move(task)), Status::ok();
  }
  bool run_one() {
    if (tasks_.empty()) return false;
    if (rng_.below(8) == 0) std::swap(tasks_[static_cast<std::size_t>(rng_.below(tasks_.size()))], tasks_.back());
    Task task = std::move(tasks_.back());
    tasks_.pop_back();
    EXPECT_FALSE(run_task_catching(task));
    return true;
  }

 private:
  Rng rng_;
  const std::size_t most_;
  std::vector<Task> tasks_;
};

// The defect: while a segment was being sealed, and still counted with all the room that it gives back then, cleaning
// had no room for the next one; so the emptiest segment went, with a page in it that was read all the time.
TEST_F(FailureTest, NothingIsDroppedWhileASealIsAboutToGiveRoom) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const std::size_t page = 300 + 200 * seed;
    SCOPED_TRACE("seed " + std::to_string(seed));
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(seed);
    NewestFirst executor(seed);
    open(executor, {{"max_size", "512Ki"}});
    for (std::uint64_t i = 0; i < 600; ++i) {
      const auto written = begin_put(i, page), read = begin_get(0, page);
      const auto is_busy = [](const Status& status) { return status.code() == StatusCode::kInternal; };
      for (int steps = 0; (is_busy(*written) || is_busy(*read)) && executor.run_one(); ++steps) {
        ASSERT_LT(steps, 100'000) << "it gains nothing";
      }
      ASSERT_TRUE(written->is_ok()) << i << ": " << written->to_string();
      ASSERT_TRUE(i == 0 || read->is_ok()) << i << ": " << read->to_string();
    }
    EXPECT_GT(backend_->stats().evicted, 0u);
    while (executor.run_one()) {}
    const Status closed = backend_->close(Nanos(0));
    EXPECT_TRUE(closed.is_ok()) << closed.to_string();
    backend_.reset();
  }
}

// The defects: a store that evicts nothing, and whose cleaning found no room once, cleaned nothing again: it declined
// all writes as full, though most of it was dead. And a full executor was taken for a disk that cannot be read.
TEST_F(FailureTest, TheRoomOfWhatIsDeadIsUsedAgain) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 20;
  const auto scope = scope_, other = std::make_shared<StoreScope>(*scope_);
  other->namespace_digest.bytes[0] = 2;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(seed);
    NewestFirst executor(seed, seed % 3 == 0 ? 2 : 4096);
    Rng rng(seed);
    const std::size_t page = 1500 + 200 * seed;
    open(executor, {{"max_size", std::to_string(kMost)}, {"evict", seed % 4 == 0 ? "on" : "off"}});
    const auto drain = [&] {
      for (int steps = 0; executor.run_one(); ++steps) ASSERT_LT(steps, 100'000) << "it gains nothing";
    };
    std::uint64_t next = 0;
    const auto put_some = [&](std::uint64_t all) {
      for (std::uint64_t i = 0; i < all; ++i) {
        scope_ = rng.below(3) == 0 ? scope : other;
        (void)begin_put(next++, 1 + static_cast<std::size_t>(rng.below(2 * page)), rng.below(4) == 0);
        for (std::uint64_t steps = rng.below(60); steps > 0 && executor.run_one(); --steps) {}
      }
    };
    for (int round = 0; round < 4; ++round) {
      put_some(200);
      const auto clear = [&] { return backend_->submit_clear(other, [](const Status& s) { EXPECT_TRUE(s.is_ok()); }); };
      while (!clear().is_ok()) ASSERT_TRUE(executor.run_one()) << "the executor is not full";
      put_some(40);
    }
    drain();
    scope_ = scope;
    while (backend_->stats().bytes * 100 < kMost * 40) {
      const auto written = begin_put(next++, page);
      drain();
      const bool is_crowded = written->code() == StatusCode::kUnavailable && seed % 3 == 0;
      ASSERT_TRUE(written->is_ok() || is_crowded)
          << written->to_string() << ", with " << backend_->stats().bytes << " bytes";
    }
    backend_.reset();
  }
}

// The defect: each write that a full store declined had cleaning read a segment, five times, and find no room for it.
TEST_F(FailureTest, AFullStoreThatEvictsNothingReadsNothingInVain) {
  constexpr std::size_t kPage = 60'000;  // one per segment, which is larger than the others for it
  InlineExecutor executor;
  open(executor, {{"max_size", "1Mi"}, {"evict", "off"}});
  std::uint64_t next = 0, reads = 0;
  while (next < 300 && put(next, kPage).is_ok()) ++next;
  ASSERT_LT(next, 300u) << "it is not full";
  files_->before_read = [&](const std::string&) { return ++reads, Status::ok(); };
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(put(1000 + i, kPage).code(), StatusCode::kUnsupported);
  EXPECT_LE(reads, 4u);
  files_->before_read = nullptr;
  for (std::uint64_t i = 0; i < next; ++i) EXPECT_TRUE(get(i, kPage).is_ok()) << i;
}

// The defects: cleaning that had found no room was tried again though nothing had changed; the limit of a disk, and
// records that are larger than a segment, were left out when it was asked whether it has room; and each write that
// waited let cleaning begin anew whose vain tries were used up. So pages were moved 30 to 150 times each.
TEST_F(FailureTest, CleaningMovesAPageAFewTimes) {
  struct Case {
    const char* directories;
    std::uint64_t disk_bytes;
    const char* max_size;
    std::size_t page_bytes;
  };
  constexpr std::uint64_t kWrites = 200;
  constexpr std::uint64_t kLarge = std::uint64_t{1} << 40;
  for (const Case& each : {Case{"/d:/e:/f", 1'100'000, "unlimited", 30'000}, Case{"/d", kLarge, "1Mi", 41'100}}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(std::string(each.directories) + ", seed " + std::to_string(seed));
      backend_.reset();
      files_ = std::make_unique<sim::HookedFiles>(seed, each.disk_bytes);
      NewestFirst executor(seed);
      open(executor, {{"directory", each.directories}, {"max_size", each.max_size}});
      std::vector<std::byte> content = content_of(0, each.page_bytes);
      for (std::uint64_t i = 0; i < kWrites; ++i) {
        WriteRequest request{scope_, {}, false, {}};
        for (const std::uint64_t page : {2 * i, 2 * i + 1}) {
          request.groups.push_back({{{PoolName::kKv, key(page), {{content.data(), content.size()}}, PageKey{}}}});
        }
        Status written = internal_error("no callback");
        ASSERT_TRUE(
            backend_->submit_write(std::move(request), [&](const auto& r) { written = r.groups.at(0); }).is_ok());
        const auto read = begin_get(0, each.page_bytes);  // so that this page stays, and is moved
        while (written.code() == StatusCode::kInternal || read->code() == StatusCode::kInternal) {
          ASSERT_TRUE(executor.run_one());
        }
        EXPECT_TRUE(written.is_ok()) << written.to_string();
        if (!read->is_ok()) (void)begin_put(0, each.page_bytes);  // its segment went
      }
      while (executor.run_one()) {}
      EXPECT_GT(backend_->stats().moved, 0u);
      EXPECT_LT(backend_->stats().moved, 10 * 2 * kWrites);
    }
  }
}

}  // namespace
}  // namespace larder::file_store
