// SPDX-License-Identifier: Apache-2.0
#include "server/llama/output_count.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace larder::llama {
namespace {

constexpr std::string_view kDone = "data: [DONE]";
// In the order of trust: "tokens_predicted" stands beside a "timings" of the same answer.
constexpr const char* kPlaces[] = {"/usage/completion_tokens", "/usage/output_tokens", "/tokens_predicted",
                                   "/timings/predicted_n"};
constexpr std::string_view kNames[] = {"\"completion_tokens\"", "\"output_tokens\"", "\"tokens_predicted\"",
                                       "\"predicted_n\""};

std::optional<std::uint64_t> count_in(const nlohmann::json& object) {
  for (const char* place : kPlaces) {
    const nlohmann::json::json_pointer path(place);
    if (!object.contains(path) || !object.at(path).is_number_unsigned()) continue;
    const auto count = object.at(path).get<std::uint64_t>();
    if (count <= OutputCount::kMost) return count;
  }
  return std::nullopt;
}

std::uint64_t output_of(const nlohmann::json& object) {
  std::optional<std::uint64_t> count = count_in(object);
  for (const char* inner : {"response", "message"}) {
    if (!count && object.contains(inner) && object[inner].is_object()) count = count_in(object[inner]);
  }
  return count.value_or(0);
}

}  // namespace

void OutputCount::feed(std::string_view piece) {
  lines_.feed(piece, [this](std::string line, bool) { read_line(std::move(line)); });
}

void OutputCount::read_line(std::string line) {
  if (line.starts_with(kEventData) && !line.starts_with(kDone)) ++events_;
  const bool has_count = std::ranges::any_of(kNames, [&](auto name) { return line.find(name) != line.npos; });
  if (has_count) last_ = std::move(line);
}

void OutputCount::end() {
  lines_.end([this](std::string line, bool) { read_line(std::move(line)); });
  std::string_view text = last_;
  if (text.starts_with(kEventData)) text.remove_prefix(kEventData.size());
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  if (parsed.is_object()) tokens_ = output_of(parsed);
  if (parsed.is_array()) {  // several answers, or prompts
    for (const auto& one : parsed) tokens_ = std::min(kMost, tokens_ + (one.is_object() ? output_of(one) : 0));
  }
  if (tokens_ == 0) tokens_ = events_;
}

}  // namespace larder::llama
