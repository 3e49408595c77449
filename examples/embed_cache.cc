// Larder inside an engine: the ten lines of README.md, with a request that is not there yet and one that is.
//
// The "engine" here computes nothing; a real one fills the device pages and states that each step grants.

#include <cstdio>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "controller/cache.h"
#include "model/presets.h"

using namespace larder;

namespace {

// One request from begin to finish; the tokens that need not be computed.
CachedTokens serve(Cache& cache, const std::vector<TokenId>& prompt) {
  const RequestId request = cache.begin({.tokens = prompt, .max_new_tokens = 1}).value();
  while (cache.phase(request) == RequestPhase::kPrefetching) cache.poll(std::chrono::milliseconds(10));
  const CachedTokens cached = cache.start(request).value();  // reuses, loads back, reserves
  const Result<StepGrant> step = cache.prepare_step(request, prompt.size());
  // ... here the engine computes tokens [computed_tokens(request), prompt.size()) into step->pages and step->snapshots
  if (step.is_ok() && cache.complete_step(request, prompt).is_ok()) cache.finish(request);
  return cached;
}

}  // namespace

int main() {
  const ModelSpec model = preset_model("gdn-tiny").value();  // 3 gated delta nets to 1 full attention
  ThreadPoolExecutor threads("copy", 2, 1024);
  const auto device = make_cpu_device(threads);
  const auto pages = DevicePools::create(model, {256, 0, 16}, device->memory()).value();  // full, window, states
  const auto host = HostPools::create(model, HostLayout::kPageFirst, 64u << 20, host_memory_source()).value();
  const auto copies = TransferEngine::create(*device, *pages, host.get(), 64).value();
  CacheParts parts;
  parts.model = &model, parts.device = pages.get(), parts.host = host.get(), parts.transfer = copies.get();
  parts.clock = &real_clock();
  const auto cache = Cache::create(CacheConfig{}, parts).value();

  std::vector<TokenId> prompt(256);
  std::iota(prompt.begin(), prompt.end(), 0u);
  for (int i = 0; i < 2; ++i) {
    const CachedTokens cached = serve(*cache, prompt);
    std::printf("%llu of %zu prompt tokens come from the cache\n", static_cast<unsigned long long>(cached.cached()),
                prompt.size());
  }
  return 0;
}
