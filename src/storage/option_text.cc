// SPDX-License-Identifier: Apache-2.0
#include "storage/option_text.h"

#include <cctype>
#include <charconv>

namespace larder {
namespace {

// The factor of a suffix, or 0 if there is no such suffix.
std::uint64_t suffix_factor(std::string suffix) {
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (!suffix.empty() && suffix.back() == 'b') suffix.pop_back();
  if (suffix.empty()) return 1;
  const std::size_t power = std::string_view("kmgt").find(suffix[0]);
  if (power == std::string_view::npos) return 0;
  if (suffix.size() > 2 || (suffix.size() == 2 && suffix[1] != 'i')) return 0;
  const std::uint64_t base = suffix.size() == 2 ? 1024 : 1000;
  std::uint64_t factor = base;
  for (std::size_t i = 0; i < power; ++i) factor *= base;
  return factor;
}

Status named(const std::string& key, const Status& why) {
  return {why.code(), "option '" + key + "': " + why.message()};
}

}  // namespace

Result<std::uint64_t> parse_size_bytes(std::string_view text) {
  if (text == "unlimited") return kUnlimitedBytes;
  const std::string quoted = "'" + std::string(text) + "'";
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return invalid_argument(quoted + " is no size; write 64Mi, 200G or unlimited");
  const std::uint64_t factor = suffix_factor(std::string(end, text.data() + text.size()));
  if (factor == 0) return invalid_argument(quoted + " has an unknown suffix; use K M G T or Ki Mi Gi Ti");
  if (number > kUnlimitedBytes / factor) return invalid_argument(quoted + " is more than 64 bits can count");
  return number * factor;
}

Status add_options(std::string_view flag, const std::vector<std::string>& texts, BackendOptions& out) {
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      const std::string prefix = flag.empty() ? "" : std::string(flag) + ": ";
      return invalid_argument(prefix + "KEY=VALUE is expected, not '" + text + "'");
    }
    out[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return Status::ok();
}

std::string text_option(const BackendOptions& options, const std::string& key, std::string fallback) {
  const auto at = options.find(key);
  if (at == options.end() || at->second.empty()) return fallback;
  return at->second;
}

Result<std::uint64_t> size_option(const BackendOptions& options, const std::string& key, std::uint64_t fallback) {
  const std::string text = text_option(options, key, "");
  if (text.empty()) return fallback;
  Result<std::uint64_t> parsed = parse_size_bytes(text);
  if (!parsed.is_ok()) return named(key, parsed.status());
  return parsed;
}

Result<std::uint64_t> count_option(const BackendOptions& options, const std::string& key, std::uint64_t fallback,
                                   std::uint64_t low, std::uint64_t high) {
  const std::string text = text_option(options, key, "");
  if (text.empty()) return fallback;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < low || number > high) {
    return named(key, invalid_argument("'" + text + "' is no whole number from " + std::to_string(low) + " to " +
                                       std::to_string(high)));
  }
  return number;
}

}  // namespace larder
