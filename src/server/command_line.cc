// SPDX-License-Identifier: Apache-2.0
#include "server/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest_word.h"
#include "base/parse_number.h"

namespace larder {
namespace {

// All that are options; what follows one is perhaps its value.
std::string unknown_arguments(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // --help does not list it
    for (const std::string& word : option->get_lnames()) known.push_back("--" + word);
  }
  const std::vector<std::string_view> words(known.begin(), known.end());
  std::string text;
  for (const std::string& argument : arguments) {
    const bool is_number = argument.size() > 1 && argument[1] >= '0' && argument[1] <= '9';
    if (!argument.starts_with('-') || is_number) continue;
    const std::string name = argument.substr(0, argument.find('='));
    text += fmt::format("{}unknown option {}{}", text.empty() ? "" : "; ", name, did_you_mean(name, words, "", ""));
  }
  return text.empty() ? fmt::format("unexpected argument '{}'", arguments.front()) : text;
}

std::string problem_of(const CLI::App& app, const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ", kRequired = " is required";
  const std::vector<std::string> leftover = app.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !leftover.empty()) {
    return unknown_arguments(app, leftover);
  }
  const std::string_view text = error.what();
  if (text.starts_with(kConversion)) {  // "NAME = VALUE"
    const std::string_view both = text.substr(kConversion.size());
    const std::size_t gap = both.find(" = ");
    if (gap != both.npos) return fmt::format("{}: '{}' is no such value", both.substr(0, gap), both.substr(gap + 3));
  }
  if (text.ends_with(kRequired)) return fmt::format("{} is missing", text.substr(0, text.size() - kRequired.size()));
  return std::string(text);
}

}  // namespace

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        const auto value = parse_number<std::uint64_t>(text);
        if (value && *value >= least && *value <= most) return std::string();
        return fmt::format("'{}' is not a whole number in [{}, {}]", text, least, most);
      },
      "");
}

CLI::Validator number_in(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        const auto value = parse_number<double>(text);
        if (value && std::isfinite(*value) && *value >= least && *value <= most) return std::string();
        return fmt::format("'{}' is not a number in [{}, {}]", text, least, most);
      },
      "");
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // prints the help
    std::fprintf(stderr, "%s: %s (%s --help lists the options)\n", app.get_name().c_str(),
                 problem_of(app, error).c_str(), app.get_name().c_str());
    return 2;
  }
  return std::nullopt;
}

int fail_command(const char* command, const Status& status) {
  std::fputs(failure_line(command, status).c_str(), stderr);
  return failure_exit_code(status);
}

std::string failure_line(const char* command, const Status& status) {
  return fmt::format("{}: {}\n", command, status.message());
}

int failure_exit_code(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound ? 2 : 1;
}

}  // namespace larder
