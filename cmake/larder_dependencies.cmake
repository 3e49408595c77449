# SPDX-License-Identifier: Apache-2.0
# Third-party libraries, all from Debian 12 (tools/install_deps.sh has the list). Each is looked for only if something
# that is built uses it. Grouped by who may see them:
#   larder_core_libs      every folder: SHA-256 and TLS (OpenSSL), xxHash, fmt, threads; the headers of Boost
#   larder_io_libs        src/storage: io_uring where it is there (then LARDER_HAVE_URING=1)
#   larder_metadata_libs  src/metadata: RocksDB, hiredis, where they are there (LARDER_ROCKSDB, LARDER_REDIS)
#   larder_events_libs    src/events: ZeroMQ, where it is there (LARDER_ZMQ)
#   larder_plot_libs      bench: Cairo, where it is there (LARDER_CAIRO)
#   larder_config_libs    src/config, src/door: JSON; with LARDER_BUILD_TOOLS also TOML and YAML
#   larder_server_libs    src/server and src/cli: JSON, CLI11
# A library that is not there has an absent_*.cc in place of the file that uses it: larder_left_out names the other one.

set(larder_left_out "")

# found_X = TRUE if option LARDER_X (AUTO, ON, OFF) wants the library and it is there, which is then added to `target`.
function(larder_find_optional name target header library package)
  set(found_${name} FALSE PARENT_SCOPE)
  if("${LARDER_${name}}" STREQUAL "AUTO" OR LARDER_${name})
    find_path(LARDER_${name}_INCLUDE ${header})
    find_library(LARDER_${name}_LIBRARY ${library})
    if(LARDER_${name}_INCLUDE AND LARDER_${name}_LIBRARY)
      target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${LARDER_${name}_INCLUDE}>)
      larder_link_by_name(${target} ${library} ${LARDER_${name}_LIBRARY})
      set(found_${name} TRUE PARENT_SCOPE)
    elseif(NOT "${LARDER_${name}}" STREQUAL "AUTO")
      message(FATAL_ERROR "LARDER_${name} is ON, and lib${library} or its header ${header} was not found: install "
        "${package}, or configure with -DLARDER_${name}=OFF")
    endif()
  endif()
endfunction()

# Here the file that was found; -l<name> in what is installed, which may be used on another machine.
function(larder_link_by_name target name path)
  target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:${path}> $<INSTALL_INTERFACE:${name}>)
endfunction()

find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto SSL)
find_package(fmt REQUIRED)
set(Boost_NO_WARN_NEW_VERSIONS ON)
find_package(Boost 1.74 REQUIRED)  # Debian 12's own; 1.81 does as well
find_path(LARDER_XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(LARDER_XXHASH_LIBRARY xxhash REQUIRED)
add_library(larder_core_libs INTERFACE)
target_include_directories(larder_core_libs SYSTEM INTERFACE $<BUILD_INTERFACE:${LARDER_XXHASH_INCLUDE}>)
target_link_libraries(larder_core_libs INTERFACE fmt::fmt OpenSSL::SSL OpenSSL::Crypto $<BUILD_INTERFACE:Boost::headers>)
larder_link_by_name(larder_core_libs xxhash ${LARDER_XXHASH_LIBRARY})
target_link_libraries(larder_core_libs INTERFACE Threads::Threads ${CMAKE_DL_LIBS})

add_library(larder_io_libs INTERFACE)
set(LARDER_URING AUTO)
larder_find_optional(URING larder_io_libs liburing.h uring liburing-dev)
if(found_URING)
  target_compile_definitions(larder_io_libs INTERFACE $<BUILD_INTERFACE:LARDER_HAVE_URING=1>)
endif()

add_library(larder_metadata_libs INTERFACE)
larder_find_optional(ROCKSDB larder_metadata_libs rocksdb/db.h rocksdb librocksdb-dev)
if(found_ROCKSDB)
  list(APPEND larder_left_out metadata/absent_rocksdb_journal.cc)
else()
  list(APPEND larder_left_out metadata/real_rocksdb_journal.cc)
endif()
larder_find_optional(REDIS larder_metadata_libs hiredis/hiredis.h hiredis libhiredis-dev)
if(found_REDIS)
  list(APPEND larder_left_out metadata/absent_redis_connection.cc)
else()
  list(APPEND larder_left_out metadata/real_redis_connection.cc)
endif()

add_library(larder_events_libs INTERFACE)
if(LARDER_BUILD_TOOLS)
  larder_find_optional(ZMQ larder_events_libs zmq.hpp zmq "libzmq3-dev and cppzmq-dev")
endif()
if(found_ZMQ)
  list(APPEND larder_left_out events/absent_kv_event_publisher.cc)
else()
  list(APPEND larder_left_out events/real_kv_event_publisher.cc)
endif()

add_library(larder_plot_libs INTERFACE)
if(LARDER_BUILD_TOOLS)
  larder_find_optional(CAIRO larder_plot_libs cairo/cairo.h cairo libcairo2-dev)
endif()
if(found_CAIRO)
  list(APPEND larder_left_out ../bench/absent_drawing_png.cc)
else()
  list(APPEND larder_left_out ../bench/real_drawing_png.cc)
endif()

add_library(larder_config_libs INTERFACE)
if(LARDER_BUILD_TOOLS OR LARDER_BUILD_SHARED_LIBRARY)
  find_package(nlohmann_json REQUIRED)
  target_link_libraries(larder_config_libs INTERFACE nlohmann_json::nlohmann_json)
endif()

add_library(larder_server_libs INTERFACE)
if(LARDER_BUILD_TOOLS)
  find_path(LARDER_TOML_INCLUDE toml++/toml.h REQUIRED)
  find_path(LARDER_YAML_INCLUDE yaml-cpp/yaml.h REQUIRED)
  find_library(LARDER_YAML_LIBRARY yaml-cpp REQUIRED)
  target_include_directories(larder_config_libs SYSTEM INTERFACE ${LARDER_TOML_INCLUDE} ${LARDER_YAML_INCLUDE})
  target_compile_definitions(larder_config_libs INTERFACE TOML_HEADER_ONLY=1)
  target_link_libraries(larder_config_libs INTERFACE ${LARDER_YAML_LIBRARY})
  list(APPEND larder_left_out config/absent_toml_yaml.cc)
  find_package(CLI11 REQUIRED)
  find_package(simdjson REQUIRED)
  target_link_libraries(larder_server_libs INTERFACE larder_config_libs CLI11::CLI11 simdjson::simdjson)
else()
  list(APPEND larder_left_out config/parse_tree_toml.cc config/parse_tree_yaml.cc)
endif()

if(LARDER_BUILD_TESTS AND NOT (found_ROCKSDB AND found_REDIS AND found_ZMQ))
  message(WARNING "Tests of the page index, of hf3fs and of KV events will fail: they use RocksDB, hiredis and ZeroMQ "
    "(tools/install_deps.sh)")
endif()
