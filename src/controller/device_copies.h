// SPDX-License-Identifier: Apache-2.0
// Copies between device and host, and on the device: from the operation to the leases that it ends with.
//
//   submit() ─► TransferEngine ─► TransferDone, into the operation ─► drop_leases() when the ranks have agreed
//
// Leases end when the event counts, not when it arrived here: which slots are free must be the same on every rank.
//
// Threads: the cache thread. Errors: a copy that nobody takes ends as one that failed.
#pragma once

#include "controller/host_room.h"
#include "controller/op_table.h"
#include "controller/step_events.h"
#include "pool/device_pools.h"
#include "transfer/transfer.h"

namespace larder {

class DeviceCopies {
 public:
  struct Parts {               // all outlive the copies
    TransferEngine* transfer;  // null: every copy fails
    DevicePools& device;
    HostRoom& host_room;
    OpTable& ops;
    StepEvents& events;
  };
  explicit DeviceCopies(const Parts& parts);

  // It begins when the engine's steps that it depends on are over. `op` ends with a TransferDone, always; request.id is
  // set. On a refusal the gate fails.
  void submit(const Op& op, TransferRequest request);
  void drop_leases(const TransferDone& done);
  // Waits for copies in flight, ten seconds at most, in real time. Other operations that end meanwhile are dropped.
  void finish();

 private:
  TransferEngine* const transfer_;
  DevicePools& device_;
  HostRoom& host_room_;
  OpTable& ops_;
  StepEvents& events_;
};

}  // namespace larder
