// SPDX-License-Identifier: Apache-2.0
#include "engine/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/model_file.h"
#include "config/parse_tree.h"
#include "engine/option_table.h"
#include "engine/tenant_file.h"
#include "engine/text_file.h"
#include "events/kv_event_config.h"
#include "model/presets.h"

namespace larder {
namespace {

Status check_tiers(const Options& o) {
  if (o.disable_radix_cache) {
    if (!o.hicache_storage_backend.empty()) {
      return invalid_argument("--disable-radix-cache keeps nothing, so --hicache-storage-backend '" +
                              o.hicache_storage_backend + "' would stay empty: drop one of the two");
    }
    if (o.given.contains("enable-hierarchical-cache") && o.enable_hierarchical_cache) {
      return invalid_argument("--disable-radix-cache and --enable-hierarchical-cache contradict each other: drop one");
    }
  }
  if (!o.enable_hierarchical_cache && !o.hicache_storage_backend.empty()) {
    return invalid_argument("--hicache-storage-backend '" + o.hicache_storage_backend +
                            "' reads and writes through the host tier: drop --disable-hierarchical-cache");
  }
  if (o.given.contains("enable-hierarchical-cache") && o.given.contains("disable-hierarchical-cache")) {
    return invalid_argument(
        "--enable-hierarchical-cache and --disable-hierarchical-cache contradict each other: drop one");
  }
  if (o.hicache_storage_backend.empty() && !o.hicache_storage_backend_extra_config.empty()) {
    return invalid_argument("--hicache-storage-backend-extra-config needs --hicache-storage-backend: name the backend");
  }
  return Status::ok();
}

Status check_control_runs(const Options& o) {
  const bool has_host_tier = o.enable_hierarchical_cache && !o.disable_radix_cache;
  const std::string_view flag = o.hicache_state_on_device_only ? "--hicache-state-on-device-only"
                                : o.hicache_kv_on_device_only  ? "--hicache-kv-on-device-only"
                                                               : "";
  if (flag.empty()) return Status::ok();
  if (!has_host_tier) {
    return invalid_argument(std::string(flag) + " is a control run of the host tier, which is off: drop " +
                            (o.disable_radix_cache ? "--disable-radix-cache" : "--disable-hierarchical-cache") +
                            " or this option");
  }
  if (o.hicache_state_on_device_only && o.hicache_kv_on_device_only) {
    return invalid_argument(
        "--hicache-state-on-device-only with --hicache-kv-on-device-only leaves the host tier empty: "
        "drop one, or use --disable-hierarchical-cache");
  }
  return Status::ok();
}

std::string value_text(const Tree& tree) {
  if (const auto* text = tree.as<std::string>()) return *text;
  if (const auto* number = tree.as<std::uint64_t>()) return std::to_string(*number);
  if (const auto* number = tree.as<std::int64_t>()) return std::to_string(*number);
  if (const auto* number = tree.as<double>()) return fmt::format("{}", *number);
  if (const auto* truth = tree.as<bool>()) return *truth ? "true" : "false";
  return {};
}

// Why a path that ends as no model file does is no model.
Status other_model(const std::string& path, FileSystem& files) {
  const Result<FileInfo> info = files.stat(path);
  if (!info.is_ok()) return Status(info.status().code(), "--model: " + info.status().message());
  if (info->is_directory) return invalid_argument("--model: " + path + ": it is a directory; name the model's file");
  return invalid_argument(
      "--model: " + path + ": a model file ends in .toml or .json, and a GGUF file begins " +
      (is_gguf_file(files, path) ? "as this one: larder serve gives it to llama.cpp" : "with GGUF; this one does not"));
}

bool is_flat(const Tree& tree) {
  return tree.as<Tree::List>() == nullptr && tree.as<Tree::Table>() == nullptr && tree.as<std::monostate>() == nullptr;
}

}  // namespace

Status set_options_from_file(Options& options, const std::string& path, FileSystem& files) {
  const Result<std::string> text = read_text_file(files, path);
  if (!text.is_ok()) return Status(text.status().code(), "--config: " + text.status().message());
  LARDER_ASSIGN_OR_RETURN(const Tree tree, parse_config_text(*text, path));
  const auto* table = tree.as<Tree::Table>();
  if (table == nullptr) return invalid_argument(path + ": an object whose keys are options is expected");
  std::string problems;  // all that are wrong with options
  for (const auto& [key, value] : *table) {
    if (!is_flat(value)) {
      const bool is_object = key.ends_with("config"), is_also_file = key.find("extra") != key.npos;
      return invalid_argument(path + ": " + key + ": text, a number or a switch is expected" +
                              (!is_object     ? ""
                               : is_also_file ? " (write the object as text, or as @file)"
                                              : " (write the object as text)"));
    }
    const bool is_other = value.as<std::string>() == nullptr && wants_text(key);
    const Status status =
        is_other ? invalid_argument(key + ": text in quotes is expected") : set_option(options, key, value_text(value));
    if (!status.is_ok()) problems += (problems.empty() ? "" : "\n  ") + path + ": " + status.message();
  }
  return problems.empty() ? Status::ok() : invalid_argument(problems);
}

Status set_options(Options& options, std::span<const GivenOption> given) {
  const auto has = [given](std::string_view name) {
    return std::ranges::find(given, name, &GivenOption::name) != given.end();
  };
  if (has("api-key-file")) options.api_key.clear();
  if (has("api-key")) options.api_key_file.clear();
  if (has("admin-api-key-file")) options.admin_api_key.clear();
  if (has("admin-api-key")) options.admin_api_key_file.clear();
  if (has("enable-hierarchical-cache") || has("disable-hierarchical-cache")) {
    options.given.erase("enable-hierarchical-cache");
    options.given.erase("disable-hierarchical-cache");
  }
  std::string problems;  // all of them: who pastes a command has several
  for (const GivenOption& one : given) {
    const Status status = set_option(options, one.name, one.text);
    if (!status.is_ok()) problems += (problems.empty() ? "" : "\n  ") + status.message();
  }
  return problems.empty() ? Status::ok() : invalid_argument(problems);
}

Status validate_options(const Options& options) {
  LARDER_RETURN_IF_ERROR(check_ranges(options));
  if (options.model.empty()) return invalid_argument("--model is empty: name a preset or a model file");
  if (options.host.empty()) return invalid_argument("--host is empty: name an address, for example 127.0.0.1");
  if (options.page_size > 0 && options.max_total_tokens < options.page_size) {
    return invalid_argument(fmt::format("--max-total-tokens is {}: it must hold at least one page of --page-size {}",
                                        options.max_total_tokens, options.page_size));
  }
  LARDER_RETURN_IF_ERROR(check_tiers(options));
  LARDER_RETURN_IF_ERROR(parse_kv_event_config(options.kv_events_config).status());
  return check_control_runs(options);
}

Status validate_options_for(const Options& options, const ModelSpec& model) {
  if (options.hicache_state_on_device_only && !model.has(ComponentKind::kMamba)) {
    return invalid_argument("--hicache-state-on-device-only: model " + model.id +
                            " keeps no recurrent state; drop the option or choose a hybrid model");
  }
  if (options.hicache_kv_on_device_only && !model.has(ComponentKind::kFull)) {
    return invalid_argument("--hicache-kv-on-device-only: model " + model.id + " keeps no KV; drop the option");
  }
  if (options.max_total_tokens < model.page_size) {
    return invalid_argument(fmt::format("--max-total-tokens is {}: it must hold at least one page of {}, {} tokens",
                                        options.max_total_tokens, model.id, model.page_size));
  }
  return Status::ok();
}

std::string reuse_warning(const ModelSpec& model) {
  if (model.context_length > model.page_size) return {};
  return fmt::format(
      "nothing can be reused: a page has {} tokens, and no prompt is longer than the context of {}; give a smaller "
      "--page-size or a larger --context-length",
      model.page_size, model.context_length);
}

Result<ModelSpec> load_model(const Options& options, FileSystem& files) {
  const std::optional<ModelFileFormat> format = model_file_format(options.model);
  Result<ModelSpec> model = not_found("");
  if (format) {
    const Result<std::string> text = read_text_file(files, options.model);
    if (!text.is_ok()) return Status(text.status().code(), "--model: " + text.status().message());
    model = load_model_file(*text, *format, options.model);
  } else if (options.model.find('/') != std::string::npos) {
    return other_model(options.model, files);
  } else {
    model = preset_model(options.model);
    if (!model.is_ok()) return invalid_argument("--model: " + model.status().message() + "; or a .toml / .json file");
  }
  if (!model.is_ok()) return model;
  if (options.page_size == 0 && options.context_length == 0) return model;
  if (options.page_size > 0) model->page_size = options.page_size;
  if (options.context_length > 0) model->context_length = options.context_length;
  model->pools.clear();
  const Status status = finalize_model(*model);
  if (status.is_ok()) return model;
  return invalid_argument(fmt::format("--page-size {} / --context-length {} with {}: {}", options.page_size,
                                      options.context_length, options.model, status.message()));
}

Result<CacheConfig> cache_config(const Options& options, FileSystem& files) {
  LARDER_RETURN_IF_ERROR(validate_options(options));
  LARDER_ASSIGN_OR_RETURN(
      const ExtraConfig extra,
      parse_extra_config(
          extra_config_source(options.hicache_storage_backend, options.hicache_storage_backend_extra_config), files));
  CacheConfig config;
  config.enabled = !options.disable_radix_cache;
  // validate_options() knows the words, so the fall-backs are never taken.
  config.eviction_policy = parse_eviction_policy(options.radix_eviction_policy).value_or(config.eviction_policy);
  config.write_policy = parse_write_policy(options.hicache_write_policy).value_or(config.write_policy);
  config.exclusive_tiers = options.exclusive_tiers;
  config.checkpoint_grid = options.checkpoint_grid;
  config.prefetch_policy =
      parse_prefetch_policy(options.hicache_storage_prefetch_policy).value_or(config.prefetch_policy);
  config.chunked_prefill_tokens = options.chunked_prefill_size;
  config.decode_headroom_tokens = options.num_reserved_decode_tokens;
  // Every queued request may be begun, so that its prefetch can start while it waits.
  config.max_requests = options.max_running_requests + options.max_queued_requests;
  config.host_tier_for_state = !options.hicache_state_on_device_only;
  config.host_tier_for_full = !options.hicache_kv_on_device_only;
  config.prefetch_threshold = extra.prefetch_threshold.value_or(config.prefetch_threshold);
  config.prefetch_timeout_base = extra.prefetch_timeout_base.value_or(config.prefetch_timeout_base);
  config.prefetch_timeout_per_ki_token =
      extra.prefetch_timeout_per_ki_token.value_or(config.prefetch_timeout_per_ki_token);
  config.prefetch_timeout_max =
      extra.prefetch_timeout_max.value_or(std::max(config.prefetch_timeout_max, config.prefetch_timeout_base));
  if (!options.tenant_limits.empty()) {
    Result<TenantLimits> limits = load_tenant_limits(options.tenant_limits, files);
    if (!limits.is_ok()) return Status(limits.status().code(), "--tenant-limits: " + limits.status().message());
    config.tenant_limits = std::move(*limits);
  }
  const Status status = validate_config(config);
  if (status.is_ok()) return config;
  return status;
}

}  // namespace larder
