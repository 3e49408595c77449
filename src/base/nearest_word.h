// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known word that a mistyped one was meant to be.
//
// Threads: any; pure. Cost O(words * letters of both); of words that people type, so not for hot paths.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace larder {

// The nearest by edit distance (letters that change places count as one edit), of at most 2 edits or a third of the
// word; else the only known word that contains it. Empty: none, or the word has more than 128 bytes. A view into
// `known`.
[[nodiscard]] std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

// "; did you mean 'window'?", or nothing. before, after: what stands around the word.
[[nodiscard]] std::string did_you_mean(std::string_view word, std::span<const std::string_view> known,
                                       std::string_view before = "'", std::string_view after = "'");

}  // namespace larder
