// SPDX-License-Identifier: Apache-2.0
#include "bench/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "bench/terminal_text.h"

namespace larder {
namespace {

std::string xml_text(std::string_view words) {
  std::string out;
  for (const char letter : words) {
    switch (letter) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += letter;
    }
  }
  return out;
}

// At most two digits behind the point, and none that say nothing.
std::string svg_number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string svg_color(std::uint32_t color) { return fmt::format("#{:06x}", color); }

std::string svg_line(const DrawingShape& shape) {
  std::string points, dash;
  for (const DrawingPoint& p : shape.points)
    points += (points.empty() ? "" : " ") + svg_number(p.x) + "," + svg_number(p.y);
  for (const double length : shape.dash) dash += (dash.empty() ? "" : " ") + svg_number(length);
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{}/>", points,
                     svg_color(shape.stroke), svg_number(shape.width),
                     dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash));
}

std::string svg_shape(const DrawingShape& shape) {
  const std::string fill = shape.is_filled ? svg_color(shape.fill) : "none";
  switch (shape.kind) {
    case DrawingShape::Kind::kBox: {
      const DrawingPoint a = shape.points[0], b = shape.points[1];
      return fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>", svg_number(a.x),
                         svg_number(a.y), svg_number(b.x - a.x), svg_number(b.y - a.y), fill);
    }
    case DrawingShape::Kind::kLine: return svg_line(shape);
    case DrawingShape::Kind::kDot: {
      const std::string outline =
          fmt::format(" stroke=\"{}\" stroke-width=\"{}\"", svg_color(shape.stroke), svg_number(shape.width));
      return fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"{}/>", svg_number(shape.points[0].x),
                         svg_number(shape.points[0].y), svg_number(shape.radius), fill,
                         shape.is_stroked ? outline : "");
    }
    case DrawingShape::Kind::kText: break;
  }
  const DrawingText& text = shape.text;
  static constexpr const char* kAnchors[] = {"start", "middle", "end"};
  const std::string place = "x=\"" + svg_number(text.at.x) + "\" y=\"" + svg_number(text.at.y) + "\"";
  return fmt::format("<text {} font-size=\"{}\" fill=\"{}\" text-anchor=\"{}\"{}>{}</text>", place,
                     svg_number(text.size), svg_color(text.color), kAnchors[static_cast<std::size_t>(text.anchor)],
                     text.is_bold ? " font-weight=\"bold\"" : "", xml_text(text.words));
}

}  // namespace

void Drawing::box(DrawingPoint from, DrawingPoint to, std::uint32_t fill) {
  DrawingShape shape{.kind = DrawingShape::Kind::kBox, .points = {from, to}, .fill = fill};
  shape.is_filled = true;
  shapes_.push_back(std::move(shape));
}

void Drawing::line(std::vector<DrawingPoint> points, std::uint32_t color, double width, std::vector<double> dash) {
  DrawingShape shape{.kind = DrawingShape::Kind::kLine, .points = std::move(points), .width = width};
  shape.stroke = color;
  shape.is_stroked = true;
  shape.dash = std::move(dash);
  shapes_.push_back(std::move(shape));
}

void Drawing::dot(DrawingPoint at, double radius, std::uint32_t fill) {
  DrawingShape shape{.kind = DrawingShape::Kind::kDot, .points = {at}, .radius = radius, .fill = fill};
  shape.is_filled = true;
  shapes_.push_back(std::move(shape));
}

void Drawing::ring(DrawingPoint at, double radius, std::uint32_t color, double width) {
  DrawingShape shape{.kind = DrawingShape::Kind::kDot, .points = {at}, .width = width, .radius = radius};
  shape.stroke = color;
  shape.is_stroked = true;
  shapes_.push_back(std::move(shape));
}

Drawing::Drawing(double width, double height, std::string_view title)
    : width_(width), height_(height), title_(drawable_text(title)) {}

void Drawing::text(DrawingText text) {
  DrawingShape shape{.kind = DrawingShape::Kind::kText};
  text.words = drawable_text(text.words);
  shape.text = std::move(text);
  shapes_.push_back(std::move(shape));
}

double text_width(const std::string& words, double size) {
  constexpr std::string_view kNarrow = "iljtf.,:;|!' ()[]/-", kWide = "mwMW%@";
  double ems = 0;
  for (const char letter : words) {
    ems += kNarrow.find(letter) != kNarrow.npos ? 0.36 : kWide.find(letter) != kWide.npos ? 0.92 : 0.62;
  }
  return ems * size;
}

std::string svg_of(const Drawing& drawing) {
  const std::string width = svg_number(drawing.width()), height = svg_number(drawing.height());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" role=\"img\">\n<title>{2}</title>\n",
      width, height, xml_text(drawing.title()));
  for (const DrawingShape& shape : drawing.shapes()) out += svg_shape(shape) + "\n";
  return out + "</svg>\n";
}

}  // namespace larder
