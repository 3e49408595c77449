// SPDX-License-Identifier: Apache-2.0
// The compiled copy kernel (copy_kernel.cu): code for several generations of GPUs, and PTX for later ones.
#pragma once

#include <cstddef>

namespace larder {

[[nodiscard]] const void* copy_kernel_image();
inline constexpr char kCopyKernelName[] = "larder_copy";
inline constexpr unsigned kCopyKernelThreads = 256;  // small blocks find a place between those of the engine's kernels

}  // namespace larder
