// SPDX-License-Identifier: Apache-2.0
// The simulated CUDA driver sees what NVIDIA's refuses, and what it lets pass in silence.
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "pool/pool_test_util.h"
#include "sim/sim_cuda_driver.h"

namespace larder::cuda_test {
namespace {

using pool_test::take;

class SimCuda : public testing::Test {
 protected:
  SimCuda() : stream(take(driver.create_stream())), memory(take(driver.allocate(kBytes))) {
    EXPECT_TRUE(driver.bind_thread().is_ok());
  }
  ~SimCuda() override {
    if (memory != nullptr) {
      EXPECT_TRUE(driver.free(memory).is_ok());
    }
    EXPECT_TRUE(driver.destroy_stream(stream).is_ok());
    EXPECT_EQ(driver.streams() + driver.events(), 0U);
  }
  // What there is to say about it.
  std::string said() {
    EXPECT_TRUE(driver.synchronize(stream).is_ok());
    const std::vector<std::string> all = driver.violations();
    return all.empty() ? "" : all.back();
  }
  Status copy(const std::vector<CudaCopy>& copies) { return driver.copy(copies, stream); }

  static constexpr std::size_t kBytes = 4096;
  sim::SimCudaDriver driver{sim::SimCudaOptions{}};
  const CudaStream stream;
  std::byte* memory;
};

TEST_F(SimCuda, RefusesWhatIsNothing) {
  EXPECT_EQ(driver.allocate(0).status().code(), StatusCode::kInternal);
  EXPECT_EQ(copy({}).code(), StatusCode::kInternal);
  EXPECT_EQ(copy({{memory, memory + 64, 64}, {memory + 128, memory + 192, 0}}).code(), StatusCode::kInternal);
  EXPECT_EQ(said(), "");
}

TEST_F(SimCuda, TheDefaultStreamTakesNoBatches) {
  const std::vector<CudaCopy> copies = {{memory, memory + 64, 64}, {memory + 128, memory + 192, 64}};
  EXPECT_EQ(driver.copy(copies, nullptr).code(), StatusCode::kInternal);
  EXPECT_TRUE(driver.copy(std::span(copies).first(1), nullptr).is_ok());
  EXPECT_TRUE(driver.synchronize(nullptr).is_ok());
  EXPECT_EQ(driver.operations(), 1U);
  EXPECT_EQ(said(), "");
}

TEST_F(SimCuda, ADestroyedStreamAnswersAsALostDeviceDoes) {
  const CudaStream gone = take(driver.create_stream());
  const CudaEventHandle event = take(driver.create_event());
  ASSERT_TRUE(driver.record(event, stream).is_ok());
  ASSERT_TRUE(driver.destroy_stream(gone).is_ok());
  EXPECT_EQ(driver.is_capturing(gone).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(driver.synchronize(gone).code(), StatusCode::kUnavailable);
  EXPECT_EQ(driver.record(event, gone).code(), StatusCode::kUnavailable);
  EXPECT_EQ(driver.wait(gone, event).code(), StatusCode::kUnavailable);
  EXPECT_EQ(driver.destroy_stream(gone).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(copy({{memory, memory + 64, 64}}).is_ok());
  EXPECT_EQ(said(), "end of a stream that does not exist");
  EXPECT_TRUE(driver.destroy_event(event).is_ok());
}

TEST_F(SimCuda, SeesCopiesOfOneBatchThatDependOnEachOther) {
  EXPECT_TRUE(copy({{memory, memory + 256, 64}, {memory + 64, memory + 256, 64}}).is_ok());  // both only read it
  EXPECT_EQ(said(), "");
  EXPECT_TRUE(copy({{memory, memory + 256, 64}, {memory + 512, memory + 32, 16}}).is_ok());
  EXPECT_EQ(said(), "copies of a batch that depend on each other");
}

TEST_F(SimCuda, SeesCopiesOfOneBatchThatWriteTheSame) {
  EXPECT_TRUE(copy({{memory, memory + 256, 64}, {memory + 63, memory + 512, 64}}).is_ok());
  EXPECT_EQ(said(), "copies of a batch that depend on each other");
}

TEST_F(SimCuda, SeesPiecesOfOneLaunchThatWriteTheSame) {
  auto* const list = static_cast<std::byte*>(std::aligned_alloc(4096, 4096));
  ASSERT_TRUE(driver.register_host(list, 4096).is_ok());
  const CopyPair pairs[] = {{memory, memory + 256}, {memory + 16, memory + 512}};
  std::memcpy(list, pairs, sizeof pairs);
  CopyLaunch launch{};
  launch.pairs = reinterpret_cast<const CopyPair*>(list);
  launch.group_count = 1;
  CopyGroup& group = launch.groups[0];
  group.pair_count = 2;
  group.width = 32;
  group.rows = 1;
  group.vector = 16;
  cut_into_tiles(group);
  launch.tile_count = 2;
  ASSERT_TRUE(driver.launch(launch, 1, stream).is_ok());
  EXPECT_EQ(said(), "pieces of a launch that depend on each other");
  ASSERT_TRUE(driver.unregister_host(list).is_ok());
  std::free(list);
}

// A copy that is long enough to be met while it runs; where it is over already, memory may go.
TEST_F(SimCuda, MemoryWaitsForTheCopyThatUsesIt) {
  constexpr std::size_t kLong = std::size_t{32} << 20;
  std::byte* const large = take(driver.allocate(2 * kLong));
  EXPECT_TRUE(copy({{large, large + kLong, kLong}}).is_ok());
  while (driver.operations() == 0) {}
  EXPECT_TRUE(driver.free(large).is_ok());
  const std::string what = said();
  EXPECT_TRUE(what.empty() || what == "the end of memory that a copy is using") << what;
}

}  // namespace
}  // namespace larder::cuda_test
