// SPDX-License-Identifier: Apache-2.0
// A disk that is smaller than max_size: the store finds out how much it has, and lives with that.
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "base/executor.h"
#include "base/rng.h"
#include "storage/pipeline/probe.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

constexpr std::uint64_t kMi = std::uint64_t{1} << 20;

// What a steady stream of writes found.
struct Steady {
  double pages = 0;  // in the store, on the average
  std::uint64_t refused = 0;
};

class FullDiskTest : public FailureTest {
 protected:
  static constexpr std::size_t kPage = 8000;

  void on_disk(std::uint64_t capacity_bytes) {
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(3, capacity_bytes);
    next_ = 0;
  }
  // As many pages as twice fill `disk_bytes`, and then as many once more, which are counted.
  Steady stream(std::uint64_t disk_bytes) {
    const std::uint64_t pages = disk_bytes / kPage * 2;
    for (std::uint64_t i = 0; i < pages; ++i) step();
    Steady out;
    for (std::uint64_t i = 0; i < pages; ++i) {
      out.refused += step() ? 0 : 1;
      out.pages += static_cast<double>(backend_->stats().pages) / static_cast<double>(pages);
    }
    return out;
  }
  // A new page, and one of the last ones is read, so that not all go in the order in which they came.
  bool step() {
    const bool is_ok = put(next_++, kPage).is_ok();
    if (next_ % 3 == 0) (void)get(next_ - 1 - rng_.below(std::min<std::uint64_t>(next_, 100)), kPage);
    clock_.advance(std::chrono::milliseconds(10));
    return is_ok;
  }
  // Pages [from, from + count) in one request, each a group. The first one's error.
  Status put_all(std::uint64_t from, std::uint64_t count, std::size_t bytes) {
    std::vector<std::vector<std::byte>> contents;
    WriteRequest request{scope_, {}, false, {}};
    for (std::uint64_t i = from; i < from + count; ++i) {
      std::vector<std::byte>& content = contents.emplace_back(content_of(i, bytes));
      request.groups.push_back({{{PoolName::kKv, key(i), {{content.data(), content.size()}}, PageKey{}}}});
    }
    Status first = internal_error("no callback");
    const Status taken = backend_->submit_write(std::move(request), [&first](const WriteResult& result) {
      first = Status::ok();
      for (const Status& status : result.groups) first = first.is_ok() ? status : first;
    });
    return taken.is_ok() ? first : taken;
  }
  // Somebody else takes all that is free.
  void fill() {
    const auto filler = files_->inner.open("/filler", {.write = true, .create = true});
    ASSERT_TRUE(filler.is_ok());
    std::uint64_t at = (*filler)->size_bytes().value();
    for (std::size_t bytes = 4096; bytes > 0; bytes /= 2) {
      const std::vector<std::byte> content(bytes);
      while (write_fully(**filler, content, at).is_ok()) at += bytes;
    }
    ASSERT_EQ(files_->space("/")->free_bytes, 0u);
  }
  Status clear(std::shared_ptr<const StoreScope> scope = nullptr) {
    Status status = internal_error("no callback");
    const Status taken = backend_->submit_clear(std::move(scope), [&status](Status s) { status = std::move(s); });
    return taken.is_ok() ? status : taken;
  }
  // With max_size = the disk.
  Steady reference(std::uint64_t disk_bytes, BackendOptions options) {
    on_disk(std::uint64_t{1} << 40);
    options["max_size"] = std::to_string(disk_bytes);
    open(executor_, options);
    return stream(disk_bytes);
  }

  InlineExecutor executor_;
  Rng rng_{7};
  std::uint64_t next_ = 0;
};

TEST_F(FullDiskTest, KeepsNearlyWhatAStoreOfThatSizeKeeps) {
  for (const std::uint64_t disk : {kMi, 4 * kMi}) {
    for (const char* segment : {"64Ki", "auto"}) {
      const Steady wanted = reference(disk, {{"segment_size", segment}});
      EXPECT_EQ(wanted.refused, 0u);
      for (const bool reserves : {true, false}) {
        SCOPED_TRACE(std::to_string(disk / kMi) + " MiB, segments of " + segment +
                     (reserves ? "" : ", a file system that reserves nothing"));
        on_disk(disk);
        if (!reserves) files_->before_allocate = [](const auto&) { return unsupported("no such call"); };
        open(executor_, {{"segment_size", segment}, {"max_size", reserves ? "unlimited" : "10Gi"}});
        const Steady found = stream(disk);
        EXPECT_GE(found.pages, wanted.pages * 0.9);
        EXPECT_EQ(found.refused, 0u);
        EXPECT_EQ(backend_->stats().suspended_volumes, 0u);
        const std::uint64_t capacity = backend_->stats().capacity_bytes;
        EXPECT_LE(capacity, disk * 51 / 50);
        EXPECT_GE(capacity, disk * 9 / 10) << "it says how much it may hold";
        EXPECT_LE(backend_->stats().physical_bytes, capacity);
      }
    }
  }
}

