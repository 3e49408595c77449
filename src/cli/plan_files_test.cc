// SPDX-License-Identifier: Apache-2.0
// What `larder plan` writes: CSV and pictures, and never over what it reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "bench/drawing.h"
#include "cli/plan_test_util.h"
#include "config/model_file.h"
#include "model/presets.h"

namespace larder {
namespace {

using plan_test::Json;

class PlanFilesTest : public plan_test::PlanRig {};

TEST_F(PlanFilesTest, AResultDoesNotTakeThePlaceOfWhatItIsMadeOf) {
  PlanOptions options = sweep_options();
  options.sweep.gib = {std::vector<double>{0.01}, {0, 0.002}, {0}};
  const std::string trace = read(options.sweep.trace);
  options.csv = options.sweep.trace;
  refused(options, "--csv: '" + options.csv + "' is the file '" + options.sweep.trace + "', too");
  options.csv = folder_ + "/other.svg";
  std::filesystem::create_hard_link(options.sweep.trace, options.csv);
  refused(options, "--csv: ");
  options.plots = {options.csv};
  options.csv.clear();
  refused(options, "--plot: ");
  EXPECT_EQ(read(options.sweep.trace), trace);
  options.plots = {folder_ + "/one.svg", folder_ + "/./one.svg"};
  refused(options, "one.svg', too: name another");
  EXPECT_FALSE(std::filesystem::exists(options.plots[0]));
  const std::string text = model_to_json(*preset_model("gdn-tiny"));
  options.source = {.model_file = write("model.json", text)};
  options.plots.clear();
  options.csv = folder_ + "/model.json";
  refused(options, "--csv: ");
  EXPECT_EQ(read(options.csv), text);
}

TEST_F(PlanFilesTest, WhatIsPrintedDoesNotHangOnAFile) {
  PlanOptions options = sweep_options();
  options.sweep.gib = {std::vector<double>{0.01}, {0, 0.002}, {0}};
  options.csv = "/dev/full";
  options.plots = {folder_ + "/one.svg"};
  const Result<PlanOutput> output = run_plan(options);
  ASSERT_TRUE(output.is_ok()) << output.status().to_string();
  EXPECT_FALSE(output->written.is_ok());
  EXPECT_NE(output->text.find("next 100 GiB"), std::string::npos);
  EXPECT_TRUE(read(options.plots[0]).ends_with("</svg>\n"));
}

TEST_F(PlanFilesTest, CsvHasALineForEachCell) {
  PlanOptions options = sweep_options();
  options.sweep.gib = {std::vector<double>{0.01}, {0, 0.002}, {0, 0.01}};
  options.csv = folder_ + "/sizes.csv";
  const Json sweep = run(options)["sweep"];
  std::istringstream text(read(options.csv));
  std::string line;
  std::vector<std::size_t> commas;
  while (std::getline(text, line))
    commas.push_back(static_cast<std::size_t>(std::count(line.begin(), line.end(), ',')));
  ASSERT_EQ(commas.size(), sweep["cells"].size() + 1);
  EXPECT_EQ(sweep["cells"].size(), 3u);  // storage without a host is none
  for (const std::size_t count : commas) EXPECT_EQ(count, commas.front());
}

// --- pictures

// Tags open and close in order, texts are escaped, and there is no number that is none.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST_F(PlanFilesTest, Pictures) {
  PlanOptions options = sweep_options();
  options.plots = {folder_ + "/one.svg"};
  const bool has_png = png_of(Drawing(4, 4, ""), 1).is_ok();
  if (has_png) options.plots.push_back(folder_ + "/two.png");
  const Json sweep = run(options)["sweep"];
  const std::string svg = read(options.plots[0]);
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  expect_well_formed(svg);
  std::size_t dots = 0;
  for (std::size_t at = svg.find("r=\"2.8\""); at != std::string::npos; at = svg.find("r=\"2.8\"", at + 1)) ++dots;
  EXPECT_EQ(dots, 3 * sweep["cells"].size());  // in each of three panels
  if (!has_png) {
    options.plots = {folder_ + "/two.png"};
    return refused(options, "--plot: this build of Larder has no Cairo");
  }
  const std::string png = read(options.plots[1]);
  ASSERT_GT(png.size(), 2000u);
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4), "IHDR");
}

TEST_F(PlanFilesTest, PicturesOfATraceThatReusesNothing) {
  PlanOptions options = sweep_options();
  options.sweep.trace = write("two.jsonl", R"({"timestamp": 0, "input_length": 64, "output_length": 1, "hash_ids": [1]}
{"timestamp": 100, "input_length": 64, "output_length": 1, "hash_ids": [2]}
)");
  options.plots = {folder_ + "/one.svg"};
  if (png_of(Drawing(4, 4, ""), 1).is_ok()) options.plots.push_back(folder_ + "/two.png");
  EXPECT_EQ(run(options)["sweep"]["kept_hit_rate"], 0);
  expect_well_formed(read(options.plots[0]));
}

TEST_F(PlanFilesTest, NamesThatAreNoUtf8AreDrawnAndPrinted) {
  PlanOptions options = sweep_options();
  const std::string trace = read(options.sweep.trace);
  options.sweep.trace = write("caf\xe9\x1b.jsonl", trace);
  options.sweep.gib = {std::vector<double>{0.01}, {0, 0.002}, {0}};
  options.plots = {folder_ + "/one.svg"};
  if (png_of(Drawing(4, 4, ""), 1).is_ok()) options.plots.push_back(folder_ + "/two.png");
  EXPECT_TRUE(run(options)["sweep"]["trace"].get<std::string>().ends_with("/caf\xef\xbf\xbd\x1b.jsonl"));
  const std::string svg = read(options.plots[0]);
  EXPECT_NE(svg.find("caf\xef\xbf\xbd .jsonl"), std::string::npos) << svg;
}

TEST(Drawing, TextsAreEscaped) {
  Drawing drawing(10, 10, "a < b & \"c\"");
  drawing.text({{1, 2}, "x > <y>", 12, 0x123456, TextAnchor::kMiddle, true});
  const std::string svg = svg_of(drawing);
  expect_well_formed(svg);
  EXPECT_NE(svg.find("<title>a &lt; b &amp; &quot;c&quot;</title>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("fill=\"#123456\" text-anchor=\"middle\" font-weight=\"bold\">x &gt; &lt;y&gt;<"),
            std::string::npos)
      << svg;
}

}  // namespace
}  // namespace larder
