# SPDX-License-Identifier: Apache-2.0
# Switches, language level, warnings and sanitizers. Presets (CMakePresets.json) combine them.
#
# A project that embeds Larder (add_subdirectory, FetchContent) keeps its own build type, flags, warnings, compiler
# launcher and tests: what is set below without a condition are variables of this folder, which end with it.

option(LARDER_BUILD_SHARED_LIBRARY "liblarder.so, the C interface of include/larder/larder.h (needs nlohmann-json)" ON)
option(LARDER_BUILD_TOOLS "The `larder` command, the reference engine and the HTTP server (needs CLI11, Boost, toml++, \
yaml-cpp)" ${PROJECT_IS_TOP_LEVEL})
option(LARDER_BUILD_PYTHON "The Python package in python/ (needs nanobind in the interpreter that Python_EXECUTABLE names)" OFF)
option(LARDER_BUILD_TESTS "Build unit and cross-folder tests (with them LARDER_BUILD_TOOLS)" ${PROJECT_IS_TOP_LEVEL})
option(LARDER_INSTALL "Targets of cmake --install" ${PROJECT_IS_TOP_LEVEL})
option(LARDER_SLOW_TESTS "... and the suites that take minutes" ON)
option(LARDER_PRECOMPILED "Parse the headers that most files include once (cmake/larder_precompiled.h)" ${PROJECT_IS_TOP_LEVEL})
option(LARDER_UNITY "Compile files of a library together: a faster first build, a slower one after an edit" ${PROJECT_IS_TOP_LEVEL})
option(LARDER_WERROR "Warnings are errors (CI and development presets)" OFF)
option(LARDER_THREAD_SAFETY "clang: check the thread-safety annotations" OFF)
option(LARDER_FUZZ "clang: libFuzzer executables of fuzz/ instead of tests" OFF)
option(LARDER_DEFECTS "Deliberate defects (src/base/defect.h): only for tools/defects.py" OFF)
set(LARDER_SANITIZE "" CACHE STRING "Sanitizers, comma separated: address,undefined or thread")
set(LARDER_ROCKSDB AUTO CACHE STRING "RocksDB, the journal of the metadata service: AUTO (if it is there), ON or OFF")
set(LARDER_REDIS AUTO CACHE STRING "hiredis, the metadata service on Redis: AUTO (if it is there), ON or OFF")
set(LARDER_ZMQ AUTO CACHE STRING "ZeroMQ, on which KV events are published: AUTO (if it is there), ON or OFF")
set(LARDER_CAIRO AUTO CACHE STRING "Cairo, with which `larder plan` draws PNGs: AUTO (if it is there), ON or OFF")
option(LARDER_LLAMA "The engine on llama.cpp (built by tools/llama_env.sh) and its tests" OFF)
set(LARDER_LLAMA_DIR "${PROJECT_SOURCE_DIR}/build/llama" CACHE PATH "What tools/llama_env.sh has made")
option(LARDER_CUDA "Pages on NVIDIA GPUs (needs tools/cuda_env.sh or a CUDA toolkit; see cmake/larder_cuda.cmake)" OFF)
set_property(CACHE LARDER_ROCKSDB LARDER_REDIS LARDER_ZMQ LARDER_CAIRO PROPERTY STRINGS AUTO ON OFF)
if(LARDER_BUILD_TESTS OR LARDER_FUZZ)
  set(LARDER_BUILD_TOOLS ON)
endif()
if(LARDER_FUZZ)
  set(LARDER_BUILD_SHARED_LIBRARY OFF)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
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
    # Precompiled headers are cached, too; and one clone finds what another has compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${LARDER_CCACHE})
  endif()
endif()

# What whoever links a library of Larder gets with it: "base/status.h" is from src/.
add_library(larder_headers INTERFACE)
target_include_directories(larder_headers INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/src>)
target_compile_features(larder_headers INTERFACE cxx_std_20)
if(LARDER_SANITIZE)
  target_link_options(larder_headers INTERFACE -fsanitize=${LARDER_SANITIZE})
