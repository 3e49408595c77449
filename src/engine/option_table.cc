// SPDX-License-Identifier: Apache-2.0
#include "engine/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/nearest_word.h"
#include "engine/sglang_options.h"

namespace larder {
namespace {

constexpr std::array<std::string_view, 3> kWritePolicies = {"write_through", "write_through_selective", "write_back"};
constexpr std::array<std::string_view, 3> kPrefetchPolicies = {"best_effort", "wait_complete", "timeout"};
constexpr std::array<std::string_view, 4> kLayouts = {"page_first", "page_first_direct", "page_head", "layer_first"};
constexpr std::array<std::string_view, 8> kEvictionPolicies = {"lru", "lfu",  "slru",     "fifo",
                                                               "mru", "filo", "priority", "value"};
constexpr std::array<std::string_view, 5> kLogLevels = {"debug", "info", "warning", "error", "off"};
constexpr std::array<std::string_view, 2> kLogFormats = {"text", "json"};

// What a table of this process may be asked to hold. Far above any machine; low enough that no product overflows.
constexpr double kMaxTokens = 1e9;
constexpr double kMaxRequests = 65'536;
constexpr double kMaxConnections = 65'535;
constexpr double kMaxThreads = 256;
constexpr double kMaxGigabytes = 1e6;
constexpr double kMaxStopSeconds = 3600;
constexpr double kMaxU64 = 18'446'744'073'709'551'615.0;

using O = Options;

const std::array kTable = {
    OptionEntry{{"model", "NAME|FILE", "preset name, or a .toml / .json model file (gdn-tiny)"}, &O::model},
    OptionEntry{{"page-size", "TOKENS", "tokens per page (the model's)"}, &O::page_size, 0, 65'536},
    OptionEntry{{"context-length", "TOKENS", "longest prompt with its output (the model's)"},
                &O::context_length,
                0,
                kMaxTokens},
    OptionEntry{{"max-total-tokens", "TOKENS", "device KV, in tokens (32768)"}, &O::max_total_tokens, 1, kMaxTokens},
    OptionEntry{{"max-mamba-cache-size", "COUNT", "recurrent states on the device (64)"},
                &O::max_mamba_cache_size,
                1,
                kMaxTokens},
    OptionEntry{{"swa-full-tokens-ratio", "RATIO", "window tokens / KV tokens on the device (0.8)"},
                &O::swa_full_tokens_ratio,
                0,
                1,
                true},
    OptionEntry{
        {"max-running-requests", "COUNT", "requests that run at once (8)"}, &O::max_running_requests, 1, kMaxRequests},
    OptionEntry{{"max-queued-requests", "COUNT", "requests that wait; more are refused (1024)"},
                &O::max_queued_requests,
                1,
                kMaxRequests},
    OptionEntry{
        {"chunked-prefill-size", "TOKENS", "prompt tokens per engine step (1024)"}, &O::chunked_prefill_size, 1, 1e6},
    OptionEntry{{"num-reserved-decode-tokens", "TOKENS", "device KV for output that a request starts with (256)"},
                &O::num_reserved_decode_tokens,
                1,
                1e6},
    OptionEntry{{"device", "NAME", "where pages are: cpu, cuda or cuda:N, which computes on images of them (cpu)"},
                &O::device},
    OptionEntry{{"threads", "COUNT", "compute threads; 0: one per core (0)"}, &O::threads, 0, kMaxThreads},
    OptionEntry{{"disable-radix-cache", "", "keep nothing: every prompt is computed"}, &O::disable_radix_cache},
    OptionEntry{{"enable-hierarchical-cache", "", "host tier behind the device (on)"}, &O::enable_hierarchical_cache},
    OptionEntry{{"disable-hierarchical-cache", "", "device tier only"}, Negated{&O::enable_hierarchical_cache}},
    OptionEntry{{"hicache-ratio", "RATIO", "host bytes / device bytes (2.0)"}, &O::hicache_ratio, 0, 1e6, true},
    OptionEntry{{"hicache-size", "GB", "host memory in GB (1e9 bytes); above 0 it overrides the ratio (0)"},
                &O::hicache_size_gb,
                0,
                kMaxGigabytes},
    OptionEntry{{"hicache-write-policy", "POLICY", "when device pages get a host copy (write_through)"},
                &O::hicache_write_policy,
                0,
                0,
                false,
                kWritePolicies},
    OptionEntry{{"exclusive-tiers", "", "pages that the device has, too, are the first to leave the host"},
                &O::exclusive_tiers},
    OptionEntry{{"checkpoint-grid", "TOKENS",
                 "a checkpoint of recurrent state after so many, where nothing else asks for one; 0: none (8192)"},
                &O::checkpoint_grid,
                0,
                kMaxTokens},
    OptionEntry{{"hicache-mem-layout", "LAYOUT", "order of bytes inside a host page (page_first)"},
                &O::hicache_mem_layout,
                0,
                0,
                false,
                kLayouts},
    OptionEntry{{"tenant-limits", "FILE", "floors and ceilings of tenants, JSON or TOML (none)"}, &O::tenant_limits},
    OptionEntry{{"radix-eviction-policy", "POLICY", "who leaves a full tier first (value)"},
                &O::radix_eviction_policy,
                0,
                0,
                false,
                kEvictionPolicies},
    OptionEntry{{"hicache-storage-backend", "NAME", "storage tier: memory, file, hf3fs, mooncake, plugin (none)"},
                &O::hicache_storage_backend},
    OptionEntry{{"hicache-storage-prefetch-policy", "POLICY", "how long a request waits for storage (timeout)"},
                &O::hicache_storage_prefetch_policy,
                0,
                0,
                false,
                kPrefetchPolicies},
    OptionEntry{{"hicache-storage-backend-extra-config", "JSON|@FILE",
                 "options of the backend, JSON or @x.json, @x.toml, @x.yaml"},
                &O::hicache_storage_backend_extra_config},
    OptionEntry{{"hicache-state-on-device-only", "", "control run: recurrent states get no host copy"},
                &O::hicache_state_on_device_only},
    OptionEntry{{"hicache-kv-on-device-only", "", "control run: KV gets no host copy"}, &O::hicache_kv_on_device_only},
    OptionEntry{{"host", "ADDRESS", "address to listen on (127.0.0.1)"}, &O::host},
    OptionEntry{{"port", "PORT", "port to listen on; 0: any free one (30000)"}, &O::port, 0, 65'535},
    OptionEntry{
        {"max-connections", "COUNT", "open at once; then one that waits is closed, or a new one gets 503 (768)"},
        &O::max_connections,
        1,
        kMaxConnections},
    OptionEntry{{"admin-api-key", "KEY", "key that administrative requests need (none)"}, &O::admin_api_key},
    OptionEntry{{"api-key", "KEY", "key that all requests need (none)"}, &O::api_key},
    OptionEntry{{"admin-api-key-file", "FILE", "holds the key of administrative requests; or LARDER_ADMIN_API_KEY"},
                &O::admin_api_key_file},
    OptionEntry{{"api-key-file", "FILE", "holds the key of all requests; or the variable LARDER_API_KEY"},
                &O::api_key_file},
    OptionEntry{{"ssl-certfile", "FILE", "speak HTTPS with this certificate, PEM, its chain behind it (plain HTTP)"},
                &O::ssl_certfile},
    OptionEntry{{"ssl-keyfile", "FILE", "its private key, PEM, not encrypted (in --ssl-certfile)"}, &O::ssl_keyfile},
    OptionEntry{{"ssl-ca-certs", "FILE", "clients must show a certificate that one of these has issued (none)"},
                &O::ssl_ca_certs},
    OptionEntry{{"allow-no-key", "", "other machines may use the model without a key"}, &O::allow_no_key},
    OptionEntry{{"enable-get-state-changes", "", "/flush_cache and the older clear take GET, too, as in SGLang"},
                &O::enable_get_state_changes},
    OptionEntry{{"allow-storage-library", "PATH,...", "libraries that an attach at run time may load (none)"},
                &O::allow_storage_library},
    OptionEntry{{"kv-events-config", "JSON", "tell routers of pages: {\"publisher\":\"zmq\", ...} (nobody is told)"},
                &O::kv_events_config},
    OptionEntry{{"record-trace", "FILE", "write the requests, hashed, as a trace for larder replay (none is written)"},
                &O::record_trace},
    OptionEntry{{"record-trace-key", "FILE",
                 "holds the key of the trace's hashes: traces of one key can be joined (drawn anew)"},
                &O::record_trace_key},
    OptionEntry{{"record-trace-block", "TOKENS", "that one hash of the trace stands for (512)"},
                &O::record_trace_block,
                1,
                1 << 20},
    OptionEntry{
        {"record-trace-max-size", "SIZE", "of the trace, in bytes, or with Ki, Mi, Gi; recording ends there (1Gi)"},
        &O::record_trace_max_size,
        0,
        0,
        false,
        {},
        true},
    OptionEntry{{"stop-wait", "SECONDS", "that open requests have to end at a stop; then they are cut off (10)"},
                &O::stop_wait,
                0,
                kMaxStopSeconds},
    OptionEntry{{"stop-delay", "SECONDS", "of notice before that: /health says 503, and requests are taken still (0)"},
                &O::stop_delay,
                0,
                kMaxStopSeconds},
    OptionEntry{{"served-model-name", "NAME", "name of the model in answers (the model's id)"}, &O::served_model_name},
    OptionEntry{{"log-level", "LEVEL", "the least that the log tells (info)"}, &O::log_level, 0, 0, false, kLogLevels},
    OptionEntry{{"log-format", "FORMAT", "form of a line of the log (text)"}, &O::log_format, 0, 0, false, kLogFormats},
    OptionEntry{{"random-seed", "SEED", "seed of sampling (1)"}, &O::seed, 0, kMaxU64},
};

std::string joined(std::span<const std::string_view> words) {
  std::string out;
  for (const std::string_view word : words) out += (out.empty() ? "" : ", ") + std::string(word);
  return out;
}

std::string range_text(const OptionEntry& entry) {
  const std::string high = entry.high == kMaxU64 ? "2^64 - 1" : fmt::format("{}", entry.high);
  return fmt::format("{} {} and at most {}", entry.is_low_open ? "above" : "at least", entry.low, high);
}

Status range_error(const OptionEntry& entry, std::string_view shown) {
  return invalid_argument(fmt::format("--{} is {}: it must be {}", entry.info.name, shown, range_text(entry)));
}

bool is_in_range(const OptionEntry& entry, double value) {
  if (std::isnan(value)) return false;
  return (entry.is_low_open ? value > entry.low : value >= entry.low) && value <= entry.high;
}

Status check_words(const OptionEntry& entry, std::string_view text) {
  if (entry.words.empty() || std::find(entry.words.begin(), entry.words.end(), text) != entry.words.end()) {
    return Status::ok();
  }
  return invalid_argument(
      fmt::format("--{} is '{}': it must be one of {}", entry.info.name, text, joined(entry.words)));
}

struct RangeCheck {
  const OptionEntry& entry;
  const Options& options;

  Status operator()(std::string O::*m) const { return check_words(entry, options.*m); }
  Status operator()(bool O::*) const { return Status::ok(); }
  Status operator()(Negated) const { return Status::ok(); }
  template <class Number>
  Status operator()(Number O::*m) const {
    if (is_in_range(entry, static_cast<double>(options.*m))) return Status::ok();
    return range_error(entry, fmt::format("{}", options.*m));
  }
};

Result<bool> parse_switch(const OptionEntry& entry, std::string_view text) {
  if (text.empty() || text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return invalid_argument(
      fmt::format("--{} is '{}': it is a switch, give nothing, true or false", entry.info.name, text));
}

struct Setter {
  const OptionEntry& entry;
  Options& options;
  std::string_view text;

  Status operator()(std::string O::*m) const {
    LARDER_RETURN_IF_ERROR(check_words(entry, text));
    options.*m = std::string(text);
    return Status::ok();
  }
  Status operator()(bool O::*m) const { return set_switch(m, false); }
  Status operator()(Negated n) const { return set_switch(n.member, true); }
  template <class Number>
  Status operator()(Number O::*m) const {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) return range_error(entry, text);
    if (error != std::errc{} || end != text.data() + text.size()) {
      return invalid_argument(fmt::format("--{} is '{}': it must be a {}number, {}", entry.info.name, text,
                                          std::is_integral_v<Number> ? "whole " : "", range_text(entry)));
    }
    if (!is_in_range(entry, static_cast<double>(value))) return range_error(entry, text);
    options.*m = value;
    return Status::ok();
  }
  Status set_switch(bool O::*m, bool is_negated) const {
    LARDER_ASSIGN_OR_RETURN(const bool value, parse_switch(entry, text));
    options.*m = value != is_negated;
    return Status::ok();
  }
};

const OptionEntry* find_entry(std::string_view name) {
  const auto found = std::ranges::find(kTable, name, [](const OptionEntry& entry) { return entry.info.name; });
  return found == kTable.end() ? nullptr : &*found;
}

std::string plain_name(std::string_view name) {
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '_', '-');
  return plain;
}

// What is meant, whichever of the two switches says it.
std::string_view name_to_note(const OptionEntry& entry, const Options& options) {
  constexpr std::string_view kEnable = "enable-hierarchical-cache", kDisable = "disable-hierarchical-cache";
  const std::string_view name = entry.info.name;
  if (name != kEnable && name != kDisable) return name;
  return options.enable_hierarchical_cache ? kEnable : kDisable;
}

Status unknown_option(std::string_view name) {
  constexpr std::size_t kShownMax = 60;
  std::vector<std::string_view> known;
  for (const OptionEntry& entry : kTable) known.push_back(entry.info.name);
  return invalid_argument(fmt::format("unknown option --{}{} (see --help for all)", name.substr(0, kShownMax),
                                      did_you_mean(name, known, "--", "")));
}

}  // namespace

std::span<const OptionEntry> option_table() { return kTable; }

std::span<const OptionInfo> option_infos() {
  static const std::vector<OptionInfo> infos = [] {
    static std::vector<std::string> texts;  // that the infos point into
    texts.reserve(kTable.size());
    std::vector<OptionInfo> all;
    for (const OptionEntry& entry : kTable) {
      all.push_back(entry.info);
      if (entry.words.empty()) continue;
      all.back().help = texts.emplace_back(fmt::format("{}: {}", entry.info.help, joined(entry.words)));
    }
    return all;
  }();
  return infos;
}

std::string option_words(std::string_view name) { return joined(find_entry(name)->words); }

bool wants_text(std::string_view name) {
  const OptionEntry* const entry = find_entry(plain_name(name));
  return entry != nullptr && std::holds_alternative<std::string O::*>(entry->field) && !entry->is_size;
}

Status set_option(Options& options, std::string_view name, std::string_view text) {
  const std::string plain = plain_name(name);
  const OptionEntry* const entry = find_entry(plain);
  if (entry == nullptr) {
    const SglangOption* const theirs = find_sglang_option(plain);
    if (theirs == nullptr) return unknown_option(plain);
    const bool is_default = theirs->value.empty() ? text == "false" : text == theirs->standard;
    if (is_default) return Status::ok();
    if (theirs->answer == SglangAnswer::kRefused) return invalid_argument(about_sglang_option(*theirs, plain));
    options.without_effect.insert(plain);
    return Status::ok();
  }
  if (plain == "page-size" && text == "0") {
    return invalid_argument(
        "--page-size is 0: a page has at least one token; leave the option out for the model's own");
  }
  LARDER_RETURN_IF_ERROR(std::visit(Setter{*entry, options, text}, entry->field));
  options.given.emplace(name_to_note(*entry, options));
  return Status::ok();
}

Status check_ranges(const Options& options) {
  for (const OptionEntry& entry : kTable) {
    LARDER_RETURN_IF_ERROR(std::visit(RangeCheck{entry, options}, entry.field));
  }
  return Status::ok();
}

}  // namespace larder
