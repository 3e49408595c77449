// SPDX-License-Identifier: Apache-2.0
// Pieces of JSON text that are written without a document: answers that grow with every token.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace larder {

// As inside a JSON string. Precondition: valid UTF-8.
void append_json_escaped(std::string_view text, std::string& out);

// Where a piece of valid UTF-8 text of at most `limit` bytes from `begin` ends, cutting no character.
[[nodiscard]] std::size_t utf8_cut(std::string_view text, std::size_t begin, std::size_t limit);

// For error texts that show what a client sent: its beginning, at most `most` bytes, and "..." where it goes on. Of any
// bytes; cuts no character.
[[nodiscard]] std::string cut_text(std::string_view text, std::size_t most = 200);

}  // namespace larder
