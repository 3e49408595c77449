// SPDX-License-Identifier: Apache-2.0
// Forks: another request at the tokens of one that runs.
//
//   pages   0 ........ committed ........ computed ........ end of the table
//           └ the tree's: shared ┘└ copied on the device ┘└ its own, empty ┘          and the working state: copied
//
// The one that is forked hands over its whole pages first; both lock them. It takes no step until the copies have
// ended, because it would write what they read.
//
// Threads: the cache thread. Ranks: by the tree, the pools and agreed events. Errors: as in Cache::fork(); nothing is
// held then. Cost: O(pages) for the table and O(tokens) for the text, and what room costs (device_room.h).
#pragma once

#include <array>
#include <vector>

#include "controller/device_copies.h"
#include "controller/device_room.h"
#include "controller/op_table.h"
#include "controller/requests.h"
#include "controller/starts.h"

namespace larder {

class Forks {
 public:
  struct Parts {  // all outlive the forks
    const ModelSpec& model;
    DevicePools& device;
    bool has_transfer;  // else nothing can be copied
    RadixTree& tree;
    OpTable& ops;
    DeviceRoom& room;
    DeviceCopies& copies;
    Requests& requests;
    const Starts& starts;
  };
  explicit Forks(const Parts& parts) : parts_(parts) {}

  // As Cache::fork(). Its copy ends as a state copy of the fork (Starts::state_copy_done()).
  [[nodiscard]] Result<RequestId> fork(Request& from);

 private:
  using Slots = std::array<std::vector<DeviceSlot>, kComponentCount>;
  [[nodiscard]] Status check(const Request& from) const;
  [[nodiscard]] Status check_place() const;  // for the copy
  [[nodiscard]] std::uint64_t computed_pages(const Request& from) const;
  [[nodiscard]] ComponentCounts slots_for(const Request& from, const PageTable& table) const;
  void list_copies(const Request& from, PageTable& table, const Slots& slots, TransferRequest& copy) const;

  const Parts parts_;
};

}  // namespace larder
