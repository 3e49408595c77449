// SPDX-License-Identifier: Apache-2.0
// JSON: the bodies of metadata calls (server/reference_body.h, by simdjson) beside the parser that everything else
// uses.
//
// Fed: a text.
// Checked: both take the same texts (numbers of more than 64 bits and nesting beyond the limit aside). Errors say why
// and, for broken JSON, name a place inside the text. What is written back, escaped, is read as the same.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz_input.h"
#include "server/json_reader.h"
#include "server/json_text.h"
#include "server/reference_body.h"

namespace larder::fuzz {
namespace {

using nlohmann::ordered_json;

struct Parsed {
  ordered_json value;
  bool is_json = false;
  bool has_huge_number = false;
};

Parsed parse(std::string_view text) {
  Parsed out;
  if (text.find('\0') != std::string_view::npos) return out;  // for that parser the text ends there
  try {
    out.value = ordered_json::parse(text);
    out.is_json = true;
  } catch (const ordered_json::out_of_range&) {
    out.has_huge_number = true;
  } catch (const ordered_json::exception&) {
    out.is_json = false;
  }
  return out;
}

std::size_t depth_of(std::string_view text) {
  std::size_t depth = 0, deepest = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if ((c == ']' || c == '}') && depth > 0) --depth;
  }
  return deepest;
}

void check_escaping(const ordered_json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    std::string escaped = "\"";
    append_json_escaped(text, escaped);
    fuzz_check(ordered_json::parse(escaped + '"') == value, "escaping gives another string");
  }
  if (!value.is_structured()) return;
  for (const ordered_json& member : value) check_escaping(member);
}

void check_body(ReferenceRoutes::Call call, std::string_view text, const Parsed& parsed) {
  ReferenceBody body;
  const Status read = body.read(call, text);
  check_explains(read, "the body");
  fuzz_check(!body.is_malformed || !read.is_ok(), "broken JSON without an error");
  if (depth_of(text) > kMaxJsonDepth || parsed.has_huge_number) return;
  fuzz_check(body.is_malformed != parsed.is_json, "broken JSON is not called so, or the other way round");
}

void run(FuzzInput input) {
  const std::string_view text = input.rest_text();
  if (text.starts_with("\xEF\xBB\xBF")) return;  // a byte order mark, which only one of the parsers passes over
  const Parsed parsed = parse(text);
  for (const auto call : {ReferenceRoutes::Call::kClear, ReferenceRoutes::Call::kGet, ReferenceRoutes::Call::kReserve,
                          ReferenceRoutes::Call::kConfirm, ReferenceRoutes::Call::kInitialize}) {
    check_body(call, text, parsed);
  }
  if (parsed.is_json) check_escaping(parsed.value);
  const Result<nlohmann::json> object = parse_json_object(text);
  check_explains(object.status(), "parse_json_object");
  const bool is_wanted = parsed.is_json && parsed.value.is_object() && depth_of(text) <= kMaxJsonDepth;
  fuzz_check(!is_wanted || object.is_ok(), "an object is refused: " + object.status().message());
  if (!object.is_ok()) return;
  fuzz_check(parsed.is_json && object->is_object(), "an object that is none");
  // Describing never throws, whatever is inside.
  for (const auto& [name, member] : object->items()) fuzz_check(!describe_json(member).empty(), "no description");
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
