// SPDX-License-Identifier: Apache-2.0
// Drawings as PNG, with Cairo and the font that is in it: machines that serve have none, and pictures are the same
// everywhere. (fontconfig would also keep memory that a sanitizer calls a leak.)
#include <cairo/cairo.h>

#include <algorithm>
#include <memory>

#include "bench/drawing.h"

namespace larder {
namespace {

constexpr const char* kOwnFont = "@cairo:";
constexpr double kRight = 3.14159265358979323846 / 2;

void set_color(cairo_t* to, std::uint32_t color) {
  cairo_set_source_rgb(to, (color >> 16 & 0xff) / 255.0, (color >> 8 & 0xff) / 255.0, (color & 0xff) / 255.0);
}

void paint_text(cairo_t* to, const DrawingText& text) {
  cairo_select_font_face(to, kOwnFont, CAIRO_FONT_SLANT_NORMAL,
                         text.is_bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(to, text.size);
  cairo_text_extents_t extents;
  cairo_text_extents(to, text.words.c_str(), &extents);
  const double part = text.anchor == TextAnchor::kStart ? 0 : text.anchor == TextAnchor::kMiddle ? 0.5 : 1;
  cairo_save(to);
  cairo_translate(to, text.at.x, text.at.y);
  cairo_move_to(to, -part * extents.x_advance, 0);
  set_color(to, text.color);
  cairo_show_text(to, text.words.c_str());
  cairo_restore(to);
}

void paint(cairo_t* to, const DrawingShape& shape) {
  if (shape.kind == DrawingShape::Kind::kText) return paint_text(to, shape.text);
  cairo_new_path(to);
  cairo_set_line_width(to, shape.width);
  cairo_set_line_join(to, CAIRO_LINE_JOIN_ROUND);
  cairo_set_dash(to, shape.dash.data(), static_cast<int>(shape.dash.size()), 0);
  if (shape.kind == DrawingShape::Kind::kBox) {
    const DrawingPoint a = shape.points[0], b = shape.points[1];
    cairo_rectangle(to, a.x, a.y, b.x - a.x, b.y - a.y);
  } else if (shape.kind == DrawingShape::Kind::kDot) {
    cairo_arc(to, shape.points[0].x, shape.points[0].y, shape.radius, 0, 4 * kRight);
  } else {
    for (const DrawingPoint& point : shape.points) cairo_line_to(to, point.x, point.y);
  }
  if (shape.is_filled) {
    set_color(to, shape.fill);
    cairo_fill_preserve(to);
  }
  if (shape.is_stroked) {
    set_color(to, shape.stroke);
    cairo_stroke(to);
  }
}

cairo_status_t append_png(void* out, const unsigned char* data, unsigned int length) {
  static_cast<std::string*>(out)->append(reinterpret_cast<const char*>(data), length);
  return CAIRO_STATUS_SUCCESS;
}

}  // namespace

Result<std::string> png_of(const Drawing& drawing, double scale) {
  const std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)> surface(
      cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(drawing.width() * scale),
                                 static_cast<int>(drawing.height() * scale)),
      cairo_surface_destroy);
  const std::unique_ptr<cairo_t, decltype(&cairo_destroy)> to(cairo_create(surface.get()), cairo_destroy);
  cairo_scale(to.get(), scale, scale);
  for (const DrawingShape& shape : drawing.shapes()) paint(to.get(), shape);
  std::string png;
  cairo_status_t done = cairo_status(to.get());
  if (done == CAIRO_STATUS_SUCCESS) done = cairo_surface_write_to_png_stream(surface.get(), append_png, &png);
  if (done != CAIRO_STATUS_SUCCESS) return unavailable(std::string("drawing a PNG: ") + cairo_status_to_string(done));
  return png;
}

}  // namespace larder
