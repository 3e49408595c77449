// SPDX-License-Identifier: Apache-2.0
// The connector door: a Connector (controller/connector.h) with all that it works with, for a model that is described
// by a list of pools. What include/larder/larder.h exports, in C++.
//
//   ALL_PAGES                  component full; the first such pool is its anchor
//   TRAILING_PAGES, n > 1      component swa, a window of n pages; n is the same for all
//   TRAILING_PAGES, n == 1     component mamba, a state
//
// Pools get numbers of model/pool_spec.h by their component and order; their names and layout texts are part of the
// namespace, so that models that differ in them share no page.
//
// Threads: as the connector: one at a time, but for wake().
// Lifetime: a store outlives its attachment. The destructor is for one that close() has ended, or that was never
// attached: it does not wait for storage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "controller/connector.h"
#include "door/page_space.h"
#include "door/page_store.h"
#include "door/real_event_bell.h"
#include "model/model_spec.h"
#include "pool/host_pools.h"

namespace larder {

// The model behind a description, and which pool of it is which.
struct EngineModel {
  ModelSpec spec;
  std::vector<PoolName> numbers;  // by index in the description
  // kInvalidArgument, as PageSpace::create(); kUnsupported: windows of different lengths, more than kPoolNameCount
  // pools, or no pool with ALL_PAGES.
  [[nodiscard]] static Result<EngineModel> create(const SpaceDescription& description);
  // Precondition: a pool of the model.
  [[nodiscard]] std::size_t index_of(PoolName pool) const;
};

struct EngineConnectorOptions {
  SpaceDescription model;  // its adapter and salt do not count
  std::uint64_t host_bytes = 0;
  std::uint32_t copy_threads = 2;
  ConnectorConfig config{};
  KvEventSink* events = nullptr;  // is told of pages that come to the host or leave it; may be null; outlives the door
};

class EngineConnector {
 public:
  [[nodiscard]] static Result<std::unique_ptr<EngineConnector>> open(const EngineConnectorOptions& options);

  [[nodiscard]] Connector& connector() { return *connector_; }
  [[nodiscard]] const Connector& connector() const { return *connector_; }
  [[nodiscard]] const EngineModel& model() const { return model_; }
  [[nodiscard]] const HostPools& host() const { return *host_; }
  // Detaches and waits until nobody uses the host memory. kDeadlineExceeded: storage does; close() may be called again.
  // Afterwards there is only the destructor.
  [[nodiscard]] Status close(Nanos limit);
  // EventBell::descriptor() of the bell that the connector rings.
  [[nodiscard]] Result<int> descriptor() { return bell_->descriptor(); }
  [[nodiscard]] std::string stats_json() const;
  [[nodiscard]] std::string metrics_text();  // Prometheus; of a store beside it: PageStore::metrics_text()

 private:
  EngineConnector() = default;
  [[nodiscard]] bool is_host_in_use() const;

  EngineModel model_;
  MetricsRegistry metrics_;
  const std::shared_ptr<EventBell> bell_ = std::make_shared<EventBell>();
  std::unique_ptr<HostPools> host_;
  std::unique_ptr<ThreadPoolExecutor> threads_;
  std::unique_ptr<Connector> connector_;  // before the threads end: its copies run on them
};

}  // namespace larder
