// SPDX-License-Identifier: Apache-2.0
#include "server/llama/answer_count.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace larder::llama {
namespace {

using PlainJson = nlohmann::json;
using Count = std::optional<std::uint64_t>;

Count number_at(const PlainJson& object, const char* pointer) {
  const PlainJson::json_pointer path(pointer);
  if (!object.contains(path)) return std::nullopt;
  const PlainJson& found = object.at(path);
  return found.is_number_unsigned() ? Count(found.get<std::uint64_t>()) : std::nullopt;
}

Count sum(const Count& a, const Count& b) { return a && b ? Count(*a + *b) : std::nullopt; }

// Events that come before the prompt is computed to its end, or in place of an output.
bool is_output(std::string_view event) {
  constexpr std::string_view kOthers[] = {"\"prompt_progress\"", "\"response.created\"", "\"response.in_progress\"",
                                          "\"error\""};
  return std::ranges::none_of(kOthers, [&](auto name) { return event.find(name) != event.npos; });
}

bool is_error(std::string_view line) {
  if (line.starts_with("event:")) {
    line.remove_prefix(std::string_view("event:").size());
    return line.substr(std::min(line.find_first_not_of(' '), line.size())).starts_with("error");
  }
  if (!line.starts_with(kEventData)) return false;
  line.remove_prefix(kEventData.size());
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return line.starts_with("{\"error\":") || line.starts_with("{\"type\":\"error\"");
}

struct Counts {
  Count prompt, cached;
};

Counts counts_of(const PlainJson& object) {
  if (const Count prompt = number_at(object, "/usage/prompt_tokens")) {
    return {prompt, number_at(object, "/usage/prompt_tokens_details/cached_tokens")};
  }
  if (const Count rest = number_at(object, "/usage/input_tokens")) {
    // /v1/messages counts the cached ones apart.
    const Count cached = number_at(object, "/usage/cache_read_input_tokens");
    if (cached) return {sum(rest, cached), cached};
    return {rest, number_at(object, "/usage/input_tokens_details/cached_tokens")};
  }
  const Count cached = number_at(object, "/timings/cache_n");
  if (const Count prompt = number_at(object, "/tokens_evaluated")) return {prompt, cached};
  // While a prompt is being computed these are of a part of it.
  if (object.contains("prompt_progress")) return {};
  return {sum(number_at(object, "/timings/prompt_n"), cached), cached};
}

}  // namespace

void AnswerCount::feed(std::string_view piece) {
  lines_.feed(piece, [this](const std::string& line, bool is_too_long) { read_line(line, is_too_long); });
}

void AnswerCount::end() {
  lines_.end([this](const std::string& line, bool is_too_long) { read_line(line, is_too_long); });
  is_over_ = true;
}

void AnswerCount::read_line(std::string_view text, bool is_too_long) {
  is_over_ = is_over_ || is_too_long;
  const bool is_event = text.starts_with(kEventData);
  has_error_ = has_error_ || is_error(text);
  if (is_event && is_output(text)) {
    has_output_ = true;
    ++outputs_;
  }
  if (is_over_) return;
  if (is_event) text.remove_prefix(kEventData.size());
  constexpr std::string_view kNames[] = {"\"usage\"", "\"timings\"", "\"tokens_evaluated\""};
  const bool has_count = std::ranges::any_of(kNames, [&](auto name) { return text.find(name) != text.npos; });
  if (!has_count) return;
  PlainJson body = PlainJson::parse(text, nullptr, false);
  if (body.is_array() && !body.empty()) body = PlainJson(body[0]);
  if (!body.is_object()) return;
  Counts counts = counts_of(body);
  for (const char* inner : {"response", "message"}) {
    if (!counts.prompt && body.contains(inner) && body[inner].is_object()) counts = counts_of(body[inner]);
  }
  if (!counts.prompt) return;
  prompt_ = counts.prompt;
  cached_ = counts.cached;
  is_over_ = true;
}

}  // namespace larder::llama
