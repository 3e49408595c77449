// SPDX-License-Identifier: Apache-2.0
// What cleaning segments must not cost: pages that were acknowledged as durable, and room on the list of clears.
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

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
    if (bad.empty()) bad = path;
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

}  // namespace
}  // namespace larder::file_store
