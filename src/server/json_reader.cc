// SPDX-License-Identifier: Apache-2.0
#include "server/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/json_text.h"

namespace larder {
namespace {

using nlohmann::json;

// Deep nesting costs a parser far more memory than the text has, and a copy the stack: refused before it is parsed.
// Where the first bracket is that is too deep; npos: nowhere.
std::size_t too_deep_at(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return i;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return std::string_view::npos;
}

Status too_deep() { return invalid_argument(fmt::format("JSON nested deeper than {} levels", kMaxJsonDepth)); }

// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..." -> "syntax error ..."
// Cut: the parser repeats what it read last, all of a long string for instance.
std::string parser_text(const json::parse_error& error) {
  const std::string_view text = error.what();
  const std::size_t colon = text.find(": ");
  return cut_text(colon == std::string_view::npos ? text : text.substr(colon + 2));
}

std::string place_of(std::string_view text, std::size_t offset) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i < std::min(offset, text.size()); ++i) {
    column = text[i] == '\n' ? 1 : column + 1;
    if (text[i] == '\n') ++line;
  }
  return fmt::format("byte {} (line {}, column {})", offset, line, column);
}

}  // namespace

// A value takes 16 bytes of a document, a list some 60, an object some 180, whatever the text takes. Characters inside
// strings count, too: no prompt has so many.
Status check_json_values(std::string_view text, std::size_t most) {
  if (text.size() <= most / 10) return Status::ok();
  std::size_t weight = 0;
  for (const char c : text) weight += c == ',' ? 1 : c == '[' ? 4 : c == '{' ? 10 : 0;
  if (weight < most) return Status::ok();
  return invalid_argument(
      fmt::format("the body has too many values: at most {} are read; a list counts as 4, "
                  "an object as 10",
                  most));
}

Status check_json_size(std::string_view text, std::size_t most) {
  LARDER_RETURN_IF_ERROR(check_json_values(text, most));
  return too_deep_at(text) == std::string_view::npos ? Status::ok() : too_deep();
}

Result<json> parse_json_object(std::string_view text, std::size_t most) {
  LARDER_RETURN_IF_ERROR(check_json_values(text, most));
  if (text.empty()) return invalid_argument("the body is empty; a JSON object is expected");
  // To the parser a NUL is the end of the text; to JSON it is nothing that may stand anywhere.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return invalid_argument(fmt::format("malformed JSON at {}: a NUL", place_of(text, nul)));
  }
  // Of what is too deep, the beginning is parsed: bytes that are no JSON have brackets, too.
  const std::size_t deep = too_deep_at(text);
  try {
    json document = json::parse(text.substr(0, deep));
    if (!document.is_object()) {
      return invalid_argument("the body must be a JSON object, got " + describe_json(document));
    }
    return document;
  } catch (const json::parse_error& error) {
    if (deep < error.byte) return too_deep();
    const std::size_t offset = error.byte > 0 ? error.byte - 1 : 0;
    return invalid_argument(fmt::format("malformed JSON at {}: {}", place_of(text, offset), parser_text(error)));
  } catch (const json::exception& error) {  // a number beyond the range of double
    return invalid_argument(fmt::format("malformed JSON: {}", cut_text(error.what())));
  }
}

std::string describe_json(const json& value) {
  constexpr std::size_t kLongest = 60;
  switch (value.type()) {
    case json::value_t::null: return "null";
    case json::value_t::array: return fmt::format("an array of {}", value.size());
    case json::value_t::object: return "an object";
    case json::value_t::boolean: return value.get<bool>() ? "true" : "false";
    case json::value_t::string: {
      std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
      if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
      return "the string " + text;
    }
    default: return "the number " + value.dump();
  }
}

