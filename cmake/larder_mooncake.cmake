# SPDX-License-Identifier: Apache-2.0
# The program of the helper process, src/storage/mooncake/helper, as text in the library: "larder_mooncake_helper.h" for
# src/storage/mooncake/real_helper_process.cc.
function(larder_make_mooncake_helper_text)
  set(path ${PROJECT_SOURCE_DIR}/src/storage/mooncake/helper/mooncake_helper.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(READ ${path} content)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/larder_mooncake_helper.h CONTENT
    "#pragma once\n#include <string_view>\nnamespace larder::mooncake {\ninline constexpr std::string_view kHelperScript = R\"larder_py(${content})larder_py\";\n}  // namespace larder::mooncake\n"
    @ONLY)
endfunction()
