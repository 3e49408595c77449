// SPDX-License-Identifier: Apache-2.0
// Builds without -DLARDER_CUDA=ON.
#include "transfer/cuda/driver.h"

namespace larder {

Result<std::shared_ptr<CudaDriver>> open_cuda_driver(int) {
  return unsupported(
      "this build of Larder has no CUDA: configure it with -DLARDER_CUDA=ON, after tools/cuda_env.sh, which fetches "
      "the "
      "compiler (docs/cuda.md)");
}

}  // namespace larder
