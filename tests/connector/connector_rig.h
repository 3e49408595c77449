// SPDX-License-Identifier: Apache-2.0
// A connector over host pools, without storage at first, and calls that an engine makes of it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/thread_pool.h"
#include "controller/connector.h"
#include "sim/faulty_backend.h"
#include "sim/sim_clock.h"
#include "sim/world/small_models.h"
#include "tests/connector/engine_memory.h"

namespace larder::connector_test {

struct RigOptions {
  HostLayout layout = HostLayout::kPageFirst;
  std::size_t host_bytes = std::size_t{4} << 20;
  ConnectorConfig config{};
  RankGroup* ranks = nullptr;
  std::uint32_t copy_threads = 0;              // real ones; 0: none
  std::optional<std::uint64_t> copies_seed{};  // copies wait until the test runs them, in an order of this seed
};

// simulated_model(), or "recurrent": recurrent_model().
[[nodiscard]] ModelSpec rig_model(const std::string& name);

// A storage in memory that outlives connectors. Its work waits until the test runs it, in an order of a seed.
class Storage {
 public:
  explicit Storage(std::uint64_t seed, const sim::FaultPlan& plan = {});
  ~Storage();
  // False: nothing was left to do.
  bool run();
  sim::SimClock clock;
  ManualExecutor executor;
  std::unique_ptr<sim::FaultyBackend> backend;
};

class Rig {
 public:
  explicit Rig(const std::string& model, const RigOptions& options = {});
  ~Rig();

  // Saves [from, to) of what the engine computed, and waits for the end.
  SaveResult save(const Tokens& tokens, std::uint64_t from, std::uint64_t to, std::uint64_t window_pages,
                  const std::vector<std::uint64_t>& states, const std::string& tenant = "");
  // All of it in one save: window of the end, state at the end.
  SaveResult save_all(const Tokens& tokens, std::uint64_t to, const std::string& tenant = "");
  // Looks up, and waits for the points. `id` stays open.
  LookupResult look_up(const Tokens& tokens, LookupId& id, EngineHas has = {}, const std::string& tenant = "");
  // The pages of the last point of a lookup that is closed again; 0: none.
  std::uint64_t hit(const Tokens& tokens, const std::string& tenant = "");
  // Loads a point into fresh memory and compares it. "": it holds what it should.
  std::string load(LookupId id, const LoadPoint& point, const Tokens& tokens, const std::string& tenant = "");
  void settle();  // until nothing is under way; time passes where a retry waits for it
  void attach(Storage& to);
  bool run_storages();

  [[nodiscard]] PageNeeds needs_of(const LoadPoint& point) const;
  [[nodiscard]] std::uint64_t pages_in(const Tokens& tokens) const { return tokens.size() / model.page_size; }
  // Tokens for `pages` whole pages and one more token.
  [[nodiscard]] Tokens prompt(std::uint64_t seed, std::uint64_t pages) const {
    return tokens_from(seed, pages * model.page_size + 1);
  }

  const ModelSpec model;
  const RigOptions options;
  sim::SimClock clock;
  std::unique_ptr<HostPools> host;
  std::unique_ptr<ManualExecutor> copies;
  std::unique_ptr<ThreadPoolExecutor> threads;
  std::vector<Storage*> storages;  // that were attached; the last one may be now
  std::unique_ptr<Connector> connector;
};

// Pages up to the longest restore point that was found.
inline std::uint64_t last_of(const LookupResult& result) {
  return result.points.empty() ? 0 : result.points.back().pages;
}

}  // namespace larder::connector_test
