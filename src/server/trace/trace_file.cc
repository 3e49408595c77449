// SPDX-License-Identifier: Apache-2.0
#include "server/trace/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/log.h"

namespace larder {
namespace {

constexpr std::uint64_t kPiece = 64 << 10;
constexpr std::uint64_t kLongestLine = std::uint64_t{64} << 20;
constexpr double kMostMilliseconds = 1e15;

// What the rest of a trace is told from.
struct LineFacts {
  double milliseconds = 0;
  std::optional<std::int64_t> unix_milliseconds;
};

Result<LineFacts> facts_of(std::string_view line, std::uint64_t block_tokens) {
  const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
  if (!parsed.is_object()) return invalid_argument("is no JSON object");
  for (const char* name : {"timestamp", "input_length", "output_length"}) {
    if (!parsed.contains(name) || !parsed[name].is_number()) {
      return invalid_argument(fmt::format("has no number \"{}\"", name));
    }
  }
  if (!parsed.contains("hash_ids") || !parsed["hash_ids"].is_array()) {
    return invalid_argument("has no list \"hash_ids\"");
  }
  LineFacts facts;
  facts.milliseconds = parsed["timestamp"].get<double>();
  if (!(facts.milliseconds >= 0 && facts.milliseconds <= kMostMilliseconds)) {
    return invalid_argument("has a \"timestamp\" that is none");
  }
  const auto size = parsed.find("block_tokens");
  if (size != parsed.end() && *size != block_tokens) {
    return invalid_argument(fmt::format("has blocks of {} tokens, and --record-trace-block is {}",
                                        size->dump().substr(0, 20), block_tokens));
  }
  const double blocks = std::ceil(parsed["input_length"].get<double>() / static_cast<double>(block_tokens));
  if (blocks != static_cast<double>(parsed["hash_ids"].size())) {
    return invalid_argument(fmt::format("has other blocks than --record-trace-block {}", block_tokens));
  }
  const auto unix_time = parsed.find("unix_ms");
  if (unix_time != parsed.end() && unix_time->is_number()) {
    const auto value = unix_time->get<double>();
    if (value >= 0 && value <= kMostMilliseconds) facts.unix_milliseconds = static_cast<std::int64_t>(value);
  }
  return facts;
}

Status with_file(const Status& status, const std::string& path) {
  return Status(status.code(), fmt::format("--record-trace: '{}': {}", path, status.message()));
}

}  // namespace

TraceFile::TraceFile(std::string path, std::unique_ptr<File> file, std::unique_ptr<FileLock> lock)
    : path_(std::move(path)), file_(std::move(file)), lock_(std::move(lock)) {}

TraceFile::~TraceFile() {
  const Status synced = file_->sync_data();
  if (!synced.is_ok()) log_warning("trace", synced.message());
}

Status TraceFile::no_trace(std::string_view why) const {
  return invalid_argument(
      fmt::format("--record-trace: '{}' is not continued: {}; name a file that is not there yet", path_, why));
}

Result<std::unique_ptr<TraceFile>> TraceFile::open(FileSystem& files, const std::string& path,
                                                   std::uint64_t block_tokens, std::uint64_t max_bytes) {
  auto file = files.open(path, {.write = true, .create = true});
  if (!file.is_ok()) return with_file(file.status(), path);
  auto lock = files.lock(path);
  if (!lock.is_ok()) {
    if (lock.status().code() != StatusCode::kConflict) return with_file(lock.status(), path);
    return conflict(fmt::format("--record-trace: another process writes '{}': give each a file of its own", path));
  }
  std::unique_ptr<TraceFile> trace(new TraceFile(path, std::move(*file), std::move(*lock)));
  LARDER_RETURN_IF_ERROR(trace->look(block_tokens));
  const Result<FileInfo> info = files.stat(path);
  if (info.is_ok() && info->others_may_read) {
    log_warning("trace", fmt::format("every user of this machine can read '{}': chmod 600", path));
  }
  if (trace->size_ < max_bytes) return trace;
  return invalid_argument(
      fmt::format("--record-trace: '{}' has {} bytes, and --record-trace-max-size is {}: name "
                  "another file, or a larger size",
                  path, trace->size_, max_bytes));
}

Status TraceFile::look(std::uint64_t block_tokens) {
  const Result<std::uint64_t> size = file_->size_bytes();
  if (!size.is_ok()) return with_file(size.status(), path_);
  size_ = *size;
  if (size_ == 0) return Status::ok();
  std::string first;
  while (first.find('\n') == std::string::npos && first.size() < std::min(size_, kLongestLine)) {
    const Result<std::string> more = text(first.size(), std::min<std::uint64_t>(size_, first.size() + kPiece));
    if (!more.is_ok()) return with_file(more.status(), path_);
    first += *more;
  }
  const std::size_t end = std::min(first.find('\n'), first.size());
  if (end >= kLongestLine) return no_trace("its first line has no end");
  const Result<LineFacts> facts = facts_of(std::string_view(first).substr(0, end), block_tokens);
  if (!facts.is_ok()) return no_trace("its first line " + facts.status().message());
  if (facts->unix_milliseconds) {
    origin_ = *facts->unix_milliseconds - static_cast<std::int64_t>(facts->milliseconds);
  }
  return mend_end(block_tokens);
}

// A last line without an end is half a line, but for files that somebody has edited.
Status TraceFile::mend_end(std::uint64_t block_tokens) {
  const std::uint64_t all = size_;
  Result<std::uint64_t> begin = line_begin(all);
  if (!begin.is_ok()) return begin.status();
  if (*begin < all) {
    const Result<std::string> rest = text(*begin, all);
    if (!rest.is_ok()) return with_file(rest.status(), path_);
    if (facts_of(*rest, block_tokens).is_ok()) {
      const Status ended = append("\n");
      if (!ended.is_ok()) return with_file(ended, path_);
    } else {
      size_ = *begin;
      has_rest_ = true;
      log_warning("trace", fmt::format("'{}' ended with half a line, which is cut off", path_));
    }
  }
  begin = line_begin(size_ - 1);
  if (!begin.is_ok()) return begin.status();
  const Result<std::string> last = text(*begin, size_ - 1);
  if (!last.is_ok()) return with_file(last.status(), path_);
  const Result<LineFacts> facts = facts_of(*last, block_tokens);
  if (!facts.is_ok()) return no_trace("its last line " + facts.status().message());
  last_milliseconds_ = static_cast<std::uint64_t>(std::ceil(facts->milliseconds));
  return Status::ok();
}

Result<std::uint64_t> TraceFile::line_begin(std::uint64_t end) const {
  for (std::uint64_t to = end; to > 0 && end - to < kLongestLine;) {
    const std::uint64_t from = to > kPiece ? to - kPiece : 0;
    const Result<std::string> piece = text(from, to);
    if (!piece.is_ok()) return with_file(piece.status(), path_);
    if (const std::size_t at = piece->rfind('\n'); at != std::string::npos) return from + at + 1;
    to = from;
    if (to == 0) return to;
  }
  if (end > 0) return no_trace("its last line is too long");
  return std::uint64_t{0};
}

Result<std::string> TraceFile::text(std::uint64_t begin, std::uint64_t end) const {
  std::string out(static_cast<std::size_t>(end - begin), '\0');
  LARDER_RETURN_IF_ERROR(read_exactly(*file_, std::as_writable_bytes(std::span(out)), begin));
  return out;
}

Status TraceFile::append(std::string_view text) {
  if (has_rest_) LARDER_RETURN_IF_ERROR(file_->truncate(size_));
  has_rest_ = true;
  LARDER_RETURN_IF_ERROR(write_fully(*file_, std::as_bytes(std::span(text)), size_));
  has_rest_ = false;
  size_ += text.size();
  return Status::ok();
}

}  // namespace larder
