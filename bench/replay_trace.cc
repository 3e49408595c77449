// SPDX-License-Identifier: Apache-2.0
#include "bench/replay_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>

namespace larder {
namespace {

constexpr std::uint64_t kMostTokens = 100'000'000;
constexpr double kLatestMs = 4e12;  // the year 2096 of who counts from 1970
constexpr std::size_t kLongestTenant = 4096;
constexpr std::uint64_t kAnswerBlocks = std::uint64_t{1}
                                        << 62;  // ids of answers that no prompt repeats; none is larger

// One number out of another, so that tokens look like those of a text.
std::uint64_t scrambled(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

Result<double> number_at(const nlohmann::json& line, const char* key, double least, double most) {
  const auto at = line.find(key);
  if (at == line.end()) return invalid_argument(fmt::format("there is no \"{}\"", key));
  if (!at->is_number()) return invalid_argument(fmt::format("\"{}\" is no number", key));
  const double value = at->get<double>();
  if (!(value >= least && value <= most)) {
    return invalid_argument(fmt::format("\"{}\" is {}, which is not from {} to {}", key, value, least, most));
  }
  return value;
}

Result<std::uint64_t> tokens_at(const nlohmann::json& line, const char* key, double least) {
  const Result<double> value = number_at(line, key, least, static_cast<double>(kMostTokens));
  if (!value.is_ok()) return value.status();
  if (*value != std::floor(*value)) return invalid_argument(fmt::format("\"{}\" is no whole number", key));
  return static_cast<std::uint64_t>(*value);
}

Result<std::vector<std::uint64_t>> ids_at(const nlohmann::json& line, const char* key) {
  std::vector<std::uint64_t> out;
  const auto ids = line.find(key);
  if (ids == line.end() || !ids->is_array()) return invalid_argument(fmt::format("there is no list \"{}\"", key));
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kAnswerBlocks) {
      return invalid_argument(fmt::format("an entry of \"{}\" is no whole number from 0 to 2^62 - 1", key));
    }
    out.push_back(id.get<std::uint64_t>());
  }
  return out;
}

}  // namespace

Status ReplayTrace::add_line(const std::string& line) {
  const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
  if (!parsed.is_object()) return invalid_argument("it is no JSON object");
  const Result<double> time = number_at(parsed, "timestamp", 0, kLatestMs);
  if (!time.is_ok()) return time.status();
  const Result<std::uint64_t> prompt = tokens_at(parsed, "input_length", 1);
  if (!prompt.is_ok()) return prompt.status();
  const Result<std::uint64_t> output = tokens_at(parsed, "output_length", 0);
  if (!output.is_ok()) return output.status();
  Request request;
  request.arrival_s = *time / 1000;
  request.prompt = *prompt;
  request.output = *output;
  if (!requests_.empty() && request.arrival_s < requests_.back().arrival_s) {
    return invalid_argument("its \"timestamp\" is before that of the line before it; sort the file by time");
  }
  Result<std::vector<std::uint64_t>> ids = ids_at(parsed, "hash_ids");
  if (!ids.is_ok()) return ids.status();
  request.blocks = std::move(*ids);
  const auto size = parsed.find("block_tokens");
  if (size != parsed.end()) {
    const Result<std::uint64_t> given = tokens_at(parsed, "block_tokens", 1);
    if (!given.is_ok()) return given.status();
    if (*given != block_tokens_) {
      return invalid_argument(fmt::format("its blocks have {} tokens: give --block-tokens {}", *given, *given));
    }
  }
  if (const auto tenant = parsed.find("tenant"); tenant != parsed.end()) {
    if (!tenant->is_string() || tenant->get_ref<const std::string&>().size() > kLongestTenant) {
      return invalid_argument(fmt::format("\"tenant\" is no text of at most {} bytes", kLongestTenant));
    }
    request.tenant = tenant->get<std::string>();
  }
  const std::uint64_t blocks = (request.prompt + block_tokens_ - 1) / block_tokens_;
  if (request.blocks.size() != blocks) {
    return invalid_argument(fmt::format("{} tokens are {} blocks of {} (--block-tokens), and \"hash_ids\" has {}",
                                        request.prompt, blocks, block_tokens_, request.blocks.size()));
  }
  if (parsed.contains("output_hash_ids")) {
    Result<std::vector<std::uint64_t>> answer = ids_at(parsed, "output_hash_ids");
    if (!answer.is_ok()) return answer.status();
    request.answer_blocks = std::move(*answer);
    const std::uint64_t filled = (request.prompt + request.output) / block_tokens_ - request.prompt / block_tokens_;
    if (request.answer_blocks.size() != filled) {
      return invalid_argument(fmt::format("the answer fills {} blocks, and \"output_hash_ids\" has {}", filled,
                                          request.answer_blocks.size()));
    }
  }
  requests_.push_back(std::move(request));
  return Status::ok();
}

