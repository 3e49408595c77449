// SPDX-License-Identifier: Apache-2.0
// Pictures for people, as lists of shapes that become an SVG or a PNG.
//
// A drawing has its own background, so it reads the same on a light page and on a dark one. Units are pixels, from the
// upper left corner. Colours are 0xRRGGBB.
// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace larder {

struct DrawingPoint {
  double x = 0, y = 0;
};

enum class TextAnchor : std::uint8_t { kStart, kMiddle, kEnd };

struct DrawingText {
  DrawingPoint at;  // of the baseline
  std::string words;
  double size = 12;
  std::uint32_t color = 0;
  TextAnchor anchor = TextAnchor::kStart;
  bool is_bold = false;
};

struct DrawingShape {
  enum class Kind : std::uint8_t { kBox, kLine, kDot, kText };
  Kind kind = Kind::kBox;
  std::vector<DrawingPoint> points{};  // box: two corners; line: all; dot: its middle
  double width = 1;                    // of a line, or of a dot's outline
  double radius = 0;                   // of a dot
  std::uint32_t fill = 0, stroke = 0;
  bool is_filled = false, is_stroked = false;
  std::vector<double> dash{};  // of a line: on, off, ...
  DrawingText text{};
};

class Drawing {
 public:
  // Of the title and of all texts, what is no UTF-8 is replaced.
  Drawing(double width, double height, std::string_view title);

  void box(DrawingPoint from, DrawingPoint to, std::uint32_t fill);
  void line(std::vector<DrawingPoint> points, std::uint32_t color, double width, std::vector<double> dash = {});
  void dot(DrawingPoint at, double radius, std::uint32_t fill);
  void ring(DrawingPoint at, double radius, std::uint32_t color, double width);
  void text(DrawingText text);

  [[nodiscard]] double width() const { return width_; }
  [[nodiscard]] double height() const { return height_; }
  [[nodiscard]] const std::string& title() const { return title_; }
  [[nodiscard]] const std::vector<DrawingShape>& shapes() const { return shapes_; }

 private:
  double width_, height_;
  std::string title_;
  std::vector<DrawingShape> shapes_;
};

// About how wide a text becomes: no font is asked, and a wide one is assumed.
[[nodiscard]] double text_width(const std::string& words, double size);

// A document of its own.
[[nodiscard]] std::string svg_of(const Drawing& drawing);
// The file's bytes, `scale` pixels for one. kUnsupported: this build has no Cairo (CMake option LARDER_CAIRO).
[[nodiscard]] Result<std::string> png_of(const Drawing& drawing, double scale);

}  // namespace larder
