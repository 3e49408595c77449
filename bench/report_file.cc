// SPDX-License-Identifier: Apache-2.0
#include "bench/report_file.h"

#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

namespace larder {
namespace {

Status named(const std::string& option, const Status& status) {
  return status.is_ok() ? status : Status(status.code(), option + ": " + status.message());
}

// A device or a pipe cannot be cut, and has no bytes to cut.
Status put(File& file, std::string_view bytes) {
  const Result<std::uint64_t> size = file.size_bytes();
  if (!size.is_ok()) return size.status();
  if (*size > 0) LARDER_RETURN_IF_ERROR(file.truncate(0));
  return write_fully(file, std::as_bytes(std::span(bytes)), 0);
}

// One of several names of a file with bytes to lose; a terminal or a pipe may be both read and written.
bool is_same_file(const std::string& path, const std::string& other) {
  std::error_code unknown;
  return std::filesystem::is_regular_file(path, unknown) && std::filesystem::equivalent(path, other, unknown);
}

}  // namespace

Result<std::unique_ptr<ReportFile>> ReportFile::open(std::string option, const std::string& path,
                                                     std::span<const std::string> taken) {
  for (const std::string& other : taken) {
    if (is_same_file(path, other)) {
      return invalid_argument(option + ": '" + path + "' is the file '" + other +
                              "', too: name another for what is written");
    }
  }
  OpenOptions how{.write = true, .create = true, .for_others = true, .exclusive = true};
  Result<std::unique_ptr<File>> file = real_file_system().open(path, how);
  const bool is_new = file.is_ok();
  if (file.status().code() == StatusCode::kConflict) {
    how.exclusive = false;
    file = real_file_system().open(path, how);
  }
  if (!file.is_ok()) return named(option, file.status());
  return std::unique_ptr<ReportFile>(new ReportFile(std::move(option), std::move(*file), is_new));
}

ReportFile::~ReportFile() {
  if (is_unfinished_) (void)real_file_system().remove(file_->path());
}

Status ReportFile::write(std::string_view bytes) {
  const Status written = put(*file_, bytes);
  if (written.is_ok()) is_unfinished_ = false;
  return named(option_, written);
}

}  // namespace larder
