// SPDX-License-Identifier: Apache-2.0
#include "bench/replay.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "bench/bench_cache_world.h"
#include "bench/replay_engine.h"
#include "bench/replay_tiers.h"
#include "config/model_file.h"
#include "engine/options.h"
#include "engine/tenant_file.h"
#include "engine/text_file.h"
#include "model/pool_list.h"
#include "model/presets.h"
#include "server/text_table.h"

namespace larder {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr std::uint32_t kStatesEach = 16;  // on a device that is as large as its requests need
constexpr std::uint32_t kMostSlots = DeviceSlot::kNone - 1;

Result<ModelSpec> model_of_bytes(const ReplayOptions& options) {
  const auto pool = [](PoolName name, ComponentKind c, std::uint32_t rows, std::uint64_t row_bytes) {
    PoolSpec spec{.name = name, .component = c, .is_anchor = true};
    if (c != ComponentKind::kFull) spec.hit_policy = HitPolicy::kTrailingPages;
    spec.layers = {0};
    spec.planes = {{"all", Dtype::kU8, rows, 1, static_cast<std::uint32_t>(row_bytes)}};
    return spec;
  };
  PoolList list{.id = "replay", .page_size = options.page_size};
  list.pools.push_back(pool(PoolName::kKv, ComponentKind::kFull, options.page_size, options.kv_bytes));
  if (options.state_bytes > 0) {
    list.pools.push_back(pool(PoolName::kMamba, ComponentKind::kMamba, 1, options.state_bytes));
  }
  return model_of_pools(std::move(list));
}

std::uint64_t pages_of(std::uint64_t tokens, const ModelSpec& model) {
  return (tokens + model.page_size - 1) / model.page_size;
}

// As many as so many bytes have; none of slots without bytes.
std::uint32_t slots_in(double bytes, double slot_bytes) {
  if (slot_bytes <= 0) return 0;
  return static_cast<std::uint32_t>(std::clamp(bytes / slot_bytes, 0.0, double{kMostSlots}));
}

// What requests of a trace need, in pages.
struct TracePages {
  std::uint64_t longest = 0, all = 0;  // of one request; of all, as if they shared none
};

TracePages pages_of_trace(const ReplayTrace& trace, const ModelSpec& model) {
  TracePages pages;
  for (const auto& request : trace.requests()) {
    const std::uint64_t each = pages_of(request.prompt + request.output, model) + 2;
    pages.longest = std::max(pages.longest, each);
    pages.all += each;
  }
  return pages;
}

// No larger than the requests at once need, but for states that are asked for.
Result<ComponentCounts> least_slots(const ReplayOptions& options, const TracePages& pages, const ModelSpec& model) {
  const std::uint64_t wanted = pages.longest * options.at_once;
  if (wanted > kMostSlots) {
    return invalid_argument("--at-once: so many of the longest request need " + std::to_string(wanted) +
                            " pages on the device, which has " + std::to_string(kMostSlots) + " at most");
  }
  ComponentCounts slots{};
  slots[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(wanted);
  slots[index_of(ComponentKind::kSwa)] =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(window_pages_for(model, options.at_once), kMostSlots));
  if (model.has(ComponentKind::kMamba)) {
    slots[index_of(ComponentKind::kMamba)] =
        options.device_states > 0 ? options.device_states : kStatesEach * options.at_once;
  }
  return slots;
}

// beside: what else has a part of the device by an option of its own; empty: nothing.
Status check_room(const ComponentCounts& slots, const TracePages& pages, const ModelSpec& model,
                  const std::string& beside) {
  const auto check = [&](ComponentKind c, const char* who, std::uint64_t needed, const char* what) {
    const std::uint32_t has = slots[index_of(c)];
    if (has >= needed) return Status::ok();
    return invalid_argument("--device: " + std::string(who) + " needs " + std::to_string(needed) + " pages of " + what +
                            " there, and " + std::to_string(has) + " would fit" + beside);
  };
  LARDER_RETURN_IF_ERROR(check(ComponentKind::kFull, "the longest request of the trace", pages.longest, "KV"));
  if (!model.has(ComponentKind::kSwa)) return Status::ok();
  // As Cache::create() has it.
  const std::uint64_t windows = 2 * std::uint64_t{model.window_pages()} + pages_of(kReplayChunkTokens, model) + 3;
  return check(ComponentKind::kSwa, "one request", windows, "windows");
}

// States first; what they leave is pages and windows. What has no bytes is no limit.
Result<ComponentCounts> slots_of_device(const ReplayOptions& options, const TracePages& pages, const ModelSpec& model) {
  const auto bytes_of = [&](ComponentKind c) {
    return model.has(c) ? static_cast<double>(host_slot_bytes(model, c)) : 0.0;
  };
  const double page = bytes_of(ComponentKind::kFull), state = bytes_of(ComponentKind::kMamba);
  const double page_with_windows = page + window_pages_each(model) * bytes_of(ComponentKind::kSwa);
  double left = options.device_gib * kGib;
  ComponentCounts slots{};
  auto& full = slots[index_of(ComponentKind::kFull)];
  auto& windows = slots[index_of(ComponentKind::kSwa)];
  auto& states = slots[index_of(ComponentKind::kMamba)];
  if (model.has(ComponentKind::kMamba)) {
    const double part = page_with_windows > 0 ? left / 4 : left;
    states = options.device_states > 0 ? options.device_states : slots_in(part, state);
    if (states * state > left) {
      return invalid_argument("--device-states: " + std::to_string(states) + " states have " +
                              bytes_text(static_cast<std::uint64_t>(states * state)) + ", and --device has " +
                              bytes_text(static_cast<std::uint64_t>(left)));
    }
    left -= states * state;
  }
  full = slots_in(left, page_with_windows);
  windows = static_cast<std::uint32_t>(std::ceil(full * window_pages_each(model)));
  if (page == 0) {
    // Below each window and each state may be the pages of the longest request.
    const std::uint64_t used = (std::uint64_t{windows} + states) * pages.longest;
    const std::uint64_t least = pages.longest * options.at_once;
    full = static_cast<std::uint32_t>(std::min<std::uint64_t>(std::max(std::min(used, pages.all), least), kMostSlots));
  }
  const std::string beside = options.device_states > 0 ? " beside the states of --device-states" : "";
  LARDER_RETURN_IF_ERROR(check_room(slots, pages, model, beside));
  return slots;
}

// like: the option of `larder serve` that takes the same words.
Status other_word(const std::string& option, const std::string& text, std::string_view like) {
  return invalid_argument(option + " is '" + text + "': it must be one of " + option_words(like));
}

Result<CacheConfig> cache_config(const ReplayOptions& options) {
  if (options.storage_gib > 0 && options.host_gib == 0) {
    return invalid_argument("--storage is read and written through the host: give --host above 0");
  }
  CacheConfig config;
  const auto policy = parse_eviction_policy(options.policy);
  if (!policy) return other_word("--policy", options.policy, "radix-eviction-policy");
  config.eviction_policy = *policy;
  config.eviction_order = options.order;
  const auto write = parse_write_policy(options.write_policy);
  if (!write) return other_word("--write-policy", options.write_policy, "hicache-write-policy");
  config.write_policy = *write;
  config.exclusive_tiers = options.is_exclusive;
  if (!options.tenant_limits.empty()) {
    Result<TenantLimits> limits = load_tenant_limits(options.tenant_limits);
    if (!limits.is_ok()) return Status(limits.status().code(), "--tenant-limits: " + limits.status().message());
    config.tenant_limits = std::move(*limits);
  }
  config.checkpoint_grid = options.grid;
  config.chunked_prefill_tokens = kReplayChunkTokens;
  config.max_requests = std::max<std::uint32_t>(config.max_requests, options.at_once + 1);
  return config;
}

}  // namespace