endif()

# "larder/larder.h", for C and C++.
add_library(larder_api_headers INTERFACE)
target_include_directories(larder_api_headers INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>)

# What makes a mistake in memory harder to use, in the builds that are meant for others: checked copies, guarded stacks, a
# table of functions that is read-only once the program runs. Executables are position-independent as the libraries are.
option(LARDER_HARDENING "Hardened release builds" ${PROJECT_IS_TOP_LEVEL})
add_library(larder_hardening INTERFACE)
if(LARDER_HARDENING AND NOT LARDER_SANITIZE AND CMAKE_BUILD_TYPE MATCHES "^(Rel|MinSizeRel)")
  target_compile_options(larder_hardening INTERFACE -fstack-protector-strong -fstack-clash-protection
    # Copies are checked in optimised code only: tests have none.
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:LARDER_UNOPTIMISED>>>:-U_FORTIFY_SOURCE$<SEMICOLON>-D_FORTIFY_SOURCE=2>)
  target_link_options(larder_hardening INTERFACE LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES C CXX)
endif()

# The version, which project() in CMakeLists.txt alone says: "larder_version_text.h" for src/server/version.h.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/larder_version_text.h
  CONTENT "#pragma once\n#define LARDER_VERSION_TEXT \"${PROJECT_VERSION}\"\n")

# What Larder's own targets have, and hand on to nobody: linked PRIVATE by each. "sim/..." and "tests/..." are from the
# top.
add_library(larder_flags INTERFACE)
target_include_directories(larder_flags INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR}
  ${PROJECT_BINARY_DIR}/generated)
target_link_libraries(larder_flags INTERFACE larder_hardening)
set(larder_strict_warnings "")
if(PROJECT_IS_TOP_LEVEL)  # whoever embeds Larder has warnings of their own
  target_compile_options(larder_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wvla)
  # Library code narrows only on purpose (as gcc sees it; clang's reading is wider); tests and tools are spared.
  set(larder_strict_warnings $<$<CXX_COMPILER_ID:GNU>:-Wconversion>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 at -O2 reports these inside its own headers (std::string, std::optional); the sanitizers look for the real ones.
  target_compile_options(larder_flags INTERFACE -Wno-restrict -Wno-maybe-uninitialized)
  if(LARDER_PRECOMPILED)  # gcc forgets that what was precompiled are headers of the system, and warns of these in them
    target_compile_options(larder_flags INTERFACE -Wno-array-bounds -Wno-stringop-overflow)
  endif()
  if(LARDER_UNITY)  # gcc collects garbage less often: a seventh of its time for large files, and half a gigabyte
    target_compile_options(larder_flags INTERFACE --param=ggc-min-heapsize=1000000 --param=ggc-min-expand=300)
  endif()
endif()
if(LARDER_WERROR)
  target_compile_options(larder_flags INTERFACE -Werror)
endif()
if(LARDER_DEFECTS)
  target_compile_definitions(larder_flags INTERFACE LARDER_DEFECTS=1)
endif()
if(LARDER_THREAD_SAFETY)
  target_compile_options(larder_flags INTERFACE -Wthread-safety)
endif()
if(LARDER_SANITIZE)
  target_compile_options(larder_flags INTERFACE
    -fsanitize=${LARDER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(LARDER_SANITIZE MATCHES "undefined" AND NOT LARDER_FUZZ)
    # What AddressSanitizer sees as well is left to it, and a failed check ends with AddressSanitizer's stack trace
    # instead of a sentence: the build takes three quarters of the time. The preset fuzz has all of it.
    target_compile_options(larder_flags INTERFACE
      -fno-sanitize=null,object-size,vptr,pointer-overflow -fsanitize-undefined-trap-on-error)
  endif()
endif()
if(LARDER_FUZZ)
  target_compile_options(larder_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
