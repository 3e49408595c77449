// SPDX-License-Identifier: Apache-2.0
#include "server/api_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/parse_number.h"
#include "engine/option_table.h"
#include "server/masked_config.h"
#include "server/version.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

Json cached_json(const CachedTokens& cached) {
  return {{"device", cached.device}, {"host", cached.host}, {"storage", cached.storage}, {"total", cached.cached()}};
}

Json counters_json(const CacheCounters& c) {
  return {{"backed_up_pages", c.backed_up},
          {"host_resident_pages", c.host_resident},
          {"host_evicted_pages", c.host_evicted},
          {"host_flushed_pages", c.host_flushed},
          {"host_lost_pages", c.host_lost},
          {"prefetched_pages", c.prefetched},
          {"loaded_back_pages", c.loaded_back},
          {"stored_pages", c.stored},
          {"store_failed_pages", c.store_failed},
          {"store_declined_pages", c.store_declined},
          {"store_waits", c.store_waits},
          {"retracted", c.retracted},
          {"floors_broken", c.floors_broken},
          {"prefetch_late", c.prefetch_late},
          {"prefetch_partial", c.prefetch_partial},
          {"prefetch_refused", c.prefetch_refused},
          {"prefetch_shared", c.prefetch_shared},
          {"backup_no_room", c.backup_no_room},
          {"rank_timeouts", c.rank_timeouts},
          {"internal_errors", c.internal_errors},
          {"corrupt_pages", c.corrupt}};
}

Json storage_json(const BackendStats& s) {
  return {{"pages", s.pages},
          {"bytes", s.bytes},
          {"physical_bytes", s.physical_bytes},
          {"reads", s.reads},
          {"read_hits", s.read_hits},
          {"read_misses", s.read_misses},
          {"read_errors", s.read_errors},
          {"writes", s.writes},
          {"write_errors", s.write_errors},
          {"duplicate_writes", s.duplicate_writes},
          {"corrupt", s.corrupt},
          {"evicted", s.evicted},
          {"torn_tails", s.torn_tails},
          {"queued", s.queued},
          {"declined", s.declined},
          {"moved", s.moved},
          {"written_bytes", s.written_bytes},
          {"capacity_bytes", s.capacity_bytes},
          {"segments", s.segments},
          {"suspended_volumes", s.suspended_volumes}};
}

Json health_json(const PipelineHealth& health) {
  const auto seconds = [](Nanos time) { return std::chrono::duration<double>(time).count(); };
  Json breakers = Json::object(), lanes = Json::object();
  for (std::size_t i = 0; i < health.breakers.size(); ++i) {
    const PipelineHealth::Breaker& b = health.breakers[i];
    const bool is_closed = b.state == CircuitBreaker::State::kClosed;
    breakers[std::string(direction_name(static_cast<Direction>(i)))] = {
        {"state", is_closed                                 ? "closed"
                  : b.state == CircuitBreaker::State::kOpen ? "open"
                                                            : "half_open"},
        {"consecutive_failures", b.consecutive_failures},
        {"opens", b.opens},
        {"seconds_until_probe", seconds(b.until_probe)},
        {"last_error", b.last_error}};
  }
  for (std::size_t i = 0; i < health.lanes.size(); ++i) {
    const PipelineHealth::LaneState& lane = health.lanes[i];
    Json queued = Json::object();
    for (std::size_t u = 0; u < lane.queued.size(); ++u) {
      queued[std::string(urgency_name(static_cast<Urgency>(u)))] = lane.queued[u];
    }
    lanes[std::string(lane_name(static_cast<Lane>(i)))] = {{"queued", std::move(queued)},
                                                           {"in_flight", lane.in_flight},
                                                           {"in_flight_bytes", lane.in_flight_bytes},
                                                           {"slow", lane.slow},
                                                           {"oldest_seconds", seconds(lane.oldest_in_flight)},
                                                           {"service_p50_seconds", seconds(lane.service_p50)},
                                                           {"service_p99_seconds", seconds(lane.service_p99)},
                                                           {"ended", lane.ended},
                                                           {"failed", lane.failed},
                                                           {"refused", lane.refused}};
  }
  return {{"backend", health.backend},
          {"breakers", std::move(breakers)},
          {"lanes", std::move(lanes)},
          {"negative_entries", health.negative_entries},
          {"negative_hits", health.negative_hits}};
}

Json tiers_json(const SchedulerStats& stats) {
  Json tiers = Json::array();
  for (const TierUsage& tier : stats.tiers) {
    tiers.push_back({{"tier", tier.tier},
                     {"component", tier.component},
                     {"slots", tier.slots},
                     {"capacity", tier.capacity},
                     {"bytes", tier.bytes},
                     {"capacity_bytes", tier.capacity_bytes}});
  }
  return tiers;
}

// Every option under its field name.
void add_options(const Options& options, Json& out) {
  for (const OptionEntry& entry : option_table()) {
    if (std::holds_alternative<Negated>(entry.field)) continue;
    std::string name(entry.info.name);
    std::replace(name.begin(), name.end(), '-', '_');
    std::visit(
        [&](auto member) {
          if constexpr (!std::is_same_v<decltype(member), Negated>) out[name] = options.*member;
        },
        entry.field);
  }
}

// Host and port of tcp://HOST:PORT.
std::optional<std::pair<std::string, std::uint16_t>> tcp_address(std::string_view endpoint) {
  constexpr std::string_view kScheme = "tcp://";
  const std::size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with(kScheme) || colon < kScheme.size()) return std::nullopt;
  const std::optional<std::uint16_t> port = parse_number<std::uint16_t>(endpoint.substr(colon + 1));
  if (!port) return std::nullopt;
  return std::pair(std::string(endpoint.substr(kScheme.size(), colon - kScheme.size())), *port);
}

