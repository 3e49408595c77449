// SPDX-License-Identifier: Apache-2.0
#include "server/metrics_json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/api_error.h"
#include "server/json_reader.h"

namespace larder {
namespace {

using Ordered = nlohmann::ordered_json;
using PlainJson = nlohmann::json;

Ordered number_or_null(double value) { return std::isfinite(value) ? Ordered(value) : Ordered(nullptr); }

Ordered series_as_json(const MetricFamily& family, const MetricSeries& series) {
  Ordered labels = Ordered::object();
  for (const auto& [name, value] : series.labels) labels[name] = value;
  Ordered out = {{"labels", std::move(labels)}};
  if (family.type != "histogram") {
    out["value"] = number_or_null(series.value);
    return out;
  }
  Ordered buckets = Ordered::array();
  for (const auto& [bound, count] : series.buckets) buckets.push_back(Ordered::array({number_or_null(bound), count}));
  out["count"] = series.count;
  out["sum"] = number_or_null(series.sum);
  out["buckets"] = std::move(buckets);
  return out;
}

// Null of anything but an object that has it.
const PlainJson& member(const PlainJson& object, const char* name) {
  static const PlainJson kNone;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}
// The elements of an array; none of anything else, over which a loop would otherwise go once.
const PlainJson& elements(const PlainJson& object, const char* name) {
  static const PlainJson kEmpty = PlainJson::array();
  const PlainJson& value = member(object, name);
  return value.is_array() ? value : kEmpty;
}
std::string text_of(const PlainJson& value) { return value.is_string() ? value.get<std::string>() : std::string(); }
double number_of(const PlainJson& value, double if_null) { return value.is_number() ? value.get<double>() : if_null; }
// Counts as JSON has them; no more than a double holds exactly, whatever a server says.
std::uint64_t count_of(const PlainJson& value) {
  const double count = number_of(value, 0);
  return count > 0 && count < 9e15 ? static_cast<std::uint64_t>(count) : 0;
}

MetricSeries series_from_json(const PlainJson& from) {
  MetricSeries out;
  const PlainJson& labels = member(from, "labels");
  if (labels.is_object()) {
    for (const auto& [name, value] : labels.items()) out.labels.emplace_back(name, text_of(value));
  }
  out.value = number_of(member(from, "value"), std::numeric_limits<double>::quiet_NaN());
  out.sum = number_of(member(from, "sum"), 0);
  out.count = count_of(member(from, "count"));
  for (const PlainJson& bucket : elements(from, "buckets")) {
    if (!bucket.is_array() || bucket.size() != 2) continue;
    out.buckets.emplace_back(number_of(bucket[0], std::numeric_limits<double>::infinity()), count_of(bucket[1]));
  }
  return out;
}

}  // namespace

HttpResponse metrics_response(const HttpRequest& request, const MetricsRegistry& registry) {
  HttpResponse response;
  const auto format = request.query.find("format");
  if (format == request.query.end() || format->second == "text") {
    response.content_type = std::string(MetricsRegistry::content_type());
    response.body = registry.render();
  } else if (format->second == "json") {
    response.body = metrics_json(registry);
  } else {
    return error_response(400, fmt::format("format is {:?}; it must be text or json", format->second), "format");
  }
  return response;
}

std::string metrics_json(const MetricsRegistry& registry) {
  Ordered out = Ordered::object();
  for (const MetricFamily& family : registry.families()) {
    Ordered series = Ordered::array();
    for (const MetricSeries& one : family.series) series.push_back(series_as_json(family, one));
    out[family.name] = {{"type", family.type}, {"help", family.help}, {"series", std::move(series)}};
  }
  return dump_json(out);
}

Result<std::vector<MetricFamily>> parse_metrics_json(std::string_view text) {
  const Result<PlainJson> document = parse_json_object(text);
  if (!document.is_ok()) return corrupt(document.status().message());
  std::vector<MetricFamily> out;
  for (const auto& [name, family] : document->items()) {
    out.push_back({name, text_of(member(family, "help")), text_of(member(family, "type")), {}});
    for (const PlainJson& series : elements(family, "series")) out.back().series.push_back(series_from_json(series));
  }
  return out;
}

}  // namespace larder
