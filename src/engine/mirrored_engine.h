// SPDX-License-Identifier: Apache-2.0
// The reference engine on a device whose memory the host cannot touch: it computes on host images of the pages.
//
//   step:  wait for the loads ─► device pages of the batch ─► images ─► compute ─► what was written ─► device pages
//
// So the pages that the cache copies, publishes and restores are those in the device's memory, and the answers say
// whether their bytes are right. It is a demonstration and a test, not a way to be fast: each step copies the whole
// context of its sequences, once each way, plane by plane.
//
// Threads: as ReferenceEngine. Lifetime: device and pools outlive it.
// Limits: as many bytes of host memory as the device pools have.
#pragma once

#include <memory>

#include "engine/reference/reference_engine.h"
#include "transfer/device.h"

namespace larder {

// Errors: as ReferenceEngine::create(); kOverloaded (no memory for the images).
[[nodiscard]] Result<std::unique_ptr<ReferenceEngine>> make_mirrored_engine(const ModelSpec& model, Device& device,
                                                                            DevicePools& pools, std::uint32_t threads);

}  // namespace larder