// As SGLang's: null where routers cannot connect by the name of this server. A wildcard stands for that name.
Json kv_events_json(const KvEventsView& events, std::uint32_t page_size) {
  const auto address = tcp_address(events.endpoint);
  if (!address) return nullptr;
  Json out = {{"publisher", "zmq"},    {"endpoint_host", address->first}, {"endpoint_port_base", address->second},
              {"topic", events.topic}, {"block_size", page_size},         {"dp_size", 1}};
  if (const auto replay = tcp_address(events.replay_endpoint)) out["replay_endpoint_port_base"] = replay->second;
  return out;
}

Json pools_json(const ModelSpec& model) {
  Json pools = Json::array();
  for (const PoolSpec& pool : model.pools) {
    pools.push_back({{"name", pool_name(pool.name)},
                     {"component", component_name(pool.component)},
                     {"is_anchor", pool.is_anchor},
                     {"hit_policy", hit_policy_name(pool.hit_policy)},
                     {"page_bytes", pool.page_bytes()}});
  }
  return pools;
}

}  // namespace

std::string served_name(const Options& options, const ModelSpec& model) {
  return options.served_model_name.empty() ? model.id : options.served_model_name;
}

Json models_json(const Options& options, const ModelSpec& model, std::int64_t created) {
  Json entry = {{"id", served_name(options, model)},
                {"object", "model"},
                {"created", created},
                {"owned_by", "larder"},
                {"root", model.id},
                {"max_model_len", model.context_length}};
  return {{"object", "list"}, {"data", Json::array({std::move(entry)})}};
}

Json model_info_json(const Options& options, const ModelSpec& model) {
  return {{"model_path", options.model},
          {"tokenizer_path", "bytes"},
          {"served_model_name", served_name(options, model)},
          {"is_generation", true},
          {"preferred_sampling_params", nullptr},
          {"weight_version", model.revision},
          {"vocab_size", model.vocab_size},
          {"context_length", model.context_length},
          {"page_size", model.page_size},
          {"pools", pools_json(model)}};
}

Json server_info_json(const Options& options, const ModelSpec& model, const SchedulerStats& stats) {
  Json info;
  add_options(options, info);
  info["page_size"] = model.page_size;
  info["context_length"] = model.context_length;
  info["served_model_name"] = served_name(options, model);
  // What an attach or a detach has changed since the start.
  const StorageView& storage = stats.storage_in_force;
  info["hicache_storage_backend"] = storage.backend.empty() ? Json(nullptr) : Json(storage.backend);
  info["hicache_storage_prefetch_policy"] = storage.prefetch_policy;
  info["hicache_write_policy"] = storage.write_policy;
  info["version"] = kLarderVersion;
  Json state = {{"num_running_reqs", stats.running},
                {"num_queue_reqs", stats.queued},
                {"prompt_tokens", stats.prompt_tokens},
                {"completion_tokens", stats.completion_tokens},
                {"cached_tokens", cached_json(stats.cached)},
                {"tiers", tiers_json(stats)},
                {"cache", counters_json(stats.cache)},
                {"storage", stats.storage ? storage_json(*stats.storage) : Json(nullptr)},
                {"storage_health", stats.storage_health ? health_json(*stats.storage_health) : Json(nullptr)},
                {"storage_retired", stats.storage_retired}};
  info["internal_states"] = Json::array({std::move(state)});
  info["kv_events"] = stats.kv_events ? kv_events_json(*stats.kv_events, model.page_size) : Json(nullptr);
  mask_secrets(info);
  // A text of many options, whose secrets it has to itself.
  info["hicache_storage_backend_extra_config"] = masked_config(storage.backend, storage.extra_config);
  return info;
}

std::string explain_sentence(const Explanation& e, std::uint32_t page_size) {
  const std::uint64_t device = e.device_restore_pages;
  const std::uint64_t host = std::max(device, e.host_restore_pages);
  const std::uint64_t storage = std::max(host, e.storage_restore_pages);
  std::string out = fmt::format("{} of {} prompt tokens can be reused: {} from the device", storage * page_size,
                                e.prompt_tokens, device * page_size);
  out += fmt::format(", {} more from the host, {} more from storage.", (host - device) * page_size,
                     (storage - host) * page_size);
  std::string reason = e.has_storage_answer ? e.storage_reason : e.host_reason;
  if (!e.has_storage_answer && !e.storage_reason.empty()) reason += "; " + e.storage_reason;
  if (!reason.empty() && storage < e.prompt_pages) out += " It ends there because " + reason;
  if (!out.ends_with('.')) out += '.';
  return out;
}

Json explain_json(const Explanation& e, std::uint32_t page_size) {
  Json pools = Json::array();
  for (const ExplainLine& line : e.pools) {
    pools.push_back({{"component", line.component},
                     {"pool", line.pool},
                     {"device_pages", line.device_pages},
                     {"host_pages", line.host_pages},
                     {"storage_pages", line.storage_pages},
                     {"restore_pages", line.restore_pages}});
  }
  Json restore = {{"device", {{"pages", e.device_restore_pages}, {"reason", e.device_reason}}},
                  {"host", {{"pages", e.host_restore_pages}, {"reason", e.host_reason}}},
                  {"storage", {{"pages", e.storage_restore_pages}, {"reason", e.storage_reason}}}};
  return {{"prompt_tokens", e.prompt_tokens},
          {"prompt_pages", e.prompt_pages},
          {"page_size", page_size},
          {"restore", std::move(restore)},
          {"pools", std::move(pools)},
          {"storage_status", e.storage_status.to_string()},
          {"why", explain_sentence(e, page_size)}};
}

}  // namespace larder
