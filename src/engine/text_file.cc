// SPDX-License-Identifier: Apache-2.0
#include "engine/text_file.h"

#include <array>
#include <span>

#include "engine/real_piped_text.h"

namespace larder {

Result<std::string> read_text_file(FileSystem& files, const std::string& path, std::uint64_t max_bytes) {
  Result<std::unique_ptr<File>> file = files.open(path, OpenOptions{});
  if (!file.is_ok()) return file.status();
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t size, (*file)->size_bytes());
  const auto too_large = [&](const std::string& has) {
    return invalid_argument(path + " has " + has + " bytes; such a file has at most " + std::to_string(max_bytes));
  };
  if (size > max_bytes) return too_large(std::to_string(size));
  if (size == 0 && (*file)->native_handle() >= 0) {
    Result<std::string> piped = read_piped_text((*file)->native_handle(), path, max_bytes);
    if (piped.is_ok() && piped->size() > max_bytes) return too_large("more");
    return piped;
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  LARDER_RETURN_IF_ERROR(read_exactly(**file, std::as_writable_bytes(std::span<char>(text)), 0));
  return text;
}

bool is_gguf_file(FileSystem& files, const std::string& path) {
  const auto file = files.open(path, {});
  std::array<char, 4> head{};
  return file.is_ok() && read_exactly(**file, std::as_writable_bytes(std::span(head)), 0).is_ok() &&
         std::string_view(head.data(), head.size()) == "GGUF";
}

Result<Tree> parse_config_text(std::string_view text, const std::string& path) {
  if (path.ends_with(".json")) return parse_json_tree(text, path);
  if (path.ends_with(".toml")) return parse_toml_tree(text, path);
  if (path.ends_with(".yaml") || path.ends_with(".yml")) return parse_yaml_tree(text, path);
  return invalid_argument("Unsupported config file " + path + ": it must end in .json, .toml, .yaml or .yml");
}

}  // namespace larder
