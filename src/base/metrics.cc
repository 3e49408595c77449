// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace larder {
namespace {

constexpr double kLatencyBounds[] = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                                     2e-2, 5e-2, 0.1,  0.2,  0.5,  1.0,  2.0,  5.0,  10.0};

constexpr std::string_view kTypes[] = {"counter", "gauge", "histogram"};
constexpr std::string_view kRefusedName = "larder_metrics_refused_total";
constexpr std::string_view kRefusedHelp = "Series refused: the limit was reached, or the name has another kind.";

// How many bytes the character has that `text` begins with; 0: it is no UTF-8. Precondition: not empty.
std::size_t utf8_bytes(std::string_view text) {
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // else it has a shorter form
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const std::size_t count = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc0 || lead > 0xf7 || text.size() < count) return 0;
  std::uint32_t code = lead & (0x7fu >> count);
  for (const char c : text.substr(1, count - 1)) {
    if ((static_cast<unsigned char>(c) & 0xc0u) != 0x80) return 0;
    code = (code << 6) | (static_cast<unsigned char>(c) & 0x3fu);
  }
  const bool is_character = code >= kLeast[count] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return is_character ? count : 0;
}

// Backslash and newline everywhere; the quote in label values only. A value may have been chosen by a client, and
// Prometheus takes nothing of a page on which one byte is no UTF-8: such bytes are shown in hex.
void append_escaped(std::string& out, std::string_view text, bool in_label) {
  for (std::size_t i = 0, bytes = 0; i < text.size(); i += std::max<std::size_t>(bytes, 1)) {
    const char c = text[i];
    bytes = utf8_bytes(text.substr(i));
    if (bytes == 0) {
      out += fmt::format("\\\\x{:02x}", static_cast<unsigned char>(c));
    } else if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && in_label) {
      out += "\\\"";
    } else {
      out += text.substr(i, bytes);
    }
  }
}

// `a="x",b="y"`; empty without labels.
std::string label_text(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    if (!text.empty()) text += ',';
    text += name;
    text += "=\"";
    append_escaped(text, value, true);
    text += '"';
  }
  return text;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

void append_sample(std::string& out, std::string_view name, std::string_view labels, std::string_view value) {
  out += name;
  if (!labels.empty()) {
    out += '{';
    out += labels;
    out += '}';
  }
  out += ' ';
  out += value;
  out += '\n';
}

void append_header(std::string& out, std::string_view name, std::string_view help, std::string_view type) {
  out += fmt::format("# HELP {} ", name);
  append_escaped(out, help, false);
  out += fmt::format("\n# TYPE {} {}\n", name, type);
}

void append_histogram(std::string& out, const std::string& name, const std::string& labels,
                      const Histogram& histogram) {
  const std::string prefix = labels.empty() ? std::string{} : labels + ",";
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i <= histogram.bounds().size(); ++i) {
    cumulative += histogram.bucket(i);
    const std::string bound = i < histogram.bounds().size() ? number_text(histogram.bounds()[i]) : "+Inf";
    append_sample(out, name + "_bucket", prefix + "le=\"" + bound + "\"", std::to_string(cumulative));
  }
  append_sample(out, name + "_sum", labels, number_text(histogram.sum()));
  append_sample(out, name + "_count", labels, std::to_string(cumulative));
}

}  // namespace

std::span<const double> latency_bounds_seconds() { return kLatencyBounds; }

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), buckets_(bounds.size() + 1) {}

