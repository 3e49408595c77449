// SPDX-License-Identifier: Apache-2.0
// The table of options behind options.h (internal to engine/).
//
// Threads: the table is immutable; check_ranges is pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"
#include "engine/options.h"

namespace larder {

// Where an option's value lives. A switch that clears its member ("disable-...") is a Negated.
struct Negated {
  bool Options::*member;
};
using OptionField = std::variant<std::string Options::*, std::uint16_t Options::*, std::uint32_t Options::*,
                                 std::uint64_t Options::*, double Options::*, bool Options::*, Negated>;

struct OptionEntry {
  OptionInfo info;
  OptionField field;
  double low = 0, high = 0;                      // numbers: both ends included unless `is_low_open`
  bool is_low_open = false;                      // the value must be above `low`
  std::span<const std::string_view> words = {};  // texts: the words allowed; empty: any text
  bool is_size = false;                          // texts: a number in a file is a number of bytes
};

[[nodiscard]] std::span<const OptionEntry> option_table();
// It is an option of text. A file's number or switch is not what stood there: 0071 has become 71, and 4.10 is 4.1.
[[nodiscard]] bool wants_text(std::string_view name);
// kInvalidArgument names the first option whose value is out of its range or not among its words.
[[nodiscard]] Status check_ranges(const Options& options);

}  // namespace larder
