// SPDX-License-Identifier: Apache-2.0
// Backend `memory`: pages in this process's heap, gone with it. For tests, demos, and as a model of a backend.
//
// Pages are kept as they were written: envelope and payload, verified at each read like those of any other backend.
// Bounded by max_size (payloads plus kPageOverheadBytes each); the group used longest ago leaves first, whole.
// Threads: any. Work runs on the environment's executor; one operation is one task.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "storage/factory.h"

namespace larder {

// Counted against max_size for each page: the envelope and what the tables need.
inline constexpr std::size_t kMemoryPageOverheadBytes = 512;

// Registers "memory". Options: max_size, queue_limit. kConflict: registered already.
[[nodiscard]] Status register_memory_backend(BackendFactory& factory);

}  // namespace larder
