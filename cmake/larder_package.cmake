# SPDX-License-Identifier: Apache-2.0
# What other projects use, in a build (add_subdirectory) and installed (find_package(larder), pkg-config):
#   larder::larder  liblarder.so: the C interface of include/larder/larder.h, and nothing else. Components "runtime" (the
#                   library) and "library" (what others are built with).
#   larder::core    liblarder_core.a: the C++ core, base to controller, with its headers. Component "core"; its names may
#                   change with every version.
# and the `larder` command (component "tools"). See docs/embedding.md.
if(LARDER_INSTALL)
  include(GNUInstallDirs)
  include(CMakePackageConfigHelpers)
endif()

# The functions of the header are what the library exports.
function(larder_write_exports header map)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  file(STRINGS ${header} lines REGEX "^LARDER_API ")
  set(names "")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "(larder_[a-z0-9_]+)\\(")
      message(FATAL_ERROR "${header}: no function name in the line '${line}'")
    endif()
    string(APPEND names "    ${CMAKE_MATCH_1};\n")
  endforeach()
  file(CONFIGURE OUTPUT ${map} CONTENT "LARDER_1 {\n  global:\n${names}  local: *;\n};\n")
endfunction()

# liblarder.so: the objects of src/door, and what they need of the archives left of it.
function(larder_add_shared_library)
  get_target_property(type larder_door TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    message(STATUS "liblarder.so: there is no src/door yet")
    return()
  endif()
  set(header ${PROJECT_SOURCE_DIR}/include/larder/larder.h)
  file(STRINGS ${header} abi_line REGEX "^#define LARDER_ABI_VERSION [0-9]+u$")
  string(REGEX MATCH "[0-9]+" abi "${abi_line}")
  set(map ${PROJECT_BINARY_DIR}/larder_exports.map)
  larder_write_exports(${header} ${map})

  set_target_properties(larder_door PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  add_library(larder_shared SHARED $<TARGET_OBJECTS:larder_door>)
  add_library(larder::larder ALIAS larder_shared)
  set_target_properties(larder_shared PROPERTIES OUTPUT_NAME larder EXPORT_NAME larder LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${abi} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} LINK_DEPENDS ${map})
  target_link_libraries(larder_shared PUBLIC larder_api_headers PRIVATE larder_config larder_config_libs)
  # No symbol but those of the header, none that is missing, no library that is not used.
  target_link_options(larder_shared PRIVATE
    LINKER:--version-script=${map} LINKER:--exclude-libs,ALL LINKER:--as-needed)
  target_link_libraries(larder_shared PRIVATE larder_hardening)
  if(NOT LARDER_SANITIZE)
    target_link_options(larder_shared PRIVATE LINKER:--no-undefined)
  endif()
endfunction()

# liblarder_core.a: the archives of the folders given, as one.
function(larder_add_core)
  set(objects "")
  foreach(folder IN LISTS ARGN)
    list(APPEND objects $<TARGET_OBJECTS:larder_${folder}>)
  endforeach()
  add_library(larder_core STATIC ${objects})
  add_library(larder::core ALIAS larder_core)
  set_target_properties(larder_core PROPERTIES EXPORT_NAME core LINKER_LANGUAGE CXX)
  target_link_libraries(larder_core PUBLIC larder_headers
    PRIVATE larder_core_libs larder_io_libs larder_metadata_libs)  # they are in no header
endfunction()

function(larder_install_shared_library)
  install(TARGETS larder_shared larder_api_headers EXPORT larderTargets
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT library INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT larderTargets NAMESPACE larder:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/larder COMPONENT library)
  install(FILES include/larder/larder.h src/storage/plugin/larder_backend.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/larder COMPONENT library)
  file(RELATIVE_PATH larder_pc_prefix /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
  configure_file(cmake/larder.pc.in ${PROJECT_BINARY_DIR}/larder.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/larder.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
endfunction()

function(larder_install_core)
  install(TARGETS larder_core larder_headers larder_core_libs larder_io_libs larder_metadata_libs
    EXPORT larderCoreTargets COMPONENT core INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/larder/core)
  install(EXPORT larderCoreTargets NAMESPACE larder:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/larder COMPONENT core)
  foreach(folder IN LISTS ARGN)
    install(DIRECTORY src/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/larder/core COMPONENT core
      FILES_MATCHING PATTERN "*.h"
      PATTERN "*_test_*" EXCLUDE PATTERN "tree_naive_model.h" EXCLUDE PATTERN "tree_page_witness.h" EXCLUDE
      PATTERN "tree_property_*" EXCLUDE)
  endforeach()
endfunction()

# What all components share is installed with each of them.
function(larder_install)
  if(TARGET larder_shared)
    larder_install_shared_library()
  endif()
  larder_install_core(${ARGN})
  if(TARGET larder)
    install(TARGETS larder RUNTIME COMPONENT tools)
    install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md packaging/debian/copyright
      DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/larder COMPONENT tools)
    install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/larder COMPONENT tools)  # pages link to them
    install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/larder COMPONENT tools
      FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png")
    larder_add_manual()
    larder_install_monitoring()
    larder_install_service()
  endif()
  configure_package_config_file(cmake/larderConfig.cmake.in ${PROJECT_BINARY_DIR}/larderConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/larder NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/larderConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  foreach(component library core)
    install(FILES ${PROJECT_BINARY_DIR}/larderConfig.cmake ${PROJECT_BINARY_DIR}/larderConfigVersion.cmake
      DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/larder COMPONENT ${component})
    install(FILES LICENSE packaging/debian/copyright
      DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/liblarder-dev COMPONENT ${component})
  endforeach()
endfunction()

# Installed and used by others (tests/package), and the interface as it was promised (tools/check_abi.py): in the build
# that is meant for others.
function(larder_add_package_tests)
  if(NOT TARGET larder_shared OR LARDER_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
    return()
  endif()
  add_test(NAME larder_package COMMAND ${PROJECT_SOURCE_DIR}/tests/package/run.py --build ${PROJECT_BINARY_DIR})
  add_test(NAME larder_abi COMMAND ${PROJECT_SOURCE_DIR}/tools/check_abi.py --cc ${CMAKE_C_COMPILER}
    $<TARGET_FILE:larder_shared>)
  set_tests_properties(larder_package larder_abi PROPERTIES LABELS fast TIMEOUT 120
    ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
  add_test(NAME larder_debian_package
    COMMAND ${PROJECT_SOURCE_DIR}/tests/package/debian.py --build ${PROJECT_BINARY_DIR} --version ${PROJECT_VERSION})
  add_test(NAME larder_container_file COMMAND ${PROJECT_SOURCE_DIR}/tools/lint_container.sh)
  set_tests_properties(larder_debian_package larder_container_file PROPERTIES LABELS slow TIMEOUT 300
    SKIP_RETURN_CODE 77 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endfunction()
