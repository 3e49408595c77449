// SPDX-License-Identifier: Apache-2.0
#include "server/metrics_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace larder {
namespace {

struct Sample {
  std::string name;
  MetricLabels labels;
  double value = 0;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

std::optional<double> parse_value(std::string_view text) {
  if (text == "+Inf" || text == "Inf") return std::numeric_limits<double>::infinity();
  if (text == "-Inf") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads `name="value",...}` from behind the brace; what follows the closing one stays in `text`.
bool parse_labels(std::string_view& text, MetricLabels& out) {
  for (;;) {
    text = trimmed(text);
    if (text.starts_with('}')) {
      text.remove_prefix(1);
      return true;
    }
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals + 1 >= text.size() || text[equals + 1] != '"') return false;
    const std::string name(trimmed(text.substr(0, equals)));
    std::string value;
    std::size_t i = equals + 2;
    for (; i < text.size() && text[i] != '"'; ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        value += text[i];
      } else {
        ++i;
        value += text[i] == 'n' ? '\n' : text[i];
      }
    }
    if (i == text.size()) return false;
    out.emplace_back(name, std::move(value));
    text = trimmed(text.substr(i + 1));
    if (text.starts_with(',')) text.remove_prefix(1);
  }
}

std::optional<Sample> parse_sample(std::string_view line) {
  Sample sample;
  const std::size_t end = line.find_first_of("{ \t");
  if (end == std::string_view::npos || end == 0) return std::nullopt;
  sample.name = std::string(line.substr(0, end));
  line.remove_prefix(end);
  if (line.starts_with('{')) {
    line.remove_prefix(1);
    if (!parse_labels(line, sample.labels)) return std::nullopt;
  }
  line = trimmed(line);
  const std::optional<double> value = parse_value(line.substr(0, line.find_first_of(" \t")));  // a time may follow
  if (!value) return std::nullopt;
  sample.value = *value;
  return sample;
}

MetricSeries& series_of(MetricFamily& family, const MetricLabels& labels) {
  for (MetricSeries& series : family.series) {
    if (series.labels == labels) return series;
  }
  family.series.push_back({labels, 0, {}, 0, 0});
  return family.series.back();
}

class Parser {
 public:
  void line(std::string_view text) {
    text = trimmed(text);
    if (text.empty()) return;
    if (text.starts_with('#')) {
      comment(trimmed(text.substr(1)));
      return;
    }
    std::optional<Sample> sample = parse_sample(text);
    if (!sample) {
      ++out_.lines_skipped;
    } else if (!add_to_histogram(*sample)) {
      MetricFamily& family = family_of(sample->name);
      series_of(family, sample->labels).value = sample->value;
    }
  }
  [[nodiscard]] MetricsText take() { return std::move(out_); }

 private:
  MetricFamily& family_of(const std::string& name) {
    MetricFamily& family = out_.families[name];
    family.name = name;
    return family;
  }
  // "HELP name text", "TYPE name word"; others are for people.
  void comment(std::string_view text) {
    const bool is_help = text.starts_with("HELP ");
    if (!is_help && !text.starts_with("TYPE ")) return;
    text = trimmed(text.substr(5));
    const std::size_t end = std::min(text.find(' '), text.size());
    MetricFamily& family = family_of(std::string(text.substr(0, end)));
    (is_help ? family.help : family.type) = std::string(trimmed(text.substr(end)));
  }
  // x_bucket, x_sum and x_count belong to x if that is a histogram.
  bool add_to_histogram(Sample& sample) {
    for (const std::string_view suffix : {"_bucket", "_sum", "_count"}) {
      if (!sample.name.ends_with(suffix)) continue;
      const auto family = out_.families.find(sample.name.substr(0, sample.name.size() - suffix.size()));
      if (family == out_.families.end() || family->second.type != "histogram") continue;
      std::optional<double> bound;
      const auto le = std::find_if(sample.labels.begin(), sample.labels.end(),
                                   [](const auto& label) { return label.first == "le"; });
      if (le != sample.labels.end()) {
        bound = parse_value(le->second);
        sample.labels.erase(le);
      }
      MetricSeries& series = series_of(family->second, sample.labels);
      if (suffix == "_sum") {
        series.sum = sample.value;
      } else if (suffix == "_count") {
        series.count = sample.value;
      } else if (bound) {
        series.buckets.emplace_back(*bound, sample.value);
      }
      return true;
    }
    return false;
  }

  MetricsText out_;
};

}  // namespace

std::string_view MetricSeries::label(std::string_view name) const {
  for (const auto& [key, text] : labels) {
    if (key == name) return text;
  }
  return {};
}

const MetricFamily* MetricsText::find(std::string_view name) const {
  const auto found = families.find(name);
  return found == families.end() ? nullptr : &found->second;
}

MetricsText parse_metrics_text(std::string_view text) {
  Parser parser;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    parser.line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  MetricsText out = parser.take();
  for (auto& [name, family] : out.families) {
    for (MetricSeries& series : family.series) std::sort(series.buckets.begin(), series.buckets.end());
  }
  return out;
}

double histogram_quantile(const MetricSeries& histogram, double q) {
  if (histogram.buckets.empty() || histogram.buckets.back().second <= 0) return 0;
  const double wanted = q * histogram.buckets.back().second;
  double below = 0, low = 0;
  for (const auto& [bound, count] : histogram.buckets) {
    if (count >= wanted && count > below) {
      if (std::isinf(bound)) return low;
      return low + (bound - low) * (wanted - below) / (count - below);
    }
    below = count;
    if (!std::isinf(bound)) low = bound;
  }
  return low;
}

double metric_sum(const MetricFamily& family, std::string_view name, std::string_view value) {
  double sum = 0;
  for (const MetricSeries& series : family.series) {
    if (name.empty() || series.label(name) == value) sum += series.value;
  }
  return sum;
}

}  // namespace larder
