// SPDX-License-Identifier: Apache-2.0
#include "server/stat_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "server/text_table.h"

namespace larder {
namespace {

using PlainJson = nlohmann::json;
using Ordered = nlohmann::ordered_json;

// Families that are shown, by a word in their names; the first that fits names the section.
struct Section {
  const char* word;
  const char* title;
};
constexpr Section kSections[] = {{"tenant", "tenants"},
                                 {"storage", "storage"},
                                 {"breaker", "storage"},
                                 {"pool_", "host"},
                                 {"prefetch", "prefetch and backup"},
                                 {"backup", "prefetch and backup"},
                                 {"stored_pages", "prefetch and backup"},
                                 {"store_failed", "prefetch and backup"},
                                 {"corrupt", "prefetch and backup"},
                                 {"host", "host"},
                                 {"evict", "host"},
                                 {"load_back", "host"},
                                 {"cached_tokens", "requests"},
                                 {"time_to_first", "requests"},
                                 {"queue", "requests"},
                                 {"e2e_request", "requests"},
                                 {"restore", "slots"},
                                 {"save", "slots"},
                                 {"slots", "slots"},
                                 {"larder_proxy_", "requests"},
                                 {"larder_serve_", "requests"},
                                 {"misses", "requests"}};
constexpr std::array<const char*, 9> kTitles = {"page store",          "requests", "slots",   "tenants", "host",
                                                "prefetch and backup", "storage",  "plug-in", "others"};

const char* title_of(const std::string& family) {
  for (const Section& section : kSections) {
    if (family.find(section.word) != std::string::npos) return section.title;
  }
  return nullptr;
}

// Where there are metrics alone, all of them are shown.
const char* title_of(const StatSample& sample, const std::string& family) {
  if (!sample.info.is_null()) return title_of(family);
  if (family.starts_with("larder_door_")) return "page store";
  if (family.starts_with("larder_sglang_")) return "plug-in";
  const char* title = title_of(family);
  return title == nullptr ? "others" : title;
}

// A member of the first (and only) internal state; null if it is not there.
const PlainJson& state_of(const PlainJson& info, const char* name) {
  static const PlainJson kNone;
  const auto states = info.find("internal_states");
  if (states == info.end() || !states->is_array() || states->empty()) return kNone;
  const auto found = states->front().find(name);
  return found == states->front().end() ? kNone : *found;
}

std::uint64_t number_at(const PlainJson& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_number() ? found->get<std::uint64_t>() : 0;
}

std::string text_at(const PlainJson& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end() || found->is_null()) return "-";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string share_text(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string value_text(const std::string& name, double value) {
  if (std::isnan(value)) return "NaN";
  const bool is_whole = value == std::floor(value) && value >= 0 && value < 0x1p64;
  if (name.find("bytes") != std::string::npos && is_whole) return bytes_text(static_cast<std::uint64_t>(value));
  return is_whole ? count_text(static_cast<std::uint64_t>(value)) : fmt::format("{:.4g}", value);
}

std::string labels_text(const Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    if (name == "model_name") continue;  // one server, one model
    out += (out.empty() ? "" : ", ") + name + "=" + value;
  }
  return out;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

// Of histograms: in seconds as times, else as numbers.
std::string observation_text(const std::string& family, double value) {
  return family.find("seconds") != std::string::npos ? seconds_text(value) : value_text(family, value);
}

const MetricSeries* same_series(const StatSample* sample, const MetricFamily& family, const MetricSeries& series) {
  if (sample == nullptr) return nullptr;
  const auto other = std::find_if(sample->metrics.begin(), sample->metrics.end(),
                                  [&](const MetricFamily& f) { return f.name == family.name; });
  if (other == sample->metrics.end()) return nullptr;
  const auto found = std::find_if(other->series.begin(), other->series.end(),
                                  [&](const MetricSeries& s) { return s.labels == series.labels; });
  return found == other->series.end() ? nullptr : &*found;
}

std::string rate_text(const StatSample* before, double seconds, const MetricFamily& family,
                      const MetricSeries& series) {
  const MetricSeries* earlier = same_series(before, family, series);
  if (earlier == nullptr || seconds <= 0 || family.type == "gauge") return "";
  const auto total = [&](const MetricSeries& s) {
    return family.type == "histogram" ? static_cast<double>(s.count) : s.value;
  };
  // Less than before: the server has begun anew, from zero.
  const double change = total(series) < total(*earlier) ? total(series) : total(series) - total(*earlier);
  return fmt::format("{:.1f}", change / seconds);
}

std::string stat_head(const PlainJson& info) {
  const bool is_front = info.contains("server");
  std::string out = fmt::format("model {}, {} {}; backend {}", text_at(info, "served_model_name"),
                                is_front ? text_at(info, "server") : "larder", text_at(info, "version"),
                                text_at(info, "hicache_storage_backend"));
  out += is_front ? "\n"
                  : fmt::format("; write policy {}, prefetch {}\n", text_at(info, "hicache_write_policy"),
                                text_at(info, "hicache_storage_prefetch_policy"));
  const PlainJson& cached = state_of(info, "cached_tokens");
  const std::uint64_t prompt =
      state_of(info, "prompt_tokens").is_number() ? state_of(info, "prompt_tokens").get<std::uint64_t>() : 0;
  const auto state_number = [&](const char* name) {
    const PlainJson& value = state_of(info, name);
    return value.is_number() ? count_text(value.get<std::uint64_t>()) : std::string("-");
  };
  out += fmt::format("requests: {} running, {} waiting; prompt tokens {}, of these from {} {}, host {}, storage {}\n",
                     state_number("num_running_reqs"), state_number("num_queue_reqs"), count_text(prompt),
                     is_front ? "slots" : "device", share_text(number_at(cached, "device"), prompt),
                     share_text(number_at(cached, "host"), prompt), share_text(number_at(cached, "storage"), prompt));
  return out;
}

// Storage has no fixed number of slots, and not every backend a size.
std::string capacity_text(std::uint64_t capacity, std::string (*text_of)(std::uint64_t)) {
  return capacity == 0 ? "-" : text_of(capacity);
}

std::string tiers_text(const PlainJson& tiers) {
  if (!tiers.is_array() || tiers.empty()) return {};
  TextTable table({"tier", "component", "slots", "of", "bytes", "of", "used"});
  for (const PlainJson& tier : tiers) {
    const std::uint64_t capacity = number_at(tier, "capacity_bytes");
    table.add_row({text_at(tier, "tier"), text_at(tier, "component"), count_text(number_at(tier, "slots")),
                   capacity_text(number_at(tier, "capacity"), count_text), bytes_text(number_at(tier, "bytes")),
                   capacity_text(capacity, bytes_text), share_text(number_at(tier, "bytes"), capacity)});
  }
  return "\n" + table.text();
}

// A metric that is shown, too, says what the member `name` says: "moved" and larder_storage_moved_pages_total. Names
// alone do not tell: what is there may be called as what has been moved.
bool is_metric(const StatSample& now, const std::string& name, double value, const char* prefix) {
  return std::any_of(now.metrics.begin(), now.metrics.end(), [&](const MetricFamily& family) {
    if (title_of(family.name) == nullptr || !family.name.starts_with(prefix)) return false;
    if (family.series.size() != 1 || family.series.front().value != value) return false;
    const std::size_t at = family.name.find("_" + name);
    const std::size_t end = at == family.name.npos ? at : at + 1 + name.size();
    return at != family.name.npos && (end == family.name.size() || family.name[end] == '_');
  });
}

// An object of numbers as one table, a row per member.
std::string counters_text(const StatSample& now, const char* title, const char* member, const char* prefix,
                          bool with_zeros) {
  const PlainJson& object = state_of(now.info, member);
  if (!object.is_object() || object.empty()) return {};
  TextTable table({title, ""});
  bool any = false;
  for (const auto& [name, value] : object.items()) {
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!with_zeros && (number == 0 || is_metric(now, name, number, prefix))) continue;
    any = true;
    table.add_row({name, value.is_number()   ? value_text(name, number)
                         : value.is_string() ? value.get<std::string>()
                                             : value.dump()});
  }
  return any ? "\n" + table.text() : std::string();
}

std::string values_text(const StatSample& now, const StatSample* before, double seconds, const char* title,
                        bool with_zeros) {
  TextTable table(before == nullptr ? std::vector<std::string>{title, "labels", "value"}
                                    : std::vector<std::string>{title, "labels", "value", "per s"});
  bool any = false;
  for (const MetricFamily& family : now.metrics) {
    const char* section = title_of(now, family.name);
    if (section == nullptr || section != std::string_view(title) || family.type == "histogram") continue;
    for (const MetricSeries& series : family.series) {
      if (!with_zeros && series.value == 0) continue;
      any = true;
      table.add_row({family.name, labels_text(series.labels), value_text(family.name, series.value),
                     rate_text(before, seconds, family, series)});
    }
  }
  return any ? "\n" + table.text() : std::string();
}

std::string histograms_text(const StatSample& now, const StatSample* before, double seconds) {
  std::vector<std::string> head = {"histogram", "labels", "count", "mean", "p50", "p99"};
  if (before != nullptr) head.emplace_back("per s");
  TextTable table(head);
  bool any = false;
  for (const MetricFamily& family : now.metrics) {
    if (family.type != "histogram") continue;
    for (const MetricSeries& series : family.series) {
      if (series.count == 0) continue;
      any = true;
      const auto seen = [&](double value) { return observation_text(family.name, value); };
      table.add_row({family.name, labels_text(series.labels), count_text(series.count),
                     seen(series.sum / static_cast<double>(series.count)), seen(histogram_quantile(series, 0.5)),
                     seen(histogram_quantile(series, 0.99)), rate_text(before, seconds, family, series)});
    }
  }
  return any ? "\n" + table.text() : std::string();
}

Ordered series_json(const MetricFamily& family, const MetricSeries& series) {
  Ordered labels = Ordered::object();
  for (const auto& [name, value] : series.labels) labels[name] = value;
  Ordered out = {{"labels", std::move(labels)}};
  if (family.type != "histogram") {
    out["value"] = std::isfinite(series.value) ? Ordered(series.value) : Ordered(nullptr);
    return out;
  }
  out["count"] = series.count;
  out["sum"] = series.sum;
  out["p50"] = histogram_quantile(series, 0.5);
  out["p99"] = histogram_quantile(series, 0.99);
  return out;
}

}  // namespace

PlainJson info_of_front(const PlainJson& status) {
  const auto part = [](const PlainJson& object, const char* name) {
    const auto found = object.is_object() ? object.find(name) : object.end();
    return object.is_object() && found != object.end() ? *found : PlainJson();
  };
  const PlainJson slots = part(status, "slots"), backend = part(status, "backend");
  const PlainJson state = {{"num_running_reqs", part(slots, "busy")},
                           {"num_queue_reqs", part(slots, "waiting")},
                           {"prompt_tokens", part(status, "prompt_tokens")},
                           {"cached_tokens", part(status, "cached_tokens")},
                           {"tiers", part(status, "tiers")},
                           {"cache", part(status, "host")},
                           {"storage", part(backend, "store")}};
  return {{"server", part(status, "server")},
          {"version", part(status, "version")},
          {"served_model_name", part(status, "model")},
          {"hicache_storage_backend", part(backend, "backend")},
          {"internal_states", PlainJson::array({state})}};
}

std::string stat_text(const StatSample& now, const StatSample* before, double seconds, bool with_zeros) {
  std::string out = now.info.is_null() ? "metrics alone: what answers there has no other state\n" : stat_head(now.info);
  out += tiers_text(state_of(now.info, "tiers"));
  out += counters_text(now, "cache", "cache", "larder_", with_zeros);
  out += counters_text(now, "storage backend", "storage", "larder_storage_", with_zeros);
  for (const char* title : kTitles) out += values_text(now, before, seconds, title, with_zeros);
  out += histograms_text(now, before, seconds);
  if (!with_zeros) out += "\nWhat is zero is left out: --all shows it, and so does --json.\n";
  return out;
}

Ordered stat_json(const StatSample& now) {
  Ordered metrics = Ordered::object();
  for (const MetricFamily& family : now.metrics) {
    Ordered series = Ordered::array();
    for (const MetricSeries& one : family.series) series.push_back(series_json(family, one));
    metrics[family.name] = {{"type", family.type}, {"series", std::move(series)}};
  }
  const auto state = [&](const char* name) { return Ordered::parse(state_of(now.info, name).dump()); };
  return {{"model", text_at(now.info, "served_model_name")},
          {"version", text_at(now.info, "version")},
          {"backend", text_at(now.info, "hicache_storage_backend")},
          {"running", state("num_running_reqs")},
          {"queued", state("num_queue_reqs")},
          {"prompt_tokens", state("prompt_tokens")},
          {"cached_tokens", state("cached_tokens")},
          {"tiers", state("tiers")},
          {"cache", state("cache")},
          {"storage", state("storage")},
          {"metrics", std::move(metrics)}};
}

}  // namespace larder
