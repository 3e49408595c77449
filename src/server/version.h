// The version of this build; the same as project(larder VERSION ...) in CMakeLists.txt.
#pragma once

#include <string_view>

namespace larder {

inline constexpr std::string_view kLarderVersion = "0.1.0";

}  // namespace larder
