// SPDX-License-Identifier: Apache-2.0
// The version of this build: that of project(larder VERSION ...) in CMakeLists.txt.
#pragma once

#include <larder_version_text.h>

#include <string_view>

namespace larder {

inline constexpr std::string_view kLarderVersion = LARDER_VERSION_TEXT;

}  // namespace larder
