// SPDX-License-Identifier: Apache-2.0
#include "server/key_file.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/file_system.h"
#include "engine/text_file.h"

namespace larder {
namespace {

constexpr std::uint64_t kKeyBytesMax = 4096;

void drop_line_ends(std::string& text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
}

// A header carries neither, and a client's key would never be this one.
Status check_bearer(const std::string& key) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  if (!key.empty() && (is_blank(key.front()) || is_blank(key.back()))) {
    return invalid_argument("the key begins or ends with a blank, which HTTP drops: take the blank away");
  }
  const bool has_control = std::any_of(key.begin(), key.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
  });
  if (has_control) return invalid_argument("the key has a control character or a line end, which no header can carry");
  return Status::ok();
}

Status from(const std::string& source, const Status& status) {
  return status.is_ok() ? status : Status(status.code(), source + ": " + status.message());
}

Result<std::string> bearer_of_variable(const char* variable, EmptyVariable empty) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return std::string();
  std::string key = value;
  drop_line_ends(key);
  const std::string name = std::string("the variable ") + variable;
  if (key.empty() && empty == EmptyVariable::kRefused) {
    return invalid_argument(name + " is empty: unset it, or give it a key");
  }
  LARDER_RETURN_IF_ERROR(from(name, check_bearer(key)));
  return key;
}

}  // namespace

Result<std::string> read_key_file(const std::string& path) {
  Result<std::string> text = read_text_file(real_file_system(), path, kKeyBytesMax);
  if (!text.is_ok()) return text;
  drop_line_ends(*text);
  if (text->empty()) return invalid_argument(path + ": the file holds no key");
  return text;
}

Result<std::string> read_bearer_file(const std::string& path) {
  Result<std::string> key = read_key_file(path);
  if (!key.is_ok()) return key;
  LARDER_RETURN_IF_ERROR(from(path, check_bearer(*key)));
  return key;
}

Status fill_key(std::string& key, const std::string& path, KeyNames names, EmptyVariable empty) {
  if (!key.empty()) return from(names.option, check_bearer(key));
  Result<std::string> found = path.empty() ? bearer_of_variable(names.variable, empty) : read_bearer_file(path);
  if (!found.is_ok()) return path.empty() ? found.status() : from(names.option + std::string("-file"), found.status());
  key = std::move(*found);
  return Status::ok();
}

}  // namespace larder
