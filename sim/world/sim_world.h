// SPDX-License-Identifier: Apache-2.0
// A simulated world: ranks, clients, operators, disks and time in one thread; every run follows from its story.
//
// After every event: nobody has seen a wrong byte, ranks that get the same requests have decided alike, and the cache
// has refused nothing of its own as impossible. Every few events: tree and pools agree slot by slot. At the end,
// when the faults have gone: every request finishes, every detached storage closes, and after a flush every slot is
// free.
//
// Threads: confined to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/world/sim_engine.h"
#include "sim/world/sim_rank.h"
#include "sim/world/story.h"

namespace larder::sim {

class SimWorld {
 public:
  explicit SimWorld(const WorldSpec& spec, std::uint64_t check_every = 64);
  ~SimWorld();

  // Each gives the first broken rule in words; empty: all holds.
  [[nodiscard]] std::string begin();
  [[nodiscard]] std::string apply(const Event& event);
  [[nodiscard]] std::string finish();
  [[nodiscard]] const SimTotals& totals() const { return totals_; }
  // Faults of the story that have struck.
  [[nodiscard]] std::uint64_t struck() const;

 private:
  void fail(const std::string& what);
  void start_processes();
  void pass_time(Nanos by);
  void pass_time_and_poll(Nanos by);
  void attach(std::uint64_t which);
  void detach();
  void clear();
  void end_clears();
  void operate(const Event& event);
  void damage(const Event& event);
  void restart(bool is_crash, std::uint64_t kept);
  void part(std::uint64_t which);
  [[nodiscard]] bool end_processes(bool is_crash);
  [[nodiscard]] std::uint64_t struck_disks() const;
  void check(bool is_full);
  // Storage keeps its word (store_witness.h).
  void check_stores(bool is_full);
  // What was told of pages is what is there, and the same on all ranks. After a poll.
  void check_events();
  [[nodiscard]] std::string outlines() const;
  void expect(const EventArguments& at_least);
  void drain_requests();
  void drain_storage();

  const WorldSpec spec_;
  const std::uint64_t check_every_;
  ModelSpec model_;
  SimClock clock_;
  std::unique_ptr<SimService> service_;
  std::unique_ptr<SimFileSystem> mount_;            // of hf3fs with a remote service: one for all ranks
  std::vector<std::unique_ptr<RankGroup>> groups_;  // of this life; empty: one rank
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::vector<std::vector<std::shared_ptr<bool>>> clears_;  // under way, one flag per rank
  std::uint64_t directory_ = 0;                             // of the storage that is attached, or was last
  std::uint64_t struck_on_disks_ = 0;
  bool is_disturbed_ = false;  // by what is not counted as struck
  std::string failure_;
  SimTotals totals_;
  std::unique_ptr<SimEngine> engine_;  // null before begin()
};

}  // namespace larder::sim
