// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_compute.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

namespace larder {
namespace {

constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// PTX, which the driver compiles. It never stores: the sums that it asks about are positive.
std::string compute_code() {
  std::string code = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry larder_bench_compute(.param .u32 rounds, .param .u64 never)
{
  .reg .pred %p;
  .reg .f32 %a, %b, %c, %d;
  .reg .u32 %t, %i;
  .reg .u64 %out;
  ld.param.u32 %i, [rounds];
  ld.param.u64 %out, [never];
  mov.u32 %t, %tid.x;
  cvt.rn.f32.u32 %a, %t;
  add.f32 %b, %a, 0f3F800000;
  add.f32 %c, %a, 0f40000000;
  add.f32 %d, %a, 0f40400000;
ROUND:
)";
  for (int i = 0; i < 16; ++i) {
    for (const char* r : {"%a", "%b", "%c", "%d"}) {
      code += std::string("  fma.rn.f32 ") + r + ", " + r + ", 0f3F800347, 0f3F000000;\n";
    }
  }
  return code + R"(
  sub.u32 %i, %i, 1;
  setp.gt.s32 %p, %i, 0;
  @%p bra ROUND;
  add.f32 %a, %a, %b;
  add.f32 %c, %c, %d;
  add.f32 %a, %a, %c;
  setp.eq.f32 %p, %a, 0fC640E400;
  @%p st.global.f32 [%out], %a;
  ret;
}
)";
}

}  // namespace

Result<ComputeKernel> ComputeKernel::load() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return unavailable("no CUDA driver for the benchmark's compute");
  ComputeKernel kernel;
  int (*load_module)(void**, const void*) = nullptr;
  int (*get_function)(void**, void*, const char*) = nullptr;
  int (*set_attribute)(void*, int, int) = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  if (!find(load_module, "cuModuleLoadData") || !find(get_function, "cuModuleGetFunction") ||
      !find(set_attribute, "cuFuncSetAttribute") || !find(kernel.launch_, "cuLaunchKernel")) {
    return unavailable("the CUDA driver lacks a function that the benchmark's compute needs");
  }
  void* module = nullptr;
  int error = load_module(&module, compute_code().c_str());
  if (error == 0) error = get_function(&kernel.function_, module, "larder_bench_compute");
  if (error == 0) error = set_attribute(kernel.function_, kMaxDynamicShared, static_cast<int>(kMostShared));
  if (error != 0) return unavailable("the benchmark's compute: CUDA error " + std::to_string(error));
  return kernel;
}

Status ComputeKernel::launch(CudaStream stream, std::uint32_t blocks, std::uint32_t rounds, unsigned shared) const {
  void* never = nullptr;
  void* parameters[] = {&rounds, static_cast<void*>(&never)};
  const int error = launch_(function_, blocks, 1, 1, 256, 1, 1, shared, stream, parameters, nullptr);
  return error == 0 ? Status::ok() : internal_error("cuLaunchKernel of the compute: " + std::to_string(error));
}

}  // namespace larder