// What is read now and then is not what goes, but for what a segment had that went to make the first room.
TEST_F(FullDiskTest, KeepsWhatIsUsed) {
  constexpr std::uint64_t kDisk = 2 * kMi, kHot = 60, kFirstHot = 1'000'000;
  on_disk(kDisk);
  open(executor_, {{"segment_size", "64Ki"}});
  for (std::uint64_t i = 0; i < kDisk / kPage * 6; ++i) {
    if (i < kHot) {
      ASSERT_TRUE(put(kFirstHot + i, kPage).is_ok());
    }
    EXPECT_TRUE(put(i, kPage).is_ok()) << i;
    for (std::uint64_t j = 0; j < 4; ++j) (void)get(kFirstHot + (i * 4 + j) % kHot, kPage);
  }
  std::uint64_t kept = 0;
  for (std::uint64_t j = 0; j < kHot; ++j) kept += get(kFirstHot + j, kPage).is_ok() ? 1 : 0;
  EXPECT_GE(kept, kHot * 9 / 10);
}

// Segments that were made before the limit was known may be most of what it allows: they make room like all others,
// also those that are not full.
TEST_F(FullDiskTest, TakesWritesWhateverItHeldWhenTheLimitBecameKnown) {
  std::uint64_t moved = 0;
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    on_disk(300'000 + rng.below(700'000));
    open(executor_, {{"segment_size", "64Ki"}});
    std::uint64_t next = 0;
    for (std::uint64_t round = 0; round < 12; ++round) {
      const std::uint64_t writes = 1 + rng.below(20), bytes = 4000 + rng.below(rng.below(2) == 0 ? 12'000 : 60'000);
      for (std::uint64_t i = 0; i < writes; ++i) {
        (void)put_all(next, 1 + rng.below(6), bytes);
        next += 6;
        (void)get(next - 1 - rng.below(std::min<std::uint64_t>(next, 60)), bytes);
      }
      clock_.advance(std::chrono::milliseconds(rng.below(20'000)));
    }
    for (std::uint64_t i = 0; i < 20; ++i) {
      const std::uint64_t count = 1 + rng.below(10), bytes = 4000 + rng.below(20'000);
      Status last;
      for (int tries = 0; tries < 4; ++tries) {
        clock_.advance(std::chrono::minutes(3));
        if ((last = put_all(next, count, bytes)).is_ok()) break;
      }
      EXPECT_TRUE(last) << count << " groups of " << bytes << " bytes, with " << backend_->stats().physical_bytes
                        << " of " << backend_->stats().capacity_bytes << ": " << last.to_string();
      next += 10;
    }
    moved += backend_->stats().moved;
  }
  EXPECT_GT(moved, 1000u) << "the log of cleaning was hardly used";
}

// Somebody else takes half of the disk, and goes again.
TEST_F(FullDiskTest, FollowsWhatOthersTakeAndLeave) {
  constexpr std::uint64_t kDisk = 2 * kMi;
  on_disk(kDisk);
  open(executor_, {{"segment_size", "64Ki"}});
  const double alone = stream(kDisk).pages;
  std::uint64_t refused = 0;
  {
    const auto filler = files_->inner.open("/filler", {.write = true, .create = true});
    ASSERT_TRUE(filler.is_ok());
    for (std::uint64_t size = 0; size <= kDisk / 2; size += 16 << 10) {
      for (int tries = 0; tries < 1000 && !(*filler)->allocate(0, size).is_ok(); ++tries) refused += step() ? 0 : 1;
    }
  }
  ASSERT_EQ(files_->stat("/filler")->size_bytes, kDisk / 2) << "it never got that much";
  const Steady beside = stream(kDisk);
  EXPECT_GE(beside.pages, alone * 0.4);
  EXPECT_LE(beside.pages, alone * 0.6);
  EXPECT_EQ(beside.refused, 0u);
  ASSERT_TRUE(files_->remove("/filler").is_ok());
  const std::uint64_t evicted = backend_->stats().evicted;
  (void)stream(kDisk / 4);
  EXPECT_LT(backend_->stats().capacity_bytes, kDisk * 3 / 4) << "it grows in steps";
  EXPECT_GT(backend_->stats().evicted, evicted);
  for (int minutes = 0; minutes < 60; ++minutes) {
    (void)stream(kDisk / 16);
    clock_.advance(std::chrono::minutes(1));
  }
  EXPECT_GE(stream(kDisk).pages, alone * 0.9);
  EXPECT_LE(refused, 5u);
}

// Two disks, one of which takes nothing: it has room for less than a write from the start, or it is suspended. The
// other makes room by itself. A write that is looked at again and again while nothing changes would be tasks without
// end.
TEST_F(FullDiskTest, OneOfTwoDisksThatTakesNothingKeepsNobodyWaiting) {
  for (const bool is_suspended : {false, true}) {
    SCOPED_TRACE(is_suspended ? "suspended" : "full from the start");
    on_disk(std::uint64_t{1} << 40);
    ManualExecutor executor;
    files_->before_allocate = [&](const std::string& path) {
      const bool is_a = path.starts_with("/a");
      const bool has_room = is_a && !is_suspended ? false : files_->inner.used_bytes() < 2 * kMi;
      return has_room ? Status::ok() : status_from_errno(ENOSPC, "allocate", path);
    };
    open(executor, {{"directory", "/a:/b"}, {"segment_size", "64Ki"}});
    std::uint64_t refused = 0;
    const auto write = [&](std::size_t bytes) {
      const std::shared_ptr<Status> status = begin_put(next_++, bytes);
      ASSERT_LT(executor.run_all(100'000), 100'000u) << "page " << next_;
      ASSERT_NE(status->code(), StatusCode::kInternal) << "page " << next_ << " waits";
      refused += status->is_ok() ? 0 : 1;
    };
    for (int i = 0; i < 400 && !HasFatalFailure(); ++i) write(kPage);
    ASSERT_GT(backend_->stats().capacity_bytes, 0u) << "both limits are known";
    if (is_suspended) {
      files_->before_create = [](const std::string& path) {
        return path.starts_with("/a") ? status_from_errno(EIO, "create", path) : Status::ok();
      };
    }
    refused = 0;
    for (int i = 0; i < 40 && !HasFatalFailure(); ++i) write(100'000);
    EXPECT_EQ(backend_->stats().suspended_volumes, is_suspended ? 1u : 0u);
    EXPECT_LE(refused, 4u);
    files_->before_create = nullptr;
    backend_.reset();
  }
}

// A quota: the system says that there is room, and the disk says that there is none.
TEST_F(FullDiskTest, AQuotaIsFoundOutToo) {
  constexpr std::uint64_t kQuota = 2 * kMi;
  on_disk(std::uint64_t{1} << 40);
  std::uint64_t refused_files = 0;
  files_->before_allocate = [&](const std::string& path) {
    if (files_->inner.used_bytes() + (64 << 10) <= kQuota) return Status::ok();
    ++refused_files;
    return status_from_errno(EDQUOT, "allocate", path);
  };
  open(executor_, {{"segment_size", "64Ki"}});
  const Steady found = stream(kQuota);
  const std::uint64_t refused_by_then = refused_files;
  for (int hours = 0; hours < 48; ++hours) {
    (void)stream(kQuota / 8);
    clock_.advance(std::chrono::hours(1));
  }
  EXPECT_GE(found.pages, reference(kQuota, {{"segment_size", "64Ki"}}).pages * 0.75);
  EXPECT_EQ(found.refused, 0u);
  EXPECT_LE(refused_files - refused_by_then, 120u) << "twice an hour, and not with each segment";
}

// What an opening would like to write, it can do without.
TEST_F(FullDiskTest, AStoreOpensOnAFullDisk) {
  for (const bool was_cleared : {false, true}) {
    for (const char* direct : {"auto", "on"}) {
      SCOPED_TRACE(std::string(direct) + (was_cleared ? ", cleared" : ""));
      on_disk(16 * kMi);
      open(executor_, {{"max_size", "8Mi"}});
      for (std::uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(put(i, 20'000).is_ok());
      if (was_cleared) {
        ASSERT_TRUE(clear().is_ok());
      }
      for (std::uint64_t i = 20; i < 60; ++i) ASSERT_TRUE(put(i, 20'000).is_ok());
      backend_.reset();
      fill();
      open(executor_, {{"max_size", "8Mi"}, {"direct", direct}});
      ASSERT_TRUE(backend_);
      EXPECT_EQ(backend_->info().alignment, kBlockBytes) << "the disk takes direct I/O";
      EXPECT_EQ(backend_->stats().pages, was_cleared ? 40u : 60u);
      EXPECT_TRUE(get(30, 20'000).is_ok());
      EXPECT_EQ(get(3, 20'000).is_ok(), !was_cleared);
    }
  }
}

// What a clear takes away leaves the room that it needs to be noted.
TEST_F(FullDiskTest, AClearMakesItsOwnRoom) {
  for (const bool is_whole : {true, false}) {
    SCOPED_TRACE(is_whole ? "all" : "a namespace");
    on_disk(2 * kMi);
    open(executor_);
    for (std::uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(put(i, 20'000).is_ok());
    fill();
    EXPECT_TRUE(clear(is_whole ? nullptr : scope_).is_ok());
    EXPECT_EQ(backend_->stats().pages, 0u);
    EXPECT_GE(files_->space("/")->free_bytes, kMi / 2);
    ASSERT_TRUE(put(99, 20'000).is_ok());
    kill();
    open(executor_);
    EXPECT_TRUE(get(99, 20'000).is_ok());
    EXPECT_EQ(backend_->stats().pages, 1u);
  }
}

// What was acknowledged as durable goes by eviction only: all that exists() promises is there when the power is back.
TEST_F(FullDiskTest, WhatIsPromisedIsThereAfterAPowerCut) {
  for (const bool reserves : {true, false}) {
    SCOPED_TRACE(reserves);
    on_disk(kMi);
    if (!reserves) files_->before_allocate = [](const auto&) { return unsupported("no such call"); };
    open(executor_, {{"segment_size", "64Ki"}});
    std::uint64_t acknowledged = 0;
    std::vector<std::uint64_t> promised;
    for (std::uint64_t i = 0; i < 500; ++i) acknowledged += put(i, kPage, true).is_ok() ? 1 : 0;
    for (std::uint64_t i = 0; i < 500; ++i) {
      if (get(i, kPage).is_ok()) promised.push_back(i);
    }
    EXPECT_GE(acknowledged, 495u);
    const BackendStats stats = backend_->stats();
    EXPECT_EQ(stats.evicted + promised.size(), acknowledged);
    cut_power();
    open(executor_, {{"segment_size", "64Ki"}});
    for (const std::uint64_t i : promised) EXPECT_TRUE(get(i, kPage).is_ok()) << i;
  }
}

// evict = off: what is new is refused, and all that was taken stays; room that others leave, or that a clear does, is
// used.
TEST_F(FullDiskTest, WithoutEvictionItRefusesAndKeepsAll) {
  for (const char* max_size : {"unlimited", "1Mi"}) {
    for (const char* segment : {"64Ki", "auto"}) {
      for (const bool reserves : {true, false}) {
        SCOPED_TRACE(std::string(max_size) + ", segments of " + segment + (reserves ? "" : ", nothing reserved"));
        constexpr std::uint64_t kDisk = 2 * kMi, kPages = kDisk / kPage * 2;
        on_disk(kDisk);
        if (!reserves) files_->before_allocate = [](const auto&) { return unsupported("no such call"); };
        open(executor_, {{"segment_size", segment}, {"max_size", max_size}, {"evict", "off"}});
        const auto fill_up = [&](std::uint64_t first) {
          std::vector<std::uint64_t> taken;
          for (std::uint64_t i = first; i < first + kPages; ++i) {
            const Status status = put(i, kPage);
            if (status.is_ok()) taken.push_back(i);
            // Not kOverloaded: nobody should try again and again.
            EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::kUnsupported) << status.to_string();
            clock_.advance(std::chrono::milliseconds(10));
          }
          for (const std::uint64_t i : taken) EXPECT_TRUE(get(i, kPage).is_ok()) << i;
          return taken.size();
        };
        const std::size_t taken = fill_up(0);
        EXPECT_LT(taken, kPages);
        EXPECT_GE(taken * kPage, kMi / 2);
        EXPECT_EQ(backend_->stats().evicted, 0u);
        EXPECT_EQ(backend_->stats().pages, taken);
        EXPECT_EQ(backend_->stats().declined, kPages - taken);
        EXPECT_EQ(backend_->stats().write_errors, 0u);
        const Status probed = probe_backend(*backend_, clock_, std::chrono::seconds(10), 1);  // as an attach does
        EXPECT_EQ(probed.code(), StatusCode::kUnsupported) << probed.to_string();
        ASSERT_TRUE(clear().is_ok());
        clock_.advance(std::chrono::minutes(2));
        EXPECT_GE(fill_up(1'000'000), taken / 2);
        EXPECT_EQ(backend_->stats().evicted, 0u);
      }
    }
  }
}

}  // namespace
}  // namespace larder::file_store
