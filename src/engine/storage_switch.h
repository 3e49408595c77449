// SPDX-License-Identifier: Apache-2.0
// Attaching a storage backend to several schedulers (replicas, ranks) at once: all or none.
//
//   phase 1  every scheduler opens and probes its backend; nothing is in use yet
//   phase 2  every scheduler switches; if one does not, those that did switch back
//
// A scheduler that holds another backend needs AttachRequest::replace; what was attached before is let go of only when
// all have switched. Blocks the caller; requests go on meanwhile. Threads: any one caller at a time for the same set.
#pragma once

#include <span>

#include "engine/scheduler.h"

namespace larder {

// requests: one per scheduler (their directories differ, say). limit: of each step. The first error, with the number of
// the scheduler; then nothing has changed. kInternal: one that could not be switched back (its message says which).
[[nodiscard]] Status attach_all(std::span<Scheduler* const> schedulers, std::span<const AttachRequest> requests,
                                Nanos limit);

}  // namespace larder
