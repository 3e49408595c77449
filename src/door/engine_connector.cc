// SPDX-License-Identifier: Apache-2.0
#include "door/engine_connector.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "door/connector_metrics.h"
#include "key/field_hasher.h"
#include "model/pool_list.h"

namespace larder {

namespace {

constexpr std::size_t kCopyQueue = 65'536;
constexpr std::uint64_t kMostWindowTokens = std::uint64_t{1} << 30;
constexpr Nanos kCloseLook = std::chrono::milliseconds(20);

ComponentKind component_of(const PoolDescription& pool) {
  if (pool.policy == HitPolicy::kAllPages) return ComponentKind::kFull;
  return pool.trailing_pages == 1 ? ComponentKind::kMamba : ComponentKind::kSwa;
}

PoolName anchor_name(ComponentKind c) {
  switch (c) {
    case ComponentKind::kFull: return PoolName::kKv;
    case ComponentKind::kSwa: return PoolName::kSwa;
    case ComponentKind::kMamba: break;
  }
  return PoolName::kMamba;
}

// What the pools' numbers do not say of them.
std::string digest_of_pools(const SpaceDescription& description) {
  FieldHasher hash;
  hash.text("larder.engine_model.v1");
  hash.number(description.pools.size());
  for (const PoolDescription& pool : description.pools) {
    hash.text(pool.name);
    hash.number(pool.page_bytes);
    hash.text(pool.layout);
    hash.number(pool.policy == HitPolicy::kAllPages ? 0 : pool.trailing_pages);
    hash.text(pool.is_replicated ? "replicated" : "per_rank");
  }
  return hash.finish().hex();
}

PoolSpec spec_of(const PoolDescription& pool, PoolName name, bool is_anchor) {
  PoolSpec spec;
  spec.name = name;
  spec.engine_name = pool.name;
  spec.component = component_of(pool);
  spec.is_anchor = is_anchor;
  spec.hit_policy = pool.policy;
  spec.scope = pool.is_replicated ? RankScope::kReplicated : RankScope::kPerRank;
  spec.layers = {0};
  if (pool.page_bytes > 0) {
    spec.planes.push_back({.name = "bytes",
                           .dtype = Dtype::kU8,
                           .rows = 1,
                           .heads = 1,
                           .head_dim = static_cast<std::uint32_t>(pool.page_bytes)});
  }
  return spec;
}

}  // namespace

Result<EngineModel> EngineModel::create(const SpaceDescription& description) {
  LARDER_ASSIGN_OR_RETURN(const PageSpace checked, PageSpace::create(description));
  if (description.pools.size() > kPoolNameCount) {
    return unsupported("a connector's model has at most " + std::to_string(kPoolNameCount) + " pools, not " +
                       std::to_string(description.pools.size()));
  }
  EngineModel model;
  PoolList list{.id = "connector", .revision = digest_of_pools(description), .page_size = description.page_size};
  std::array<std::optional<std::size_t>, kComponentCount> anchors;
  for (std::size_t i = 0; i < description.pools.size(); ++i) {
    const PoolDescription& pool = description.pools[i];
    std::optional<std::size_t>& anchor = anchors[larder::index_of(component_of(pool))];
    if (!anchor) anchor = i;
    if (component_of(pool) == ComponentKind::kSwa && pool.trailing_pages != description.pools[*anchor].trailing_pages) {
      return unsupported("pools '" + description.pools[*anchor].name + "' and '" + pool.name +
                         "' have windows of different lengths; a connector has room for one");
    }
  }
  if (const auto& window = anchors[larder::index_of(ComponentKind::kSwa)]) {
    const std::uint64_t tokens = std::uint64_t{description.pools[*window].trailing_pages} * description.page_size;
    if (tokens > kMostWindowTokens) return unsupported("a window of " + std::to_string(tokens) + " tokens");
    list.window = static_cast<std::uint32_t>(tokens);
  }
  std::uint8_t next = 0;  // numbers of sidecars: those that are no anchor's
  for (std::size_t i = 0; i < description.pools.size(); ++i) {
    const ComponentKind c = component_of(description.pools[i]);
    if (anchors[larder::index_of(c)] == i) {
      model.numbers.push_back(anchor_name(c));
      continue;
    }
    const auto is_anchors = [](std::uint8_t number) {
      return std::any_of(kAllComponents.begin(), kAllComponents.end(),
                         [&](ComponentKind k) { return anchor_name(k) == static_cast<PoolName>(number); });
    };
    while (is_anchors(next)) ++next;
    if (next >= kPoolNameCount) return unsupported("a connector has room for 20 pools beside the first of each kind");
    model.numbers.push_back(static_cast<PoolName>(next++));
  }
  for (std::size_t i = 0; i < description.pools.size(); ++i) {
    const bool is_anchor = anchors[larder::index_of(component_of(description.pools[i]))] == i;
    list.pools.push_back(spec_of(description.pools[i], model.numbers[i], is_anchor));
  }
  LARDER_ASSIGN_OR_RETURN(model.spec, model_of_pools(std::move(list)));
  model.spec.id = description.identity;  // of any length: it is hashed
  return model;
}

std::size_t EngineModel::index_of(PoolName pool) const {
  return static_cast<std::size_t>(std::find(numbers.begin(), numbers.end(), pool) - numbers.begin());
}

Result<std::unique_ptr<EngineConnector>> EngineConnector::open(const EngineConnectorOptions& options) {
  LARDER_RETURN_IF_ERROR(validate_config(options.config));
  LARDER_ASSIGN_OR_RETURN(EngineModel model, EngineModel::create(options.model));
  std::unique_ptr<EngineConnector> out(new EngineConnector());
  out->model_ = std::move(model);
  auto host = HostPools::create(out->model_.spec, HostLayout::kPageFirst, options.host_bytes, host_memory_source());
  if (!host.is_ok()) return Status(host.status().code(), "host_bytes: " + host.status().message());
  out->host_ = std::move(host).value();
  out->threads_ = std::make_unique<ThreadPoolExecutor>("larder-copy", options.copy_threads, kCopyQueue);
  ConnectorParts parts;
  parts.model = &out->model_.spec;
  parts.host = out->host_.get();
  parts.clock = &real_clock();
  parts.executor = out->threads_.get();
  parts.metrics = &out->metrics_;
  parts.events = options.events;
  parts.bell = out->bell_;
  const SpaceDescription& d = options.model;
  parts.scope = {.tp_rank = d.tp_rank,
                 .tp_size = d.tp_size,
                 .pp_rank = d.pp_rank,
                 .pp_size = d.pp_size,
                 .cp_rank = d.cp_rank,
                 .cp_size = d.cp_size};
  LARDER_ASSIGN_OR_RETURN(out->connector_, Connector::create(options.config, parts));
  return out;
}

// What storage works on is leased, and so is what a load reads. Saves are operations. (One that has failed lets no
// lease go, and counts all of these.)
bool EngineConnector::is_host_in_use() const {
  if (connector_->has_failed()) return connector_->operations_in_flight() > 0;
  return connector_->operations_in_flight() > 0 ||
         std::any_of(kAllComponents.begin(), kAllComponents.end(),
                     [this](ComponentKind c) { return host_->counts(c).leases > 0; });
}

Status EngineConnector::close(Nanos limit) {
  if (!connector_) return Status::ok();
  connector_->detach_storage();
  const TimePoint deadline = real_clock().now() + limit;
  while (is_host_in_use()) {
    if (real_clock().now() >= deadline) {
      return deadline_exceeded(
          "copies or storage still work on the host memory of the connector; close it again later");
    }
    (void)connector_->poll(kCloseLook);
  }
  connector_.reset();
  threads_.reset();
  host_.reset();
  return Status::ok();
}

std::string EngineConnector::stats_json() const {
  const CacheCounters c = connector_->counters();
  const nlohmann::json out = {{"saved", c.backed_up},
                              {"loaded", c.loaded_back},
                              {"host_resident", c.host_resident},
                              {"host_evicted", c.host_evicted},
                              {"host_flushed", c.host_flushed},
                              {"prefetched", c.prefetched},
                              {"stored", c.stored},
                              {"store_failed", c.store_failed},
                              {"store_declined", c.store_declined},
                              {"prefetch_late", c.prefetch_late},
                              {"prefetch_refused", c.prefetch_refused},
                              {"corrupt", c.corrupt},
                              {"store_waits", c.store_waits},
                              {"leased_blocks", connector_->leased_blocks()},
                              {"host_blocks", host_->total_blocks()},
                              {"host_blocks_free", host_->free_blocks()},
                              {"internal_errors", c.internal_errors}};
  return out.dump();
}

std::string EngineConnector::metrics_text() {
  export_connector(metrics_, *connector_, *host_);
  return text_beside_others(metrics_);
}

}  // namespace larder
