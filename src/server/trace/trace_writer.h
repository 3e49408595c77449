// SPDX-License-Identifier: Apache-2.0
// Requests that have ended, as lines of a TraceFile: their times, their text, and what becomes of them.
//
// Threads: confined, but for is_over() and the metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "server/trace/trace_file.h"

namespace larder {

struct TraceLine {
  TimePoint arrival;  // not before that of the line before
  std::uint64_t prompt = 0, output = 0;
  std::vector<std::uint64_t> ids, output_ids;
};

struct TraceMetrics {
  explicit TraceMetrics(MetricsRegistry& registry);
  Counter &written, &early, &dropped_queue, &dropped_write, &dropped_size, &dropped_unknown, &write_errors;
  Gauge& file_bytes;
};

class TraceWriter {
 public:
  TraceWriter(std::unique_ptr<TraceFile> file, const Clock& clock, std::uint64_t block_tokens, std::uint64_t max_bytes,
              TraceMetrics& metrics);

  // May wait for the disk.
  void write(const std::vector<TraceLine>& lines);
  // The file is full. Any thread.
  [[nodiscard]] bool is_over() const { return is_over_.load(std::memory_order_relaxed); }
  // Nothing is written after this.
  void close() { file_.reset(); }

 private:
  [[nodiscard]] std::int64_t unix_milliseconds(TimePoint at) const;
  [[nodiscard]] std::string text_of(const TraceLine& line);
  void append(const std::string& text, std::uint64_t count);
  void stop(std::uint64_t rest);

  std::unique_ptr<TraceFile> file_;
  const std::uint64_t block_tokens_, max_bytes_;
  TraceMetrics& metrics_;
  // The moment of both is the same.
  const TimePoint begun_;
  const std::int64_t begun_unix_milliseconds_;
  std::optional<std::int64_t> origin_;  // of the file's time 0
  std::int64_t last_milliseconds_;
  bool is_failing_ = false;
  std::atomic<bool> is_over_{false};  // relaxed: a hint
};

}  // namespace larder
