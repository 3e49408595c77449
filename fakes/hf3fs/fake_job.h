// SPDX-License-Identifier: Apache-2.0
// A job: prepared I/O of one ring that the daemon took together. Its completions appear together, at its end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fakes/hf3fs/fake_config.h"
#include "fakes/hf3fs/fake_ring.h"

namespace larder::hf3fs {

// What is decided about an I/O before it runs.
struct IoPlan {
  std::optional<FaultEffect> effect;
  bool check_bounds = true;
};

struct FakeJob {
  std::shared_ptr<FakeRing> ring;
  std::vector<int> slots;
  std::vector<IoPlan> plans;  // one per slot
  int error = 0;              // of all of them: overlapping buffers, a stall that failed
  std::uint64_t due_ms = 0;   // not before, on the fake's clock
  HoldPoint hold = HoldPoint::kNone;
  bool drop = false;                 // no completion, ever
  std::size_t next = 0;              // first index nobody took; the engine's lock
  std::atomic<std::size_t> left{0};  // not executed yet
};

using JobPtr = std::shared_ptr<FakeJob>;

class World;

// Decides about every I/O of the job by rules and chances, finds overlapping buffers, sets due time and hold.
void plan_job(World& world, FakeJob& job);
// Moves the bytes of one I/O and sets its result. No lock is held.
void execute_io(World& world, FakeJob& job, std::size_t index);
// All are executed: their completions appear, in an order of the ring's seed, unless the job is dropped.
void finish_job(World& world, FakeJob& job);
// The daemon dies while the I/O waits: some chunks of a write land all the same.
void tear_io(World& world, FakeJob& job, std::size_t index);
// A digest of a buffer, for the ownership check.
[[nodiscard]] std::uint64_t digest_of(const std::uint8_t* data, std::uint64_t length);

}  // namespace larder::hf3fs
