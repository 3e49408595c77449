// SPDX-License-Identifier: Apache-2.0
// Neighbours in a file that go as one I/O: how many there are, and that a failure of one is not that of the others.
// Below the backend: here submit() has put a page into the line when it returns.
#include <condition_variable>
#include <mutex>

#include "storage/hf3fs/usrbio_page_store.h"
#include "tests/hf3fs/hf3fs_rig.h"

namespace larder::hf3fs_test {
namespace {

using hf3fs::PageTransfer;
constexpr std::uint64_t kPages = 8;
constexpr std::uint64_t kStopper = 1000;  // a page in another window
constexpr std::uint64_t kPayload = 5000;

class Gather : public Rig {
 protected:
  // Rings of one entry: while one I/O is held, everything else waits together.
  void make_store(std::chrono::seconds timeout) {
    hf3fs::UsrbioStoreOptions options;
    options.library.path = LARDER_FAKE_HF3FS;
    options.directory = mount_ + "/larder";
    options.rings = 1;
    options.ring.entries = 1;
    options.ring.client_timeout = timeout;
    auto made = hf3fs::UsrbioPageStore::create(options, real_clock());
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    store_ = std::move(made).value();
    const std::string base = mount_ + "/larder/pages";
    auto writers = store_->open_files(base, 1, PageTransfer::Kind::kWrite);  // first: it makes the file
    ASSERT_TRUE(writers.is_ok()) << writers.status().to_string();
    writers_ = std::move(writers).value();
    auto readers = store_->open_files(base, 1, PageTransfer::Kind::kRead);
    ASSERT_TRUE(readers.is_ok()) << readers.status().to_string();
    readers_ = std::move(readers).value();
  }
  void TearDown() override {
    store_.reset();
    Rig::TearDown();
  }

