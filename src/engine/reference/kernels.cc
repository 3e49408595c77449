// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/kernels.h"

#include <array>
#include <vector>

namespace larder::reference {

extern const Kernels kBaseKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

namespace {

std::vector<const Kernels*> detect_kernels() {
  std::vector<const Kernels*> found = {&kBaseKernels};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) found.push_back(&kAvx2Kernels);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    found.push_back(&kAvx512Kernels);
  }
#endif
  return found;
}

}  // namespace

std::span<const Kernels* const> supported_kernels() {
  static const std::vector<const Kernels*> found = detect_kernels();
  return found;
}

const Kernels& best_kernels() { return *supported_kernels().back(); }

}  // namespace larder::reference
