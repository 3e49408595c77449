// SPDX-License-Identifier: Apache-2.0
// The file of a trace: made, or found to be one and continued.
//
// A file that is there is continued only if its first and its last line are a trace's, with blocks of the same size: a
// wrong name must not spoil somebody's file. A last line that a crash has cut short is removed.
// Threads: confined. Errors: every message names the option and the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_system.h"
#include "base/status.h"

namespace larder {

class TraceFile {
 public:
  // Mode 0600 if it is made. kInvalidArgument: it is no trace, or one with other blocks, or has max_bytes already.
  // kConflict: another process writes it. Else what the file system says.
  [[nodiscard]] static Result<std::unique_ptr<TraceFile>> open(FileSystem& files, const std::string& path,
                                                               std::uint64_t block_tokens, std::uint64_t max_bytes);
  ~TraceFile();  // syncs
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // All of `text`, or none. Not ok: what may be there of it is cut off before the next append writes.
  [[nodiscard]] Status append(std::string_view text);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_; }
  [[nodiscard]] bool is_empty() const { return size_ == 0; }
  // Of the last line that was there at the start, rounded up; 0: there was none.
  [[nodiscard]] std::uint64_t last_milliseconds() const { return last_milliseconds_; }
  // Unix time in milliseconds of the file's time 0; nullopt: the first line does not say it.
  [[nodiscard]] std::optional<std::int64_t> origin() const { return origin_; }

 private:
  TraceFile(std::string path, std::unique_ptr<File> file, std::unique_ptr<FileLock> lock);
  [[nodiscard]] Status look(std::uint64_t block_tokens);
  // Where the line that ends before `end` begins.
  [[nodiscard]] Result<std::uint64_t> line_begin(std::uint64_t end) const;
  [[nodiscard]] Result<std::string> text(std::uint64_t begin, std::uint64_t end) const;
  [[nodiscard]] Status mend_end(std::uint64_t block_tokens);
  [[nodiscard]] Status no_trace(std::string_view why) const;

  const std::string path_;
  const std::unique_ptr<File> file_;
  const std::unique_ptr<FileLock> lock_;
  std::uint64_t size_ = 0;  // whole lines
  bool has_rest_ = false;   // something may be behind size_
  std::uint64_t last_milliseconds_ = 0;
  std::optional<std::int64_t> origin_;
};

}  // namespace larder