std::string dump_json(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

const json* JsonReader::find(std::string_view name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::string JsonReader::path_of(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : fmt::format("{}.{}", prefix_, name);
}

void JsonReader::fail(Status status) {
  if (status_.is_ok()) status_ = std::move(status);
}

void JsonReader::fail_type(std::string_view name, std::string_view expected) {
  const json* value = find(name);
  fail(invalid_argument(
      fmt::format("'{}' must be {}, got {}", path_of(name), expected, value ? describe_json(*value) : "nothing")));
}

void JsonReader::read(std::string_view name, bool& out) {
  const json* value = find(name);
  if (!is_ok() || !value) return;
  if (!value->is_boolean()) return fail_type(name, "a boolean");
  out = value->get<bool>();
}

void JsonReader::read(std::string_view name, std::string& out) {
  const json* value = find(name);
  if (!is_ok() || !value) return;
  if (!value->is_string()) return fail_type(name, "a string");
  out = value->get<std::string>();
}

void JsonReader::read_uint(std::string_view name, std::uint64_t& out, std::uint64_t min, std::uint64_t max) {
  const json* value = find(name);
  if (!is_ok() || !value) return;
  const std::string expected = fmt::format("an integer in [{}, {}]", min, max);
  if (!value->is_number_unsigned()) return fail_type(name, expected);
  const auto number = value->get<std::uint64_t>();
  if (number < min || number > max) return fail_type(name, expected);
  out = number;
}

void JsonReader::read_int(std::string_view name, std::int64_t& out, std::int64_t min, std::int64_t max) {
  const json* value = find(name);
  if (!is_ok() || !value) return;
  const std::string expected = fmt::format("an integer in [{}, {}]", min, max);
  const bool is_huge = value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX;
  if (!value->is_number_integer() || is_huge) return fail_type(name, expected);
  const auto number = value->get<std::int64_t>();
  if (number < min || number > max) return fail_type(name, expected);
  out = number;
}

void JsonReader::read_number(std::string_view name, double& out, double min, double max) {
  const json* value = find(name);
  if (!is_ok() || !value) return;
  const std::string expected =
      std::isinf(max) ? fmt::format("a number >= {}", min) : fmt::format("a number in [{}, {}]", min, max);
  if (!value->is_number()) return fail_type(name, expected);
  const double number = value->get<double>();
  if (!std::isfinite(number) || number < min || number > max) return fail_type(name, expected);
  out = number;
}

void JsonReader::read_tokens(std::string_view name, std::vector<TokenId>& out, std::uint32_t vocab_size) {
  const json* value = find(name);
  if (!is_ok() || !value) return;
  if (!value->is_array()) return fail_type(name, "an array of token ids");
  Result<std::vector<TokenId>> tokens = tokens_of(*value, path_of(name), vocab_size);
  if (!tokens.is_ok()) return fail(tokens.status());
  out = std::move(*tokens);
}

void JsonReader::read_strings(std::string_view name, std::vector<std::string>& out) {
  const json* value = find(name);
  if (!is_ok() || !value) return;
  if (value->is_string()) {
    out = {value->get<std::string>()};
    return;
  }
  if (!value->is_array()) return fail_type(name, "a string or an array of strings");
  std::vector<std::string> strings;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const json& item = (*value)[i];
    if (!item.is_string()) {
      return fail(
          invalid_argument(fmt::format("'{}[{}]' must be a string, got {}", path_of(name), i, describe_json(item))));
    }
    strings.push_back(item.get<std::string>());
  }
  out = std::move(strings);
}

void JsonReader::refuse_unless(std::string_view name, const json& neutral) {
  const json* value = find(name);
  if (!is_ok() || !value || *value == neutral) return;
  const bool is_empty = value->is_array() || value->is_object() ? value->empty() : false;
  if (is_empty) return;
  const std::string allowed =
      neutral.is_null() ? "leave it out" : fmt::format("leave it out or send {}", neutral.dump());
  fail(invalid_argument(fmt::format("'{}' is not supported: {}", path_of(name), allowed)));
}

Result<std::vector<TokenId>> tokens_of(const json& array, std::string_view path, std::uint32_t vocab_size) {
  std::vector<TokenId> tokens;
  tokens.reserve(array.size());
  for (std::size_t i = 0; i < array.size(); ++i) {
    const json& item = array[i];
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() >= vocab_size) {
      const std::string_view problem = item.is_number_integer() ? "is out of range" : "is no token id";
      return invalid_argument(fmt::format("'{}[{}]' {}: {}; token ids are integers in [0, {}] (vocabulary of {})", path,
                                          i, problem, describe_json(item), vocab_size - 1, vocab_size));
    }
    tokens.push_back(item.get<TokenId>());
  }
  return tokens;
}

}  // namespace larder
