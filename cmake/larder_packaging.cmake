# SPDX-License-Identifier: Apache-2.0
# Debian packages (`cpack -G DEB` in the build folder, docs/install.md):
#   larder          the command with its manual page and completion, liblarder.so.N, units of systemd: components tools,
#                   runtime, service
#   liblarder-dev   what other programs are built with: components library, core
# What the packages have beside compiled files stands in packaging/.

# The manual page and the completion, written by the command itself; component "tools".
function(larder_add_manual)
  find_package(Python3 COMPONENTS Interpreter)
  if(NOT Python3_Interpreter_FOUND)
    message(STATUS "No Python: no manual page and no completion")
    return()
  endif()
  set(folder ${PROJECT_BINARY_DIR}/manual)
  set(script ${PROJECT_SOURCE_DIR}/packaging/manual.py)
  add_custom_command(OUTPUT ${folder}/larder.1.gz ${folder}/larder.bash DEPENDS larder ${script} VERBATIM
    COMMAND ${CMAKE_COMMAND} -E env PYTHONDONTWRITEBYTECODE=1 ${Python3_EXECUTABLE} ${script} $<TARGET_FILE:larder> ${folder})
  add_custom_target(larder_manual ALL DEPENDS ${folder}/larder.1.gz)
  # OPTIONAL: whoever builds target larder alone installs it without them.
  install(FILES ${folder}/larder.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools OPTIONAL)
  install(FILES ${folder}/larder.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME larder
    COMPONENT tools OPTIONAL)
endfunction()

# What Prometheus and Grafana are given (docs/monitoring.md); component "tools".
function(larder_install_monitoring)
  install(FILES packaging/prometheus/larder_rules.yml DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/prometheus COMPONENT tools)
  install(FILES packaging/grafana/larder.json DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/grafana COMPONENT tools)
endfunction()

# Units, the account, options of the services; only when asked for, as they name /usr/bin and /etc. Component "service".
function(larder_install_service)
  set(from ${PROJECT_SOURCE_DIR}/packaging/systemd)
  file(GLOB units CONFIGURE_DEPENDS ${from}/*.service)
  file(GLOB options CONFIGURE_DEPENDS ${from}/*.env)
  install(FILES ${units} DESTINATION lib/systemd/system COMPONENT service EXCLUDE_FROM_ALL)
  install(FILES ${from}/larder.sysusers DESTINATION lib/sysusers.d RENAME larder.conf COMPONENT service EXCLUDE_FROM_ALL)
  # What was edited stays. (In a Debian package dpkg sees to that: packaging/debian/conffiles.)
  install(CODE "set(larder_kept_files \"${options}\")\nset(larder_kept_folder ../etc/larder)" COMPONENT service
    EXCLUDE_FROM_ALL)
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/larder_install_kept.cmake COMPONENT service EXCLUDE_FROM_ALL)
endfunction()

macro(larder_set_packages)  # a macro: CPack reads variables of the folder that includes it
  set(LARDER_PACKAGE_MAINTAINER "Larder contributors <larder@localhost>" CACHE STRING "Who a Debian package names")
  set(from ${PROJECT_SOURCE_DIR}/packaging/debian)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME larder)
  set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Prefix cache in three tiers for servers of language models")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_COMPONENTS_ALL tools runtime service library core)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
  set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${LARDER_PACKAGE_MAINTAINER}")
  set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

  set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME larder)
  set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION net)
  set(CPACK_DEBIAN_COMMAND_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_COMMAND_PACKAGE_DEPENDS "passwd")  # postinst: useradd, where there is no systemd-sysusers
  set(CPACK_DEBIAN_COMMAND_PACKAGE_CONTROL_EXTRA
    ${from}/postinst ${from}/prerm ${from}/postrm ${from}/conffiles ${from}/triggers)
  set(CPACK_COMPONENT_COMMAND_DESCRIPTION
    "The command larder (proxy, serve, metadata-server, store, ...), liblarder.so, units of systemd.")

  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME liblarder-dev)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "larder (= ${PROJECT_VERSION}), libssl-dev, libxxhash-dev, libfmt-dev")
  foreach(name package IN ZIP_LISTS larder_optional_names larder_optional_packages)
    if(found_${name})
      string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", ${package}")
    endif()
  endforeach()
  set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "To build with: the C interface of liblarder.so, and the C++ core as a static library.")
  include(CPack)
  foreach(component tools runtime service)
    cpack_add_component(${component} GROUP command)
  endforeach()
  foreach(component library core)
    cpack_add_component(${component} GROUP development)
  endforeach()
endmacro()
set(larder_optional_names URING ROCKSDB REDIS)
set(larder_optional_packages liburing-dev librocksdb-dev libhiredis-dev)
