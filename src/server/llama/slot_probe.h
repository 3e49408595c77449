// SPDX-License-Identifier: Apache-2.0
// Shows, before a proxy touches a request, that this llama-server's slots survive being cut into pages and put
// together.
//
// Slot files have no version of their contents, and a wrong restore is no error but a wrong answer. So the whole road
// is gone once: compute two pages, save after each; take both files apart; put the first together from the pages of
// the second, byte for byte; restore it; go on from there, and compare with what comes without a restore. On the way
// the proxy learns the model's geometry, and what llama-server keeps of a slot by itself.
//
// Uses slot 0, which is left empty. Cost: some four pages of computing.
// Errors: kUnsupported: "... cannot be cached: ..." with the step that failed, and what to do about it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file_system.h"
#include "base/status.h"
#include "engine/llama/model_pools.h"
#include "server/llama/llama_upstream.h"
#include "server/llama/slot_contents.h"
#include "server/llama/slot_pages.h"

namespace larder::llama {

struct SlotProbeSettings {
  std::string model;                // for messages
  std::string directory;            // llama-server's --slot-save-path
  std::uint32_t window_tokens = 0;  // as in the model's file; 0: no sliding layers
  ModelSettings pools;              // identity and page size
  double tolerance = 0.05;          // of log probabilities: another batch is another rounding
};

struct SlotProbeResult {
  SlotFormat format;
  EngineHabits habits;
};

[[nodiscard]] Result<SlotProbeResult> probe_slots(LlamaUpstream& upstream, FileSystem& files,
                                                  const SlotProbeSettings& settings);

}  // namespace larder::llama
