// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "door/page_store.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

Json call_stats(const CallCounters& c) {
  return {{"exists_calls", c.exists_calls.load()},
          {"get_calls", c.get_calls.load()},
          {"put_calls", c.put_calls.load()},
          {"pages_asked", c.pages_asked.load()},
          {"pages_restorable", c.pages_restorable.load()},
          {"pages_read", c.pages_read.load()},
          {"pages_missed", c.pages_missed.load()},
          {"pages_corrupt", c.pages_corrupt.load()},
          {"pages_failed", c.pages_failed.load()},
          {"pages_stored", c.pages_stored.load()},
          {"pages_declined", c.pages_declined.load()},
          {"pages_refused", c.pages_refused.load()},
          {"pages_to_retry", c.pages_to_retry.load()},
          {"bytes_read", c.bytes_read.load()},
          {"bytes_stored", c.bytes_stored.load()},
          {"calls_late", c.calls_late.load()},
          {"calls_cancelled", c.calls_cancelled.load()}};
}

Json backend_stats(const BackendStats& s) {
  return {{"pages", s.pages},
          {"bytes", s.bytes},
          {"physical_bytes", s.physical_bytes},
          {"capacity_bytes", s.capacity_bytes},
          {"reads", s.reads},
          {"read_hits", s.read_hits},
          {"read_misses", s.read_misses},
          {"read_errors", s.read_errors},
          {"writes", s.writes},
          {"write_errors", s.write_errors},
          {"duplicate_writes", s.duplicate_writes},
          {"corrupt", s.corrupt},
          {"evicted", s.evicted},
          {"declined", s.declined},
          {"queued", s.queued},
          {"written_bytes", s.written_bytes},
          {"torn_tails", s.torn_tails},
          {"segments", s.segments},
          {"suspended_volumes", s.suspended_volumes}};
}

Json breaker_stats(const PipelineHealth::Breaker& b) {
  return {{"is_open", b.state != CircuitBreaker::State::kClosed},
          {"opens", b.opens},
          {"consecutive_failures", b.consecutive_failures},
          {"seconds_until_probe", std::chrono::duration<double>(b.until_probe).count()},
          {"last_error", b.last_error}};
}

// A family of counters in Prometheus' text format: one line for each (label value, count).
using Series = std::vector<std::pair<std::string_view, std::uint64_t>>;
void add_family(std::string& out, std::string_view name, std::string_view help, std::string_view label,
                const Series& series, std::string_view type = "counter") {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  for (const auto& [value, count] : series) {
    out += label.empty() ? fmt::format("{} {}\n", name, count)
                         : fmt::format("{}{{{}=\"{}\"}} {}\n", name, label, value, count);
  }
}

}  // namespace

std::string PageStore::metrics_text() const {
  std::string out = core_.metrics->render();
  const CallCounters& c = core_.counters;
  add_family(out, "larder_door_calls_total", "Calls of the engine", "call",
             {{"exists", c.exists_calls}, {"get", c.get_calls}, {"put", c.put_calls}});
  add_family(out, "larder_door_calls_ended_early_total", "Calls that their deadline or their flag ended", "by",
             {{"deadline", c.calls_late}, {"cancel", c.calls_cancelled}});
  add_family(out, "larder_door_query_pages_total", "Pages asked for by exists, and the longest restorable lengths",
             "result", {{"asked", c.pages_asked}, {"restorable", c.pages_restorable}});
  add_family(
      out, "larder_door_get_pages_total", "Pages read, by what came of them", "result",
      {{"read", c.pages_read}, {"missed", c.pages_missed}, {"corrupt", c.pages_corrupt}, {"failed", c.pages_failed}});
  add_family(out, "larder_door_put_pages_total", "Pages offered, by what came of them", "result",
             {{"stored", c.pages_stored},
              {"declined", c.pages_declined},
              {"refused", c.pages_refused},
              {"to_retry", c.pages_to_retry}});
  add_family(out, "larder_door_bytes_total", "Payload bytes", "call", {{"get", c.bytes_read}, {"put", c.bytes_stored}});
  const RetryStats retry = core_.retry->stats();
  add_family(
      out, "larder_door_retry_groups_total", "Groups kept after a failed write, by what came of them", "result",
      {{"taken", retry.taken}, {"stored", retry.stored}, {"refused", retry.refused}, {"dropped", retry.dropped}});
  add_family(out, "larder_door_retry_bytes", "Bytes that wait to be written again", "", {{"", retry.waiting_bytes}},
             "gauge");
  const BackendStats store = core_.pipeline->stats();
  add_family(out, "larder_door_store_pages", "Pages in the store", "", {{"", store.pages}}, "gauge");
  add_family(out, "larder_door_store_bytes", "Bytes of the store on its disks, and its limit (0: none)", "what",
             {{"used", store.physical_bytes}, {"limit", store.capacity_bytes}}, "gauge");
  add_family(out, "larder_door_store_segments", "Files that the store's pages are in", "", {{"", store.segments}},
             "gauge");
  add_family(out, "larder_door_store_suspended_volumes", "Directories that take no writes after errors", "",
             {{"", store.suspended_volumes}}, "gauge");
  add_family(out, "larder_door_store_evicted_pages_total", "Pages that the store evicted for room", "",
             {{"", store.evicted}});
  add_family(out, "larder_door_store_written_bytes_total", "Bytes written to the disks, all overheads counted", "",
             {{"", store.written_bytes}});
  add_family(out, "larder_door_store_errors_total",
             "Pages that the store failed to read, groups that it failed to write", "op",
             {{"read", store.read_errors}, {"write", store.write_errors}});
  return out;
}

std::string PageStore::stats_json() const {
  const RetryStats retry = core_.retry->stats();
  const PipelineHealth health = core_.pipeline->health();
  Json out = {{"backend", core_.backend_name},
              {"calls", call_stats(core_.counters)},
              {"store", backend_stats(core_.pipeline->stats())},
              {"retry",
               {{"taken", retry.taken},
                {"stored", retry.stored},
                {"refused", retry.refused},
                {"dropped", retry.dropped},
                {"waiting", retry.waiting},
                {"waiting_bytes", retry.waiting_bytes}}},
              {"staging",
               {{"bytes", core_.limits.staging_bytes},
                {"used_bytes", core_.arena->used_bytes()},
                {"zero_copy", core_.limits.is_zero_copy}}},
              {"breakers",
               {{"read", breaker_stats(health.breakers[index_of(Direction::kRead)])},
                {"write", breaker_stats(health.breakers[index_of(Direction::kWrite)])}}}};
  // Messages of foreign libraries may hold bytes that are no UTF-8.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace larder
