// SPDX-License-Identifier: Apache-2.0
// The whole stack with its pages on a CUDA device: on the simulated driver, and on a GPU where there is one.
#include "engine/mirrored_engine.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "sim/sim_cuda_driver.h"
#include "sim/sim_file_system.h"
#include "tests/support/scheduler_client.h"
#include "transfer/cuda/cuda_device.h"

namespace larder {
namespace {

Options cuda_options(const std::string& model) {
  Options options = support::tiny_options(model);
  options.max_total_tokens = 1024;  // two conversations: the others are in host memory
  options.max_mamba_cache_size = 10;
  options.hicache_ratio = 8;
  options.num_reserved_decode_tokens = 16;
  return options;
}

// A scheduler on a device that is opened by `open`, asked one request at a time.
class Stack {
 public:
  Stack(const Options& options, const OpenDevice& open) {
    auto made = Scheduler::create(options, files_, real_clock(), metrics_, nullptr, open);
    EXPECT_TRUE(made.is_ok()) << made.status().to_string();
    if (made.is_ok()) scheduler_ = std::move(made).value();
  }
  [[nodiscard]] bool is_there() const { return scheduler_ != nullptr; }

  support::Answer ask(const std::vector<TokenId>& prompt) {
    return support::generate(*scheduler_, support::request_of(prompt, 12));
  }

 private:
  sim::SimFileSystem files_{1};
  MetricsRegistry metrics_;
  std::unique_ptr<Scheduler> scheduler_;
};

class OnCuda : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] bool is_gpu() const { return GetParam() == std::string("gpu"); }
  void SetUp() override {
    if (!is_gpu()) return;
    const auto driver = open_cuda_driver(0);
    if (!driver.is_ok()) GTEST_SKIP() << driver.status().to_string();
  }
  OpenDevice open() {
    return [this](const Options& options, Executor& threads) -> Result<std::unique_ptr<Device>> {
      if (is_gpu()) return open_device(options, threads);
      sim_ = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{.seed = 4});
      CudaOptions small;  // the parts of tiny models go every way
      small.load_engines_from = small.store_engines_from = 2048;
      small.staging_bytes = 100'000;
      small.least_load_steps = 2;
      small.least_staged_bytes = small.least_staged_layerwise_bytes = small.gated_step_bytes = 0;
      LARDER_ASSIGN_OR_RETURN(auto device, CudaDevice::create(sim_, small));
      return std::unique_ptr<Device>(std::move(device));
    };
  }

  std::shared_ptr<sim::SimCudaDriver> sim_;
};

// Conversations in turns, more than the device holds: what left for the host comes back, and the answers are those of
// an engine whose pages never left the host.
TEST_P(OnCuda, AnswersAreThoseOfTheHost) {
  for (const char* model : {"gqa-tiny", "gdn-tiny", "swa-tiny", "dsv4-tiny", "mla-tiny"}) {
    SCOPED_TRACE(model);
    Options options = cuda_options(model);
    Stack host(options, open_device);
    options.device = "cuda";
    Stack cuda(options, open());
    ASSERT_TRUE(host.is_there() && cuda.is_there());
    std::uint64_t from_host = 0;
    std::vector<std::vector<TokenId>> conversations;
    for (std::uint64_t c = 0; c < 4; ++c) conversations.push_back(support::random_prompt(c + 1, 300));
    for (int turn = 0; turn < 3; ++turn) {
      for (auto& conversation : conversations) {
        const support::Answer expected = host.ask(conversation), answer = cuda.ask(conversation);
        ASSERT_TRUE(expected.last.status.is_ok());
        ASSERT_EQ(answer.last.status.to_string(), "ok");
        ASSERT_EQ(answer.tokens, expected.tokens) << "turn " << turn;
        from_host += answer.last.cached.host;
        conversation.insert(conversation.end(), answer.tokens.begin(), answer.tokens.end());
      }
    }
    EXPECT_GT(from_host, 0U) << "nothing came back from host memory: this test shows nothing";
    if (sim_) {
      EXPECT_EQ(sim_->violations(), std::vector<std::string>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, OnCuda, testing::Values("sim", "gpu"));

// Requests end with an error that says so; none is answered with wrong tokens, and the server lives.
TEST(MirroredEngine, ALostDeviceEndsRequestsAndNotTheServer) {
  int losses = 0;
  for (std::uint64_t n = 1; n < 4'000; n += 397) {
    SCOPED_TRACE(n);
    std::shared_ptr<sim::SimCudaDriver> sim;
    const OpenDevice open = [&](const Options&, Executor&) -> Result<std::unique_ptr<Device>> {
      sim = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{.seed = n});
      auto device = CudaDevice::create(sim, {});
      if (!device.is_ok()) return device.status();
      return std::unique_ptr<Device>(std::move(device).value());
    };
    Stack host(cuda_options("gdn-tiny"), open_device);
    Stack cuda(cuda_options("gdn-tiny"), open);
    ASSERT_TRUE(host.is_there() && cuda.is_there());
    sim->lose_at(n);
    bool is_lost = false;
    for (std::uint64_t c = 0; c < 4; ++c) {
      const std::vector<TokenId> prompt = support::random_prompt(c % 3 + 1, 300);
      const support::Answer expected = host.ask(prompt), answer = cuda.ask(prompt);
      ASSERT_TRUE(expected.last.status.is_ok());
      if (answer.last.status.is_ok()) {
        EXPECT_FALSE(is_lost) << "a request was answered on a lost device";
        EXPECT_EQ(answer.tokens, expected.tokens);
        continue;
      }
      is_lost = true;
      EXPECT_NE(answer.last.status.message().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos)
          << answer.last.status.to_string();
      EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), expected.tokens.begin()))
          << "a token before the loss is wrong";
    }
    losses += is_lost ? 1 : 0;
    EXPECT_EQ(sim->violations(), std::vector<std::string>());
  }
  EXPECT_GT(losses, 3);
}

TEST(OpenDevice, SaysWhatIsWrongWithTheName) {
  sim::SimFileSystem files(1);
  MetricsRegistry metrics;
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", ""}) {
    Options options = cuda_options("gqa-tiny");
    options.device = name;
    const auto made = Scheduler::create(options, files, real_clock(), metrics);
    ASSERT_EQ(made.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(made.status().message().find("choose cpu, cuda or cuda:N"), std::string::npos)
        << made.status().to_string();
  }
  // There is no machine with so many.
  Options options = cuda_options("gqa-tiny");
  options.device = "cuda:4096";
  const auto made = Scheduler::create(options, files, real_clock(), metrics);
  EXPECT_FALSE(made.is_ok());
  EXPECT_NE(made.status().message().find("--device cuda:4096"), std::string::npos) << made.status().to_string();
}

}  // namespace
}  // namespace larder
