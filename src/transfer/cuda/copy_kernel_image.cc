// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/copy_kernel_image.h"

// The build says where the file is (cmake/larder_cuda.cmake).
asm(".section .rodata\n"
    ".balign 16\n"
    "larder_copy_kernel_fatbin:\n"
    ".incbin \"" LARDER_COPY_KERNEL_FATBIN
    "\"\n"
    ".previous\n");
extern "C" const unsigned char larder_copy_kernel_fatbin[];

namespace larder {

const void* copy_kernel_image() { return larder_copy_kernel_fatbin; }

}  // namespace larder
