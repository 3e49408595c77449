// SPDX-License-Identifier: Apache-2.0
// The picture of a sweep:
//
//   title, what was assumed
//   legend: a colour for each storage (or device), a dash for each device, the mark of the knee
//   ┌────────────────────┐ ┌───────────┐
//   │                    │ │ first p50 │
//   │ hit rate           │ ├───────────┤
//   │                    │ │ first p99 │
//   └────────────────────┘ └───────────┘
//     host memory            host memory
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "bench/plan_report.h"
#include "server/text_table.h"

namespace larder {
namespace {

constexpr std::uint32_t kPaper = 0xffffff, kInk = 0x24292f, kFaint = 0x57606a, kGrid = 0xe4e8ec, kFrame = 0xafb8c1;
constexpr std::array<std::uint32_t, 6> kPlotColors = {0x1f6feb, 0xd1690e, 0x1a7f37, 0x8250df, 0xcf222e, 0x57606a};
constexpr double kPlotWidth = 1040, kPlotHeight = 590;
constexpr double kPlotTop = 164, kPlotBottom = 532;

std::string plot_gib(double gib) {
  return gib == std::floor(gib) ? count_text(static_cast<std::uint64_t>(gib)) : fmt::format("{:.3g}", gib);
}

std::string plot_size(double gib) {
  return gib == 0 ? "none" : gib < 1024 ? plot_gib(gib) + " GiB" : fmt::format("{:.3g} TiB", gib / 1024);
}

std::vector<double> plot_dash(std::size_t number) {
  static const std::vector<std::vector<double>> dashes = {{}, {7, 4}, {2, 3}, {10, 3, 2, 3}};
  return dashes[number % dashes.size()];
}

// One of 1, 2, 2.5 and 5 times a power of ten: at least `least`.
double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(std::max(least, 1e-9))));
  for (const double digit : {1.0, 2.0, 2.5, 5.0}) {
    if (digit * power >= least * (1 - 1e-9)) return digit * power;
  }
  return 10 * power;
}

// Sizes of the host by doublings; 0 stands one doubling below the smallest.
class HostAxis {
 public:
  HostAxis(const std::vector<double>& sizes, double left, double right) : left_(left), right_(right) {
    for (const double size : sizes) {
      if (size <= 0) continue;
      least_ = least_ == 0 ? size : std::min(least_, size);
      most_ = std::max(most_, size);
    }
    if (least_ == 0) least_ = most_ = 1;
    from_ = std::log2(least_) - (sizes.front() <= 0 ? 1 : 0);
    to_ = std::max(std::log2(most_), from_ + 1);
  }
  [[nodiscard]] double at(double size) const {
    const double value = size > 0 ? std::log2(size) : from_;
    return left_ + (value - from_) / (to_ - from_) * (right_ - left_);
  }
  [[nodiscard]] double left() const { return left_; }
  [[nodiscard]] double right() const { return right_; }

 private:
  double left_, right_, least_ = 0, most_ = 0, from_ = 0, to_ = 1;
};

struct ValueAxis {
  double top = 0, bottom = 0, most = 1, step = 0.25;
  [[nodiscard]] double at(double value) const { return bottom - value / most * (bottom - top); }
};

ValueAxis value_axis(double top, double bottom, double most, int steps) {
  ValueAxis axis{.top = top, .bottom = bottom};
  if (most < 1e-6) most = 1;  // as good as nothing: a line at the bottom
  axis.step = round_step(most / steps);
  axis.most = axis.step * std::ceil(most / axis.step - 1e-9);
  return axis;
}

using CellValue = std::function<double(const PlanCell&)>;

struct PlotPanel {
  HostAxis hosts;
  ValueAxis values;
  std::string title, unit;
  bool has_host_labels = true;
  CellValue value;
};

