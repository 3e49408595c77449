// SPDX-License-Identifier: Apache-2.0
// Batches that are under way and that storage has yet to be given: its queue may be full, which is no failure.
//
// Batches that somebody waits for go first: what is speculative does not hold them up; storage may refuse it earlier.
// What was refused is not built again before storage has ended a read of this cache, or has none; but at every
// kPatience-th poll it is (others may have filled the queue).
//
// Threads: the cache thread. Ranks: when a batch is submitted is each rank's own, that it is under way is not.
// Cost: give() and each batch that pump() submits O(its items); pump() beyond that O(batches that wait).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "controller/fetch.h"
#include "controller/op_table.h"
#include "controller/space_table.h"
#include "pool/host_pools.h"

namespace larder {

class ReadQueue {
 public:
  // host: null: nothing is ever given. All outlive the queue.
  ReadQueue(const ModelSpec& model, const HostPools* host, OpTable& ops, const SpaceTable& spaces)
      : model_(model), host_(host), ops_(ops), spaces_(spaces) {}

  void attach_storage(StorageBackend* backend);  // null: it was detached; what waits was dropped
  // f.batches[batch] has its operation and its leases.
  void give(const Fetch& f, FetchBatch& batch, bool is_waited_for);
  // The batch's read has ended here.
  void note_ended(const FetchBatch& batch);
  // Once per poll.
  using FetchOf = std::function<Fetch&(OpId)>;
  using IsWaitedFor = std::function<bool(const Fetch&)>;
  void pump(const FetchOf& fetch_of, const IsWaitedFor& is_waited_for);
  // The fetch needs no more: its batches that wait here end as if nothing had come.
  void drop(const Fetch& f);

 private:
  static constexpr std::uint32_t kPatience = 16;  // polls
  [[nodiscard]] ReadRequest read_of(const Fetch& f, const FetchBatch& batch) const;
  // False: storage's queue is full.
  [[nodiscard]] bool submit(const Fetch& f, FetchBatch& batch, bool is_waited_for);

  const ModelSpec& model_;
  const HostPools* const host_;
  OpTable& ops_;
  const SpaceTable& spaces_;
  StorageBackend* storage_ = nullptr;
  std::deque<OpId> waiting_;                                    // operations, in the order in which they began
  std::size_t waited_for_ = 0;                                  // of them, when they were last looked at
  std::size_t reads_ = 0;                                       // that storage was given and has not ended
  bool refuses_waiting_ = false, refuses_speculative_ = false;  // as far as is known
  std::uint32_t polls_ = 0;                                     // that passed over what was refused
};

}  // namespace larder
