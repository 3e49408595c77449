// SPDX-License-Identifier: Apache-2.0
#include "door/connector_metrics.h"

namespace larder {

namespace {

void export_host(MetricsRegistry& registry, const Connector& connector, const HostPools& host) {
  const auto set = [&](const char* name, const char* help, std::uint64_t blocks) {
    registry.gauge(name, help, {{"tier", "host"}, {"component", "all"}})
        .set(static_cast<double>(blocks) * static_cast<double>(host.block_bytes()));
  };
  const std::uint64_t total = host.total_blocks();
  set("larder_tier_used_bytes", "Bytes in use, by tier and component", total - host.free_blocks());
  set("larder_tier_capacity_bytes", "Bytes there are (host: shared by its components)", total);
  registry.gauge("larder_connector_leased_bytes", "Host memory that leases keep; what several share counts for each")
      .set(static_cast<double>(connector.leased_blocks()) * static_cast<double>(host.block_bytes()));
  registry.gauge("larder_host_pages", "KV pages on the host")
      .set(static_cast<double>(connector.counters().host_resident));
}

}  // namespace

void export_connector(MetricsRegistry& registry, const Connector& connector, const HostPools& host) {
  const CacheCounters c = connector.counters();
  const auto count = [&](const char* name, const char* help, std::uint64_t total) {
    registry.counter(name, help).rise_to(total);
  };
  count("larder_connector_saved_pages_total", "KV pages that were saved to the host", c.backed_up);
  count("larder_connector_loaded_pages_total", "KV pages that were loaded from the host", c.loaded_back);
  count("larder_connector_fetched_pages_total", "KV pages that came from storage to the host", c.prefetched);
  count("larder_host_evicted_pages_total", "KV pages that left the host to make room", c.host_evicted);
  count("larder_host_flushed_pages_total", "KV pages that a flush dropped from the host", c.host_flushed);
  count("larder_stored_pages_total", "KV pages written to storage", c.stored);
  count("larder_store_failed_pages_total", "KV pages that storage did not take", c.store_failed);
  count("larder_store_declined_pages_total", "KV pages that storage's admission declined", c.store_declined);
  count("larder_store_waits_total", "Polls for which room waited for a slow storage", c.store_waits);
  count("larder_prefetch_late_total", "Lookups that stopped waiting for storage", c.prefetch_late);
  count("larder_prefetch_refused_total", "Prefetches that found no host capacity, or no place to read",
        c.prefetch_refused);
  count("larder_corrupt_pages_total", "Stored pages that failed verification", c.corrupt);
  count("larder_internal_errors_total", "Refused internal calls: defects", c.internal_errors);
  export_host(registry, connector, host);
}

// A store's text is mostly before it. (A connector's few series never fill a registry.)
std::string text_beside_others(const MetricsRegistry& registry) {
  std::string text = registry.render();
  const std::size_t begin = text.find("# HELP larder_metrics_refused_total ");
  if (begin == std::string::npos) return text;
  std::size_t end = begin;
  for (int line = 0; line < 3 && end < text.size(); ++line) end = text.find('\n', end) + 1;  // HELP, TYPE, sample
  return text.erase(begin, end - begin);
}

}  // namespace larder
