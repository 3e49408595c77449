// SPDX-License-Identifier: Apache-2.0
// Reads typed fields out of a JSON request and says exactly what is wrong with it.
//
// Purpose: every error names the field by its path ("sampling_params.top_p", "input_ids[3]"), the type or range that
// was expected, and what came instead. The first error counts; later reads are no-ops, so a parser reads like a list.
// null counts as absent, as in the reference's API.
// Threads: confined. Lifetime: the document outlives the reader.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strong.h"

namespace larder {

inline constexpr std::size_t kMaxJsonDepth = 64;
inline constexpr std::size_t kMostJsonValues = std::size_t{8} << 20;

// For texts that no client sends: an operator's own file.
inline constexpr std::size_t kAnyJsonValues = std::numeric_limits<std::size_t>::max();

// kInvalidArgument: about `most` or more, whose document would take many times the memory of the text.
[[nodiscard]] Status check_json_values(std::string_view text, std::size_t most = kMostJsonValues);

// kInvalidArgument: it has too many values, or is nested deeper than kMaxJsonDepth. A document of such a text may take
// all memory, and each level of a copy or of a dump takes some of the stack.
[[nodiscard]] Status check_json_size(std::string_view text, std::size_t most = kMostJsonValues);

// The document. kInvalidArgument: "malformed JSON at byte 17 (line 1, column 18): ..."; nested deeper than
// kMaxJsonDepth; more values than `most`; or not an object.
[[nodiscard]] Result<nlohmann::json> parse_json_object(std::string_view text, std::size_t most = kMostJsonValues);

// "an array", "the string \"hot\"", "null": what a field holds, for error texts. Long values are cut.
[[nodiscard]] std::string describe_json(const nlohmann::json& value);

// Text that never throws: invalid UTF-8 becomes U+FFFD.
[[nodiscard]] std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);

class JsonReader {
 public:
  // object: a JSON object. prefix: its path, "" for the document.
  explicit JsonReader(const nlohmann::json& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  // The value, or nullptr when it is absent or null.
  [[nodiscard]] const nlohmann::json* find(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] std::string path_of(std::string_view name) const;

  // Leave `out` alone when the field is absent.
  void read(std::string_view name, bool& out);
  void read(std::string_view name, std::string& out);
  void read_uint(std::string_view name, std::uint64_t& out, std::uint64_t min, std::uint64_t max);
  void read_int(std::string_view name, std::int64_t& out, std::int64_t min, std::int64_t max);
  void read_number(std::string_view name, double& out, double min, double max);
  // Token ids, each < vocab_size: an error names the index and the vocabulary.
  void read_tokens(std::string_view name, std::vector<TokenId>& out, std::uint32_t vocab_size);
  // A string or an array of strings.
  void read_strings(std::string_view name, std::vector<std::string>& out);
  // Known, but not implemented: only null, or a value that changes nothing, is accepted.
  void refuse_unless(std::string_view name, const nlohmann::json& neutral);

  // "`field` must be `expected`, got ...".
  void fail_type(std::string_view name, std::string_view expected);
  void fail(Status status);
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] bool is_ok() const { return status_.is_ok(); }

 private:
  const nlohmann::json& object_;
  const std::string prefix_;
  Status status_;
};

// One array of token ids at `path`. kInvalidArgument names the index.
[[nodiscard]] Result<std::vector<TokenId>> tokens_of(const nlohmann::json& array, std::string_view path,
                                                     std::uint32_t vocab_size);

}  // namespace larder
