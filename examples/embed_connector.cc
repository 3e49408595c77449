// SPDX-License-Identifier: Apache-2.0
// Larder beside an engine that keeps the books of its own device memory, in C++: a connector (docs/embedding.md),
// for a prompt that is not there yet and again when it is. (In C, with a store on disk: c_connector.c.)
//
// The "engine" here computes nothing; a real one fills its pages and states, and runs other requests while copies end.

#include <cstdio>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "controller/connector.h"
#include "model/presets.h"

using namespace larder;

int main() {
  ThreadPoolExecutor threads("copy", 2, 1024);
  std::vector<TokenId> prompt(257);
  std::iota(prompt.begin(), prompt.end(), 0u);
  const ModelSpec model = preset_model("gdn-tiny").value();  // KV, and a recurrent state
  const PoolSpec &kv = model.anchor(ComponentKind::kFull), &ssm = model.anchor(ComponentKind::kMamba);
  std::vector<std::byte> pages(4 * kv.page_bytes()), state(ssm.page_bytes());  // the engine's own memory
  std::vector<Segment> segments = {{state.data(), state.size()}};
  for (std::size_t i = 0; i < 4; ++i) segments.push_back({pages.data() + i * kv.page_bytes(), kv.page_bytes()});
  std::vector<PagePlace> places = {{ssm.name, 3, {&segments[0], 1}}};  // the state at point 4 has seen page 3
  for (std::size_t i = 0; i < 4; ++i) places.push_back({kv.name, i, {&segments[i + 1], 1}});

  const auto host = HostPools::create(model, HostLayout::kPageFirst, 64u << 20, host_memory_source()).value();
  const ConnectorParts parts{&model, host.get(), &real_clock(), &threads, nullptr, nullptr, {}};
  const auto connector = Connector::create(ConnectorConfig{}, parts).value();
  const std::vector<std::uint64_t> states = {4};
  for (int turn = 0; turn < 2; ++turn) {
    const LookupId lookup = connector->lookup({.tokens = prompt}).value();
    const LookupResult found = connector->points(lookup).value();  // kOverloaded while a storage is read: poll()
    std::uint64_t reused = 0;
    if (!found.points.empty()) {
      const TransferId load = connector->load({.lookup = lookup, .pages = 4, .places = places}).value();
      while (connector->operations_in_flight() > 0) (void)connector->poll(std::chrono::milliseconds(100));
      if (connector->load_result(load)->status.is_ok()) reused = found.points.back().pages;
    }
    connector->release(lookup);
    // ... the engine computes pages [reused, 4)
    const TransferId save = connector->save({.tokens = prompt, .to = 4, .states = states, .places = places}).value();
    while (connector->operations_in_flight() > 0) (void)connector->poll(std::chrono::milliseconds(100));
    const SaveResult saved = connector->save_result(save).value();
    std::printf("%d of 4 pages reused, %d copied to the host, %d were there\n", static_cast<int>(reused),
                static_cast<int>(saved.new_pages), static_cast<int>(saved.known_pages));
  }
  return 0;
}
