// SPDX-License-Identifier: Apache-2.0
// Kernels for AVX-512: 16 floats at a time. No FMA: a fused product rounds once and would change the bits.
#if defined(__x86_64__)
#define LARDER_KERNEL_WIDTH 16
#define LARDER_KERNEL_TABLE kAvx512Kernels
#define LARDER_KERNEL_NAME "avx512"
#include "engine/reference/kernels_impl.h"
#endif
