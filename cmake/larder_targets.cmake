# SPDX-License-Identifier: Apache-2.0
# How folders become targets. A folder without .cc files becomes an INTERFACE library, so that the tree configures
# at every stage of its growth.

# Sources of a folder without its tests and without what larder_left_out names, into OUT. Pass GLOB_RECURSE or GLOB.
# What needs libllama is a library of its own (cmake/larder_llama.cmake).
function(larder_sources out mode folder)
  file(${mode} found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
  list(FILTER found EXCLUDE REGEX "_test\\.cc$")
  if(NOT folder MATCHES "/libllama$")
    list(FILTER found EXCLUDE REGEX "/llama/libllama/")
  endif()
  foreach(file IN LISTS larder_left_out)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src NORMALIZE)
    list(REMOVE_ITEM found ${file})
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# What most files of the libraries include, parsed once: half of the time that a library takes to compile.
function(larder_add_precompiled)
  if(LARDER_PRECOMPILED)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled.cc CONTENT "")
    add_library(larder_precompiled OBJECT ${PROJECT_BINARY_DIR}/precompiled.cc)
    target_link_libraries(larder_precompiled PRIVATE larder_flags larder_headers larder_core_libs)
    target_precompile_headers(larder_precompiled PRIVATE ${PROJECT_SOURCE_DIR}/cmake/larder_precompiled.h)
  endif()
endfunction()

function(larder_use_precompiled name)
  if(LARDER_PRECOMPILED)
    target_precompile_headers(${name} REUSE_FROM larder_precompiled)
  endif()
endfunction()

# Several files of a target are compiled as one, which halves the time of a first build. So no two files of a target may
# have the same name in an unnamed namespace, but those of larder_compile_alone().
function(larder_compile_together name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${LARDER_UNITY} UNITY_BUILD_BATCH_SIZE 10)
  get_target_property(mains ${name} SOURCES)
  list(FILTER mains INCLUDE REGEX "/main\\.cc$")  # of a library: for the executables that have none
  if(mains)
    set_source_files_properties(${mains} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# Tables of offsets of file formats, kernels for one processor each, libraries with their own names for everything, what
# a simulation needs of a library that not every test of sim/ has, and what -DLARDER_LLAMA=ON compiles anew.
function(larder_compile_alone)
  foreach(file IN LISTS ARGN)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()

# Adds static library NAME of SOURCES (or an interface library), linked to the rest of the arguments.
function(larder_add_library name sources)
  if(sources)
    add_library(${name} STATIC ${sources})
    target_compile_options(${name} PRIVATE ${larder_strict_warnings})
    larder_use_precompiled(${name})
    larder_compile_together(${name})
    target_link_libraries(${name} PRIVATE larder_flags PUBLIC ${ARGN})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARGN})
  endif()
endfunction()

# larder_<folder> for each folder that exists, each linked to the one before it.
function(larder_add_chain)
  set(left larder_headers larder_core_libs)
  foreach(folder IN LISTS ARGN)
    larder_sources(sources GLOB_RECURSE src/${folder})
    larder_add_library(larder_${folder} "${sources}" ${left})
    set(left larder_${folder})
  endforeach()
endfunction()

# target_link_libraries / target_compile_options that also fit a folder that is still an INTERFACE library.
function(larder_link folder visibility)
  get_target_property(type larder_${folder} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    set(visibility INTERFACE)
  endif()
  target_link_libraries(larder_${folder} ${visibility} ${ARGN})
endfunction()

function(larder_compile_options folder)
  get_target_property(type larder_${folder} TYPE)
  if(NOT type STREQUAL "INTERFACE_LIBRARY")
    target_compile_options(larder_${folder} PRIVATE ${ARGN})
  endif()
endfunction()

# sim/ is linked to base only, and always stands *before* the libraries it simulates on a link line: a simulated device
# needs larder_transfer only in a test that has it. So the test of a left folder does not wait for a right one.
function(larder_add_sim)
  larder_sources(sources GLOB sim)
  larder_add_library(larder_sim "${sources}" larder_base)
  # Whole worlds of them: what `larder sim` runs.
  larder_sources(sources GLOB sim/world)
  larder_add_library(larder_sim_world "${sources}" larder_sim larder_controller)
endfunction()

function(larder_add_bench)
  larder_sources(sources GLOB bench)
  larder_add_library(larder_bench "${sources}" larder_server)
  target_link_libraries(larder_bench PRIVATE larder_plot_libs INTERFACE larder_sim)
  if(LARDER_LLAMA)
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/bench/bench_llama.cc APPEND PROPERTY COMPILE_DEFINITIONS LARDER_HAS_LLAMA=1)
  endif()
