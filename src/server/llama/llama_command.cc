// SPDX-License-Identifier: Apache-2.0
#include "server/llama/llama_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "base/file_system.h"
#include "engine/text_file.h"

namespace larder::llama {
namespace {

constexpr std::array<std::string_view, 6> kNumeric = {"--rope",           "--yarn", "--override-kv",
                                                      "--control-vector", "--lora", "--kv-overrides"};

// llama-server takes these from the environment, too; it has none for LoRA, control vectors and overrides.
constexpr std::array<std::string_view, 2> kNumericVariables = {"LLAMA_ARG_ROPE_", "LLAMA_ARG_YARN_"};
constexpr std::array<std::string_view, 4> kOurs = {"--host", "--port", "--slot-save-path", "--reuse-port"};
constexpr std::array<std::string_view, 4> kTruths = {"on", "enabled", "true", "1"};  // as llama.cpp reads variables

bool is_on(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::ranges::find(kTruths, std::string_view(value)) != kTruths.end();
}

// As llama.cpp reads it: "--override_kv" is "--override-kv".
std::string option_of(std::string word) {
  if (!word.starts_with("--")) return word;
  const auto end = word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
  std::replace(word.begin(), end, '_', '-');
  return word;
}

// Of each "--name VALUE" and "--name=VALUE".
std::vector<std::string> values_of(const std::vector<std::string>& command, const std::string& name) {
  std::vector<std::string> values;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string option = option_of(command[i]);
    if (option == name && i + 1 < command.size()) values.push_back(command[i + 1]);
    if (option.starts_with(name + "=")) values.push_back(option.substr(name.size() + 1));
  }
  return values;
}

// The last one counts; empty: there is none.
std::string value_of(const std::vector<std::string>& command, const std::string& name) {
  std::vector<std::string> values = values_of(command, name);
  return values.empty() ? std::string() : std::move(values.back());
}

// A list as llama.cpp reads it: a field that begins with a quote ends with one, and "" is a quote in it.
std::vector<std::string> fields_of(std::string_view list) {
  std::vector<std::string> fields(1);
  bool is_quoted = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string& field = fields.back();
    const bool is_quote = list[i] == '"', is_pair = is_quoted && list.substr(i).starts_with("\"\"");
    if (list[i] == ',' && !is_quoted) {
      fields.emplace_back();
    } else if (is_quote && !is_pair && (is_quoted || field.empty())) {
      is_quoted = !is_quoted;
    } else {
      field += list[i];
      if (is_pair) ++i;
    }
  }
  return fields;
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
  return has_option(command, "--context-shift") || is_on("LLAMA_ARG_CONTEXT_SHIFT");
}

bool has_full_windows(const std::vector<std::string>& command) {
  return has_option(command, "--swa-full") || is_on("LLAMA_ARG_SWA_FULL");
}

std::vector<std::string> control_vectors(const std::vector<std::string>& command) {
  std::vector<std::string> paths;
  for (const std::string& value : values_of(command, "--control-vector")) {
    std::ranges::move(fields_of(value), std::back_inserter(paths));
  }
  for (const std::string& value : values_of(command, "--control-vector-scaled")) {
    for (const std::string& field : fields_of(value)) paths.push_back(field.substr(0, field.find(':')));
  }
  return paths;
}

Result<std::vector<std::string>> proxied_command(std::vector<std::string> command, std::uint16_t port,
                                                 const std::string& slot_directory) {
  if (command.empty()) return invalid_argument("no llama-server is named behind --");
  for (const std::string_view option : kOurs) {
    if (!has_option(command, option)) continue;
    return invalid_argument(fmt::format("{} behind --: the proxy gives llama-server its own; leave it out", option));
  }
  const std::string ours[] = {"--host", "127.0.0.1", "--port", std::to_string(port), "--slot-save-path", slot_directory,
                              // Rows that are moved are not those that a prompt gives, and no page may have them.
                              "--cache-reuse", "0",
                              // What it keeps beside its slots any tenant gets back, and whoever names other adapters.
                              "--cache-ram", "0"};
  command.insert(command.end(), std::begin(ours), std::end(ours));
  return command;
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
