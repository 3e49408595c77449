// SPDX-License-Identifier: Apache-2.0
// Host slots for a fetch: taken for the largest restore point that fits, one piece after another.
//
// Threads: the cache thread. Ranks: by the tree, the pools and agreed events alone. Cost: the first call plans, in
// O(stops + pages / 64); each call O(pages and batches of a piece) beside what HostRoom evicts for them.
#pragma once

#include <cstdint>
#include <functional>

#include "controller/config.h"
#include "controller/fetch.h"
#include "controller/fetch_plan.h"
#include "controller/host_room.h"
#include "controller/op_table.h"
#include "controller/queued_requests.h"

namespace larder {

class FetchRoom {
 public:
  struct Parts {  // all outlive this
    const CacheConfig& config;
    const ModelSpec& model;
    HostPools* host;
    RadixTree& tree;
    OpTable& ops;
    HostRoom& room;
    const StoreBacklog& backlog;
    const FetchPlanner& planner;
    QueuedRequests& queue;                        // counts the blocks
    const std::function<bool()>& is_engine_busy;  // requests run that will give host pages back
  };
  explicit FetchRoom(const Parts& parts) : parts_(parts) {}

  enum class Answer : std::uint8_t {
    kTaken,           // f.target is chosen, every batch has its slots
    kNotYet,          // call again, as soon as the budget allows
    kWaitsForStores,  // call again in the next poll: storage is taking what would go
    kNone,  // none fits, and f.room_needed says what was tried last; or, where that is none, nothing is worth fetching
  };
  // f.state is kTaking, f.candidates are known, f.upto is the largest of them to try; f.device_lock is held. The budget
  // has something left.
  [[nodiscard]] Answer go_on(Fetch& f);
  void give_back(FetchBatch& batch);
  // The batches from place `from` on are not needed any more; the blocks that come back. O(slots and batches of them),
  // at once.
  std::uint64_t drop_batches(Fetch& f, std::size_t from);
  // What keeps its path in place.
  void unlock(Fetch& f);

 private:
  // What is read for earlier stops is at most one part in so many of the full pages in front of them.
  static constexpr std::uint64_t kStopShare = 8;
  static constexpr std::uint32_t kTries = 8;  // each evicts; a host that is this full is better left alone
  // Polls, for one fetch. By default its requests wait a second for all of it, and an engine polls with each step.
  static constexpr std::uint32_t kMostStoreWaits = 16;
  [[nodiscard]] bool plan(Fetch& f);
  [[nodiscard]] HostAnswer take_piece(Fetch& f);
  void hold_host_path(Fetch& f, const ComponentCounts& counts);

  const Parts parts_;
};

}  // namespace larder
