// SPDX-License-Identifier: Apache-2.0
#include "door/store_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "base/parse_number.h"
#include "config/parse_tree.h"
#include "storage/option_text.h"

namespace larder {
namespace {

constexpr std::uint64_t kLeastStaging = std::uint64_t{1} << 20, kMostStaging = std::uint64_t{64} << 30;
constexpr double kMostSeconds = 86'400;
// A number there is a slip: 3 would make a store in ./3.
constexpr std::array<std::string_view, 4> kPaths = {"directory", "share_directory", "file_path_prefix",
                                                    "metadata_directory"};

// Of several backends: 0071 would be the key "71".
constexpr std::array<std::string_view, 9> kTexts = {
    "library",        "metadata_server_url", "metadata_api_key", "metadata_cacert",  "metadata_server",
    "local_hostname", "device_name",         "python",           "package_directory"};

Result<double> number_of(const BackendOptions& options, const std::string& key, double fallback, double low,
                         double high) {
  const std::string text = text_option(options, key, "");
  if (text.empty()) return fallback;
  const std::optional<double> value = parse_number<double>(text);  // strtod() reads by the engine's locale
  if (!value || !(*value >= low && *value <= high)) {
    return invalid_argument(fmt::format("option '{}': '{}' is no number from {} to {}", key, text, low, high));
  }
  return *value;
}

Status read_own(const BackendOptions& own, StoreConfig& out) {
  LARDER_ASSIGN_OR_RETURN(const double timeout, number_of(own, "timeout_seconds", 5, 0.001, kMostSeconds));
  out.limits.timeout = Nanos(std::llround(timeout * 1e9));
  const Result<std::uint64_t> staging = size_option(own, "staging_bytes", std::uint64_t{128} << 20);
  if (!staging.is_ok()) return staging.status();
  if (*staging < kLeastStaging || *staging > kMostStaging) {
    return invalid_argument("option 'staging_bytes': from 1Mi to 64Gi");
  }
  out.limits.staging_bytes = static_cast<std::size_t>(*staging);
  const Result<std::uint64_t> retry = size_option(own, "retry_bytes", std::uint64_t{256} << 20);
  if (!retry.is_ok()) return retry.status();
  out.limits.retry.most_bytes = *retry;
  LARDER_ASSIGN_OR_RETURN(const double age, number_of(own, "retry_seconds", 600, 0, kMostSeconds));
  out.limits.retry.oldest = Nanos(std::llround(age * 1e9));
  const std::string zero_copy = text_option(own, "zero_copy", "false");
  if (zero_copy != "true" && zero_copy != "false") {
    return invalid_argument("option 'zero_copy': '" + zero_copy + "' is none of true, false");
  }
  out.limits.is_zero_copy = zero_copy == "true";
  out.share_directory = text_option(own, "share_directory", "");
  return Status::ok();
}

}  // namespace

const std::vector<BackendOptionHelp>& store_option_help() {
  static const std::vector<BackendOptionHelp> help = {
      {"timeout_seconds", "5", "how long a call may take that names no time of its own"},
      {"staging_bytes", "128Mi",
       "memory between the engine's pages and the device, so that no call hangs with a disk; with share_directory no "
       "page, and no group of pages, may be larger"},
      {"zero_copy", "false",
       "true: the device reads and writes the engine's pages themselves; a call then waits for what the disk works on, "
       "beyond its timeout"},
      {"retry_bytes", "256Mi", "pages kept for another try after a write has failed; 0: none"},
      {"retry_seconds", "600", "how long they are kept"},
      {"share_directory", "",
       "where the processes of this machine meet that share the store (ranks); empty: the store belongs to this one"}};
  return help;
}

Result<std::string> option_text_of(const std::string& key, const Tree& value) {
  if (const auto* text = value.as<std::string>()) {
    if (text->find('\0') != std::string::npos) return invalid_argument("'" + key + "' holds a zero character");
    return *text;
  }
  if (std::ranges::find(kPaths, key) != kPaths.end()) {
    return invalid_argument("'" + key + "' is a path: text in quotes is expected");
  }
  if (std::ranges::find(kTexts, key) != kTexts.end()) {
    return invalid_argument("'" + key + "': text in quotes is expected");
  }
  if (const auto* whole = value.as<std::uint64_t>()) return std::to_string(*whole);
  if (const auto* negative = value.as<std::int64_t>()) return std::to_string(*negative);
  if (const auto* fraction = value.as<double>()) return fmt::format("{}", *fraction);
  if (const auto* truth = value.as<bool>()) return std::string(*truth ? "true" : "false");
  return invalid_argument("'" + key + "' is a list, an object or null; text, a number or a switch is expected");
}

Result<StoreConfig> parse_store_config(std::string_view text) {
  StoreConfig out;
  if (text.empty()) return out;
  LARDER_ASSIGN_OR_RETURN(const Tree tree, parse_json_tree(text, "store configuration"));
  const auto* table = tree.as<Tree::Table>();
  if (table == nullptr) {
    return invalid_argument("store configuration: a JSON object is expected, for example {\"directory\": \"/var/x\"}");
  }
  BackendOptions own;
  for (const auto& [key, value] : *table) {
    Result<std::string> option = option_text_of(key, value);
    if (!option.is_ok()) return invalid_argument("store configuration: " + option.status().message());
    bool is_own = false;
    for (const BackendOptionHelp& known : store_option_help()) is_own = is_own || known.key == key;
    (is_own ? own : out.backend).insert_or_assign(key, std::move(option).value());
  }
  LARDER_RETURN_IF_ERROR(read_own(own, out));
  return out;
}

}  // namespace larder
