// JSON: the scanner of hot requests (server/json_scanner.h) beside the parser that everything else uses.
//
// Fed: a text.
// Checked: both take the same texts (numbers out of a double's range and nesting beyond the limit aside), and read the
// same out of them: strings, integers, nulls, names of members, the order of elements. Errors say why and, for broken
// JSON, name a place inside the text. What is written back, escaped, is read as the same.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz_input.h"
#include "server/json_reader.h"
#include "server/json_scanner.h"
#include "server/json_text.h"

namespace larder::fuzz {
namespace {

using nlohmann::ordered_json;

struct Parsed {
  ordered_json value;
  bool is_json = false;
  bool has_huge_number = false;
  bool has_equal_names = false;
};

Parsed parse(std::string_view text) {
  Parsed out;
  if (text.find('\0') != std::string_view::npos) return out;  // for that parser the text ends there
  std::vector<std::vector<std::string>> names;
  const auto look = [&](int, ordered_json::parse_event_t event, ordered_json& value) {
    if (event == ordered_json::parse_event_t::object_start) names.emplace_back();
    if (event == ordered_json::parse_event_t::object_end) names.pop_back();
    if (event == ordered_json::parse_event_t::key) {
      const auto name = value.get<std::string>();
      if (std::find(names.back().begin(), names.back().end(), name) != names.back().end()) out.has_equal_names = true;
      names.back().push_back(name);
    }
    return true;
  };
  try {
    out.value = ordered_json::parse(text, look);
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

// Reads one value with the calls that fit what the parser found.
void read_value(JsonScanner& in, const ordered_json& value) {
  if (value.is_object()) {
    fuzz_check(in.enter_object("value"), "an object is none");
    std::string_view name;
    for (const auto& [key, member] : value.items()) {
      fuzz_check(in.next_member(name) && name == key, "another member");
      read_value(in, member);
    }
    fuzz_check(!in.next_member(name), "more members");
  } else if (value.is_array()) {
    fuzz_check(in.enter_array("value"), "an array is none");
    for (const ordered_json& element : value) {
      fuzz_check(in.next_element(), "fewer elements");
      read_value(in, element);
    }
    fuzz_check(!in.next_element(), "more elements");
  } else if (value.is_string()) {
    std::string_view text;
    fuzz_check(in.read_string("value", text) && text == value.get_ref<const std::string&>(), "another string");
    std::string escaped = "\"";
    append_json_escaped(text, escaped);
    escaped += '"';
    JsonScanner again(escaped);
    std::string_view same;
    fuzz_check(again.read_string("again", same) && again.finish() && same == text, "escaping gives another string");
  } else if (value.is_null()) {
    fuzz_check(in.read_null(), "a null is none");
  } else {
    fuzz_check(!in.read_null() && in.skip(), "a value is not skipped");
  }
}

void check_scanner(std::string_view text, const Parsed& parsed) {
  JsonScanner in(text);
  const bool is_taken = in.skip() && in.finish();
  fuzz_check(is_taken == in.status().is_ok(), "an error without a status, or the other way round");
  check_explains(in.status(), "the scanner");
  if (depth_of(text) > kMaxJsonDepth || parsed.has_huge_number) return;
  fuzz_check(is_taken == parsed.is_json, parsed.is_json ? "the scanner refuses JSON: " + in.status().message()
                                                        : std::string("the scanner takes what is no JSON"));
  fuzz_check(is_taken || in.is_malformed(), "broken JSON is not called so");
  if (!parsed.is_json || parsed.has_equal_names) return;
  JsonScanner reader(text);
  read_value(reader, parsed.value);
  fuzz_check(reader.finish() && reader.status().is_ok(), "reading it fails: " + reader.status().message());
}

// Integers, where the text is an array of them.
void check_integers(std::string_view text, const ordered_json& value) {
  JsonScanner in(text);
  if (!value.is_array() || !in.enter_array("numbers")) return;
  for (const ordered_json& element : value) {
    std::int64_t number = 0;
    if (!in.next_element()) return fuzz_check(false, "fewer elements");
    const bool fits = element.is_number_integer() &&
                      (!element.is_number_unsigned() || element.get<std::uint64_t>() <= std::uint64_t(INT64_MAX));
    const bool is_read = in.read_integer("number", number);
    if (fits) fuzz_check(is_read && number == element.get<std::int64_t>(), "another integer");
    if (!element.is_number()) fuzz_check(!is_read, "what is no number is read as one");
    if (!is_read) return;
  }
}

void run(FuzzInput input) {
  const std::string_view text = input.rest_text();
  const Parsed parsed = parse(text);
  check_scanner(text, parsed);
  if (parsed.is_json) check_integers(text, parsed.value);
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
