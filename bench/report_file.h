// SPDX-License-Identifier: Apache-2.0
// A file that a command's result goes to. It is opened before the work, so that a path that cannot be written does not
// cost the work; what stood in it stays until there is something new.
//
// Threads: confined.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file_system.h"
#include "base/status.h"

namespace larder {

class ReportFile {
 public:
  // Makes the file if there is none. kInvalidArgument, and nothing is made: it is one of `taken` under whatever name,
  // the files that the command reads or that another option names. Others: as the file system's. All begin with the
  // option that named the file.
  [[nodiscard]] static Result<std::unique_ptr<ReportFile>> open(std::string option, const std::string& path,
                                                                std::span<const std::string> taken);
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;
  // A file that open() has made, and that has no whole result, is gone.
  ~ReportFile();
  // In place of what stood there.
  [[nodiscard]] Status write(std::string_view bytes);

 private:
  ReportFile(std::string option, std::unique_ptr<File> file, bool is_new)
      : option_(std::move(option)), file_(std::move(file)), is_unfinished_(is_new) {}

  const std::string option_;
  const std::unique_ptr<File> file_;
  bool is_unfinished_;  // made here, and nothing in it yet
};

}  // namespace larder