endfunction()

# src/cli/*.cc -> the `larder` executable at the top of the build folder.
function(larder_add_cli)
  larder_sources(sources GLOB_RECURSE src/cli)
  if(sources)
    add_executable(larder ${sources})
    target_compile_options(larder PRIVATE -fPIC)  # as the precompiled headers
    if(CMAKE_BUILD_TYPE MATCHES "^Rel")
      target_compile_options(larder PRIVATE -O1)  # the optimiser has nothing to gain from reading command lines
    endif()
    larder_use_precompiled(larder)
    larder_compile_together(larder)
    set_target_properties(larder PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    target_link_libraries(larder PRIVATE larder_flags larder_bench larder_sim_world larder_sim larder_server)
    if(LARDER_LLAMA)  # larder serve --model x.gguf
      set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/cli/serve_llama.cc APPEND PROPERTY COMPILE_DEFINITIONS LARDER_HAS_LLAMA=1)
      target_link_libraries(larder PRIVATE $<LINK_ONLY:larder_llama_server>)
    endif()
  endif()
endfunction()

# fakes/<x>: libraries that stand in for foreign ones in tests, demos and benches. They show the foreign symbols only.
function(larder_add_fakes)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fakes/hf3fs/*.cc)
  add_library(larder_fake_hf3fs SHARED ${sources})
  set_target_properties(larder_fake_hf3fs PROPERTIES
    OUTPUT_NAME hf3fs_api_shared LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(larder_fake_hf3fs PRIVATE ${larder_strict_warnings})
  larder_compile_together(larder_fake_hf3fs)
  target_link_options(larder_fake_hf3fs PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/fakes/hf3fs/exports.map)
  target_link_libraries(larder_fake_hf3fs PRIVATE larder_flags larder_headers nlohmann_json::nlohmann_json Threads::Threads)
  if(LARDER_SANITIZE MATCHES "thread")
    # Of a library's thread-locals that lie 16 bytes into a page, libtsan of gcc 12 reads the size where only an old glibc
    # wrote it, and ends the process. These it does not see, and needs not.
    target_compile_options(larder_fake_hf3fs PRIVATE -ftls-model=initial-exec)
  endif()
endfunction()

# A backend library in C: what someone else would build against larder_backend.h, and with nothing else of this project.
function(larder_add_backend_library name source)
  add_library(${name} SHARED ${source})
  set_target_properties(${name} PROPERTIES C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/storage/plugin)
  target_compile_options(${name} PRIVATE -O2 -Wall -Wextra)
  if(LARDER_WERROR)
    target_compile_options(${name} PRIVATE -Werror)
  endif()
  larder_sanitize_c(${name})
  target_link_libraries(${name} PRIVATE Threads::Threads)
endfunction()

# A target in C that does not see larder_flags.
function(larder_sanitize_c name)
  if(LARDER_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${LARDER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${name} PRIVATE -fsanitize=${LARDER_SANITIZE})
  endif()
endfunction()

function(larder_add_examples)
  larder_add_backend_library(larder_directory_backend ${PROJECT_SOURCE_DIR}/examples/plugin_backend/directory_backend.c)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.cc)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(example_${name} ${source})
    target_link_libraries(example_${name} PRIVATE larder_flags larder_core)
  endforeach()
  if(NOT TARGET larder_shared)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
  foreach(source IN LISTS sources)  # as an engine would compile them: the C interface, and nothing else of the project
    get_filename_component(name ${source} NAME_WE)
    add_executable(example_${name} ${source})
    set_target_properties(example_${name} PROPERTIES C_EXTENSIONS OFF)
    target_compile_options(example_${name} PRIVATE -pedantic -Wall -Wextra $<$<BOOL:${LARDER_WERROR}>:-Werror>)
    larder_sanitize_c(example_${name})
    target_link_libraries(example_${name} PRIVATE larder::larder)
  endforeach()
endfunction()

# What every test includes, parsed once: half of the time that a test takes to compile.
function(larder_add_test_headers)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_headers.cc CONTENT "int main() {}\n")
  add_executable(larder_test_headers ${PROJECT_BINARY_DIR}/test_headers.cc)
  target_link_libraries(larder_test_headers PRIVATE larder_flags larder_headers larder_core_libs GTest::gtest GTest::gtest_main)
  larder_set_test_options(larder_test_headers)
  target_precompile_headers(larder_test_headers PRIVATE
    <gtest/gtest.h> <algorithm> <chrono> <functional> <map> <memory> <string> <vector>)
endfunction()

# The same for all tests, or they could not share the headers.
function(larder_set_test_options name)
  target_compile_definitions(${name} PRIVATE LARDER_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    LARDER_FAKE_HF3FS="${PROJECT_BINARY_DIR}/libhf3fs_api_shared.so")
  target_compile_options(${name} PRIVATE -O0)  # compiling the tests takes longer than running them
  set_target_properties(${name} PROPERTIES LARDER_UNOPTIMISED ON)
endfunction()

# One gtest executable NAME; the libraries follow the label ("slow" or "fast").
function(larder_add_test name label sources)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE larder_flags ${ARGN} GTest::gtest GTest::gtest_main)
  larder_set_test_options(${name})
  target_precompile_headers(${name} REUSE_FROM larder_test_headers)
  larder_compile_together(${name})
  if(name STREQUAL "larder_tests_conformance")
    target_compile_definitions(${name} PRIVATE
      LARDER_EXAMPLE_BACKEND="${PROJECT_BINARY_DIR}/liblarder_directory_backend.so"
      LARDER_BAD_BACKEND="${PROJECT_BINARY_DIR}/liblarder_bad_backend.so")
    larder_add_backend_library(larder_bad_backend ${PROJECT_SOURCE_DIR}/tests/conformance/bad_backend.c)
    add_dependencies(${name} larder_directory_backend larder_bad_backend)
  endif()
  add_dependencies(${name} larder_fake_hf3fs)
  set(seconds 120)
  if(label STREQUAL "slow")
    set(seconds 900)
  endif()
  set(properties LABELS ${label} TIMEOUT ${seconds})
  if(name STREQUAL "larder_tests_attach_slow")  # its clients take what processor there is: minutes, with others of them
    list(APPEND properties RESOURCE_LOCK ${name})
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}/" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    WORKING_DIRECTORY ${PROJECT_BINARY_DIR} PROPERTIES ${properties})
  set_property(GLOBAL APPEND PROPERTY larder_tests ${name})
endfunction()

function(larder_add_unit_tests)
  foreach(folder IN LISTS ARGN)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*_test.cc)
    set(library larder_${folder})
    if(folder STREQUAL "cli")
      set(library larder_bench)
    endif()
    larder_add_test(larder_${folder}_test fast "${sources}" larder_sim ${library})
  endforeach()
endfunction()

function(larder_add_sim_tests)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/sim/*_test.cc)
  larder_add_test(larder_sim_test fast "${sources}" larder_sim larder_base)
endfunction()

# The benchmarks run, and find what they measure in order. Their numbers are not looked at.
function(larder_add_bench_tests)
  foreach(bench "metadata --quick" "metadata --http --quick" "storage --quick --beside none"
      "storage --quick --backend memory --beside file" "storage --restart --restart-pages 40000"
      "transfer 16" "transfer --device cuda-simulated 1"
      "tree --sequences 2000" "cache --requests 50 --nodes 500 --tokens 20000 --tiers storage"
      "ranks --ranks 2,3 --pending 0,2 --steps 100")
    string(REPLACE " " "_" name "${bench}")
    separate_arguments(words UNIX_COMMAND "${bench}")
    list(GET words 0 folder)  # all runs of a benchmark use one folder
    add_test(NAME larder_bench/${name} COMMAND larder bench ${words} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
    set_tests_properties(larder_bench/${name} PROPERTIES LABELS slow TIMEOUT 300 RESOURCE_LOCK bench_${folder})
  endforeach()
endfunction()

# The command against the example library, and against one with a defect.
function(larder_add_command_tests)
  set(plugin larder conformance --backend plugin --destructive --seed 7)
  add_test(NAME larder_conformance/example COMMAND ${plugin}
    --extra library=$<TARGET_FILE:larder_directory_backend> --directory ${PROJECT_BINARY_DIR}/conformance_example)
  add_test(NAME larder_conformance/defect COMMAND ${plugin}
    --extra library=$<TARGET_FILE:larder_bad_backend> --extra defect=short_reads --extra store=1)
  foreach(call hangs hangs_in_create hangs_in_close)
    add_test(NAME larder_conformance/${call} COMMAND ${plugin} --timeout 1
      --extra library=$<TARGET_FILE:larder_bad_backend> --extra defect=${call} --extra store=1)
  endforeach()
  # A check may be repeated on what it has left behind.
  set(one "'$<TARGET_FILE:larder>' conformance --backend file --directory '${PROJECT_BINARY_DIR}/conformance_twice'")
  string(APPEND one " --destructive --filter round_trip --seed 7")
  add_test(NAME larder_conformance/twice COMMAND sh -c "${one} && ${one}")
  set_tests_properties(larder_conformance/example larder_conformance/defect larder_conformance/hangs
    larder_conformance/hangs_in_create larder_conformance/hangs_in_close larder_conformance/twice
    PROPERTIES LABELS fast TIMEOUT 120)
  set_tests_properties(larder_conformance/example PROPERTIES PASS_REGULAR_EXPRESSION "16 ok, 0 failed, 3 skipped")
  set_tests_properties(larder_conformance/defect PROPERTIES PASS_REGULAR_EXPRESSION
    "FAILED   round_trip_per_pool.*bytes for 293, and called it OK.*again: --seed 7")
  set_tests_properties(larder_conformance/hangs PROPERTIES PASS_REGULAR_EXPRESSION
    "FAILED   zero_length_anchor.*exists: no answer within 1 s.*stopped: a call was never answered")
  set_tests_properties(larder_conformance/hangs_in_create PROPERTIES PASS_REGULAR_EXPRESSION
    "larder conformance: the backend has not opened within 1 s")
  set_tests_properties(larder_conformance/hangs_in_close PROPERTIES PASS_REGULAR_EXPRESSION
    "FAILED   round_trip_per_pool.*close: no answer within 1 s.*stopped: a call was never answered")
endfunction()

# What the commands say about wrong arguments, to systemd, while a server restarts, and to nobody.
function(larder_add_command_line_tests)
  add_test(NAME larder_wrong_arguments
    COMMAND ${PROJECT_SOURCE_DIR}/tests/command_line/wrong_arguments.py $<TARGET_FILE:larder>)
  add_test(NAME larder_store_tools
    COMMAND ${PROJECT_SOURCE_DIR}/tests/command_line/store_tools.py $<TARGET_FILE:larder>)
  add_test(NAME larder_replay_lru
    COMMAND ${PROJECT_SOURCE_DIR}/tests/replay/lru_model.py $<TARGET_FILE:larder>)
  set_tests_properties(larder_replay_lru PROPERTIES LABELS fast TIMEOUT 300)
  add_test(NAME larder_replay_adversarial
    COMMAND ${PROJECT_SOURCE_DIR}/tests/replay/adversarial.py $<TARGET_FILE:larder>)
  add_test(NAME larder_replay_mixtures
    COMMAND ${PROJECT_SOURCE_DIR}/tests/replay/mixtures.py $<TARGET_FILE:larder>)
  set_tests_properties(larder_replay_adversarial larder_replay_mixtures PROPERTIES LABELS slow TIMEOUT 600)
  add_test(NAME larder_service_notify
    COMMAND ${PROJECT_SOURCE_DIR}/tests/command_line/service_notify.py $<TARGET_FILE:larder>)
  add_test(NAME larder_stat_watch
    COMMAND ${PROJECT_SOURCE_DIR}/tests/command_line/stat_watch.py $<TARGET_FILE:larder>)
  add_test(NAME larder_quickstart
    COMMAND ${PROJECT_SOURCE_DIR}/tests/command_line/quickstart.py $<TARGET_FILE:larder>)
  add_test(NAME larder_stalled_log
    COMMAND ${PROJECT_SOURCE_DIR}/tests/command_line/stalled_log.py $<TARGET_FILE:larder>)
  set_tests_properties(larder_wrong_arguments larder_store_tools larder_service_notify larder_stat_watch larder_stalled_log
    larder_quickstart PROPERTIES LABELS fast TIMEOUT 120)
  add_test(NAME larder_monitoring
    COMMAND ${PROJECT_SOURCE_DIR}/tools/check_monitoring.py --promtool --larder $<TARGET_FILE:larder>)
  add_test(NAME larder_page COMMAND ${PROJECT_SOURCE_DIR}/tests/ui/page_test.py $<TARGET_FILE:larder>)
  set_tests_properties(larder_monitoring larder_page PROPERTIES LABELS slow TIMEOUT 300 SKIP_RETURN_CODE 77
    ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
  set_tests_properties(larder_page PROPERTIES RUN_SERIAL ON)  # a browser beside others waits for the processor
endfunction()

# Real processes, for half a minute (docs/testing.md); and that the soak sees what it is there to see.
# NAME is a program in tools/ without its .py; the arguments after it are the binaries that it runs.
function(larder_add_soak name)
  set(soak ${PROJECT_SOURCE_DIR}/tools/${name}.py)
  add_test(NAME ${name}_judgements COMMAND ${soak} --self-test)
  add_test(NAME ${name}_short COMMAND ${soak} --minutes 0.5 ${ARGN})
  add_test(NAME ${name}_sees_wrong_tokens COMMAND ${soak} --minutes 0.2 --corrupt-token ${ARGN})
  set_tests_properties(${name}_judgements PROPERTIES LABELS fast TIMEOUT 60)
  set_tests_properties(${name}_short ${name}_sees_wrong_tokens PROPERTIES LABELS slow TIMEOUT 600 SKIP_RETURN_CODE 77)
  set_tests_properties(${name}_judgements ${name}_short ${name}_sees_wrong_tokens
    PROPERTIES ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
  set_tests_properties(${name}_sees_wrong_tokens PROPERTIES PASS_REGULAR_EXPRESSION
    "FAIL [^\n]*WRONG TOKEN from [a-z0-9]+: [^\n]* of the answer is [0-9]+, and must be [0-9]+")
endfunction()

function(larder_add_soak_tests)
  larder_add_soak(soak --binary $<TARGET_FILE:larder> --library $<TARGET_FILE:larder_fake_hf3fs>)
  if(LARDER_LLAMA)
    larder_add_soak(soak_llama --binary $<TARGET_FILE:larder> --write-model $<TARGET_FILE:larder_write_model>)
  endif()
endfunction()

function(larder_add_cross_tests)
  larder_sources(support GLOB tests/support)  # what several of them use
  larder_add_library(larder_tests_support "${support}" larder_base)
  file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/tests/*)
  foreach(path IN LISTS folders)
    if(EXISTS ${path}/LABEL_SLOW AND NOT LARDER_SLOW_TESTS)
      continue()
    endif()
    if(path MATCHES "/llama$" AND NOT LARDER_LLAMA)
      continue()
    endif()
    if(IS_DIRECTORY ${path} AND NOT path MATCHES "/support$")
      larder_add_cross_test(${path})
    endif()
  endforeach()
endfunction()

# tests/<x>_slow runs what tests/<x> has, for longer: both link the sources of tests/<x> that are no tests.
function(larder_add_cross_test path)
  get_filename_component(name ${path} NAME)
  set(libraries larder_tests_support larder_sim_world larder_engine)
  if(name MATCHES "^(server|llama_relay)$")
    set(libraries larder_tests_support larder_sim larder_server)
  elseif(name MATCHES "^(metadata_http|metadata_http_slow|hf3fs_services)$")  # with the servers of tests/metadata
    set(libraries larder_tests_metadata_shared larder_sim larder_server)
  endif()
  if(name STREQUAL "ranks" OR name STREQUAL "ranks_slow")  # with the caches of tests/cache
    list(PREPEND libraries larder_tests_cache_shared)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${path}/*.cc)
  if(EXISTS ${path}_slow)
    larder_sources(shared GLOB tests/${name})
    list(FILTER sources INCLUDE REGEX "_test\\.cc$")
    larder_add_library(larder_tests_${name}_shared "${shared}" ${libraries} GTest::gtest)
    set(libraries larder_tests_${name}_shared ${libraries})
  elseif(name MATCHES "^(.+)_slow$" AND EXISTS ${PROJECT_SOURCE_DIR}/tests/${CMAKE_MATCH_1})
    set(libraries larder_tests_${CMAKE_MATCH_1}_shared ${libraries})
  endif()
  if(name STREQUAL "metadata_http")  # the suite of tests/metadata, through HTTP
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/metadata/metadata_conformance_test.cc)
  endif()
  if(name STREQUAL "hf3fs_services")  # what backends are tested with elsewhere, with other services
    foreach(file conformance/storage_conformance conformance/storage_harness exactness/exactness_rig exactness/restore_road)
      list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/${file}.cc)
    endforeach()
    list(APPEND libraries larder_bench)
  endif()
  if(name MATCHES "^mooncake(_slow)?$")  # the same, on the fake store and on the real one
    set(files storage_conformance storage_harness)
    if(name STREQUAL "mooncake_slow")
      set(files storage_harness ../exactness/exactness_rig ../exactness/restore_road)
      list(APPEND libraries larder_bench larder_sim larder_server)
    endif()
    list(TRANSFORM files REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/tests/conformance/\\1.cc" OUTPUT_VARIABLE files)
    list(APPEND sources ${files})
  endif()
  if(name STREQUAL "llama")  # the real libllama
    set(libraries larder_tests_support larder_sim larder_llama_server larder_llama)
  endif()
  if(name STREQUAL "shared")  # the suite of tests/conformance, through two processes' ends of a shared store
    foreach(file storage_conformance storage_harness)
      list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/conformance/${file}.cc)
    endforeach()
    set(libraries larder_tests_support larder_sim larder_metadata)
  endif()
  set(label fast)
  if(EXISTS ${path}/LABEL_SLOW)
    set(label slow)
  endif()
  larder_add_test(larder_tests_${name} ${label} "${sources}" ${libraries})
endfunction()

set(larder_fuzz_support cache/harness.cc crash/crash_pages.cc crash/promises.cc crash/store_client.cc)

# fuzz/<name>_fuzz.cc, each an LLVMFuzzerTestOneInput(). With LARDER_FUZZ (preset fuzz) one libFuzzer executable
# fuzz_<name> each. Else all in one, larder_fuzz_replay, which runs corpora and mutations: one link instead of a dozen.
function(larder_add_fuzz)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/*_fuzz.cc)
  find_package(GTest REQUIRED)  # headers of tests that are used here, too, name it
  set(libraries larder_sim_world larder_server GTest::gtest)
  # The cache with an engine that knows every byte; what a file store has promised.
  list(TRANSFORM larder_fuzz_support PREPEND ${PROJECT_SOURCE_DIR}/tests/ OUTPUT_VARIABLE support)
  if(LARDER_FUZZ)
    larder_add_library(larder_fuzz_support "${support}" ${libraries})
    foreach(source IN LISTS sources)
      get_filename_component(name ${source} NAME_WE)
      string(REGEX REPLACE "(.*)_fuzz" "fuzz_\\1" name ${name})
      add_executable(${name} ${source})
      target_link_libraries(${name} PRIVATE larder_flags larder_fuzz_support)
      target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    endforeach()
    return()
  endif()
  set(listed "")
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" name ${name})
    string(APPEND listed "LARDER_FUZZ_TARGET(${name})\n")
    set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS LLVMFuzzerTestOneInput=fuzz_${name})
    larder_add_fuzz_test(${name})
  endforeach()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/fuzz/fuzz_targets.inc CONTENT "${listed}")
  file(GLOB replay CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/replay_*.cc)
  add_executable(larder_fuzz_replay ${sources} ${replay} ${support})
  target_include_directories(larder_fuzz_replay PRIVATE ${PROJECT_BINARY_DIR}/fuzz)
  target_link_libraries(larder_fuzz_replay PRIVATE larder_flags ${libraries})
  larder_set_test_options(larder_fuzz_replay)
  target_precompile_headers(larder_fuzz_replay REUSE_FROM larder_test_headers)
  # A format or a target that changes takes its seeds with it.
  add_test(NAME fuzz_seeds_are_current COMMAND larder_fuzz_replay --check-seeds ${PROJECT_SOURCE_DIR}/fuzz/corpus)
  # The replay sees a failure, and keeps what failed.
  add_test(NAME fuzz_replay_sees_failures COMMAND larder_fuzz_replay broken --mutations 1000
           WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(fuzz_seeds_are_current PROPERTIES LABELS fast TIMEOUT 120)
  set_tests_properties(fuzz_replay_sees_failures PROPERTIES LABELS fast TIMEOUT 120
    PASS_REGULAR_EXPRESSION "failed at mutation [0-9]+ of seed 1 .*the input is in broken.crash")
endfunction()

# The smoke run of one target: its corpus and some mutations, a second or less.
function(larder_add_fuzz_test name)
  set(mutations 2000)
  if(name MATCHES "^(cache|file_store|tree)$")  # whole worlds: milliseconds each
    set(mutations 100)
  endif()
  if(LARDER_SANITIZE)
    math(EXPR mutations "${mutations} / 5")
  endif()
  add_test(NAME fuzz_${name} WORKING_DIRECTORY ${PROJECT_BINARY_DIR}
    COMMAND larder_fuzz_replay ${name} --mutations ${mutations} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${name})
  set_tests_properties(fuzz_${name} PROPERTIES LABELS fast TIMEOUT 120)
endfunction()
