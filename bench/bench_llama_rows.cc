// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <initializer_list>

#include "base/rng.h"
#include "bench/bench_llama.h"

namespace larder {
namespace {

constexpr std::uint32_t rows_bits(std::initializer_list<unsigned> rows) {
  std::uint32_t bits = 0;
  for (const unsigned row : rows) bits |= 1u << row;
  return bits;
}

// Rows in the order in which they are asked; `needs` are places in this list, all of them earlier ones.
// From row 10 on llama-server has been restarted: of A it has what its slot file holds.
constexpr std::array<LlamaRow, kLlamaRows> kRows = {{
    {"0", 0, "first A (3000)", 0, 0, false},
    {"1", 1, "A again", rows_bits({0}), 0, false},
    {"2", 2, "A + 100", rows_bits({0}), 0, false},
    {"3", 3, "branch at 2600", rows_bits({0}), 0, false},
    {"4", 4, "branch at 1000", rows_bits({0}), 0, false},
    {"5", 5, "other branch at 1000", rows_bits({0, 4}), 1000, false},
    {"6", 6, "back to A", rows_bits({0, 4}), 0, false},
    {"7", 7, "unrelated B (3000)", 0, 0, false},
    {"8", 8, "A + 100, after B", rows_bits({0, 2, 7}), 0, false},
    {"9", 9, "restart, A + other 150", rows_bits({0, 2}), 3000, true},
    {"9b", 9, "restart, A + 100 + 50", rows_bits({9}), 3100, true},
    {"10", 10, "branch at 2000", rows_bits({10}), 0, false},
    {"10b", 10, "other branch at 2000", rows_bits({11}), 2000, false},
    {"11", 11, "2944 of A + question of 56", rows_bits({10}), 2944, false},
    {"11b", 11, "2944 of A + other question", rows_bits({13}), 2944, false},
}};

// Stretches of tokens, by what they are for.
enum Stretch : std::uint8_t { kA, kB, kNext, kAt2600, kAt1000, kAt1000b, kAt2000, kAt2000b, kOther, kAsk, kAskB };
constexpr std::array<std::size_t, 11> kStretchTokens = {3000, 3000, 150, 400, 2000, 2000, 1000, 1000, 150, 56, 56};

struct Recipe {
  Stretch first;
  std::size_t first_tokens;
  Stretch then;
  std::size_t then_tokens;
};
constexpr std::array<Recipe, kLlamaRows> kRecipes = {{
    {kA, 3000, kNext, 0},
    {kA, 3000, kNext, 0},
    {kA, 3000, kNext, 100},
    {kA, 2600, kAt2600, 400},
    {kA, 1000, kAt1000, 2000},
    {kA, 1000, kAt1000b, 2000},
    {kA, 3000, kNext, 0},
    {kB, 3000, kNext, 0},
    {kA, 3000, kNext, 100},
    {kA, 3000, kOther, 150},
    {kA, 3000, kNext, 150},
    {kA, 2000, kAt2000, 1000},
    {kA, 2000, kAt2000b, 1000},
    {kA, 2944, kAsk, 56},
    {kA, 2944, kAskB, 56},
}};

}  // namespace

std::span<const LlamaRow, kLlamaRows> llama_rows() { return kRows; }

LlamaRowChoice choose_llama_rows(std::span<const std::uint32_t> numbers) {
  LlamaRowChoice choice{std::vector<bool>(kLlamaRows), std::vector<bool>(kLlamaRows)};
  std::uint32_t needed = 0;
  for (std::size_t row = kLlamaRows; row-- > 0;) {  // what a row needs is in front of it
    const bool is_asked = numbers.empty() || std::ranges::find(numbers, kRows[row].number) != numbers.end();
    choice.is_shown[row] = is_asked;
    choice.is_run[row] = is_asked || (needed >> row & 1u) != 0;
    if (choice.is_run[row]) needed |= kRows[row].needs;
  }
  return choice;
}

LlamaPrompts::LlamaPrompts(std::uint64_t seed) {
  Rng rng(seed);
  for (const std::size_t count : kStretchTokens) {
    std::vector<TokenId>& stretch = stretches_.emplace_back();
    while (stretch.size() < count) stretch.push_back(static_cast<TokenId>(rng.below(256)));
  }
}

std::vector<TokenId> LlamaPrompts::of_row(std::size_t row) const {
  const Recipe& recipe = kRecipes.at(row);
  const auto first = std::span(stretches_[recipe.first]).first(recipe.first_tokens);
  const auto then = std::span(stretches_[recipe.then]).first(recipe.then_tokens);
  std::vector<TokenId> prompt(first.begin(), first.end());
  prompt.insert(prompt.end(), then.begin(), then.end());
  return prompt;
}

}  // namespace larder
