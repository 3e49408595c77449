// SPDX-License-Identifier: Apache-2.0
// The engine behind ReferenceEngine, with its kernels chosen by the caller: lets a test compare instruction sets.
#pragma once

#include <memory>
#include <vector>

#include "engine/reference/layers.h"
#include "engine/reference/real_workers.h"
#include "engine/reference/reference_engine.h"

namespace larder::reference {

[[nodiscard]] Result<std::unique_ptr<ReferenceEngine>> create_engine(const ModelSpec& model, DevicePools& pools,
                                                                     std::uint32_t threads, const Kernels& kernels);

}  // namespace larder::reference
