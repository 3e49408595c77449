// SPDX-License-Identifier: Apache-2.0
#include "bench/plan.h"

#include <memory>
#include <utility>

#include "bench/drawing.h"
#include "bench/plan_report.h"
#include "bench/report_file.h"
#include "server/json_reader.h"

namespace larder {
namespace {

constexpr std::uint32_t kPlanPageTokens = 64;
constexpr std::uint32_t kMostTried = 8;  // times that
constexpr double kPngScale = 2;

Status check_plots(const std::vector<std::string>& plots) {
  for (const std::string& path : plots) {
    if (path.ends_with(".svg")) continue;
    if (!path.ends_with(".png")) return invalid_argument("--plot: '" + path + "' ends in neither .svg nor .png");
    // Before minutes of replays, not after them.
    const Status can = png_of(Drawing(1, 1, ""), 1).status();
    if (!can.is_ok()) return Status(can.code(), "--plot: " + can.message());
  }
  return Status::ok();
}

struct PlanFiles {
  std::unique_ptr<ReportFile> csv;                 // null: nobody wants it
  std::vector<std::unique_ptr<ReportFile>> plots;  // by PlanOptions::plots
};

Result<PlanFiles> open_files(const PlanOptions& options) {
  PlanFiles files;
  if (!options.csv.empty()) {
    Result<std::unique_ptr<ReportFile>> csv = ReportFile::open("--csv", options.csv);
    if (!csv.is_ok()) return csv.status();
    files.csv = std::move(*csv);
  }
  for (const std::string& path : options.plots) {
    Result<std::unique_ptr<ReportFile>> plot = ReportFile::open("--plot", path);
    if (!plot.is_ok()) return plot.status();
    files.plots.push_back(std::move(*plot));
  }
  return files;
}

Status write_files(const PlanFiles& files, const PlanOptions& options, const PlanModel& model, const PlanSweep& sweep) {
  if (files.csv) LARDER_RETURN_IF_ERROR(files.csv->write(plan_sweep_csv(sweep)));
  if (files.plots.empty()) return Status::ok();
  const Drawing drawing = plan_sweep_drawing(model, sweep);
  for (std::size_t i = 0; i < files.plots.size(); ++i) {
    std::string bytes;
    if (options.plots[i].ends_with(".svg")) {
      bytes = svg_of(drawing);
    } else {
      Result<std::string> png = png_of(drawing, kPngScale);
      if (!png.is_ok()) return Status(png.status().code(), "--plot: " + png.status().message());
      bytes = std::move(*png);
    }
    LARDER_RETURN_IF_ERROR(files.plots[i]->write(bytes));
  }
  return Status::ok();
}

Result<PlanModel> model_of(const PlanOptions& options) {
  PlanSource source = options.source;
  if (!options.kv_dtype.empty()) {
    source.kv_dtype = parse_dtype(options.kv_dtype);
    if (!source.kv_dtype) {
      return invalid_argument("--kv-dtype: '" + options.kv_dtype + "' is none of f32, bf16, f16, fp8_e4m3");
    }
  }
  const bool has_trace = !options.sweep.trace.empty();
  const std::uint32_t least = has_trace ? static_cast<std::uint32_t>(options.sweep.block_tokens) : kPlanPageTokens;
  source.page_size = options.page_size > 0 ? options.page_size : least;
  Result<PlanModel> model = plan_model(source);
  if (options.page_size > 0) return model;
  // Nobody has asked for this page size: the model may take a multiple of it.
  for (std::uint32_t n = 2; n <= kMostTried && model.status().code() == StatusCode::kInvalidArgument; ++n) {
    source.page_size = n * least;
    Result<PlanModel> larger = plan_model(source);
    if (larger.is_ok()) return larger;
  }
  return model;
}

}  // namespace

Result<std::string> run_plan(const PlanOptions& options) {
  LARDER_RETURN_IF_ERROR(check_plots(options.plots));
  const Result<PlanModel> model = model_of(options);
  if (!model.is_ok()) return model.status();
  if (options.sweep.trace.empty()) {
    return options.as_json ? dump_json(plan_model_json(*model), 2) + "\n" : plan_model_text(*model);
  }
  const Result<PlanFiles> files = open_files(options);
  if (!files.is_ok()) return files.status();
  const Result<PlanSweep> sweep = plan_sweep(options.sweep, *model);
  if (!sweep.is_ok()) return sweep.status();
  LARDER_RETURN_IF_ERROR(write_files(*files, options, *model, *sweep));
  if (!options.as_json) return plan_model_text(*model) + "\n" + plan_sweep_text(*sweep);
  nlohmann::ordered_json json = plan_model_json(*model);
  json["sweep"] = plan_sweep_json(*sweep);
  return dump_json(json, 2) + "\n";
}

}  // namespace larder
