// SPDX-License-Identifier: Apache-2.0
#include "server/key_file.h"

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

}  // namespace

Result<std::string> read_key_file(const std::string& path) {
  Result<std::string> text = read_text_file(real_file_system(), path, kKeyBytesMax);
  if (!text.is_ok()) return text;
  drop_line_ends(*text);
  if (text->empty()) return invalid_argument(path + ": the file holds no key");
  return text;
}

Status fill_key(std::string& key, const std::string& path, const char* variable) {
  if (!key.empty()) return Status::ok();
  if (!path.empty()) {
    Result<std::string> read = read_key_file(path);
    if (!read.is_ok()) return read.status();
    key = std::move(*read);
    return Status::ok();
  }
  const char* const value = std::getenv(variable);
  if (value != nullptr) key = value;
  drop_line_ends(key);
  return Status::ok();
}

}  // namespace larder
