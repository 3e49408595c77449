// SPDX-License-Identifier: Apache-2.0
// Files that somebody else deletes or leaves in a store's directory.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "tests/support/failing_file_store.h"
#include "tests/support/temporary_directory.h"

namespace larder::file_store {
namespace {

class LostFilesTest : public FailureTest {
 protected:
  void start(BackendOptions options = {}) {
    open(executor_, std::move(options));
    ASSERT_TRUE(backend_);
  }
  // Closes the store and opens it again.
  void reopen(const BackendOptions& options = {}) {
    backend_.reset();
    start(options);
  }
  void put_in(const std::shared_ptr<StoreScope>& scope, std::uint64_t i, std::size_t bytes) {
    scope_ = scope;
    ASSERT_TRUE(put(i, bytes).is_ok());
  }
  bool has_in(const std::shared_ptr<StoreScope>& scope, std::uint64_t i, std::size_t bytes) {
    scope_ = scope;
    return get(i, bytes).is_ok();
  }
  Status clear(const std::shared_ptr<StoreScope>& scope) {
    Status status = internal_error("no callback");
    const Status taken = backend_->submit_clear(scope, [&status](Status s) { status = std::move(s); });
    return taken.is_ok() ? status : taken;
  }
  void write_file(const std::string& path, std::string_view text) {
    const auto file = files_->open(path, {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(file.is_ok());
    ASSERT_TRUE(write_fully(**file, std::as_bytes(std::span(text)), 0).is_ok());
  }

  InlineExecutor executor_;
};

// No segment is made after the list is gone, so that nobody looks for it before the end.
TEST_F(LostFilesTest, WhatWasClearedStaysClearedWhenTheListIsDeleted) {
  constexpr std::size_t kPage = 20'000;
  for (const std::vector<std::string>& names : {std::vector<std::string>{"CLEARED"}, {"CLEARED", "FORMAT"}}) {
    SCOPED_TRACE(names.size());
    files_ = std::make_unique<sim::HookedFiles>(3);
    const auto cleared = scope_, kept = std::make_shared<StoreScope>(*scope_);
    kept->namespace_digest.bytes[0] = 9;
    start();
    put_in(cleared, 1, kPage);
    put_in(kept, 1, kPage);
    reopen();  // one segment, whose footer lists both
    ASSERT_TRUE(clear(cleared).is_ok());
    for (const std::string& name : names) ASSERT_TRUE(files_->remove("/d/" + name).is_ok()) << name;
    reopen();
    EXPECT_FALSE(has_in(cleared, 1, kPage));
    EXPECT_TRUE(has_in(kept, 1, kPage));
    scope_ = cleared;
    backend_.reset();
  }
}

// One of two volumes lost its list while the store was closed: the other's is written there, too.
TEST_F(LostFilesTest, AVolumeWithoutTheListGetsItAtTheOpening) {
  const BackendOptions both{{"directory", "/d:/e"}};
  const auto cleared = scope_, kept = std::make_shared<StoreScope>(*scope_);
  kept->namespace_digest.bytes[0] = 9;
  start(both);
  for (std::uint64_t i = 0; i < 4; ++i) put_in(cleared, i, 20'000);
  for (std::uint64_t i = 0; i < 4; ++i) put_in(kept, i, 20'000);
  reopen(both);
  ASSERT_TRUE(clear(cleared).is_ok());
  backend_.reset();
  ASSERT_TRUE(files_->remove("/e/CLEARED").is_ok());
  start(both);
  EXPECT_TRUE(files_->stat("/e/CLEARED").is_ok());
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(has_in(kept, i, 20'000) && !has_in(cleared, i, 20'000)) << i;
}

// Two processes, each with a lock of its own: the first learns of it before it makes its next file, and from then on
// touches nothing that is the other's.
TEST_F(LostFilesTest, ALockOfAnotherProcessEndsTheWrites) {
  start();
  ASSERT_TRUE(put(1, 20'000).is_ok());
  ASSERT_TRUE(files_->remove("/d/LOCK").is_ok());
  write_file("/d/LOCK", "of the other process\n");
  Status last;
  for (std::uint64_t i = 10; i < 30; ++i) last = put(i, 20'000);
  EXPECT_EQ(last.code(), StatusCode::kConflict) << last.to_string();
  EXPECT_LE(segments_on_disk(), 1u) << "that one was made before";
  EXPECT_TRUE(get(1, 20'000).is_ok()) << "reads go on";
  EXPECT_EQ(clear(nullptr).code(), StatusCode::kConflict);
  EXPECT_EQ(files_->stat("/d/CLEARED").status().code(), StatusCode::kNotFound);
  clock_.advance(std::chrono::minutes(5));
  EXPECT_EQ(put(40, 20'000).code(), StatusCode::kConflict) << "still";
}

// The lock that was deleted is made again, and that is the store's own.
TEST_F(LostFilesTest, ALockOfItsOwnIsKnownAgain) {
  start();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(files_->remove("/d/LOCK").is_ok());
    for (std::uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(put(100 * round + i, 20'000).is_ok()) << i;
  }
  reopen();
  EXPECT_TRUE(get(219, 20'000).is_ok());
  for (std::uint64_t i = 300; i < 320; ++i) EXPECT_TRUE(put(i, 20'000).is_ok()) << i;
}

// A full disk has no room for a LOCK's text: then the store does not know its own, and goes on.
// The files are deleted while the disk is full: LOCK is made again without a text, FORMAT not at all.
TEST_F(LostFilesTest, ALockThatTakesNoTextDoesNoHarm) {
  files_ = std::make_unique<sim::HookedFiles>(3, 2 << 20);
  start();
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(put(i, 20'000).is_ok());
  for (const char* name : {"/d/LOCK", "/d/FORMAT"}) ASSERT_TRUE(files_->remove(name).is_ok());
  {
    const auto filler = files_->inner.open("/filler", {.write = true, .create = true}).value();
    std::uint64_t at = 0;
    for (std::size_t bytes = 4096; bytes > 0; bytes /= 2) {
      const std::vector<std::byte> content(bytes);
      while (write_fully(*filler, content, at).is_ok()) at += bytes;
    }
  }
  for (std::uint64_t i = 30; i < 40; ++i) (void)put(i, 20'000);
  ASSERT_TRUE(files_->remove("/filler").is_ok());
  for (std::uint64_t i = 50; i < 55; ++i) {
    clock_.advance(std::chrono::minutes(5));
    (void)put(i, 20'000);
  }
  EXPECT_TRUE(put(60, 20'000).is_ok()) << "there is room again";
  EXPECT_TRUE(clear(nullptr).is_ok());
  reopen();
}

// A process that is refused while another one has the store.
TEST_F(LostFilesTest, WhoIsRefusedTakesNothing) {
  const support::TemporaryDirectory directory;
  const std::string x = directory.path() + "/x", y = directory.path() + "/y";
  const auto open_real = [&](const std::string& directories) {
    return factory_.create("file", {{"directory", directories}, {"segment_size", "64Ki"}},
                           {&real_file_system(), &clock_, &executor_, {}});
  };
  for (const auto& [directories, deleted] :
       {std::pair(x, std::vector{x + "/LOCK", x + "/FORMAT"}), std::pair(y + ":" + x, std::vector{y + "/LOCK"})}) {
    SCOPED_TRACE(directories);
    std::filesystem::remove_all(x);
    backend_ = open_real(directories).value();
    for (std::uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(put(i, 20'000).is_ok());
    for (const std::string& path : deleted) ASSERT_TRUE(std::filesystem::remove(path)) << path;
    clock_.advance(std::chrono::seconds(1));
    EXPECT_FALSE(open_real(directories).is_ok());
    for (std::uint64_t i = 30; i < 60; ++i) EXPECT_TRUE(put(i, 20'000).is_ok()) << i;
    EXPECT_TRUE(clear(nullptr).is_ok());
    backend_.reset();
    EXPECT_TRUE(open_real(directories).is_ok());
  }
}

TEST_F(LostFilesTest, WhatNfsKeepsOfARemovedFileIsLetBe) {
  const std::string left = "/d/.nfs000000000012d6870000000f";
  start();
  ASSERT_TRUE(put(1, 20'000).is_ok());
  backend_.reset();
  write_file(left, "");
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(get(1, 20'000).is_ok());
  backend_.reset();
  EXPECT_TRUE(files_->stat(left).is_ok());
}

}  // namespace
}  // namespace larder::file_store
