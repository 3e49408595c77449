// SPDX-License-Identifier: Apache-2.0
// Kernels for any CPU: 4 floats at a time.
#define LARDER_KERNEL_WIDTH 4
#define LARDER_KERNEL_TABLE kBaseKernels
#define LARDER_KERNEL_NAME "base"
#include "engine/reference/kernels_impl.h"
