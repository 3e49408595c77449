// SPDX-License-Identifier: Apache-2.0
#include "bench/plan.h"

#include <algorithm>
#include <iterator>
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

Result<PlanFiles> open_files(const PlanOptions& options, const PlanModel& model) {
  PlanFiles files;
  std::vector<std::string> taken = model.files;
  taken.push_back(options.sweep.trace);
  const auto open = [&](const char* option, const std::string& path) {
    Result<std::unique_ptr<ReportFile>> file = ReportFile::open(option, path, taken);
    taken.push_back(path);
    return file;
  };
  if (!options.csv.empty()) {
    Result<std::unique_ptr<ReportFile>> csv = open("--csv", options.csv);
    if (!csv.is_ok()) return csv.status();
    files.csv = std::move(*csv);
  }
  for (const std::string& path : options.plots) {
    Result<std::unique_ptr<ReportFile>> plot = open("--plot", path);
    if (!plot.is_ok()) return plot.status();
    files.plots.push_back(std::move(*plot));
  }
  return files;
}

Result<std::string> picture_of(const Drawing& drawing, const std::string& path) {
  if (path.ends_with(".svg")) return svg_of(drawing);
  Result<std::string> png = png_of(drawing, kPngScale);
  return png.is_ok() ? std::move(png) : Status(png.status().code(), "--plot: " + png.status().message());
}

// Each that can be, whatever becomes of the others. The first that failed.
Status write_files(const PlanFiles& files, const PlanOptions& options, const PlanModel& model, const PlanSweep& sweep) {
  Status first;
  const auto keep = [&](const Status& status) {
    if (first.is_ok()) first = status;
  };
  if (files.csv) keep(files.csv->write(plan_sweep_csv(sweep)));
  if (files.plots.empty()) return first;
  const Drawing drawing = plan_sweep_drawing(model, sweep);
  for (std::size_t i = 0; i < files.plots.size(); ++i) {
    const Result<std::string> picture = picture_of(drawing, options.plots[i]);
    keep(picture.is_ok() ? files.plots[i]->write(*picture) : picture.status());
  }
  return first;
}

constexpr Dtype kPlanKvDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16, Dtype::kFp8E4m3};

Result<PlanModel> model_of(const PlanOptions& options) {
  PlanSource source = options.source;
  if (!options.kv_dtype.empty()) {
    source.kv_dtype = parse_dtype(options.kv_dtype);
    if (!source.kv_dtype || std::ranges::find(kPlanKvDtypes, *source.kv_dtype) == std::end(kPlanKvDtypes)) {
      return invalid_argument("--kv-dtype: '" + options.kv_dtype + "' is none of f32, bf16, f16, fp8_e4m3");
    }
  }
  source.page_size = options.page_size;
  if (options.page_size > 0) return plan_model(source);
  // Nobody has asked for this page size: the model may take a multiple of it.
  const bool has_trace = !options.sweep.trace.empty();
  source.page_size = has_trace ? static_cast<std::uint32_t>(options.sweep.block_tokens) : kPlanPageTokens;
  source.most_multiple = kMostTried;
  return plan_model(source);
}

}  // namespace

Result<PlanOutput> run_plan(const PlanOptions& options) {
  LARDER_RETURN_IF_ERROR(check_plots(options.plots));
  const Result<PlanModel> model = model_of(options);
  if (!model.is_ok()) return model.status();
  if (options.sweep.trace.empty()) {
    return PlanOutput{options.as_json ? dump_json(plan_model_json(*model), 2) + "\n" : plan_model_text(*model), {}};
  }
  const Result<PlanFiles> files = open_files(options, *model);
  if (!files.is_ok()) return files.status();
  const Result<PlanSweep> sweep = plan_sweep(options.sweep, *model);
  if (!sweep.is_ok()) return sweep.status();
  PlanOutput output;
  output.written = write_files(*files, options, *model, *sweep);
  if (!options.as_json) {
    output.text = plan_model_text(*model) + "\n" + plan_sweep_text(*sweep);
    return output;
  }
  nlohmann::ordered_json json = plan_model_json(*model);
  json["sweep"] = plan_sweep_json(*sweep);
  output.text = dump_json(json, 2) + "\n";
  return output;
}

}  // namespace larder
