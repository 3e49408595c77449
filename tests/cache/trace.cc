// SPDX-License-Identifier: Apache-2.0
#include "tests/cache/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/file_system.h"
#include "base/rng.h"
#include "engine/text_file.h"

namespace larder::test {
namespace {

constexpr std::uint64_t kVocabulary = 64;
constexpr std::uint64_t kMostHash = kVocabulary * kVocabulary * kVocabulary * kVocabulary;
constexpr std::uint64_t kMostTokens = 1'000'000;  // of one prompt or output

std::string_view after(std::string_view line, std::string_view name) {
  const std::size_t at = line.find("\"" + std::string(name) + "\":");
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + name.size() + 3);
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return line;
}

// The number that `text` begins with, which it is then without. False: it begins with none.
bool take_number(std::string_view& text, std::uint64_t& out) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

Status parse_line(std::string_view line, TraceRequest& out) {
  std::string_view input = after(line, "input_length"), output = after(line, "output_length");
  if (!take_number(input, out.input_length) || !take_number(output, out.output_length)) {
    return invalid_argument("input_length and output_length are expected");
  }
  if (out.input_length == 0 || out.input_length > kMostTokens || out.output_length > kMostTokens) {
    return invalid_argument("a length is out of its range");
  }
  std::string_view hashes = after(line, "hash_ids");
  if (!hashes.starts_with('[')) return invalid_argument("hash_ids are expected");
  hashes.remove_prefix(1);
  for (std::uint64_t hash = 0; take_number(hashes, hash);) {
    if (hash >= kMostHash) return invalid_argument("hash " + std::to_string(hash) + " is too large");
    out.hash_ids.push_back(hash);
    if (!hashes.starts_with(',')) break;
    hashes.remove_prefix(1);
  }
  if (!hashes.starts_with(']')) return invalid_argument("hash_ids do not end");
  if (out.hash_ids.size() == (out.input_length + kTraceBlock - 1) / kTraceBlock) return Status::ok();
  return invalid_argument(std::to_string(out.hash_ids.size()) + " hash_ids do not fit " +
                          std::to_string(out.input_length) + " tokens");
}

// Half of the draws are below `median`, about one in six above `spread` times that.
std::uint64_t draw_length(Rng& rng, double median, double spread) {
  double normal = -6;
  for (int i = 0; i < 12; ++i) normal += rng.uniform();
  return static_cast<std::uint64_t>(median * std::pow(spread, normal));
}

}  // namespace

Result<Trace> parse_trace(std::string_view text) {
  Trace trace;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) continue;
    TraceRequest request;
    if (const Status parsed = parse_line(line, request); !parsed.is_ok()) {
      return invalid_argument("trace, line " + std::to_string(number) + ": " + parsed.message());
    }
    trace.push_back(std::move(request));
  }
  return trace;
}

Result<Trace> trace_of_environment() {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  const char* const path = std::getenv("LARDER_TRACE");
  if (path == nullptr || *path == '\0') return not_found("LARDER_TRACE names no trace (docs/testing.md)");
  const Result<std::string> text = read_text_file(real_file_system(), path, kMostBytes);
  if (!text.is_ok()) return invalid_argument("LARDER_TRACE: " + text.status().message());
  return parse_trace(*text);
}

Trace generate_trace(std::uint64_t seed, std::size_t requests) {
  constexpr std::uint64_t kMostBlocks = 240, kGap = 150;  // requests until the next turn
  Rng rng(seed * 0x9e3779b97f4a7c15ull + 11);
  std::uint64_t next_hash = 1;                                   // 0: the block that all share
  std::multimap<std::size_t, std::vector<std::uint64_t>> turns;  // by the request after which they are due
  Trace trace;
  while (trace.size() < requests) {
    std::vector<std::uint64_t> blocks = {0};
    std::uint64_t fresh = 1 + draw_length(rng, 11, 2.9);
    if (const auto due = turns.begin(); due != turns.end() && due->first <= trace.size()) {
      blocks = std::move(due->second);
      turns.erase(due);
      fresh = 1 + draw_length(rng, 1.5, 5);
    }
    fresh = std::min(fresh, kMostBlocks - std::min<std::uint64_t>(blocks.size(), kMostBlocks - 1));
    for (std::uint64_t i = 0; i < fresh; ++i) blocks.push_back(next_hash++);
    TraceRequest request;
    request.input_length = (blocks.size() - 1) * kTraceBlock + 1 + rng.below(kTraceBlock);
    request.output_length = 1 + draw_length(rng, 340, 2);
    request.hash_ids = blocks;
    trace.push_back(std::move(request));
    blocks.pop_back();  // the answer begins in it
    const bool goes_on = blocks.size() + 2 < kMostBlocks && !blocks.empty() && rng.below(100) < 38;
    if (goes_on) turns.emplace(trace.size() + 1 + draw_length(rng, kGap, 3), std::move(blocks));
  }
  return trace;
}

std::vector<TokenId> scaled_prompt(const TraceRequest& request) {
  std::vector<TokenId> tokens;
  for (std::uint64_t hash : request.hash_ids) {
    for (std::uint64_t i = 0; i < kTokensPerBlock; ++i, hash /= kVocabulary) {
      tokens.push_back(static_cast<TokenId>(hash % kVocabulary));
    }
  }
  tokens.resize((request.input_length * kTokensPerBlock + kTraceBlock - 1) / kTraceBlock);
  return tokens;
}

std::uint64_t scaled_output(const TraceRequest& request) {
  return std::max<std::uint64_t>(1, (request.output_length * kTokensPerBlock + kTraceBlock - 1) / kTraceBlock);
}

double ceiling_of(const Trace& trace) {
  std::unordered_set<std::uint64_t> seen;
  std::uint64_t tokens = 0, found = 0;
  for (const TraceRequest& request : trace) {
    std::uint64_t blocks = 0;
    while (blocks < request.hash_ids.size() && seen.contains(request.hash_ids[blocks])) ++blocks;
    seen.insert(request.hash_ids.begin(), request.hash_ids.end());
    tokens += request.input_length;
    found += std::min(blocks * kTraceBlock, request.input_length);
  }
  return tokens == 0 ? 0 : 100.0 * static_cast<double>(found) / static_cast<double>(tokens);
}

}  // namespace larder::test