Result<ReplayTrace> ReplayTrace::read(const std::string& path, std::uint64_t block_tokens, std::size_t limit) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    return invalid_argument(fmt::format("the trace '{}' is a folder: name a file in it", path));
  }
  std::ifstream file(path);
  if (!file) return not_found(fmt::format("cannot read the trace '{}': {}", path, std::strerror(errno)));
  ReplayTrace trace;
  trace.block_tokens_ = block_tokens;
  std::string line;
  for (std::size_t number = 1; trace.requests_.size() < limit && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const Status added = trace.add_line(line);
    if (!added.is_ok()) return invalid_argument(fmt::format("{}:{}: {}", path, number, added.message()));
  }
  if (file.bad()) return unavailable(fmt::format("reading the trace '{}' failed: {}", path, std::strerror(errno)));
  if (trace.requests_.empty()) return invalid_argument(fmt::format("the trace '{}' has no request", path));
  trace.find_next_turns();
  return trace;
}

// Of the prompt, and of the answer where that is known.
std::uint64_t ReplayTrace::whole_blocks(const Request& request) const {
  return request.prompt / block_tokens_ + request.answer_blocks.size();
}

// Blocks are named by their whole prefix, so requests that share a block share all before it. Those that wait at one
// block, as all that have a short question behind one system prompt may, are looked at only if their turn has come.
void ReplayTrace::find_next_turns() {
  using Waiting = std::tuple<std::uint64_t, std::string_view, std::uint64_t, std::size_t>;
  // By the last whole block: whole blocks, tenant, tokens, request.
  std::unordered_map<std::uint64_t, std::set<Waiting>> waiting;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& me = requests_[i];
    const std::vector<std::uint64_t>& blocks = me.blocks;
    for (std::size_t k = 0; k < me.prompt / block_tokens_; ++k) {
      const auto found = waiting.find(blocks[k]);
      if (found == waiting.end()) continue;
      const auto first = found->second.lower_bound({k + 1, me.tenant, 0, 0});
      auto at = first;
      for (; at != found->second.end() && *at < Waiting{k + 1, me.tenant, me.prompt, 0}; ++at) {
        Request& before = requests_[std::get<3>(*at)];
        before.next_turn = i;
        const std::uint64_t part = before.prompt / block_tokens_;
        if (before.blocks.size() > part) filled_later_.try_emplace(before.blocks.back(), blocks[part]);
      }
      found->second.erase(first, at);
    }
    const bool is_filled = !me.answer_blocks.empty() && me.prompt % block_tokens_ != 0;
    if (is_filled) filled_later_.try_emplace(blocks.back(), me.answer_blocks.front());
    const std::uint64_t whole = whole_blocks(me);
    if (whole == 0) continue;
    const std::uint64_t last = me.answer_blocks.empty() ? blocks[whole - 1] : me.answer_blocks.back();
    waiting[last].emplace(whole, me.tenant, me.prompt + me.output, i);
  }
}

void ReplayTrace::append_block(std::uint64_t block, std::uint64_t begin, std::uint64_t end,
                               std::vector<TokenId>& out) const {
  const std::uint64_t seed = scrambled(block + 1);
  for (std::uint64_t i = begin; i < end; ++i) {
    out.push_back(static_cast<TokenId>(scrambled(seed + i) % 151'936));  // a vocabulary
  }
}

void ReplayTrace::tokens_of(std::size_t index, std::vector<TokenId>& out) const {
  const Request& request = requests_[index];
  out.clear();
  out.reserve(request.prompt + request.output);
  for (std::uint64_t at = 0; at < request.prompt; at += block_tokens_) {
    std::uint64_t block = request.blocks[at / block_tokens_];
    if (request.prompt - at < block_tokens_) {
      const auto later = filled_later_.find(block);
      if (later != filled_later_.end()) block = later->second;
    }
    append_block(block, 0, std::min(block_tokens_, request.prompt - at), out);
  }
  const std::uint64_t end = request.prompt + request.output;
  for (std::uint64_t at = request.prompt; at < end;) {
    const std::uint64_t begin = at % block_tokens_, stop = std::min(block_tokens_, begin + end - at);
    const std::uint64_t number = at / block_tokens_, of_answer = number - request.prompt / block_tokens_;
    std::uint64_t block = kAnswerBlocks + (static_cast<std::uint64_t>(index) << 20) + number;
    if (of_answer < request.answer_blocks.size()) {
      block = request.answer_blocks[of_answer];
    } else if (request.next_turn != kNone) {
      block = requests_[request.next_turn].blocks[number];
    }
    append_block(block, begin, stop, out);
    at += stop - begin;
  }
}

}  // namespace larder
