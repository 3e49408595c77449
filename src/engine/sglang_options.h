// SPDX-License-Identifier: Apache-2.0
// Options of SGLang that published start commands name and `larder serve` has not: what becomes of each, and why.
//
// Purpose: who pastes such a command is told all of it at once, in words, and not that an option is unknown.
// docs/options.md has the same table (tools/options_page.py reads it here). Threads: constants and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace larder {

enum class SglangAnswer : std::uint8_t {
  kTaken,    // it changes nothing here; said once, at the start
  kRefused,  // who wants it would not get it; SGLang's default is taken, as what is here without the option
};

struct SglangOption {
  std::string_view names;     // without dashes, by comma and blank; the first is SGLang's own spelling
  std::string_view value;     // what follows it; empty: a switch
  std::string_view standard;  // SGLang's default
  SglangAnswer answer = SglangAnswer::kRefused;
  std::string_view why;  // begins in lower case, has no full stop
};

// Source: SGLang 0.5.23, fields of its arg_groups.
[[nodiscard]] std::span<const SglangOption> sglang_options();
// By any of its names, without dashes in front, '-' between words; nullptr: not in the table.
[[nodiscard]] const SglangOption* find_sglang_option(std::string_view name);
// "--tp is SGLang's, and not here: ..." or "--tp changes nothing here: ...".
[[nodiscard]] std::string about_sglang_option(const SglangOption& option, std::string_view name);

}  // namespace larder
