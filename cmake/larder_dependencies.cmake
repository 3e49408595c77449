# Third-party libraries, all from Debian 12 (tools/install_deps.sh has the list). Grouped by who may see them:
#   larder_core_libs    every folder: SHA-256, xxHash, fmt, threads
#   larder_config_libs  src/model/*.cc: JSON, TOML and YAML
#   larder_io_libs      src/storage: io_uring where it is there (then LARDER_HAVE_URING=1)
#   larder_metadata_libs  src/metadata: RocksDB, hiredis
#   larder_server_libs  src/server and src/cli: JSON, TOML, CLI11, Boost.Beast

find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(fmt REQUIRED)
find_path(LARDER_XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(LARDER_XXHASH_LIBRARY xxhash REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_path(LARDER_TOML_INCLUDE toml++/toml.h REQUIRED)
find_path(LARDER_YAML_INCLUDE yaml-cpp/yaml.h REQUIRED)
find_library(LARDER_YAML_LIBRARY yaml-cpp REQUIRED)
set(Boost_NO_WARN_NEW_VERSIONS ON)
find_package(Boost 1.81 REQUIRED)

add_library(larder_core_libs INTERFACE)
target_include_directories(larder_core_libs SYSTEM INTERFACE ${LARDER_XXHASH_INCLUDE})
target_link_libraries(larder_core_libs INTERFACE
  fmt::fmt OpenSSL::Crypto ${LARDER_XXHASH_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS})

add_library(larder_config_libs INTERFACE)
target_include_directories(larder_config_libs SYSTEM INTERFACE ${LARDER_TOML_INCLUDE} ${LARDER_YAML_INCLUDE})
target_compile_definitions(larder_config_libs INTERFACE TOML_HEADER_ONLY=1)
target_link_libraries(larder_config_libs INTERFACE nlohmann_json::nlohmann_json ${LARDER_YAML_LIBRARY})

add_library(larder_io_libs INTERFACE)
find_library(LARDER_URING_LIBRARY uring)
find_path(LARDER_URING_INCLUDE liburing.h)
if(LARDER_URING_LIBRARY AND LARDER_URING_INCLUDE)
  target_compile_definitions(larder_io_libs INTERFACE LARDER_HAVE_URING=1)
  target_include_directories(larder_io_libs SYSTEM INTERFACE ${LARDER_URING_INCLUDE})
  target_link_libraries(larder_io_libs INTERFACE ${LARDER_URING_LIBRARY})
endif()

add_library(larder_metadata_libs INTERFACE)
find_path(LARDER_ROCKSDB_INCLUDE rocksdb/db.h REQUIRED)
find_library(LARDER_ROCKSDB_LIBRARY rocksdb REQUIRED)
target_include_directories(larder_metadata_libs SYSTEM INTERFACE ${LARDER_ROCKSDB_INCLUDE})
target_link_libraries(larder_metadata_libs INTERFACE ${LARDER_ROCKSDB_LIBRARY})
find_path(LARDER_HIREDIS_INCLUDE hiredis/hiredis.h REQUIRED)
find_library(LARDER_HIREDIS_LIBRARY hiredis REQUIRED)
target_include_directories(larder_metadata_libs SYSTEM INTERFACE ${LARDER_HIREDIS_INCLUDE})
target_link_libraries(larder_metadata_libs INTERFACE ${LARDER_HIREDIS_LIBRARY})

add_library(larder_server_libs INTERFACE)
target_link_libraries(larder_server_libs INTERFACE larder_config_libs CLI11::CLI11 Boost::headers)
