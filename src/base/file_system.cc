// SPDX-License-Identifier: Apache-2.0
#include "base/file_system.h"

#include <cerrno>
#include <system_error>

namespace larder {
namespace {

StatusCode code_from_errno(int error) {
  switch (error) {
    case ENOENT: return StatusCode::kNotFound;
    case EEXIST: return StatusCode::kConflict;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTDIR:
    case EISDIR: return StatusCode::kInvalidArgument;
    case ENOSPC:
    case EDQUOT: return StatusCode::kOverloaded;
    case ENOTSUP:
    case ENOSYS: return StatusCode::kUnsupported;
    default: return StatusCode::kUnavailable;
  }
}

}  // namespace

Status status_from_errno(int error, std::string_view operation, std::string_view path) {
  std::string message(operation);
  message += ' ';
  message += path;
  message += ": ";
  message += std::generic_category().message(error);
  return {code_from_errno(error), std::move(message)};
}

std::string parent_path(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  if (slash == 0) return "/";
  return std::string(path.substr(0, slash));
}

std::string join_path(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && path.back() != '/') path += '/';
  path += name;
  return path;
}

Status read_exactly(File& file, std::span<std::byte> into, std::uint64_t offset) {
  while (!into.empty()) {
    LARDER_ASSIGN_OR_RETURN(const std::size_t got, file.read_at(into, offset));
    if (got == 0) return corrupt("read " + file.path() + ": the file ends at offset " + std::to_string(offset));
    into = into.subspan(got);
    offset += got;
  }
  return Status::ok();
}

Status write_fully(File& file, std::span<const std::byte> from, std::uint64_t offset) {
  while (!from.empty()) {
    LARDER_ASSIGN_OR_RETURN(const std::size_t put, file.write_at(from, offset));
    if (put == 0) return overloaded("write " + file.path() + ": the disk takes no more");
    from = from.subspan(put);
    offset += put;
  }
  return Status::ok();
}

}  // namespace larder
