// SPDX-License-Identifier: Apache-2.0
// --hicache-storage-backend-extra-config: which keys are the cache's own, and which are the backend's.
#include <fmt/format.h>
#include <cstdlib>

#include <cmath>
#include <limits>
#include <utility>

#include "door/store_config.h"
#include "engine/options.h"
#include "engine/text_file.h"

namespace larder {
namespace {

constexpr double kMaxSeconds = 86'400;

// The kind of a value, in the words of the reference's messages.
std::string kind_of(const Tree& value) {
  if (value.as<std::string>()) return "text";
  if (value.as<double>()) return "a fraction";
  if (value.as<bool>()) return "a switch";
  if (value.as<Tree::List>()) return "a list";
  if (value.as<Tree::Table>()) return "an object";
  return value.as<std::monostate>() ? "null" : "a number";
}

Result<Nanos> seconds_of(const std::string& key, const Tree& value) {
  double seconds = 0;
  if (const auto* whole = value.as<std::uint64_t>()) {
    seconds = static_cast<double>(*whole);
  } else if (const auto* fraction = value.as<double>()) {
    seconds = *fraction;
  } else if (!value.as<std::int64_t>()) {
    return invalid_argument(key + " must be number, got " + kind_of(value));
  } else {
    seconds = -1;
  }
  if (!(seconds >= 0 && seconds <= kMaxSeconds)) {
    return invalid_argument(fmt::format("{} must be 0 to {} seconds", key, kMaxSeconds));
  }
  return Nanos(std::llround(seconds * 1e9));
}

Status set_seconds(const std::string& key, const Tree& value, std::optional<Nanos>& out) {
  LARDER_ASSIGN_OR_RETURN(out, seconds_of(key, value));
  return Status::ok();
}

// True: `key` was one of the cache's own.
Result<bool> take_own_key(const std::string& key, const Tree& value, ExtraConfig& out) {
  if (key == "prefetch_threshold" || key == "tp_lcm_size") {
    const auto* number = value.as<std::uint64_t>();
    if (!number) return invalid_argument(key + " must be int, got " + kind_of(value));
    if (*number > std::numeric_limits<std::uint32_t>::max()) return invalid_argument(key + " must be below 2^32");
    if (key == "prefetch_threshold") out.prefetch_threshold = static_cast<std::uint32_t>(*number);
    return true;
  }
  if (key == "hicache_storage_pass_prefix_keys") {
    if (!value.as<bool>()) return invalid_argument(key + " must be bool, got " + kind_of(value));
    return true;
  }
  std::optional<Nanos>* wait = key == "prefetch_timeout_base"           ? &out.prefetch_timeout_base
                               : key == "prefetch_timeout_per_ki_token" ? &out.prefetch_timeout_per_ki_token
                               : key == "prefetch_timeout_max"          ? &out.prefetch_timeout_max
                                                                        : nullptr;
  if (wait == nullptr) return false;
  LARDER_RETURN_IF_ERROR(set_seconds(key, value, *wait));
  return true;
}

// In a list with commas.
bool is_listed(std::string_view list, std::string_view wanted) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == wanted) return true;
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return false;
}

Result<Tree> parse_source(std::string_view text, FileSystem& files) {
  if (!text.starts_with('@')) return parse_json_tree(text, "extra config");
  const std::string path(text.substr(1));
  LARDER_ASSIGN_OR_RETURN(const std::string content, read_text_file(files, path));
  return parse_config_text(content, path);
}

}  // namespace

Status check_library(const Options& options, const ExtraConfig& extra, FileSystem& files) {
  // Each of these keys names code that runs: a library, an interpreter, a folder of Python modules.
  for (const char* key : {"library", "python", "package_directory"}) {
    const auto value_of = [&](const ExtraConfig& config) {
      const auto found = config.backend.find(key);
      return found == config.backend.end() ? std::string{} : found->second;
    };
    const std::string asked = value_of(extra);
    if (asked.empty() || is_listed(options.allow_storage_library, asked)) continue;
    const Result<ExtraConfig> start = parse_extra_config(
        extra_config_source(options.hicache_storage_backend, options.hicache_storage_backend_extra_config), files);
    if (start.is_ok() && value_of(*start) == asked) continue;
    return invalid_argument("\"" + std::string(key) + "\": \"" + asked +
                            "\" is not among the libraries that this server may load at run time; name it at start: "
                            "--allow-storage-library " +
                            asked);
  }
  return Status::ok();
}

std::string extra_config_source(std::string_view backend, std::string_view text) {
  const char* const variable = backend == "hf3fs"      ? "SGLANG_HICACHE_HF3FS_CONFIG_PATH"
                               : backend == "mooncake" ? "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
                                                       : nullptr;
  const char* const path = variable == nullptr ? nullptr : std::getenv(variable);
  const bool is_named = text.empty() && path != nullptr && *path != '\0';
  return is_named ? std::string("@") + path : std::string(text);
}

Result<ExtraConfig> parse_extra_config(std::string_view text, FileSystem& files) {
  ExtraConfig out;
  if (text.empty()) return out;
  const std::string place = "--hicache-storage-backend-extra-config: ";
  const Result<Tree> tree = parse_source(text, files);
  if (!tree.is_ok()) return Status(tree.status().code(), place + tree.status().message());
  const auto* table = tree->as<Tree::Table>();
  if (table == nullptr)
    return invalid_argument(place + "a JSON object is expected, for example {\"max_size\": \"10G\"}");
  for (const auto& [key, value] : *table) {
    const Result<bool> is_own = take_own_key(key, value, out);
    if (!is_own.is_ok()) return invalid_argument(place + is_own.status().message());
    if (*is_own) continue;
    Result<std::string> option = option_text_of(key, value);
    if (!option.is_ok()) return invalid_argument(place + option.status().message());
    out.backend.insert_or_assign(key, std::move(option).value());
  }
  return out;
}

}  // namespace larder
