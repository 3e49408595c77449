// SPDX-License-Identifier: Apache-2.0
// In place of real_drawing_png.cc in a build without Cairo (CMake option LARDER_CAIRO).
#include "bench/drawing.h"

namespace larder {

Result<std::string> png_of(const Drawing&, double) {
  return unsupported(
      "this build of Larder has no Cairo, and draws no PNG: write an .svg, or install libcairo2-dev and build with "
      "-DLARDER_CAIRO=ON");
}

}  // namespace larder
