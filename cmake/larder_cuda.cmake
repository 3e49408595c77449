# SPDX-License-Identifier: Apache-2.0
# -DLARDER_CUDA=ON: pages on NVIDIA GPUs (src/transfer/cuda). The compiler comes from tools/cuda_env.sh, which puts it at
# build/cuda, or is any nvcc of CUDA 12 or later: -DLARDER_CUDA_ROOT=/usr/local/cuda. Nothing of CUDA is linked: the
# driver is found when the program runs.
set(LARDER_CUDA_ROOT "" CACHE PATH "Where bin/nvcc and include/cuda.h are (empty: build/cuda, then /usr/local/cuda)")
# Machine code for the generations from Ampere on, and PTX, which the driver compiles, for all others from Turing on.
set(LARDER_CUDA_CODE "-gencode=arch=compute_80,code=sm_80;-gencode=arch=compute_90,code=sm_90;\
-gencode=arch=compute_75,code=compute_75" CACHE STRING "Which GPUs nvcc makes code for")

if(NOT LARDER_CUDA)
  list(APPEND larder_left_out transfer/cuda/real_cuda_driver.cc transfer/cuda/copy_kernel_image.cc)
  return()
endif()
list(APPEND larder_left_out transfer/cuda/absent_cuda_driver.cc)

set(larder_cuda_places ${LARDER_CUDA_ROOT})
if(NOT larder_cuda_places)
  set(larder_cuda_places ${PROJECT_SOURCE_DIR}/build/cuda /usr/local/cuda)
endif()
find_program(larder_nvcc nvcc PATHS ${larder_cuda_places} PATH_SUFFIXES bin NO_DEFAULT_PATH NO_CACHE)
if(NOT larder_nvcc)
  message(FATAL_ERROR "LARDER_CUDA: no bin/nvcc in ${larder_cuda_places}. Run tools/cuda_env.sh, which fetches the compiler, \
or name a CUDA toolkit with -DLARDER_CUDA_ROOT=DIR")
endif()
cmake_path(GET larder_nvcc PARENT_PATH larder_cuda_bin)
cmake_path(GET larder_cuda_bin PARENT_PATH larder_cuda_root)

set(larder_cuda_folder ${PROJECT_SOURCE_DIR}/src/transfer/cuda)
set(larder_kernel ${PROJECT_BINARY_DIR}/copy_kernel.fatbin)
add_custom_command(
  OUTPUT ${larder_kernel}
  COMMAND ${larder_nvcc} -std=c++17 -O3 -lineinfo -fatbin -I ${PROJECT_SOURCE_DIR}/src ${LARDER_CUDA_CODE}
          -o ${larder_kernel} ${larder_cuda_folder}/copy_kernel.cu
  DEPENDS ${larder_cuda_folder}/copy_kernel.cu ${larder_cuda_folder}/copy_launch.h ${larder_nvcc}
  COMMENT "Compiling the copy kernel" VERBATIM)
add_custom_target(larder_kernel DEPENDS ${larder_kernel})
set_source_files_properties(${larder_cuda_folder}/copy_kernel_image.cc PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON OBJECT_DEPENDS ${larder_kernel}
  COMPILE_DEFINITIONS "LARDER_COPY_KERNEL_FATBIN=\"${larder_kernel}\"")
set_source_files_properties(${larder_cuda_folder}/real_cuda_driver.cc PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "-isystem;${larder_cuda_root}/include")