  struct Moving {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<Segment> pieces;
    std::vector<Status> ends;
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t left = 0;
  };
  static std::byte content_of(std::uint64_t page, std::size_t at) {
    return static_cast<std::byte>(page * 37 + at * 11 + 1);
  }
  std::unique_ptr<Moving> start(PageTransfer::Kind kind, std::uint64_t first, std::size_t count) {
    auto moving = std::make_unique<Moving>();
    moving->left = count;
    moving->ends.resize(count);
    moving->bytes.assign(count, std::vector<std::byte>(kPayload));
    moving->pieces.resize(count);
    for (std::size_t i = 0; i < count; ++i) submit_one(*moving, i, kind, first + i);
    return moving;
  }
  void submit_one(Moving& moving, std::size_t i, PageTransfer::Kind kind, std::uint64_t page) {
    const bool writes = kind == PageTransfer::Kind::kWrite;
    for (std::size_t at = 0; at < kPayload && writes; ++at) moving.bytes[i][at] = content_of(page, at);
    moving.pieces[i] = {moving.bytes[i].data(), kPayload};
    PageTransfer transfer;
    transfer.kind = kind;
    transfer.files = writes ? writers_ : readers_;
    transfer.address = {0, page * hf3fs::transfer_bytes(kPayload)};
    transfer.envelope.generation = page;
    transfer.envelope.payload_bytes = kPayload;
    transfer.payload = {&moving.pieces[i], 1};
    transfer.done = [&moving, i](hf3fs::TransferEnd end) {
      const std::lock_guard lock(moving.mutex);
      moving.ends[i] = std::move(end.status);
      --moving.left;
      moving.changed.notify_all();
    };
    ASSERT_TRUE(store_->submit(std::move(transfer)).is_ok());
  }
  static std::vector<Status> finish(Moving& moving) {
    std::unique_lock lock(moving.mutex);
    moving.changed.wait(lock, [&] { return moving.left == 0; });
    return moving.ends;
  }
  std::vector<Status> move(PageTransfer::Kind kind, std::uint64_t first = 1, std::size_t count = kPages) {
    const auto moving = start(kind, first, count);
    std::vector<Status> ends = finish(*moving);
    if (kind == PageTransfer::Kind::kRead) check_content(*moving, first);
    return ends;
  }
  static void check_content(const Moving& moving, std::uint64_t first) {
    for (std::size_t i = 0; i < moving.ends.size(); ++i) {
      for (std::size_t at = 0; at < kPayload && moving.ends[i].is_ok(); ++at) {
        ASSERT_EQ(moving.bytes[i][at], content_of(first + i, at)) << "page " << first + i << " byte " << at;
      }
    }
  }
  // Moves the pages while a page elsewhere holds the ring until all of them wait. `faults` come to what is behind it.
  // How many I/Os that was.
  std::uint64_t move_behind(PageTransfer::Kind kind, std::vector<Status>& out, const std::string& faults = "") {
    const bool writes = kind == PageTransfer::Kind::kWrite;
    const std::uint64_t before = fake_.read_stats().executed;
    fault(std::string(R"({"op": ")") + (writes ? "write" : "read") + R"(", "count": 1, "hold": "before"})");
    if (!faults.empty()) fault(faults);
    const auto stopper = start(kind, kStopper, 1);
    const auto moving = start(kind, 1, kPages);
    while (fake_.release() == 0) fake_.idle();
    EXPECT_TRUE(finish(*stopper).at(0).is_ok());
    out = finish(*moving);
    fake_.idle();
    if (!writes) check_content(*moving, 1);
    return fake_.read_stats().executed - before - 1;
  }
  static std::size_t failures(const std::vector<Status>& all) {
    std::size_t failed = 0;
    for (const Status& status : all) failed += status.is_ok() ? 0 : 1;
    return failed;
  }
  void write_all() {
    ASSERT_EQ(failures(move(PageTransfer::Kind::kWrite)), 0u);
    ASSERT_EQ(failures(move(PageTransfer::Kind::kWrite, kStopper, 1)), 0u);
  }

  std::unique_ptr<hf3fs::UsrbioPageStore> store_;
  std::shared_ptr<hf3fs::PageFiles> readers_, writers_;
};

TEST_F(Gather, PagesThatWaitTogetherGoAsOneIo) {
  make_store(std::chrono::seconds(20));
  std::vector<Status> ends;
  EXPECT_EQ(move_behind(PageTransfer::Kind::kWrite, ends), 1u) << "for " << kPages << " pages";
  EXPECT_EQ(failures(ends), 0u);
  EXPECT_EQ(move_behind(PageTransfer::Kind::kRead, ends), 1u);
  EXPECT_EQ(failures(ends), 0u);
}

TEST_F(Gather, AFailedWriteOfNeighboursIsTriedOnceMoreForEach) {
  make_store(std::chrono::seconds(20));
  std::vector<Status> ends;
  // Of all together, and of one of them.
  const char* const no_space = R"({"op": "write", "count": 2, "error": 28})";
  EXPECT_EQ(move_behind(PageTransfer::Kind::kWrite, ends, no_space), 1 + kPages);
  EXPECT_EQ(failures(ends), 1u);
  EXPECT_EQ(failures(move(PageTransfer::Kind::kRead)), 1u);
}

TEST_F(Gather, AShortWriteOfNeighboursLosesNone) {
  make_store(std::chrono::seconds(20));
  std::vector<Status> ends;
  const char* const too_short = R"({"op": "write", "count": 1, "short_bytes": 20480})";
  EXPECT_EQ(move_behind(PageTransfer::Kind::kWrite, ends, too_short), 1 + kPages);
  EXPECT_EQ(failures(ends), 0u);
  EXPECT_EQ(failures(move(PageTransfer::Kind::kRead)), 0u);
}

TEST_F(Gather, AHoleAmongNeighboursIsAMissOfOnePage) {
  make_store(std::chrono::seconds(20));
  write_all();
  std::vector<Status> ends;
  const char* const hole = R"({"op": "read", "count": 2, "error": 61})";  // ENODATA
  EXPECT_EQ(move_behind(PageTransfer::Kind::kRead, ends, hole), 1 + kPages);
  EXPECT_EQ(failures(ends), 1u);
  for (const Status& end : ends) {
    EXPECT_TRUE(end.is_ok() || end.code() == StatusCode::kNotFound) << end.to_string();
  }
}

// One I/O of many pages that comes late: all of them have ended, and their memory is not touched any more.
TEST_F(Gather, NeighboursThatComeLateTouchNothing) {
  make_store(std::chrono::seconds(2));
  write_all();
  std::vector<Status> ends;
  EXPECT_EQ(move_behind(PageTransfer::Kind::kRead, ends, R"({"op": "read", "count": 1, "hold": "before"})"), 0u);
  for (const Status& end : ends) EXPECT_EQ(end.code(), StatusCode::kDeadlineExceeded) << end.to_string();
  EXPECT_EQ(store_->stats().abandoned, 1u);
  EXPECT_EQ(fake_.release(), 1u);
  fake_.idle();
  EXPECT_EQ(failures(move(PageTransfer::Kind::kRead)), 0u);
  EXPECT_EQ(store_->stats().late, 1u);
}

}  // namespace
}  // namespace larder::hf3fs_test