void Histogram::observe(double value) {
  std::size_t i = 0;
  while (i < bounds_.size() && value > bounds_[i]) ++i;
  buckets_[i].fetch_add(1, std::memory_order_relaxed);
  count_.fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::string_view MetricSeries::label(std::string_view name) const {
  for (const auto& [key, text] : labels) {
    if (key == name) return text;
  }
  return {};
}

double histogram_quantile(const MetricSeries& histogram, double q) {
  if (histogram.count == 0) return 0;
  const double wanted = q * static_cast<double>(histogram.count);
  double below = 0, low = 0;
  for (const auto& [bound, count] : histogram.buckets) {
    const auto until = static_cast<double>(count);
    if (until >= wanted && until > below) {
      if (std::isinf(bound)) return low;
      const double inside = low + (bound - low) * (wanted - below) / (until - below);
      // Markov: of what is not negative, no more than 1 - q lies above mean / (1 - q). In wide buckets that tells more.
      const double mean = histogram.sum / static_cast<double>(histogram.count);
      return mean > 0 && q < 1 ? std::max(low, std::min(inside, mean / (1 - q))) : inside;
    }
    below = until;
    low = bound;
  }
  return low;
}

MetricsRegistry::MetricsRegistry() {
  LockGuard guard(mutex_);
  refused_series_[0].counter = std::make_unique<Counter>();
  refused_series_[1].gauge = std::make_unique<Gauge>();
  refused_series_[2].histogram = std::make_unique<Histogram>(std::span<const double>{});
}

MetricsRegistry::~MetricsRegistry() = default;

MetricsRegistry::Series& MetricsRegistry::find_or_add(Kind kind, std::string_view name, std::string_view help,
                                                      const Labels& labels) {
  auto family = families_.find(name);
  if (family == families_.end() && series_count_ < kMaxSeries) {
    family = families_.emplace(std::string(name), Family{kind, std::string(help), {}}).first;
  }
  const bool fits = family != families_.end() && family->second.kind == kind;
  if (fits) {
    Labels sorted = labels;
    std::sort(sorted.begin(), sorted.end());
    const std::string text = label_text(sorted);
    const auto known = family->second.series.find(text);
    if (known != family->second.series.end()) return known->second;
    if (series_count_ < kMaxSeries) {
      ++series_count_;
      Series& series = family->second.series[text];
      series.labels = std::move(sorted);
      return series;
    }
  }
  refused_.increment();
  return refused_series_[static_cast<std::size_t>(kind)];
}

Counter& MetricsRegistry::counter(std::string_view name, std::string_view help, const Labels& labels) {
  LockGuard guard(mutex_);
  Series& series = find_or_add(Kind::kCounter, name, help, labels);
  if (!series.counter) series.counter = std::make_unique<Counter>();
  return *series.counter;
}

Gauge& MetricsRegistry::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  LockGuard guard(mutex_);
  Series& series = find_or_add(Kind::kGauge, name, help, labels);
  if (!series.gauge) series.gauge = std::make_unique<Gauge>();
  return *series.gauge;
}

Histogram& MetricsRegistry::histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                                      const Labels& labels) {
  LockGuard guard(mutex_);
  Series& series = find_or_add(Kind::kHistogram, name, help, labels);
  if (!series.histogram) series.histogram = std::make_unique<Histogram>(bounds);
  return *series.histogram;
}

void MetricsRegistry::render_series(std::string& out, const std::string& name, const std::string& labels,
                                    const Series& series) {
  if (series.counter) append_sample(out, name, labels, std::to_string(series.counter->value()));
  if (series.gauge) append_sample(out, name, labels, number_text(series.gauge->value()));
  if (series.histogram) append_histogram(out, name, labels, *series.histogram);
}

MetricSeries MetricsRegistry::values_of(const Series& series) {
  MetricSeries out;
  out.labels = series.labels;
  if (series.counter) out.value = static_cast<double>(series.counter->value());
  if (series.gauge) out.value = series.gauge->value();
  if (series.histogram) {
    const Histogram& histogram = *series.histogram;
    for (std::size_t i = 0; i <= histogram.bounds().size(); ++i) {
      out.count += histogram.bucket(i);
      const bool is_last = i == histogram.bounds().size();
      out.buckets.emplace_back(is_last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i], out.count);
    }
    out.sum = histogram.sum();
  }
  return out;
}

std::string MetricsRegistry::render() const {
  std::string out;
  LockGuard guard(mutex_);
  for (const auto& [name, family] : families_) {
    append_header(out, name, family.help, kTypes[static_cast<std::size_t>(family.kind)]);
    for (const auto& [labels, series] : family.series) render_series(out, name, labels, series);
  }
  append_header(out, kRefusedName, kRefusedHelp, "counter");
  append_sample(out, kRefusedName, "", std::to_string(refused_.value()));
  return out;
}

std::vector<MetricFamily> MetricsRegistry::families() const {
  std::vector<MetricFamily> out;
  LockGuard guard(mutex_);
  out.reserve(families_.size() + 1);
  for (const auto& [name, family] : families_) {
    out.push_back({name, family.help, std::string(kTypes[static_cast<std::size_t>(family.kind)]), {}});
    for (const auto& [text, series] : family.series) out.back().series.push_back(values_of(series));
  }
  out.push_back({std::string(kRefusedName), std::string(kRefusedHelp), "counter", {{}}});
  out.back().series.front().value = static_cast<double>(refused_.value());
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

}  // namespace larder
