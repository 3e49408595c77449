// SPDX-License-Identifier: Apache-2.0
// An engine behind the Connector: the memory is its own. A request looks up what the host and storage have beyond what
// the engine still has of the same conversation, loads one of the points, computes the rest, and saves on the way:
// pages, windows, and states at page boundaries. The engine evicts its own pages without telling anybody.
//
//   looking ──points──► loading ──result──► running ──► leaving: its memory is lent until its transfers have ended
//      ▲   none, or no room ──────────────────▲  │
//      └────────────── preempted ────────────────┘
//
// Every byte that a load brings is compared. Memory that is lent is neither changed nor given back before the result of
// the transfer is there; from then on at once.
// Threads: confined to one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/connector.h"
#include "sim/world/engine_blocks.h"
#include "sim/world/sim_engine.h"

namespace larder::sim {

class ConnectorEngine final : public SimEngine {
 public:
  explicit ConnectorEngine(const World& world) : SimEngine(world), books_(world.model, world.ranks) {}
  void begin(const EventArguments& a) override;
  void move(const EventArguments& a) override;
  void abort(const EventArguments& a) override;
  void retract(const EventArguments& a) override;
  void explain(const EventArguments& /*a*/) override {}
  void set_policies(PrefetchPolicy /*prefetch*/, WritePolicy /*write*/) override {}
  void time_has_passed() override { end_transfers(); }
  [[nodiscard]] std::size_t requests() const override { return jobs_.size() + leaving_.size(); }
  bool move_all() override;
  void let_go() override;
  void drop_all() override;

 private:
  static constexpr std::size_t kMostSaves = 2;  // of one request under way
  enum class Phase : std::uint8_t { kLooking, kLoading, kRunning };
  using Transfer = std::vector<TransferId>;  // one per rank
  struct Saving {
    Transfer ids;
    std::uint64_t to = 0;
  };
  struct Job {
    std::vector<TokenId> prompt, tokens;  // tokens: and what was "generated"
    std::uint64_t new_tokens = 0, computed = 0;
    std::string tenant;
    Phase phase = Phase::kLooking;
    std::vector<LookupId> lookups;  // one per rank; empty: released
    std::uint64_t has = 0;          // pages that it had when it looked up
    LoadPoint point;                // that is being loaded
    Transfer load;
    EngineBlocks blocks;
    std::uint64_t saved = 0;                  // pages before it are on the host, as far as the engine knows
    std::vector<std::uint64_t> fresh_states;  // restore points that no save was given yet
    std::vector<Saving> saves;
    int preempted = 0, final_tries = 0;
    bool is_kept = false;  // once it has left, the engine keeps what it has
  };

  [[nodiscard]] std::uint64_t page_size() const { return world_.model.page_size; }
  [[nodiscard]] bool move(Job& job, std::uint64_t chunk);
  void take_over(Job& job);  // what the engine has of its conversation
  void look_up(Job& job);
  void release(Job& job);
  [[nodiscard]] bool look(Job& job, std::uint64_t chunk);
  // The largest of its own restore points.
  [[nodiscard]] std::uint64_t own_point(const Job& job) const;
  void resume(Job& job, std::uint64_t pages);
  [[nodiscard]] bool begin_load(Job& job, const LoadPoint& point);
  [[nodiscard]] bool end_load(Job& job);
  void check_loaded(const Job& job);
  [[nodiscard]] bool compute(Job& job, std::uint64_t chunk);
  void take_snapshot(Job& job, std::uint64_t chunk);
  // False: refused for now.
  bool save(Job& job, bool may_wait);
  bool end_saves(Job& job);
  bool end_transfers();
  [[nodiscard]] bool has_ended(Job& job, std::uint64_t chunk);
  void leave(Job& job);
  void preempt(Job& job);
  // Evicts what it keeps, then preempts requests behind `job`, until there is room. False: not yet.
  [[nodiscard]] bool make_room(const Job& job, std::uint64_t full_from, std::uint64_t window_from, std::uint64_t end,
                               EngineBlocks& blocks);
  [[nodiscard]] bool evict(const Job& job);
  // An engine of every second world asks for what it was told of (take_events), and for nothing else.
  [[nodiscard]] bool hears() const { return world_.spec.seed % 2 == 1; }
  void hear();
  template <class Id>
  [[nodiscard]] bool may_ask(ConnectorEventKind kind, const std::vector<Id>& ids);
  template <class Id>
  void forget(ConnectorEventKind kind, const std::vector<Id>& ids);
  // The results of a transfer; nullopt: it is under way.
  template <class T, class Call>
  [[nodiscard]] std::optional<std::vector<T>> results_of(const char* what, const Transfer& transfer, const Call& call);
  // Takes the answers of all ranks for a call; nullopt: not yet. They must be alike.
  template <class T, class Call>
  [[nodiscard]] std::optional<std::vector<T>> from_all(const char* what, const Call& call);

  struct Kept {
    std::vector<TokenId> tokens;
    std::string tenant;
    EngineBlocks blocks;
  };

  BlockBooks books_;
  std::vector<std::set<std::pair<ConnectorEventKind, std::uint64_t>>> told_;  // by rank: of whom there is an answer
  std::deque<Job> jobs_;                                                      // the oldest first
  std::vector<Job> leaving_;  // over, or preempted, while transfers use their memory
  std::vector<Kept> kept_;    // the oldest first
};

}  // namespace larder::sim