void draw_frame(Drawing& out, const PlotPanel& panel, const std::vector<double>& sizes) {
  const double left = panel.hosts.left(), right = panel.hosts.right();
  out.text({{left, panel.values.top - 10}, panel.title, 13, kInk, TextAnchor::kStart, true});
  for (double value = 0; value <= panel.values.most * (1 + 1e-9); value += panel.values.step) {
    const double y = panel.values.at(value);
    out.line({{left, y}, {right, y}}, value == 0 ? kFrame : kGrid, 1);
    out.text({{left - 8, y + 4}, fmt::format("{:.4g}{}", value, panel.unit), 11.5, kFaint, TextAnchor::kEnd});
  }
  double free_to = 1e9;  // from the right, so that the largest has its label
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const double x = panel.hosts.at(*size);
    out.line({{x, panel.values.bottom}, {x, panel.values.bottom + 4}}, kFrame, 1);
    const std::string label = plot_gib(*size);
    const double half = text_width(label, 11.5) / 2;
    if (!panel.has_host_labels || x + half > free_to) continue;
    out.text({{x, panel.values.bottom + 18}, label, 11.5, kFaint, TextAnchor::kMiddle});
    free_to = x - half - 6;
  }
}

// How a line of the sweep looks.
struct PlotLook {
  std::uint32_t color = 0;
  std::vector<double> dash;
};

PlotLook look_of(const PlanSweep& sweep, const PlanLine& line) {
  const auto index_in = [&](PlanTier tier) {
    const auto& sizes = sweep.options.gib[tier];
    const auto at = std::find(sizes.begin(), sizes.end(), sweep.cells[line.begin].gib[tier]);
    return static_cast<std::size_t>(at - sizes.begin());
  };
  const bool has_storages = sweep.options.gib[kPlanStorage].size() > 1;
  const std::size_t device = index_in(kPlanDevice), storage = index_in(kPlanStorage);
  return {kPlotColors[(has_storages ? storage : device) % kPlotColors.size()], plot_dash(has_storages ? device : 0)};
}

void draw_lines(Drawing& out, const PlotPanel& panel, const PlanSweep& sweep) {
  for (const PlanLine& line : sweep.lines) {
    const PlotLook look = look_of(sweep, line);
    std::vector<DrawingPoint> points;
    for (std::size_t i = line.begin; i < line.end; ++i) {
      points.push_back({panel.hosts.at(sweep.cells[i].gib[kPlanHost]), panel.values.at(panel.value(sweep.cells[i]))});
    }
    out.line(points, look.color, 2, look.dash);
    for (const DrawingPoint& point : points) out.dot(point, 2.8, look.color);
  }
}

// Rings that would lie on each other lie around each other; two of one colour are one.
void draw_knees(Drawing& out, const PlotPanel& panel, const PlanSweep& sweep) {
  std::vector<std::pair<DrawingPoint, std::uint32_t>> drawn;
  for (const PlanLine& line : sweep.lines) {
    if (!line.knee) continue;
    const PlanCell& cell = sweep.cells[*line.knee];
    const DrawingPoint at{panel.hosts.at(cell.gib[kPlanHost]), panel.values.at(panel.value(cell))};
    const std::uint32_t color = look_of(sweep, line).color;
    int below = 0;
    bool is_there = false;
    for (const auto& [point, other] : drawn) {
      if (std::hypot(point.x - at.x, point.y - at.y) > 8) continue;
      is_there = is_there || other == color;
      ++below;
    }
    if (is_there) continue;
    out.ring(at, 6.5 + 3.5 * below, color, 1.8);
    drawn.emplace_back(at, color);
  }
}

// Each entry: a sample, then words. Returns where the next one begins.
double draw_legend_line(Drawing& out, double x, double y, const std::string& words, const PlotLook& look) {
  out.line({{x, y - 4}, {x + 30, y - 4}}, look.color, 2, look.dash);
  out.text({{x + 37, y}, words, 12, kInk});
  return x + 37 + text_width(words, 12) + 18;
}

