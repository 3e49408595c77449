// SPDX-License-Identifier: Apache-2.0
// A full store that is opened with less room than it has: it keeps nearly what the new budget has room for.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

constexpr std::uint64_t kShrinkMiB = std::uint64_t{1} << 20;

class ShrinkTest : public FailureTest {
 protected:
  static constexpr std::size_t kPage = 8000;

  void start() {
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(3, disk_bytes_);
  }
  // Chains that grow by turns, so that the tails of each lie in all segments.
  void fill(const BackendOptions& options) {
    open(executor_, options);
    Rng rng(5);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> chats;  // the last page; turns that are left
    for (std::uint64_t written = 0, end = 2 * backend_->stats().capacity_bytes / kPage; written < end; ++written) {
      while (chats.size() < 25) chats.push_back({0, 4 + rng.below(60)});
      const auto at = static_cast<std::size_t>(rng.below(chats.size()));
      auto& [last, left] = chats[at];
      ASSERT_TRUE(put_behind(last, ++next_).is_ok());
      last = next_;
      if (--left == 0) chats.erase(chats.begin() + static_cast<std::ptrdiff_t>(at));
    }
    kept_ = backend_->stats().bytes;
    ASSERT_GT(backend_->stats().evicted, 0u) << "it is not full";
    backend_.reset();
  }
  Status put_behind(std::uint64_t parent, std::uint64_t i) {
    std::vector<std::byte> bytes = content_of(i, kPage);
    Status status = internal_error("no callback");
    WriteRequest request{scope_, {}, false, {}};
    request.groups.push_back({{{PoolName::kKv, key(i), {{bytes.data(), bytes.size()}}, PageKey{}}}});
    if (parent != 0) request.groups[0].items[0].parent = key(parent);
    const Status taken =
        backend_->submit_write(std::move(request), [&](const WriteResult& r) { status = r.groups.at(0); });
    return taken.is_ok() ? status : taken;
  }
  // Opened with these options, it has at least `percent` of what it had, or of what one keeps that always had them, if
  // that is less; and it goes on.
  void expect_keeps(std::uint64_t percent, const BackendOptions& options) {
    open(executor_, options);
    const BackendStats stats = backend_->stats();
    EXPECT_LE(stats.physical_bytes, stats.capacity_bytes);
    for (int i = 0; i < 100; ++i) {
      ++next_;
      ASSERT_TRUE(put(next_, kPage).is_ok()) << i;
      ASSERT_TRUE(get(next_, kPage).is_ok()) << i;
      ASSERT_LE(backend_->stats().physical_bytes, stats.capacity_bytes);
    }
    const std::uint64_t before = kept_;
    start();
    fill(options);
    EXPECT_GE(stats.bytes * 100, std::min(before, kept_) * percent)
        << stats.bytes << " of " << stats.capacity_bytes << ", and not " << kept_ << ", of " << before << "; moved "
        << stats.moved;
  }

  // Somebody else's file.
  void take_all_but(std::uint64_t bytes) {
    OpenOptions options;
    options.write = options.create = true;
    const auto file = files_->open("/other", options).value();
    const std::vector<std::byte> content(static_cast<std::size_t>(files_->space("/d").value().free_bytes - bytes));
    ASSERT_TRUE(write_fully(*file, content, 0).is_ok());
  }

  InlineExecutor executor_;
  std::uint64_t next_ = 0, kept_ = 0;  // kept_: bytes
  std::uint64_t disk_bytes_ = std::uint64_t{1} << 40;
};

// The defect: cleaning had no room for a segment to move pages to, so the coldest pages went until whole segments
// happened to be empty, which were nearly all of them.
TEST_F(ShrinkTest, ALowerMaxSizeKeepsWhatItHasRoomFor) {
  for (const char* lower : {"3900Ki", "3600Ki", "2600Ki", "1700Ki"}) {
    SCOPED_TRACE(lower);
    start();
    fill({{"max_size", "4Mi"}, {"segment_size", "128Ki"}});
    expect_keeps(85, {{"max_size", lower}, {"segment_size", "128Ki"}});
  }
}

TEST_F(ShrinkTest, LargerSegmentsCostNoPages) {
  for (const char* larger : {"128Ki", "256Ki", "512Ki"}) {
    SCOPED_TRACE(larger);
    start();
    fill({{"max_size", "4Mi"}, {"segment_size", "64Ki"}});
    expect_keeps(85, {{"max_size", "4Mi"}, {"segment_size", larger}});
  }
}

TEST_F(ShrinkTest, ALowerShareOfTheDiskKeepsWhatItHasRoomFor) {
  disk_bytes_ = 5 * kShrinkMiB;
  start();
  fill({{"max_size", "80%"}, {"segment_size", "128Ki"}});
  expect_keeps(85, {{"max_size", "60%"}, {"segment_size", "128Ki"}});
}

// Moving pages would need more than the disk has: then the emptiest segment goes, and no more than that.
TEST_F(ShrinkTest, AFullDiskIsNoMoreThanFull) {
  disk_bytes_ = 5 * kShrinkMiB;
  start();
  fill({{"max_size", "4Mi"}, {"segment_size", "128Ki"}});
  take_all_but(100 * 1024);
  expect_keeps(75, {{"max_size", "3600Ki"}, {"segment_size", "128Ki"}});
}

}  // namespace
}  // namespace larder::file_store
