// SPDX-License-Identifier: Apache-2.0
// An engine on a CUDA device whose thread never waits for the device: what docs/cuda.md shows, on the production cache.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/cache.h"
#include "tests/cuda/cuda_rig.h"
#include "transfer/cuda/step_launcher.h"

namespace larder::cuda_test {
namespace {

// "Computes" pages by copying their bytes from pinned memory on its stream, and "reads" them by copying them back.
class StreamEngine {
 public:
  static constexpr std::size_t kPages = 8;

  explicit StreamEngine(Rig& rig) : rig_(rig), stream_(take(rig.driver->create_stream())) {
    CacheConfig config;
    config.load_back_threshold = 0;
    config.max_operations = 64;
    pages_ = take(DevicePools::create(model, {kPages + 4, 0, 0}, rig.device->memory()));
    host_ = take(HostPools::create(model, HostLayout::kPageFirst, 64 * model.slot_bytes(ComponentKind::kFull),
                                   rig.device->host_memory()));
    copies_ = take(TransferEngine::create(*rig.device, *pages_, host_.get(), config.max_operations));
    CacheParts parts;
    parts.model = &model;
    parts.device = pages_.get();
    parts.host = host_.get();
    parts.transfer = copies_.get();
    parts.clock = &real_clock();
    cache = take(Cache::create(config, parts));
    written_ = take(rig.device->host_memory().allocate(kPages * page_bytes()));
    read_ = take(rig.device->host_memory().allocate(kPages * page_bytes()));
  }
  StreamEngine(const StreamEngine&) = delete;
  StreamEngine& operator=(const StreamEngine&) = delete;
  ~StreamEngine() {
    launcher_.reset();
    (void)rig_.driver->synchronize(stream_);
    cache.reset();
    copies_.reset();
    (void)rig_.driver->destroy_stream(stream_);  // fails when the device is lost
  }

