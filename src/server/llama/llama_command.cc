// SPDX-License-Identifier: Apache-2.0
#include "server/llama/llama_command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/file_system.h"
#include "engine/text_file.h"

namespace larder::llama {
namespace {

constexpr std::array<std::string_view, 6> kNumeric = {"--rope",           "--yarn", "--override-kv",
                                                      "--control-vector", "--lora", "--kv-overrides"};

// llama-server takes these from the environment, too; it has none for LoRA, control vectors and overrides.
constexpr std::array<std::string_view, 2> kNumericVariables = {"LLAMA_ARG_ROPE_", "LLAMA_ARG_YARN_"};
constexpr std::array<std::string_view, 4> kTruths = {"on", "enabled", "true", "1"};  // as llama.cpp reads variables

// As llama.cpp reads it: "--override_kv" is "--override-kv".
std::string option_of(std::string word) {
  if (!word.starts_with("--")) return word;
  const auto end = word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
  std::replace(word.begin(), end, '_', '-');
  return word;
}

// The last value of "--name VALUE" or "--name=VALUE"; empty: there is none.
std::string value_of(const std::vector<std::string>& command, const std::string& name) {
  std::string value;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string option = option_of(command[i]);
    if (option == name && i + 1 < command.size()) value = command[i + 1];
    if (option.starts_with(name + "=")) value = option.substr(name.size() + 1);
  }
  return value;
}

}  // namespace

bool has_option(const std::vector<std::string>& command, std::string_view name) {
  return std::ranges::any_of(command, [&](const std::string& word) {
    const std::string option = option_of(word);
    return option == name || option.starts_with(std::string(name) + "=");
  });
}

std::string numeric_options(const std::vector<std::string>& command) {
  std::string out;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string option = option_of(command[i]);
    if (std::ranges::none_of(kNumeric, [&](std::string_view name) { return option.starts_with(name); })) continue;
    out += option + " ";
    for (++i; i < command.size() && !command[i].starts_with("-"); ++i) out += command[i] + " ";
    --i;
  }
  std::vector<std::string> variables;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (std::ranges::any_of(kNumericVariables, [&](std::string_view name) { return text.starts_with(name); })) {
      variables.emplace_back(text);
    }
  }
  std::ranges::sort(variables);
  for (const std::string& variable : variables) out += variable + " ";
  return out;
}

bool caps_slots(const std::vector<std::string>& command) {
  return has_option(command, "--kv-unified-per-slot") || std::getenv("LLAMA_ARG_KV_UNIFIED_PER_SLOT") != nullptr;
}

bool shifts_context(const std::vector<std::string>& command) {
  const char* const variable = std::getenv("LLAMA_ARG_CONTEXT_SHIFT");
  return has_option(command, "--context-shift") ||
         (variable != nullptr && std::ranges::find(kTruths, std::string_view(variable)) != kTruths.end());
}

Result<std::string> key_of(const std::vector<std::string>& command) {
  std::string keys = value_of(command, "--api-key");
  const std::string path = value_of(command, "--api-key-file");
  if (keys.empty() && !path.empty()) {
    const Result<std::string> text = read_text_file(real_file_system(), path);
    if (!text.is_ok()) return invalid_argument("--api-key-file behind --: " + text.status().message());
    const std::size_t begin = std::min(text->find_first_not_of("\r\n"), text->size());
    return text->substr(begin, text->find_first_of("\r\n", begin) - begin);
  }
  if (const char* const variable = std::getenv("LLAMA_API_KEY"); keys.empty() && variable != nullptr) keys = variable;
  return keys.substr(0, keys.find(','));
}

}  // namespace larder::llama