std::uint64_t window_pages_for(const ModelSpec& model, std::uint32_t at_once) {
  if (!model.has(ComponentKind::kSwa)) return 0;
  return (model.window_pages() + pages_of(kReplayChunkTokens, model) + 8) * (std::uint64_t{at_once} + 1);
}

double window_pages_each(const ModelSpec& model) {
  return model.has(ComponentKind::kSwa) ? Options{}.swa_full_tokens_ratio : 0;
}

Status check_replay(const ReplayOptions& options) { return cache_config(options).status(); }

Result<ModelSpec> replay_model(const ReplayOptions& options) {
  if (options.model.empty() && options.model_file.empty()) return model_of_bytes(options);
  Result<ModelSpec> model =
      options.model.empty() ? model_of_named_file(options.model_file) : preset_model(options.model);
  if (!model.is_ok()) return model.status();
  ModelSpec sized = std::move(*model);
  sized.page_size = options.page_size;
  LARDER_RETURN_IF_ERROR(finalize_model(sized));
  return sized;
}

Result<ModelSpec> model_of_named_file(const std::string& path) {
  const std::optional<ModelFileFormat> format = model_file_format(path);
  if (!format) return invalid_argument("--model-file: '" + path + "' ends in neither .json nor .toml");
  const Result<std::string> text = read_text_file(real_file_system(), path);
  if (!text.is_ok()) return Status(text.status().code(), "--model-file: " + text.status().message());
  return load_model_file(*text, *format, path);
}

