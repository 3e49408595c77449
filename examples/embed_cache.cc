// SPDX-License-Identifier: Apache-2.0
// Larder inside an engine: the calls of docs/embedding.md, for a prompt that is not there yet and again when it is.
//
// The "engine" here computes nothing; a real one fills the device pages and checkpoints that each step grants. It lends
// its own memory, as an engine does that has its tensors already: a tensor for each layer and plane, slot 0 of which it
// keeps for itself (that is where CUDA graphs pad into). An engine without tensors lets the cache make them:
//   DevicePools::create(model, {256, 0, 16}, device->memory())

#include <cstdio>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "controller/cache.h"
#include "model/presets.h"

using namespace larder;

int main() {
  ThreadPoolExecutor threads("copy", 2, 1024);
  const auto device = make_cpu_device(threads);
  std::vector<TokenId> prompt(256);
  std::iota(prompt.begin(), prompt.end(), 0u);

  const ModelSpec model = preset_model("gdn-tiny").value();
  const ComponentCounts slots = {257, 0, 17};  // full, window, states
  std::vector<std::vector<std::byte>> tensors;
  std::vector<LentPlane> planes;
  for (const PoolSpec& pool : model.pools) {
    for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
      for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
        const std::size_t page = pool.planes[plane].layer_bytes();
        tensors.emplace_back(slots[index_of(pool.component)] * page);
        planes.push_back({pool.name, layer, plane, tensors.back().data(), /*slot_stride=*/page});
      }
    }
  }
  const ReservedSlots padding = {{{DeviceSlot(0)}, {}, {DeviceSlot(0)}}};
  const auto pages = DevicePools::create(model, slots, planes, padding).value();
  const auto host = HostPools::create(model, HostLayout::kPageFirst, 64u << 20, host_memory_source()).value();
  const auto copies = TransferEngine::create(*device, *pages, host.get(), 1024).value();
  const CacheParts parts{&model, pages.get(), host.get(), copies.get(), &real_clock(), nullptr, nullptr, {}};
  const auto cache = Cache::create(CacheConfig{}, parts).value();
  for (int turn = 0; turn < 2; ++turn) {
    const RequestId request = cache->begin({prompt, /*max_new_tokens=*/1, "adapter", "tenant", /*priority=*/0}).value();
    const CachedTokens cached = cache->start(request).value();                   // match, load back, reserve
    const Result<StepGrant> step = cache->prepare_step(request, prompt.size());  // ... the engine computes the rest
    if (step.is_ok() && cache->complete_step(step->token, prompt).is_ok()) cache->finish(request);
    std::printf("%d of %d tokens reused\n", static_cast<int>(cached.cached()), static_cast<int>(cached.prompt));
  }
  return 0;
}
