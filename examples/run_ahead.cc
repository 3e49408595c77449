// SPDX-License-Identifier: Apache-2.0
// An engine that runs ahead of its device: two steps open per request, more requests than the device holds to their
// ends, and one that ends while a step of it still runs.
//
// The "device" here computes nothing; a real one fills the pages and checkpoints that each step grants, in the order in
// which the steps were launched, and reads and writes the page table of its step's launch. Of that table, which a real
// engine keeps on the device, only what changed is uploaded.

#include <cstdio>
#include <deque>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "controller/cache.h"
#include "model/presets.h"

using namespace larder;

namespace {

struct Launched {
  StepGrant grant;
  PageTable pages;  // a copy: the grant's own changes with the next call for the request
};

struct Running {
  RequestId id;
  std::vector<TokenId> tokens;  // prompt, and what was sampled
  std::uint64_t wanted = 0;     // the answer ends here: nobody knew
  bool is_started = false;
  std::deque<Launched> open;
  std::vector<DeviceSlot> table;  // on the device
  std::uint64_t version = 0;      // of it
};

constexpr std::size_t kAhead = 2;

// Returns how many entries it uploaded.
std::size_t upload(Running& r, const PageTable& pages) {
  std::size_t uploaded = 0;
  r.table.resize(pages.full.size());
  for (const PageRange range : pages.changed_since(r.version).full) {
    for (std::uint64_t i = range.from; i < range.to; ++i, ++uploaded) r.table[i] = pages.full[i];
  }
  r.version = pages.version();
  return uploaded;
}

// Launches the next step, if the cache has room for it. An engine that is ahead does not know the last tokens yet, but
// that there is one more with each step.
bool launch(Cache& cache, Running& r, std::size_t& uploaded) {
  const std::uint64_t computed = r.open.empty() ? cache.computed_tokens(r.id) : r.open.back().grant.until;
  const std::uint64_t until = computed < r.tokens.size() ? r.tokens.size() : computed + 1;
  Result<StepGrant> grant = cache.prepare_step(r.id, until);
  if (!grant.is_ok()) return false;  // kOverloaded: later
  const PageTable pages = *grant->pages;
  uploaded += upload(r, pages);
  r.open.push_back({std::move(grant).value(), pages});
  return true;
}

// The oldest step of the request has ended on the device: here come its tokens.
void land(Cache& cache, Running& r) {
  const Launched step = std::move(r.open.front());
  r.open.pop_front();
  while (r.tokens.size() < step.grant.until) r.tokens.push_back(static_cast<TokenId>(r.tokens.size() % 100));
  (void)cache.complete_step(step.grant.token, std::span<const TokenId>(r.tokens).first(step.grant.until));
}

// Steps of a request that ended run on; until each is told over, its slots are nobody else's.
void end_open(Cache& cache, Running& r) {
  for (const Launched& step : r.open) (void)cache.cancel_step(step.grant.token);
  r.open.clear();
}

}  // namespace

int main() {
  ThreadPoolExecutor threads("copy", 2, 1024);
  const auto device = make_cpu_device(threads);
  const ModelSpec model = preset_model("gqa-tiny").value();
  const auto pages = DevicePools::create(model, {40, 0, 0}, device->memory()).value();  // 2,560 tokens
  const CacheParts parts{&model, pages.get(), nullptr, nullptr, &real_clock(), nullptr, nullptr, {}};
  CacheConfig config;
  config.decode_headroom_tokens = 64;
  const auto cache = Cache::create(config, parts).value();

  std::deque<Running> all;  // in the order of their arrival: the last is the first to make room
  for (std::uint64_t i = 0; i < 8; ++i) {
    Running r;
    r.tokens.resize(128);
    std::iota(r.tokens.begin(), r.tokens.end(), static_cast<TokenId>(i * 1000));
    r.wanted = 400 + 40 * i;
    r.id = cache->begin({r.tokens, /*max_new_tokens=*/2000, "", "", 0}).value();
    all.push_back(std::move(r));
  }
  std::size_t most = 0, finished = 0, uploaded = 0;
  for (int turn = 0; turn < 100'000 && !all.empty(); ++turn) {
    (void)cache->poll(Nanos{0});
    bool is_one_starved = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Running& r = all[i];
      if (!r.is_started && !is_one_starved) r.is_started = cache->start(r.id).is_ok();
      if (!r.is_started) continue;
      while (r.open.size() < kAhead && launch(*cache, r, uploaded)) {}
      if (!r.open.empty()) {
        land(*cache, r);
      } else if (cache->is_starved(r.id)) {
        is_one_starved = true;
        for (std::size_t last = all.size(); --last > i;) {
          if (!all[last].is_started) continue;
          (void)cache->retract(all[last].id);
          end_open(*cache, all[last]);  // a real engine waits for the device first
          all[last].is_started = false;
          break;
        }
      }
    }
    std::size_t running = 0;
    for (const Running& r : all) running += r.is_started ? 1 : 0;
    most = std::max(most, running);
    std::erase_if(all, [&](Running& r) {
      if (r.tokens.size() < r.wanted) return false;
      cache->finish(r.id);  // with a step open: the engine learned of the end one step late
      end_open(*cache, r);
      ++finished;
      return true;
    });
  }
  std::printf("%zu of 8 requests finished, %zu ran at once, %llu were set aside for others on the way\n", finished,
              most, static_cast<unsigned long long>(cache->counters().retracted));
  std::printf("%zu entries of page tables were uploaded\n", uploaded);
  return finished == 8 ? 0 : 1;
}