Result<std::vector<ReplaySensitivity>> replay_sensitivity(const ReplayOptions& options) {
  const std::vector<std::pair<const char*, double& (*)(ValueParameters&)>> parameters = {
      {"patience_tokens", [](ValueParameters& p) -> double& { return p.patience_tokens; }},
      {"patience_turnovers", [](ValueParameters& p) -> double& { return p.patience_turnovers; }},
      {"more_uses", [](ValueParameters& p) -> double& { return p.more_uses; }},
      {"fade_tokens", [](ValueParameters& p) -> double& { return p.checkpoints.fade_tokens; }},
      {"unknown_taken", [](ValueParameters& p) -> double& { return p.checkpoints.unknown_taken; }},
      {"unknown_chance", [](ValueParameters& p) -> double& { return p.checkpoints.unknown_chance; }},
      {"unknown_again", [](ValueParameters& p) -> double& { return p.checkpoints.unknown_again; }},
      {"most_taken", [](ValueParameters& p) -> double& { return p.checkpoints.most_taken; }}};
  std::vector<ReplaySensitivity> rows;
  for (const auto& [name, of] : parameters) {
    ReplaySensitivity row{.parameter = name};
    for (const double factor : {0.5, 2.0}) {
      ValueParameters changed;
      of(changed) *= factor;
      ReplayOptions run = options;
      run.order = value_order(changed);
      const Result<ReplayResult> result = run_replay(run);
      if (!result.is_ok()) return result.status();
      (factor < 1 ? row.halved : row.doubled) = result->hit_rate();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::uint64_t ReplayResult::prompt_tokens() const {
  std::uint64_t sum = 0;
  for (const ReplayLine& line : lines) sum += line.prompt;
  return sum;
}

double ReplayResult::hit_rate() const {
  std::uint64_t cached = 0;
  for (const ReplayLine& line : lines) cached += line.device + line.host + line.storage;
  const std::uint64_t all = prompt_tokens();
  return all == 0 ? 0 : static_cast<double>(cached) / static_cast<double>(all);
}

std::map<std::string, double> ReplayResult::hit_rates_of_tenants() const {
  std::map<std::string, std::array<std::uint64_t, 2>> tokens;  // cached, all
  for (const ReplayLine& line : lines) {
    std::array<std::uint64_t, 2>& of = tokens[line.tenant];
    of[0] += line.device + line.host + line.storage;
    of[1] += line.prompt;
  }
  std::map<std::string, double> rates;
  for (const auto& [tenant, of] : tokens) {
    rates[tenant] = static_cast<double>(of[0]) / static_cast<double>(std::max<std::uint64_t>(of[1], 1));
  }
  return rates;
}

Result<ReplayResult> run_replay(const ReplayOptions& options) {
  const Result<ReplayTrace> trace = ReplayTrace::read(options.trace, options.block_tokens, options.limit);
  if (!trace.is_ok()) return trace.status();
  const Result<ModelSpec> model = replay_model(options);
  if (!model.is_ok()) return model.status();
  return run_replay(options, *trace, *model);
}

Result<ReplayResult> run_replay(const ReplayOptions& options, const ReplayTrace& trace, const ModelSpec& model) {
  const Result<CacheConfig> config = cache_config(options);
  if (!config.is_ok()) return config.status();
  const TracePages pages = pages_of_trace(trace, model);
  const Result<ComponentCounts> slots =
      options.device_gib > 0 ? slots_of_device(options, pages, model) : least_slots(options, pages, model);
  if (!slots.is_ok()) return slots.status();

  sim::SimClock clock;
  const std::unique_ptr<MemorySource> memory = no_memory();
  const Result<std::unique_ptr<DevicePools>> device = DevicePools::create(model, *slots, *memory);
  if (!device.is_ok()) return device.status();
  const auto host_bytes = static_cast<std::uint64_t>(options.host_gib * kGib);
  std::unique_ptr<HostPools> host;
  if (host_bytes > 0) {
    Result<std::unique_ptr<HostPools>> made = HostPools::create(model, HostLayout::kPageFirst, host_bytes, *memory);
    if (!made.is_ok()) return Status(made.status().code(), "--host: " + made.status().message());
    host = std::move(*made);
  }
  ReplayTransfer transfer(model, clock, options.link_gbps * 1e9);
  const auto storage_bytes = static_cast<std::uint64_t>(options.storage_gib * kGib);
  ReplayStorage storage(clock, storage_bytes, options.storage_gbps * 1e9);
  CacheParts parts;
  parts.model = &model;
  parts.device = device->get();
  parts.host = host.get();
  parts.transfer = &transfer;
  parts.clock = &clock;
  Result<std::unique_ptr<Cache>> cache = Cache::create(*config, parts);
  if (!cache.is_ok()) return cache.status();
  if (storage_bytes > 0) LARDER_RETURN_IF_ERROR((*cache)->attach_storage(storage));

  ReplayResult result;
  result.model = model.id;
  result.page_bytes = host_slot_bytes(model, ComponentKind::kFull);
  if (model.has(ComponentKind::kMamba)) result.checkpoint_bytes = host_slot_bytes(model, ComponentKind::kMamba);
  for (const ComponentKind c : kAllComponents) {
    if (model.has(c)) result.tier_bytes[0] += std::uint64_t{(*slots)[index_of(c)]} * host_slot_bytes(model, c);
  }
  result.tier_bytes[1] = host_bytes;
  result.tier_bytes[2] = storage_bytes;
  const TimePoint begin = real_clock().now();
  LARDER_RETURN_IF_ERROR(ReplayEngine(options, trace, **cache, clock, result).run());
  result.seconds = std::chrono::duration<double>(real_clock().now() - begin).count();
  result.moved_down = transfer.down_bytes();
  result.moved_up = transfer.up_bytes();
  result.stored = storage.written_bytes();
  result.fetched = storage.read_bytes();
  result.floors_broken = (*cache)->counters().floors_broken;
  return result;
}

}  // namespace larder
