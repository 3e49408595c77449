// SPDX-License-Identifier: Apache-2.0
#include "server/key_file.h"

#include <cstdlib>
#include <span>
#include <utility>

#include "base/file_system.h"

namespace larder {
namespace {

void drop_line_ends(std::string& text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
}

}  // namespace

Result<std::string> read_key_file(const std::string& path) {
  auto file = real_file_system().open(path, {});
  if (!file.is_ok()) return file.status();
  const Result<std::uint64_t> size = (*file)->size_bytes();
  if (!size.is_ok()) return size.status();
  if (*size > 4096) return invalid_argument(path + ": a key has at most 4096 bytes");
  std::string text(static_cast<std::size_t>(*size), '\0');
  LARDER_RETURN_IF_ERROR(read_exactly(**file, std::as_writable_bytes(std::span(text)), 0));
  drop_line_ends(text);
  if (text.empty()) return invalid_argument(path + ": the file holds no key");
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