// Two rows: what the lines are, and what the marks are.
void draw_legend(Drawing& out, const PlanSweep& sweep, double left, double y) {
  const auto& gib = sweep.options.gib;
  const bool has_storages = gib[kPlanStorage].size() > 1;
  const PlanTier colored = has_storages ? kPlanStorage : kPlanDevice;
  double x = left;
  for (std::size_t i = 0; i < gib[colored].size(); ++i) {
    const std::string words = fmt::format("{} {}", kPlanTierNames[colored], plot_size(gib[colored][i]));
    x = draw_legend_line(out, x, y, words, {kPlotColors[i % kPlotColors.size()], {}});
  }
  for (std::size_t i = 0; has_storages && i < gib[kPlanDevice].size(); ++i) {
    x = draw_legend_line(out, x, y, "device " + plot_size(gib[kPlanDevice][i]), {kInk, plot_dash(i)});
  }
  y += 24;
  out.line({{left, y - 4}, {left + 30, y - 4}}, kFaint, 1, {3, 3});
  const std::string kept = fmt::format("everything kept: {:.1f}%", 100 * sweep.kept_hit_rate);
  out.text({{left + 37, y}, kept, 12, kInk});
  x = left + 37 + text_width(kept, 12) + 18;
  const bool has_knee =
      std::any_of(sweep.lines.begin(), sweep.lines.end(), [](const auto& l) { return l.knee.has_value(); });
  if (!has_knee) return;
  out.ring({x + 8, y - 4}, 7, kInk, 1.8);
  const char* const unit = sweep.options.knee_points == 1 ? "point" : "points";
  out.text({{x + 23, y},
            fmt::format("knee: no later doubling of the host gains {} {}", sweep.options.knee_points, unit),
            12,
            kInk});
}

void draw_head(Drawing& out, const PlanModel& model, const PlanSweep& sweep) {
  const PlanSweepOptions& o = sweep.options;
  const std::string file = o.trace.substr(o.trace.find_last_of('/') + 1);
  out.text({{24, 34}, fmt::format("{}: what a larger host brings", model.name), 18, kInk, TextAnchor::kStart, true});
  out.text({{24, 56},
            fmt::format("{} requests of {}; {} at once, prompts at {} tokens/s in all, answers at {} tokens/s each; "
                        "policy {}",
                        count_text(sweep.requests), file, o.at_once,
                        count_text(static_cast<std::uint64_t>(o.prefill_rate)), o.decode_rate, o.policy),
            12,
            kFaint});
}

void draw_kept(Drawing& out, const PlotPanel& panel, double kept) {
  const double y = panel.values.at(100 * kept);
  out.line({{panel.hosts.left(), y}, {panel.hosts.right(), y}}, kFaint, 1, {3, 3});
}

}  // namespace

Drawing plan_sweep_drawing(const PlanModel& model, const PlanSweep& sweep) {
  Drawing out(kPlotWidth, kPlotHeight, fmt::format("{}: hit rate and time to first token by host memory", model.name));
  out.box({0, 0}, {kPlotWidth, kPlotHeight}, kPaper);
  draw_head(out, model, sweep);
  draw_legend(out, sweep, 24, 84);
  const auto& sizes = sweep.options.gib[kPlanHost];
  const auto most = [&](const CellValue& value) {
    double found = 0;
    for (const PlanCell& cell : sweep.cells) found = std::max(found, value(cell));
    return found;
  };
  const CellValue hit = [](const PlanCell& cell) { return 100 * cell.hit_rate(); };
  const CellValue p50 = [](const PlanCell& cell) { return cell.first_p50_s; };
  const CellValue p99 = [](const PlanCell& cell) { return cell.first_p99_s; };
  const double middle = (kPlotTop + kPlotBottom) / 2;
  const double most_hit = std::min(100.0, std::max(most(hit), 100 * sweep.kept_hit_rate) * 1.06);
  const HostAxis wide(sizes, 74, 590), narrow(sizes, 706, 1012);
  const std::array<PlotPanel, 3> panels = {
      {{wide, value_axis(kPlotTop, kPlotBottom, most_hit, 6), "prompt tokens reused", "%", true, hit},
       {narrow, value_axis(kPlotTop, middle - 26, most(p50), 3), "time to first token, median", " s", false, p50},
       {narrow, value_axis(middle + 26, kPlotBottom, most(p99), 3), "time to first token, 99th percentile", " s", true,
        p99}}};
  for (const PlotPanel& panel : panels) draw_frame(out, panel, sizes);
  draw_kept(out, panels[0], sweep.kept_hit_rate);
  for (const PlotPanel& panel : panels) draw_lines(out, panel, sweep);
  draw_knees(out, panels[0], sweep);
  for (const HostAxis& axis : {wide, narrow}) {
    out.text(
        {{(axis.left() + axis.right()) / 2, kPlotBottom + 42}, "host memory, GiB", 12.5, kInk, TextAnchor::kMiddle});
  }
  return out;
}

}  // namespace larder
