// SPDX-License-Identifier: Apache-2.0
#include "server/llama/output_count.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

namespace larder::llama {
namespace {

constexpr std::string_view kData = "data:", kDone = "data: [DONE]";
// In the order of trust: "tokens_predicted" stands beside a "timings" of the same answer.
constexpr const char* kPlaces[] = {"/usage/completion_tokens", "/usage/output_tokens", "/tokens_predicted",
                                   "/timings/predicted_n"};
constexpr std::string_view kNames[] = {"\"completion_tokens\"", "\"output_tokens\"", "\"tokens_predicted\"",
                                       "\"predicted_n\""};

std::optional<std::uint64_t> count_in(const nlohmann::json& object) {
  for (const char* place : kPlaces) {
    const nlohmann::json::json_pointer path(place);
    if (object.contains(path) && object.at(path).is_number_unsigned()) return object.at(path).get<std::uint64_t>();
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
  while (!piece.empty()) {
    const std::size_t end = std::min(piece.find('\n'), piece.size());
    is_too_long_ = is_too_long_ || line_.size() + end > kMostBytes;
    if (is_too_long_) {
      line_.clear();
    } else {
      line_.append(piece.substr(0, end));
    }
    if (end == piece.size()) return;
    read_line();
    piece.remove_prefix(end + 1);
  }
}

void OutputCount::read_line() {
  if (!is_too_long_) {
    if (line_.starts_with(kData) && !line_.starts_with(kDone)) ++events_;
    const bool has_count = std::ranges::any_of(kNames, [&](auto name) { return line_.find(name) != line_.npos; });
    if (has_count) last_.swap(line_);
  }
  line_.clear();
  is_too_long_ = false;
}

void OutputCount::end() {
  read_line();
  std::string_view text = last_;
  if (text.starts_with(kData)) text.remove_prefix(kData.size());
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  if (parsed.is_object()) tokens_ = output_of(parsed);
  if (parsed.is_array()) {  // several answers, or prompts
    for (const auto& one : parsed) tokens_ += one.is_object() ? output_of(one) : 0;
  }
  if (tokens_ == 0) tokens_ = events_;
}

}  // namespace larder::llama
