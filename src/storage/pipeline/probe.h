// SPDX-License-Identifier: Apache-2.0
// Tries a storage backend out before anybody depends on it: writes a few pages, reads them back, compares every byte.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "storage/backend.h"

namespace larder {

// Writes four groups of two pages (pools kv and indexer; 1 byte, 4 KiB - 1, 16 KiB, 64 KiB; about 170 KB in all, so
// that a small store holds them) under a throw-away namespace of one and the same layout, and checks, step by step:
//   exists   nothing of it is there before, all of it after the write, nothing after the clear
//   read     each page comes back byte for byte, nothing is written beside its segments; a page of another length and
//            a key that was never written are misses
//   clear    the namespace is emptied
// A write to a persistent backend asks for durability. Groups that the backend declines (kUnsupported) are offered
// three times.
// Errors name the step, what was wrong, and what to do:
//   kDeadlineExceeded  not done within `limit` (of `clock`, and each wait of real time)
//   kCorrupt           a byte differs
//   kInternal          the backend broke its contract: a wrong size taken, a page lost or invented
//   kUnsupported       its admission policy declined every page, so nothing could be verified
//   else               what the backend answered
// A failed probe still asks for the clear, and does not wait for it if the backend did not answer in time.
//
// Threads: blocks the caller, which must not be a thread that the backend needs. What completes late finds its buffers:
// they belong to the operations. seed: of names and content, mixed with the time, so that two processes that try out
// one shared store do not meet.
[[nodiscard]] Status probe_backend(StorageBackend& backend, Clock& clock, Nanos limit, std::uint64_t seed);

}  // namespace larder
