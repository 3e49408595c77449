// SPDX-License-Identifier: Apache-2.0
// Calls whose memory is held by operations that hang, and calls that run out of memory.
#include "door/chunk_call.h"

#include <gtest/gtest.h>

#include <new>
#include <optional>

#include "door/get_call.h"
#include "storage/pipeline/pipeline_test_util.h"

namespace larder {
namespace {

using namespace pipeline_test;

constexpr std::size_t kChunkPageBytes = std::size_t{256} << 10;

class ChunkCallTest : public testing::Test {
 protected:
  ChunkCallTest() {
    core_.backend_name = "holding";
    core_.clock = &clock_;
    core_.arena = StagingArena::create(4 * kChunkPageBytes, host_memory_source()).value();
    auto inner = std::make_unique<HoldingBackend>();
    inner_ = inner.get();
    core_.pipeline = make_pipeline(std::move(inner), {}, clock_, nullptr, 7);
    SpaceDescription space;
    space.page_size = 16;
    space.identity = "m";
    space.pools = {{"kv", kChunkPageBytes, "x", HitPolicy::kAllPages, 0, false}};
    space_.emplace(PageSpace::create(space).value());
    page_.key = make_key(9);
    page_.segments = {&segment_, 1};
  }
  // An operation that has its piece of the arena and does not answer, as a call leaves it behind.
  void leave_hung_read(std::uint8_t tag) {
    auto piece = core_.arena->try_take(kChunkPageBytes, StagingArena::Use::kRead).value();
    ASSERT_TRUE(piece);
    ASSERT_TRUE(core_.pipeline->submit_read(read_of(tag), [piece](const ReadResult&) {}).is_ok());
  }

  ManualClock clock_;
  StoreCore core_;
  HoldingBackend* inner_ = nullptr;
  std::optional<PageSpace> space_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kChunkPageBytes);
  Segment segment_{bytes_.data(), kChunkPageBytes};
  CallPage page_;
};

TEST_F(ChunkCallTest, WhereHungReadsHaveTheArenaACallIsAnsweredAtOnce) {
  for (std::uint8_t tag = 0; tag < 3; ++tag) leave_hung_read(tag);
  clock_.advance(std::chrono::seconds(30));
  GetCall(core_, *space_, {&page_, 1}, {}).run();  // the clock stands: it would wait for ever
  EXPECT_EQ(page_.status.code(), StatusCode::kUnavailable) << page_.status.to_string();
  EXPECT_NE(page_.status.message().find("does not answer have all memory"), std::string::npos)
      << page_.status.message();
  EXPECT_EQ(inner_->begun.size(), 3u);

  // A write finds room, and a backend that is well.
  EXPECT_TRUE(core_.arena->try_take(kChunkPageBytes, StagingArena::Use::kWrite).value());
  EXPECT_TRUE(core_.pipeline->check_wait(Lane::kWrite).is_ok());

  // They answer after all: the next call is the try that ends it.
  while (!inner_->held.empty()) inner_->answer_next();
  inner_->inline_status = std::make_unique<Status>();
  clock_.advance(std::chrono::seconds(2));
  GetCall(core_, *space_, {&page_, 1}, {}).run();
  EXPECT_TRUE(page_.status.is_ok()) << page_.status.to_string();
}

TEST_F(ChunkCallTest, ReadsThatAreNotSlowAreWaitedFor) {
  for (std::uint8_t tag = 0; tag < 3; ++tag) leave_hung_read(tag);
  EXPECT_TRUE(core_.pipeline->check_wait(Lane::kRead).is_ok());
}

// No operation has its chunk: memory was out before it began, or it died without an answer.
class NoOperationCall final : public ChunkCall {
 public:
  NoOperationCall(StoreCore& core, const PageSpace& space, std::span<CallPage> pages, bool throws)
      : ChunkCall(core, space, pages, {}), throws_(throws) {}
  std::size_t given_up = 0;

 protected:
  std::shared_ptr<Chunk> make_chunk() override { return std::make_shared<Chunk>(); }
  Status start(const std::shared_ptr<Chunk>&, TimePoint) override {
    if (throws_) throw std::bad_alloc();
    return Status::ok();
  }
  void finish(Chunk&) override {}
  void give_up(std::size_t begin, std::size_t end, bool, const Status&) override { given_up += end - begin; }

 private:
  const bool throws_;
};

TEST_F(ChunkCallTest, AZeroCopyCallThatRanOutOfMemoryEnds) {
  core_.limits.is_zero_copy = true;
  NoOperationCall call(core_, *space_, {&page_, 1}, true);
  EXPECT_THROW(call.run(), std::bad_alloc);
}

TEST_F(ChunkCallTest, AZeroCopyCallWhoseOperationIsLostEndsAtItsDeadline) {
  core_.limits.is_zero_copy = true;
  core_.limits.timeout = Nanos{1};
  NoOperationCall call(core_, *space_, {&page_, 1}, false);
  clock_.advance(Nanos{1});
  call.run();
  EXPECT_EQ(call.given_up, 1u);
}

}  // namespace
}  // namespace larder
