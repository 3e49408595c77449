// SPDX-License-Identifier: Apache-2.0
#include "server/trace/trace_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace larder {
namespace {

constexpr std::uint64_t kMooncakeBlock = 512;
constexpr std::int64_t kUnknownPause = 1000;  // ms between an older trace that does not tell its time, and this one
constexpr const char* kDroppedHelp = "Requests that are not in the trace of --record-trace, by why.";

Counter& dropped(MetricsRegistry& registry, const char* why) {
  return registry.counter("larder_trace_dropped_requests_total", kDroppedHelp, {{"reason", why}});
}

}  // namespace

TraceMetrics::TraceMetrics(MetricsRegistry& registry)
    : written(registry.counter("larder_trace_requests_total", "Requests that --record-trace has written.")),
      early(registry.counter("larder_trace_early_requests_total",
                             "Requests that --record-trace has written before their end, with the output so far.")),
      dropped_queue(dropped(registry, "queue")),
      dropped_write(dropped(registry, "write")),
      dropped_size(dropped(registry, "size")),
      dropped_unknown(dropped(registry, "unknown_prompt")),
      write_errors(registry.counter("larder_trace_write_errors_total", "Writes of --record-trace that failed.")),
      file_bytes(registry.gauge("larder_trace_file_bytes", "Size of the file of --record-trace.")) {}

TraceWriter::TraceWriter(std::unique_ptr<TraceFile> file, const Clock& clock, std::uint64_t block_tokens,
                         std::uint64_t max_bytes, TraceMetrics& metrics)
    : file_(std::move(file)),
      block_tokens_(block_tokens),
      max_bytes_(max_bytes),
      metrics_(metrics),
      begun_(clock.now()),
      begun_unix_milliseconds_(clock.wall_unix_seconds() * 1000),
      origin_(file_->origin()),
      last_milliseconds_(static_cast<std::int64_t>(file_->last_milliseconds())) {
  metrics_.file_bytes.set(static_cast<double>(file_->size_bytes()));
}

void TraceWriter::write(const std::vector<TraceLine>& lines) {
  std::string text;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string line = is_over() ? std::string() : text_of(lines[i]);
    if (is_over() || file_->size_bytes() + text.size() + line.size() > max_bytes_) {
      append(text, count);
      return stop(lines.size() - i);
    }
    text += line;
    ++count;
  }
  append(text, count);
}

void TraceWriter::append(const std::string& text, std::uint64_t count) {
  if (count == 0) return;
  const Status written = file_->append(text);
  metrics_.file_bytes.set(static_cast<double>(file_->size_bytes()));
  if (written.is_ok()) {
    metrics_.written.increment(count);
    if (std::exchange(is_failing_, false)) {
      log_info("trace", fmt::format("'{}' is written again", file_->path()));
    }
    return;
  }
  metrics_.write_errors.increment();
  metrics_.dropped_write.increment(count);
  if (std::exchange(is_failing_, true)) return;
  log_warning("trace", fmt::format("requests are not recorded until '{}' can be written again: {}", file_->path(),
                                   written.message()));
}

void TraceWriter::stop(std::uint64_t rest) {
  metrics_.dropped_size.increment(rest);
  if (is_over_.exchange(true, std::memory_order_relaxed)) return;
  log_warning("trace", fmt::format("'{}' has {} of the {} bytes of --record-trace-max-size: nothing more is recorded",
                                   file_->path(), file_->size_bytes(), max_bytes_));
}

std::int64_t TraceWriter::unix_milliseconds(TimePoint at) const {
  return begun_unix_milliseconds_ + std::chrono::duration_cast<std::chrono::milliseconds>(at - begun_).count();
}

std::string TraceWriter::text_of(const TraceLine& line) {
  const std::int64_t arrival = unix_milliseconds(line.arrival);
  if (!origin_) origin_ = file_->is_empty() ? arrival : arrival - last_milliseconds_ - kUnknownPause;
  // The calendar may have been set back since the file's first line.
  last_milliseconds_ = std::max(last_milliseconds_, arrival - *origin_);
  std::string out = fmt::format(R"({{"timestamp":{},"input_length":{},"output_length":{},"hash_ids":[{}],"unix_ms":{})",
                                last_milliseconds_, line.prompt, line.output, fmt::join(line.ids, ","), arrival);
  if (!line.output_ids.empty()) {
    out += fmt::format(R"(,"output_hash_ids":[{}])", fmt::join(line.output_ids, ","));
  }
  if (block_tokens_ != kMooncakeBlock) out += fmt::format(R"(,"block_tokens":{})", block_tokens_);
  out += "}\n";
  return out;
}

}  // namespace larder
