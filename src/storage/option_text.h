// SPDX-License-Identifier: Apache-2.0
// Reads the flat text options of a backend ("max_size" -> "200G") into values.
//
// Threads: confined to the creator. Errors: kInvalidArgument names the option, the text and what would be right.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "storage/factory.h"

namespace larder {

// "unlimited" and sizes without an end.
inline constexpr std::uint64_t kUnlimitedBytes = ~std::uint64_t{0};

// Digits with an optional suffix: K M G T (powers of 1000), Ki Mi Gi Ti (powers of 1024), each with or without a final
// B, either case; or "unlimited".
[[nodiscard]] Result<std::uint64_t> parse_size_bytes(std::string_view text);

// The option's value, or `fallback` if it is not given (or empty).
[[nodiscard]] Result<std::uint64_t> size_option(const BackendOptions& options, const std::string& key,
                                                std::uint64_t fallback);
// A whole number in [low, high].
[[nodiscard]] Result<std::uint64_t> count_option(const BackendOptions& options, const std::string& key,
                                                 std::uint64_t fallback, std::uint64_t low, std::uint64_t high);
// The same into `out`, whose type holds all of these numbers.
template <class Number>
[[nodiscard]] Status read_count(const BackendOptions& options, const std::string& key, std::uint64_t fallback,
                                std::uint64_t low, std::uint64_t high, Number& out) {
  const Result<std::uint64_t> value = count_option(options, key, fallback, low, high);
  if (value.is_ok()) out = static_cast<Number>(*value);
  return value.status();
}
[[nodiscard]] std::string text_option(const BackendOptions& options, const std::string& key, std::string fallback);

// Puts each "KEY=VALUE", as a command line has them, into `out`; the last one of a key counts. kInvalidArgument begins
// with `flag` and a colon, unless that is empty.
[[nodiscard]] Status add_options(std::string_view flag, const std::vector<std::string>& texts, BackendOptions& out);

}  // namespace larder
