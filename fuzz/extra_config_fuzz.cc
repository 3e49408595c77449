// SPDX-License-Identifier: Apache-2.0
// Configuration: the storage's extra configuration (engine/extra_config.cc), option files and options by text
// (engine/options.h), sizes (storage/option_text.h).
//
// Fed: which of them, a file format, and a text; or a row of options with their texts.
// Checked: refusals name the option or the file and say why; nothing throws. What is taken is in its range: seconds,
// thresholds, ports. What the cache keeps for itself is not handed to the backend. A configuration that is written
// again as JSON is read as the same. Setting an option to what it has been set to changes nothing. Sizes agree with a
// plain reading of digits and suffix.
#include <cmath>

#include <nlohmann/json.hpp>

#include "engine/options.h"
#include "fuzz/fuzz_input.h"
#include "sim/sim_file_system.h"
#include "storage/option_text.h"

namespace larder::fuzz {
namespace {

constexpr std::array<std::string_view, 3> kEndings = {".json", ".toml", ".yaml"};

void check_refusal(const Status& status, std::string_view names) {
  fuzz_check(status.code() == StatusCode::kInvalidArgument, "refused with " + status.to_string());
  fuzz_check(status.message().find(names) != std::string::npos,
             "an error that does not name " + std::string(names) + ": " + status.message());
}

// A file of this text on a simulated disk; its path.
std::string put_file(sim::SimFileSystem& files, std::string_view text, std::uint64_t format) {
  const std::string path = "/config" + std::string(kEndings[static_cast<std::size_t>(format)]);
  auto file = files.open(path, {.write = true, .create = true});
  fuzz_check(file.is_ok() && write_fully(**file, std::as_bytes(std::span(text)), 0).is_ok(), "the disk refuses");
  return path;
}

void check_seconds(const std::optional<Nanos>& wait) {
  if (wait) fuzz_check(wait->count() >= 0 && *wait <= std::chrono::seconds(86'400), "a wait out of its range");
}

bool is_own_key(std::string_view key) {
  static constexpr std::array<std::string_view, 6> kOwn = {"prefetch_threshold",
                                                           "tp_lcm_size",
                                                           "hicache_storage_pass_prefix_keys",
                                                           "prefetch_timeout_base",
                                                           "prefetch_timeout_per_ki_token",
                                                           "prefetch_timeout_max"};
  return std::find(kOwn.begin(), kOwn.end(), key) != kOwn.end();
}

void check_extra(FuzzInput& input) {
  const std::uint64_t format = input.below(4);
  const std::string_view text = input.rest_text();
  sim::SimFileSystem files(1);
  const std::string argument = format == 3 ? std::string(text) : "@" + put_file(files, text, format);
  const Result<ExtraConfig> config = parse_extra_config(argument, files);
  if (!config.is_ok()) {
    if (format != 3) return check_refusal(config.status(), "--hicache-storage-backend-extra-config");
    return check_explains(config.status(), "extra config");
  }
  check_seconds(config->prefetch_timeout_base);
  check_seconds(config->prefetch_timeout_per_ki_token);
  check_seconds(config->prefetch_timeout_max);
  nlohmann::json again = nlohmann::json::object();
  for (const auto& [key, value] : config->backend) {
    fuzz_check(!is_own_key(key), "the cache's own key goes to the backend: " + key);
    again[key] = value;
    check_explains(size_option(config->backend, key, 1).status(), "a size option");
    check_explains(count_option(config->backend, key, 1, 1, 10).status(), "a count option");
  }
  if (config->prefetch_threshold) again["prefetch_threshold"] = *config->prefetch_threshold;
  std::string written;
  try {
    written = again.dump();
  } catch (const nlohmann::json::exception&) {
    return;  // a YAML text need not be UTF-8
  }
  const Result<ExtraConfig> second = parse_extra_config(written, files);
  fuzz_check(
      second.is_ok() && second->backend == config->backend && second->prefetch_threshold == config->prefetch_threshold,
      "a configuration written again is another");
}

void check_options(const Options& options) {
  const Status valid = validate_options(options);
  check_explains(valid, "validate_options");
  if (!valid.is_ok()) return;
  fuzz_check(options.max_running_requests > 0 && options.max_total_tokens > 0, "nothing can run");
  fuzz_check(std::isfinite(options.hicache_ratio) && std::isfinite(options.hicache_size_gb) &&
                 std::isfinite(options.swa_full_tokens_ratio),
             "a number without end");
  sim::SimFileSystem files(1);
  check_explains(load_model(options, files).status(), "load_model");
  check_explains(cache_config(options, files).status(), "cache_config");
}

void check_file(FuzzInput& input) {
  const std::uint64_t format = input.below(3);
  sim::SimFileSystem files(1);
  const std::string path = put_file(files, input.rest_text(), format);
  Options options;
  const Status set = set_options_from_file(options, path, files);
  if (!set.is_ok()) return check_refusal(set, path);
  check_options(options);
}

void check_texts(FuzzInput& input) {
  Options options;
  const std::span<const OptionInfo> infos = option_infos();
  for (int i = 0; i < 20 && !input.empty(); ++i) {
    const OptionInfo& info = infos[static_cast<std::size_t>(input.below(infos.size()))];
    const std::string name = input.below(16) == 0 ? std::string(input.text(12)) : std::string(info.name);
    const std::string text(input.text(static_cast<std::size_t>(input.below(24))));
    const Status set = set_option(options, name, text);
    if (!set.is_ok()) {
      fuzz_check(set.code() == StatusCode::kInvalidArgument, "refused with " + set.to_string());
      check_explains(set, "set_option");
      continue;
    }
    fuzz_check(set_option(options, name, text).is_ok(), "an option is refused the second time");
    fuzz_check(!options.given.empty(), "an option was not noted as given");
  }
  check_options(options);
}

// Digits and a suffix, read the long way.
std::optional<std::uint64_t> plain_size(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > 19) return std::nullopt;
  std::string suffix;
  for (const char c : text.substr(digits)) suffix += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  if (suffix.ends_with('B')) suffix.pop_back();
  const bool is_binary = suffix.size() == 2 && suffix[1] == 'I';
  if (is_binary) suffix.pop_back();
  const std::size_t power = suffix.empty() ? 0 : std::string_view("KMGT").find(suffix) + 1;
  if (suffix.size() > 1 || (!suffix.empty() && power == 0)) return std::nullopt;
  unsigned __int128 value = 0;
  for (const char c : text.substr(0, digits)) value = value * 10 + static_cast<unsigned>(c - '0');
  for (std::size_t i = 0; i < power; ++i) value *= is_binary ? 1024 : 1000;
  if (value >= kUnlimitedBytes) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

void check_size(FuzzInput& input) {
  const std::string_view text = input.text(40);
  const Result<std::uint64_t> size = parse_size_bytes(text);
  check_explains(size.status(), "parse_size_bytes");
  const std::optional<std::uint64_t> plain = plain_size(text);
  if (plain) fuzz_check(size.is_ok() && *size == *plain, "a size is read as another: " + std::string(text));
  if (size.is_ok() && !plain) fuzz_check(*size == kUnlimitedBytes || text.size() > 19, "a size out of nothing");
}

void run(FuzzInput input) {
  switch (input.below(4)) {
    case 0: return check_extra(input);
    case 1: return check_file(input);
    case 2: return check_texts(input);
    default: return check_size(input);
  }
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
