#include "server/llama/completion_front.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace larder::llama {

HttpResponse json_response(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

std::string front_url(const std::string& host, std::uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", is_ipv6 ? "[" + host + "]" : host, port);
}

std::string describe_pages(const SlotFormat& format) {
  const BlobGeometry& geometry = format.geometry;
  std::string text = fmt::format("pages of {} tokens", format.page_size());
  if (geometry.full) text += fmt::format(" ({} bytes)", geometry.full->page_bytes(format.page_size()));
  if (geometry.window) text += fmt::format(", windows of {} tokens", geometry.window_tokens);
  if (geometry.recurrent) text += fmt::format(", states of {} bytes", geometry.recurrent->checkpoint_bytes());
  return text;
}

void add_tiers(nlohmann::ordered_json& status, const PrefixStoreCounters& counters) {
  const CacheCounters& tiers = counters.tiers;
  status["host"] = {{"bytes", counters.host_blocks * counters.block_bytes},
                    {"bytes_free", counters.host_blocks_free * counters.block_bytes},
                    {"pages_saved", tiers.backed_up},
                    {"pages_loaded", tiers.loaded_back},
                    {"pages_resident", tiers.host_resident},
                    {"pages_evicted", tiers.host_evicted}};
  status["storage"] = {{"pages_stored", tiers.stored}, {"pages_fetched", tiers.prefetched}, {"corrupt", tiers.corrupt}};
  status["backend"] = nlohmann::ordered_json::parse(counters.storage_json, nullptr, false);
}

void export_tiers(MetricsRegistry& registry, std::string_view prefix, const PrefixStoreCounters& counters) {
  const auto set = [&](std::string_view name, const char* help, std::uint64_t value) {
    registry.gauge(fmt::format("{}_{}", prefix, name), help).set(static_cast<double>(value));
  };
  set("host_bytes", "Host memory for prefixes.", counters.host_blocks * counters.block_bytes);
  set("host_free_bytes", "Host memory for prefixes that is not used.",
      counters.host_blocks_free * counters.block_bytes);
  set("host_pages", "Pages on the host.", counters.tiers.host_resident);
  const auto count = [&](std::string_view name, const char* help, std::uint64_t total) {
    registry.counter(fmt::format("{}_{}", prefix, name), help).rise_to(total);
  };
  count("host_evicted_pages_total", "Pages that left the host.", counters.tiers.host_evicted);
  count("stored_pages_total", "Pages that storage took.", counters.tiers.stored);
  count("corrupt_pages_total", "Pages of storage that failed verification.", counters.tiers.corrupt);
}

std::string storage_metrics(const PrefixStoreCounters& counters) {
  std::string text = counters.storage_metrics;
  const std::size_t begin = text.find("# HELP larder_metrics_refused_total ");
  if (begin == std::string::npos) return text;
  std::size_t end = begin;
  for (int line = 0; line < 3 && end < text.size(); ++line) end = text.find('\n', end) + 1;  // HELP, TYPE, sample
  text.erase(begin, end - begin);
  return text;
}

}  // namespace larder::llama