  [[nodiscard]] std::vector<TokenId> prompt(TokenId first, std::size_t pages) const {
    std::vector<TokenId> tokens(pages * model.page_size);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(first * 1000 + i);
    return tokens;
  }
  CachedTokens start(RequestId id) {
    for (int i = 0; i < 1000; ++i) {
      const Result<CachedTokens> cached = cache->start(id);
      if (cached.is_ok()) return *cached;
      EXPECT_EQ(cached.status().code(), StatusCode::kOverloaded) << cached.status().to_string();
      (void)cache->poll(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "the request does not start";
    return {};
  }
  void settle() {
    const TimePoint begun = real_clock().now();
    while (cache->operations_in_flight() > 0 && real_clock().now() - begun < std::chrono::seconds(20)) {
      (void)cache->poll(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(cache->operations_in_flight(), 0U);
  }
  // Launches a layer of the step: pages [0, from) are read, the others written.
  Status launch_layer(const StepGrant& grant, std::uint32_t layer, std::size_t from, std::size_t end, TokenId first) {
    const PoolSpec& pool = model.pools[0];
    const auto found = std::find(pool.layers.begin(), pool.layers.end(), layer);
    if (found == pool.layers.end()) return Status::ok();
    const auto index = static_cast<std::size_t>(found - pool.layers.begin());
    for (std::size_t page = 0; page < end; ++page) {
      std::size_t at = page * page_bytes() + index * pool.layer_bytes();
      for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
        const std::size_t bytes = pool.planes[plane].layer_bytes();
        std::byte* const on_device = pages_->page(pool.name, index, plane, grant.pages->full[page]);
        std::byte* const source = written_->data() + at;
        if (page >= from) std::memset(source, static_cast<int>(first * 37 + page * 11 + index * 3 + plane), bytes);
        const CudaCopy copy =
            page < from ? CudaCopy{read_->data() + at, on_device, bytes} : CudaCopy{on_device, source, bytes};
        LARDER_RETURN_IF_ERROR(rig_.driver->copy({&copy, 1}, stream_));
        at += bytes;
      }
    }
    return Status::ok();
  }
  // Launches the step, on this thread. Nothing here waits for the device.
  Status launch(const StepGrant& grant, std::size_t from, std::size_t end, TokenId first) {
    std::optional<LayerWaits> waits;
    if (grant.gate) waits.emplace(*grant.gate, stream_, std::chrono::seconds(10));
    for (std::uint32_t layer = 0; layer < model.layer_count(); ++layer) {
      if (waits) LARDER_RETURN_IF_ERROR(waits->before(layer));
      LARDER_RETURN_IF_ERROR(launch_layer(grant, layer, from, end, first));
    }
    return Status::ok();
  }
  // The same on a thread of Larder's, which this one waits for; the end of the step.
  std::shared_ptr<DeviceEvent> launch_elsewhere(const StepGrant& grant, std::size_t from, std::size_t end,
                                                TokenId first) {
    if (!launcher_) launcher_ = take(StepLauncher::create(*rig_.device, stream_, 4, std::chrono::seconds(10)));
    std::promise<std::shared_ptr<DeviceEvent>> promise;
    EngineStep step{.gate = grant.gate, .layers = model.layer_count(), .launch = {}, .launched = {}};
    step.launch = [&](std::uint32_t layer) { return launch_layer(grant, layer, from, end, first); };
    step.launched = [&](const Status& status, std::shared_ptr<DeviceEvent> over) {
      EXPECT_EQ(status.to_string(), "ok");
      promise.set_value(std::move(over));
    };
    EXPECT_EQ(launcher_->post(std::move(step)).to_string(), "ok");
    return promise.get_future().get();
  }
  // What the last launch has read of [0, pages), once it has ended: bytes that are not those of `first`.
  std::size_t wrong_bytes(std::size_t pages, TokenId first) {
    EXPECT_TRUE(rig_.driver->synchronize(stream_).is_ok());
    std::size_t wrong = 0;
    for (std::size_t page = 0; page < pages; ++page) {
      std::size_t at = page * page_bytes();
      const PoolSpec& pool = model.pools[0];
      for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
        for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
          const auto right = static_cast<std::byte>(first * 37 + page * 11 + layer * 3 + plane);
          const std::size_t end = at + pool.planes[plane].layer_bytes();
          for (; at < end; ++at) wrong += read_->data()[at] != right ? 1 : 0;
        }
      }
    }
    return wrong;
  }
  Result<std::shared_ptr<DeviceEvent>> record() { return rig_.device->record(stream_); }
  // A whole request whose step is ended at its launch.
  void run(TokenId first) {
    const std::vector<TokenId> tokens = prompt(first, kPages);
    const RequestId id = take(cache->begin({.tokens = tokens, .max_new_tokens = 1}));
    const CachedTokens cached = start(id);
    const StepGrant grant = take(cache->prepare_step(id, tokens.size()));
    ASSERT_TRUE(launch(grant, cached.cached() / model.page_size, kPages, first).is_ok());
    ASSERT_TRUE(cache->complete_step(grant.token, tokens, take(record())).is_ok());
    cache->finish(id);
    settle();
    EXPECT_TRUE(rig_.driver->synchronize(stream_).is_ok());
  }

  const ModelSpec model = pool_test::preset("gqa-tiny");
  std::unique_ptr<Cache> cache;

 private:
  [[nodiscard]] std::size_t page_bytes() const { return model.pools[0].page_bytes(); }

  Rig& rig_;
  const CudaStream stream_;
  std::unique_ptr<DevicePools> pages_;
  std::unique_ptr<HostPools> host_;
  std::unique_ptr<TransferEngine> copies_;
  std::unique_ptr<Memory> written_, read_;
  std::unique_ptr<StepLauncher> launcher_;
};

class CudaSteps : public OnDriver {};

// The load is launched and has not run when the step that reads it is launched and ended, by the engine's thread or by
// one that waits in its place; the device then does both in their order, and what the step has written is found by the
// next request.
TEST_P(CudaSteps, AreEndedBeforeWhatTheyReadIsThere) {
  for (const bool has_launcher : {false, true}) {
    SCOPED_TRACE(has_launcher ? "by a launcher" : "by the engine's thread");
    Rig rig(GetParam());
    StreamEngine engine(rig);
    engine.run(1);
    engine.run(2);  // in whose place is what the first has computed
    if (rig.sim != nullptr) rig.sim->hold();
    const std::vector<TokenId> tokens = engine.prompt(1, StreamEngine::kPages);
    const RequestId id = take(engine.cache->begin({.tokens = tokens, .max_new_tokens = 1}));
    const CachedTokens cached = engine.start(id);
    const std::size_t found = cached.cached() / engine.model.page_size;
    EXPECT_EQ(found, StreamEngine::kPages - 1);
    EXPECT_GT(cached.host, 0U);
    const StepGrant grant = take(engine.cache->prepare_step(id, tokens.size()));
    ASSERT_NE(grant.gate, nullptr);
    std::shared_ptr<DeviceEvent> over;
    if (has_launcher) {
      over = engine.launch_elsewhere(grant, found, StreamEngine::kPages, 1);
    } else {
      ASSERT_EQ(engine.launch(grant, found, StreamEngine::kPages, 1).to_string(), "ok");
      over = take(engine.record());
    }
    if (rig.sim != nullptr) {
      EXPECT_FALSE(grant.gate->finished());
    }
    ASSERT_EQ(engine.cache->complete_step(grant.token, tokens, over).to_string(), "ok");
    if (rig.sim != nullptr) rig.sim->go_on();
    EXPECT_EQ(engine.wrong_bytes(found, 1), 0U);
    engine.settle();
    engine.cache->finish(id);
    engine.settle();
    EXPECT_EQ(engine.cache->check_invariants().to_string(), "ok");
  }
}

// The device is lost while it loads: the engine's calls say so, nothing of the request is kept, and nothing hangs.
TEST(CudaStepsLost, AStepUponALoadThatWasLostLeavesNothing) {
  for (std::uint64_t n = 1; n < 40; n += 3) {
    SCOPED_TRACE(n);
    Rig rig({false, n});
    StreamEngine engine(rig);
    engine.run(1);
    engine.run(2);
    rig.sim->hold();
    rig.sim->lose_at(n);
    const std::vector<TokenId> tokens = engine.prompt(1, StreamEngine::kPages);
    const RequestId id = take(engine.cache->begin({.tokens = tokens, .max_new_tokens = 1}));
    const std::size_t found = engine.start(id).cached() / engine.model.page_size;
    const StepGrant grant = take(engine.cache->prepare_step(id, tokens.size()));
    const Status launched = engine.launch(grant, found, StreamEngine::kPages, 1);
    const Result<std::shared_ptr<DeviceEvent>> over = engine.record();
    if (launched.is_ok() && over.is_ok()) {
      EXPECT_EQ(engine.cache->complete_step(grant.token, tokens, *over).to_string(), "ok");
    } else {
      EXPECT_EQ(engine.cache->cancel_step(grant.token).to_string(), "ok");
    }
    rig.sim->go_on();
    engine.settle();
    engine.cache->finish(id);
    engine.settle();
    EXPECT_EQ(engine.cache->check_invariants().to_string(), "ok");
  }
}

INSTANTIATE_TEST_SUITE_P(On, CudaSteps, every_driver(), testing::PrintToStringParamName());

}  // namespace
}  // namespace larder::cuda_test
