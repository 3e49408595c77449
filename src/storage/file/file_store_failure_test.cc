// SPDX-License-Identifier: Apache-2.0
// What the file store gives up when something fails, and what it must not: pages that were acknowledged as durable.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/executor.h"
#include "base/rng.h"
#include "storage/file/segment_format.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

// A process that has used up its descriptors, or a machine short of memory, has no full disk.
TEST_F(FailureTest, AnythingButAFullDiskDropsNothing) {
  constexpr std::size_t kPage = 50'000;  // one per segment
  InlineExecutor executor;
  open(executor);
  std::uint64_t stored = 0;
  for (; stored < 6; ++stored) ASSERT_TRUE(put(stored, kPage).is_ok()) << stored;
  for (const int error : {EMFILE, ENFILE, ENOMEM, EAGAIN, EIO}) {
    SCOPED_TRACE("errno " + std::to_string(error));
    int left = 4;
    files_->before_create = [&](const std::string& path) {
      return left-- > 0 ? status_from_errno(error, "open", path) : Status::ok();
    };
    Status status = unavailable("not tried");
    for (int tries = 0; tries < 10 && !status.is_ok(); ++tries) {
      status = put(stored, kPage);
      EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::kUnavailable) << status.to_string();
      clock_.advance(std::chrono::minutes(2));
    }
    EXPECT_TRUE(status.is_ok()) << "it never writes again: " << status.to_string();
    EXPECT_LT(left, 0) << "nothing failed";
    ++stored;
    EXPECT_EQ(backend_->stats().evicted, 0u);
    EXPECT_EQ(segments_on_disk(), stored);
    for (std::uint64_t i = 0; i < stored; ++i) EXPECT_TRUE(get(i, kPage).is_ok()) << i;
  }
}

// A disk becomes read-only between the making of a file and its removal.
TEST_F(FailureTest, AHalfMadeSegmentThatWouldNotGoIsCountedUntilItGoes) {
  constexpr std::size_t kPage = 50'000;  // one per segment
  InlineExecutor executor;
  open(executor, {{"max_size", "1Mi"}});
  ASSERT_TRUE(put(0, kPage).is_ok());
  const auto read_only = [](const std::string& path) { return status_from_errno(EROFS, "write", path); };
  std::string made, half_made;
  files_->before_create = [&](const std::string& path) { return made = path, Status::ok(); };
  files_->before_sync_dir = [&](const std::string& path) {
    if (!half_made.empty()) return Status::ok();
    half_made = made;
    return read_only(path);
  };
  files_->before_remove = read_only;
  ASSERT_TRUE(put(1, kPage).is_ok()) << "in the segment after it";
  ASSERT_EQ(segments_on_disk(), 3u);
  std::uint64_t on_disk = 0;
  const std::vector<std::string> names = files_->list("/d").value();
  for (const std::string& name : names) {
    if (parse_segment_name(name)) on_disk += files_->stat("/d/" + name)->size_bytes;
  }
  EXPECT_EQ(backend_->stats().physical_bytes, on_disk);
  files_->before_remove = nullptr;
  for (std::uint64_t i = 2; i < 20; ++i) EXPECT_TRUE(put(i, kPage).is_ok()) << i;  // until room is made
  EXPECT_EQ(files_->stat(half_made).status().code(), StatusCode::kNotFound);
}

