# Switches, language level, warnings and sanitizers. Presets (CMakePresets.json) combine them.

option(LARDER_BUILD_TESTS "Build unit and cross-folder tests" ON)
option(LARDER_SLOW_TESTS "... and the suites that take minutes" ON)
option(LARDER_WERROR "Warnings are errors (CI and development presets)" OFF)
option(LARDER_THREAD_SAFETY "clang: check the thread-safety annotations" OFF)
option(LARDER_FUZZ "clang: libFuzzer executables of fuzz/ instead of tests" OFF)
set(LARDER_SANITIZE "" CACHE STRING "Sanitizers, comma separated: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# -g1: line numbers in stack traces, at a third of the link time and disk of -g.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
# With a sanitizer the libraries are optimised a little, or the tests take several times as long.
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
if(LARDER_SANITIZE)
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
endif()

find_program(LARDER_CCACHE ccache)
if(LARDER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${LARDER_CCACHE})
  # Precompiled headers are cached, too.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${LARDER_CCACHE})
endif()

# Include roots: "base/status.h" from src/, "sim/..." and "tests/..." from the top. Used by every target.
add_library(larder_flags INTERFACE)
target_include_directories(larder_flags INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_features(larder_flags INTERFACE cxx_std_20)
if(PROJECT_IS_TOP_LEVEL)  # whoever embeds Larder has warnings of their own
  target_compile_options(larder_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wvla)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 at -O2 reports these inside its own headers (std::string, std::optional); the sanitizers look for the real ones.
  target_compile_options(larder_flags INTERFACE -Wno-restrict -Wno-maybe-uninitialized)
endif()
if(LARDER_WERROR)
  target_compile_options(larder_flags INTERFACE -Werror)
endif()
option(LARDER_DEFECTS "Deliberate defects (src/base/defect.h): only for tools/defects.py" OFF)
if(LARDER_DEFECTS)
  target_compile_definitions(larder_flags INTERFACE LARDER_DEFECTS=1)
endif()
if(LARDER_THREAD_SAFETY)
  target_compile_options(larder_flags INTERFACE -Wthread-safety)
endif()
if(LARDER_SANITIZE)
  target_compile_options(larder_flags INTERFACE
    -fsanitize=${LARDER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(larder_flags INTERFACE -fsanitize=${LARDER_SANITIZE})
endif()
if(LARDER_FUZZ)
  target_compile_options(larder_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Library code narrows only on purpose (as gcc sees it; clang's reading is wider); tests and tools are spared.
set(larder_strict_warnings $<$<CXX_COMPILER_ID:GNU>:-Wconversion>)
