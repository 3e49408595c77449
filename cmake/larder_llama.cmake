# SPDX-License-Identifier: Apache-2.0
# The engine on llama.cpp, with -DLARDER_LLAMA=ON: library larder_llama of src/engine/llama/libllama, which sees llama.h.
# The rest of src/engine/llama (formats, pools) needs no llama.cpp and is part of larder_engine.
# llama.cpp itself is what tools/llama_env.sh left in LARDER_LLAMA_DIR: headers and static libraries.

# One static library of llama.cpp as an imported target.
function(larder_import_llama name path)
  set(library ${LARDER_LLAMA_DIR}/build/${path})
  if(NOT EXISTS ${library})
    message(FATAL_ERROR "LARDER_LLAMA is ON, and ${library} is not there: run tools/llama_env.sh, or set LARDER_LLAMA_DIR "
      "to the folder that it was given")
  endif()
  add_library(larder_llama_${name} STATIC IMPORTED GLOBAL)
  set_target_properties(larder_llama_${name} PROPERTIES IMPORTED_LOCATION ${library})
endfunction()

# `larder serve --model x.gguf`: src/server/llama/libllama on the libraries of llama.cpp's own server, which read requests
# and write answers.
function(larder_add_llama_server)
  larder_import_llama(server_context tools/server/libserver-context.a)
  larder_import_llama(mtmd tools/mtmd/libmtmd.a)
  larder_import_llama(common common/libllama-common.a)
  larder_import_llama(common_base common/libllama-common-base.a)
  larder_import_llama(httplib vendor/cpp-httplib/libcpp-httplib.a)
  larder_import_llama(hash vendor/hash/libvendor-hash.a)
  add_library(larder_llama_server_libs INTERFACE)
  target_include_directories(larder_llama_server_libs SYSTEM INTERFACE ${LARDER_LLAMA_DIR}/src/common
    ${LARDER_LLAMA_DIR}/src/tools/server ${LARDER_LLAMA_DIR}/src/tools/mtmd)
  target_link_libraries(larder_llama_server_libs INTERFACE larder_llama_server_context larder_llama_mtmd
    larder_llama_common larder_llama_common_base larder_llama_httplib larder_llama_hash larder_llama_libs)
  larder_sources(sources GLOB_RECURSE src/server/llama/libllama)
  larder_add_library(larder_llama_server "${sources}" larder_server larder_llama larder_llama_server_libs)
endfunction()

function(larder_add_llama)
  larder_import_llama(llama src/libllama.a)
  larder_import_llama(ggml ggml/src/libggml.a)
  larder_import_llama(ggml_cpu ggml/src/libggml-cpu.a)
  larder_import_llama(ggml_base ggml/src/libggml-base.a)
  add_library(larder_llama_libs INTERFACE)
  target_include_directories(larder_llama_libs SYSTEM INTERFACE
    ${LARDER_LLAMA_DIR}/src/include ${LARDER_LLAMA_DIR}/src/ggml/include)
  target_link_libraries(larder_llama_libs INTERFACE larder_llama_llama larder_llama_ggml larder_llama_ggml_cpu
    larder_llama_ggml_base Threads::Threads ${CMAKE_DL_LIBS} m)
  larder_sources(sources GLOB_RECURSE src/engine/llama/libllama)
  larder_add_library(larder_llama "${sources}" larder_engine larder_llama_libs)
  larder_add_llama_server()
  add_executable(larder_write_model ${PROJECT_SOURCE_DIR}/tests/llama/program/write_model.cc)
  target_link_libraries(larder_write_model PRIVATE larder_flags larder_llama)
endfunction()