// Two disks that take turns, a page per segment; those of the other disk fill theirs less.
class TwoDisks : public FailureTest {
 protected:
  static constexpr std::size_t kOnFull = 55'000, kOnOther = 40'000;
  static constexpr std::uint64_t kStored = 8;
  void fill() {
    open(executor_, {{"directory", "/full:/other"}});
    for (std::uint64_t i = 0; i < kStored; ++i) {
      const bool goes_to_full = segments_in("/full") <= segments_in("/other");
      ASSERT_TRUE(put(i, goes_to_full ? kOnFull : kOnOther).is_ok()) << i;
      if (!goes_to_full) on_other_.push_back(i);
    }
    ASSERT_EQ(segments_in("/full"), kStored / 2);
    ASSERT_EQ(segments_in("/other"), kStored / 2);
  }
  // No more segments than that have room on the full disk.
  void limit_full(std::size_t segments) {
    files_->before_create = [this, segments](const std::string& path) {
      const bool is_full = path.rfind("/full/", 0) == 0 && segments_in("/full") >= segments;
      return is_full ? status_from_errno(ENOSPC, "open", path) : Status::ok();
    };
  }
  void put_more(std::uint64_t pages) {
    for (std::uint64_t i = 0; i < pages; ++i) {
      (void)put(100 + i, 50'000);
      clock_.advance(std::chrono::minutes(2));
    }
  }
  void expect_others_pages() {
    for (const std::uint64_t page : on_other_) EXPECT_TRUE(get(page, kOnOther).is_ok()) << page;
  }
  std::size_t segments_in(const std::string& directory) {
    const std::vector<std::string> names = files_->list(directory).value();
    return static_cast<std::size_t>(
        std::count_if(names.begin(), names.end(), [](const auto& name) { return bool(parse_segment_name(name)); }));
  }

  InlineExecutor executor_;
  std::vector<std::uint64_t> on_other_;  // pages
};

// A segment of another disk would make no room on the one that is full.
TEST_F(TwoDisks, TheFullOneDropsItsOwnSegments) {
  fill();
  limit_full(kStored / 2);
  put_more(6);
  EXPECT_GT(backend_->stats().evicted, 0u) << "it never was full";
  EXPECT_EQ(segments_in("/full"), kStored / 2) << "it is used on";
  expect_others_pages();
}

// It has given all it had, and is full all the same.
TEST_F(TwoDisks, OneThatOthersFillTakesNothingFromTheOther) {
  fill();
  limit_full(0);
  put_more(20);
  EXPECT_LE(segments_in("/full"), 1u) << "but for the one that is written";
  expect_others_pages();
  EXPECT_TRUE(put(200, kOnOther).is_ok()) << "the other disk goes on";
}

// Its files do not go, so nothing that is dropped makes room.
TEST_F(TwoDisks, TheFullOneWhoseFilesStayKeepsItsPages) {
  fill();
  limit_full(kStored / 2);
  files_->before_remove = [](const std::string& path) {
    return path.rfind("/full/", 0) == 0 ? status_from_errno(EACCES, "unlink", path) : Status::ok();
  };
  for (std::uint64_t i = 0; i < 40; ++i) {
    (void)put(100 + i, 50'000);
    clock_.advance(std::chrono::seconds(1));
  }
  std::uint64_t kept = 0;
  for (std::uint64_t page = 0; page < kStored; ++page) {
    const bool is_others = std::find(on_other_.begin(), on_other_.end(), page) != on_other_.end();
    kept += !is_others && get(page, kOnFull).is_ok() ? 1 : 0;
  }
  EXPECT_GE(kept, kStored / 2 - 2);
  expect_others_pages();
}

// It is at its limit, and the other one is sick: it makes room by itself, and takes what comes.
TEST_F(TwoDisks, TheFullOneGoesOnAloneWhileTheOtherIsSick) {
  fill();
  limit_full(kStored / 2);
  put_more(6);
  const auto when_full = files_->before_create;
  files_->before_create = [&](const std::string& path) {
    if (path.rfind("/other/", 0) == 0) return status_from_errno(EIO, "open", path);
    return when_full(path);
  };
  std::uint64_t stored = 0;
  for (std::uint64_t i = 0; i < 20; ++i) {
    stored += put(200 + i, 50'000).is_ok() ? 1 : 0;
    clock_.advance(std::chrono::milliseconds(100));
  }
  EXPECT_GE(stored, 18u);
  EXPECT_LE(segments_in("/full"), kStored / 2);
  expect_others_pages();
}

// The defects: one segment of a disk that has become read-only would not go, and for that all writes were refused,
// every few seconds; and its other segments were cleaned, into those of the good disk, one by one.
TEST_F(TwoDisks, AReadOnlyOneCostsTheOtherNothing) {
  open(executor_, {{"directory", "/full:/other"}, {"max_size", "2Mi"}});
  Rng rng(7);
  std::uint64_t next = 0;
  bool is_putting = false;
  std::set<std::string> cleaned;
  files_->before_read = [&](const std::string& path) {
    if (is_putting && path.rfind("/full/", 0) == 0) cleaned.insert(path);
    return Status::ok();
  };
  const auto put_next = [&] {
    is_putting = true;
    const Status status = put(next++, 8000);
    is_putting = false;
    for (int i = 0; i < 3; ++i) (void)get(rng.below(next), 8000);
    clock_.advance(std::chrono::milliseconds(100));
    return status;
  };
  for (int i = 0; i < 600; ++i) ASSERT_TRUE(put_next().is_ok());
  const std::size_t held = segments_in("/full");
  const std::vector<std::string> names = files_->list("/full").value();
  cleaned.clear();
  const auto read_only = [](const std::string& path) {
    return path.rfind("/full/", 0) == 0 ? status_from_errno(EROFS, "open", path) : Status::ok();
  };
  files_->before_create = files_->before_allocate = files_->before_remove = read_only;
  std::uint64_t stored = 0;
  for (int i = 0; i < 200; ++i) stored += put_next().is_ok() ? 1 : 0;
  EXPECT_GE(stored, 198u);
  EXPECT_LE(cleaned.size(), 4u) << "of " << held;
  EXPECT_EQ(segments_in("/full"), held);
  files_->before_create = files_->before_remove = files_->before_allocate = nullptr;
  clock_.advance(std::chrono::minutes(2));
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(put_next().is_ok());
  const auto stayed = std::count_if(names.begin(), names.end(), [&](const std::string& name) {
    return parse_segment_name(name) && files_->stat("/full/" + name).is_ok();
  });
  EXPECT_LE(stayed, 2) << "it is used again";
}

// One file that will not go keeps nothing but itself.
TEST_F(FailureTest, AFileThatDoesNotGoCostsItsRoomOnly) {
  InlineExecutor executor;
  open(executor, {{"max_size", "1Mi"}});
  std::string stuck;
  files_->before_remove = [&](const std::string& path) {
    if (stuck.empty() && parse_segment_name(path.substr(3))) stuck = path;
    return path == stuck ? status_from_errno(EPERM, "unlink", path) : Status::ok();
  };
  std::uint64_t stored = 0;
  for (std::uint64_t i = 0; i < 600; ++i) {
    stored += put(i, 8000).is_ok() ? 1 : 0;
    clock_.advance(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(stored, 600u);
  ASSERT_FALSE(stuck.empty());
  EXPECT_TRUE(files_->stat(stuck).is_ok());
  EXPECT_LE(backend_->stats().physical_bytes, std::uint64_t{1} << 20);
  EXPECT_EQ(backend_->stats().suspended_volumes, 0u);
}

// Durable writes under way at once, across segments, in orders that follow from the seed.
class SyncLostTest : public FailureTest {
 protected:
  static constexpr std::size_t kPage = 12'000;
  static constexpr std::uint64_t kPages = 30;

  void TearDown() override { finish(); }
  void finish() {
    if (backend_) executor_->run_all();
    backend_.reset();
  }
  void start(std::uint64_t seed, const std::string& fsync) {
    finish();
    files_ = std::make_unique<sim::HookedFiles>(seed);
    executor_ = std::make_unique<ManualExecutor>(4096, seed);
    open(*executor_, {{"fsync", fsync}});
  }
  void write_all(std::map<std::uint64_t, std::shared_ptr<Status>>& status_of, Rng& rng) {
    for (std::uint64_t i = 0; i < kPages; ++i) {
      if (status_of.contains(i) && status_of[i]->is_ok()) continue;
      status_of[i] = begin_put(i, kPage, true);
      for (std::uint64_t tasks = rng.below(6); tasks > 0; --tasks) (void)executor_->run_one();
    }
    executor_->run_all();
  }

  std::unique_ptr<ManualExecutor> executor_;
};

// One sync fails, and the system tells it once: whoever asks next hears that all is well, the next process, too.
// Clients write again what failed. What they were told is durable is there when the power is back.
TEST_F(SyncLostTest, WhatIsAcknowledgedIsOnTheDisk) {
  std::uint64_t fired = 0;
  for (const char* fsync : {"segment", "group", "off"}) {
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      SCOPED_TRACE("fsync " + std::string(fsync) + ", seed " + std::to_string(seed));
      start(seed, fsync);
      Rng rng(seed);
      std::uint64_t until_it_fails = 1 + rng.below(12);
      files_->before_sync = [&](const std::string&) {
        if (until_it_fails > 0 && --until_it_fails == 0) files_->inner.fail_nth(1, sim::FileFault::kSyncLost);
        return Status::ok();
      };
      std::map<std::uint64_t, std::shared_ptr<Status>> status_of;
      const bool ends = rng.chance(1, 2), is_killed = rng.chance(1, 2);
      for (int round = 0; round < 4; ++round) {
        write_all(status_of, rng);
        clock_.advance(std::chrono::minutes(2));
        if (!ends || round > 0) continue;
        fired += files_->inner.fault_fired() ? 1 : 0;
        is_killed ? kill() : finish();
        open(*executor_, {{"fsync", fsync}});
        for (auto& [page, status] : status_of) *status = unavailable("the next process is asked for it, too");
      }
      files_->before_sync = nullptr;
      fired += !ends && files_->inner.fault_fired() ? 1 : 0;
      cut_power();
      open(*executor_, {{"fsync", fsync}});
      for (const auto& [page, status] : status_of) {
        EXPECT_TRUE(status->is_ok()) << page << " could never be written: " << status->to_string();
        const std::shared_ptr<Status> read = begin_get(page, kPage);
        executor_->run_all();
        EXPECT_TRUE(read->is_ok()) << "durable page " << page << " is gone: " << read->to_string();
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(fired, 400u) << "so many syncs failed";
}

// Everything at once: pages that come and go, some that are written as durable again and again, cleaning, and syncs
// that fail now and then. A page that was acknowledged as durable and not evicted since is there when the power is
// back. (Seed 534 found a segment that was removed while a page of it, written anew elsewhere, waited for its sync.)
class StormTest : public FailureTest {
 protected:
  static constexpr std::size_t kPage = 8000;
  static constexpr std::uint64_t kKept = 16, kSteps = 250;

  void TearDown() override {
    if (backend_) executor_->run_all();
    backend_.reset();
  }
  bool has(std::uint64_t i) {
    bool present = false;
    const Status asked = backend_->submit_exists({scope_, {key(i)}, {PoolName::kKv}, {}},
                                                 [&](const ExistsResult& r) { present = r.presence.at(0).present[0]; });
    return asked.is_ok() && present;
  }
  // What came of it; and what was evicted is not promised any more.
  void look(std::uint64_t page) {
    if (writes_[page] && writes_[page]->code() != StatusCode::kInternal) {
      if (writes_[page]->is_ok()) promised_[page] = true;
      writes_[page] = nullptr;
    }
    if (!has(page)) promised_[page] = false;
  }
  void storm(Rng& rng) {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      (void)begin_put(1000 + next_++, kPage);
      const std::uint64_t page = rng.below(kKept);
      for (std::uint64_t i = 0; i < kKept; ++i) {
        look(i);
        if (promised_[i]) (void)begin_get(i, kPage);  // never the coldest
      }
      if (!writes_[page]) writes_[page] = begin_put(page, kPage, true);
      for (std::uint64_t tasks = rng.below(30); tasks > 0; --tasks) (void)executor_->run_one();
      clock_.advance(std::chrono::seconds(3));
    }
    for (std::uint64_t i = 0; i < kKept; ++i) look(i);
  }

  std::unique_ptr<ManualExecutor> executor_;
  std::uint64_t next_ = 0;
  std::array<std::shared_ptr<Status>, kKept> writes_;
  std::array<bool, kKept> promised_{};
};

TEST_F(StormTest, WhatIsPromisedIsKept) {
  const char* const first = std::getenv("LARDER_TEST_SEED");
  const std::uint64_t from = first ? std::strtoull(first, nullptr, 10) : 520;
  std::uint64_t promised = 0, moved = 0;
  for (std::uint64_t seed = from; seed < from + 40; ++seed) {
    SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed));
    if (backend_) executor_->run_all();
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(seed);
    executor_ = std::make_unique<ManualExecutor>(4096, seed);
    next_ = 0;
    writes_ = {};
    promised_ = {};
    const BackendOptions options = {{"max_size", "1Mi"}, {"fsync", seed % 2 == 0 ? "segment" : "group"}};
    open(*executor_, options);
    Rng rng(seed);
    files_->before_sync = [&](const std::string&) {
      if (rng.chance(1, 10)) files_->inner.fail_nth(1, sim::FileFault::kSyncLost);
      return Status::ok();
    };
    storm(rng);
    files_->before_sync = nullptr;
    moved += backend_->stats().moved;
    files_->inner.fail_nth(1, sim::FileFault::kIoError, 1'000'000'000);
    executor_->run_all();
    cut_power();
    open(*executor_, {{"max_size", "unlimited"}});  // nothing is evicted by that
    for (std::uint64_t i = 0; i < kKept; ++i) {
      const std::shared_ptr<Status> read = begin_get(i, kPage);
      executor_->run_all();
      promised += promised_[i] ? 1 : 0;
      EXPECT_TRUE(read->is_ok() || !promised_[i]) << "durable page " << i << " is gone: " << read->to_string();
    }
  }
  EXPECT_GT(promised, 300u);
  EXPECT_GT(moved, 100u);
}

// A segment of doubt: an earlier process wrote it with fsync = off. Durable writes of its pages go elsewhere, and it is
// held until they are on disk; not longer.
class HoldsTest : public FailureTest {
 protected:
  static constexpr SegmentId kDoubtful = 1;

  void TearDown() override {
    files_->before_sync = nullptr;
    executor_->run_all();
    backend_.reset();
  }
  void start(std::uint64_t pages, std::size_t bytes, std::optional<std::uint64_t> seed = std::nullopt) {
    if (executor_) executor_->run_all();
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(seed.value_or(3));
    executor_ = std::make_unique<ManualExecutor>(4096, seed);
    open(*executor_, {{"fsync", "off"}});
    for (std::uint64_t i = 0; i < pages; ++i) {
      (void)begin_put(i, bytes);
      executor_->run_all();
    }
    backend_.reset();
    open(*executor_, {{"fsync", "group"}});
    executor_->run_all();
    ASSERT_EQ(backend_->stats().pages, pages);
    ASSERT_EQ(is_on_disk(kDoubtful), pages > 0);
  }
  bool is_on_disk(SegmentId id) { return files_->stat("/d/" + segment_name(id)).is_ok(); }
  Status ended(const std::shared_ptr<Status>& status) {
    executor_->run_all();
    return *status;
  }
  Status put_durable(std::uint64_t i, std::size_t bytes) { return ended(begin_put(i, bytes, true)); }
  std::shared_ptr<Status> begin_clear() {
    auto status = std::make_shared<Status>(internal_error("no callback"));
    const Status taken = backend_->submit_clear(nullptr, [status](Status s) { *status = std::move(s); });
    if (!taken.is_ok()) *status = taken;
    return status;
  }
  // One group of two pages.
  std::shared_ptr<Status> begin_put_two(std::uint64_t i, std::uint64_t j, std::size_t bytes) {
    auto status = std::make_shared<Status>(internal_error("no callback"));
    auto first = std::make_shared<std::vector<std::byte>>(content_of(i, bytes));
    auto second = std::make_shared<std::vector<std::byte>>(content_of(j, bytes));
    WriteRequest request{scope_, {}, true, {}};
    request.groups.push_back({{{PoolName::kKv, key(i), {{first->data(), bytes}}, PageKey{}},
                               {PoolName::kKv, key(j), {{second->data(), bytes}}, PageKey{}}}});
    const Status taken = backend_->submit_write(
        std::move(request), [status, first, second](const WriteResult& r) { *status = r.groups.at(0); });
    if (!taken.is_ok()) *status = taken;
    return status;
  }
  void fail_syncs(unsigned count) {
    files_->before_sync = [count](const std::string& path) mutable {
      return count > 0 && count-- > 0 ? status_from_errno(EIO, "fdatasync", path) : Status::ok();
    };
  }
  void reopen_after_power_cut() {
    files_->before_sync = nullptr;
    cut_power();
    open(*executor_, {{"fsync", "group"}});
    executor_->run_all();
  }

  std::unique_ptr<ManualExecutor> executor_;
};

// Whatever the durable writes wait for when the clear comes, also for a sync of a segment that goes with it.
TEST_F(HoldsTest, WhatIsClearedHoldsNothing) {
  constexpr std::size_t kSmall = 1000;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    start(4, kSmall, seed);
    Rng rng(seed);
    for (std::uint64_t i = 0; i < 4; ++i) {
      (void)begin_put(i, kSmall, true);
      for (std::uint64_t tasks = rng.below(4); tasks > 0; --tasks) (void)executor_->run_one();
    }
    EXPECT_TRUE(ended(begin_clear()).is_ok());
    EXPECT_FALSE(is_on_disk(kDoubtful)) << "it is held by writes that have ended";
    if (HasFailure()) return;
  }
}

TEST_F(HoldsTest, SyncsThatFailHoldOneSegment) {
  start(2, 1000);
  fail_syncs(5);
  for (int tries = 0; tries < 5; ++tries) {
    EXPECT_FALSE(put_durable(0, 1000).is_ok());
    EXPECT_EQ(segments_on_disk(), 1u) << "after try " << tries;
    EXPECT_TRUE(ended(begin_get(0, 1000)).is_ok()) << "where it was";
    clock_.advance(std::chrono::minutes(2));
  }
  EXPECT_TRUE(put_durable(0, 1000).is_ok());
  EXPECT_TRUE(put_durable(1, 1000).is_ok());
  EXPECT_TRUE(is_on_disk(kDoubtful)) << "until somebody needs its room";
  reopen_after_power_cut();
  EXPECT_TRUE(ended(begin_get(0, 1000)).is_ok());
  EXPECT_TRUE(ended(begin_get(1, 1000)).is_ok());
  EXPECT_TRUE(ended(begin_clear()).is_ok());
  EXPECT_EQ(segments_on_disk(), 0u);
}

// A page is durable, a later sync of its segment fails, and so does, as often as it is tried, that of the copy that is
// to replace it: the first one is the only one that the disk has.
TEST_F(HoldsTest, TheOnlyDurableCopyStays) {
  for (unsigned tries = 0; tries < 4; ++tries) {
    SCOPED_TRACE(std::to_string(tries) + " tries");
    start(0, 0);
    ASSERT_TRUE(put_durable(0, 1000).is_ok());
    for (unsigned i = 0; i <= tries; ++i) {
      bool is_lost = false;
      files_->before_sync = [&](const std::string&) {
        if (!std::exchange(is_lost, true)) files_->inner.fail_nth(1, sim::FileFault::kSyncLost);
        return Status::ok();
      };
      EXPECT_FALSE(put_durable(i == 0 ? 1 : 0, 1000).is_ok());
      files_->before_sync = nullptr;
      clock_.advance(std::chrono::minutes(2));
    }
    EXPECT_LE(segments_on_disk(), 1u);
    reopen_after_power_cut();
    EXPECT_TRUE(ended(begin_get(0, 1000)).is_ok());
  }
}

// A write has met a new copy, and waits for a segment of its own. Meanwhile the sync of that copy fails, the page is
// back in the segment of doubt, and the new copy's segment is gone.
TEST_F(HoldsTest, ACopyThatWentBackIsNotCountedOn) {
  constexpr std::size_t kPage = 50'000;  // one per segment
  start(1, kPage);
  const std::shared_ptr<Status> first = begin_put(0, kPage, true);
  ASSERT_TRUE(executor_->run_one());
  ASSERT_EQ(backend_->stats().segments, 2u) << "it is written";
  ASSERT_EQ(first->code(), StatusCode::kInternal) << "and waits for its sync";
  fail_syncs(1);
  const std::shared_ptr<Status> other = begin_put(9, kPage, true);  // takes the way past the queue
  const std::shared_ptr<Status> second = begin_put_two(0, 5, kPage);
  EXPECT_FALSE(ended(first).is_ok());
  EXPECT_TRUE(other->is_ok()) << other->to_string();
  EXPECT_FALSE(is_on_disk(kDoubtful + 1));
  EXPECT_FALSE(second->is_ok()) << "page 0 is not known to be on disk";
  EXPECT_TRUE(ended(begin_put_two(0, 5, kPage)).is_ok());
  reopen_after_power_cut();
  EXPECT_TRUE(ended(begin_get(0, kPage)).is_ok());
  EXPECT_TRUE(ended(begin_get(5, kPage)).is_ok());
}

}  // namespace
}  // namespace larder::file_store
