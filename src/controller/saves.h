// SPDX-License-Identifier: Apache-2.0
// Saves: memory of the engine -> host.
//
//   given      [from ............................................. to)   full, the window's last pages, states
//   host has   [0 ............ known)
//   copied                     [known .......................... end)    end: to, or the largest restore point for
//   which
//                              └─ slots of its own, until all bytes came   the host has room
//                                 └─► the tree, all at once (rule 2) ─► StoreBacklog finds it there
//
// While a save is under way, the path that it continues stays on the host (a lock), and its slots are nobody else's.
//
// Threads: the cache thread. Ranks: a save that fails on one has failed on all. Cost: connector.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "controller/connector.h"
#include "controller/host_room.h"
#include "controller/op_table.h"
#include "controller/page_copy.h"
#include "controller/space_table.h"
#include "controller/transfer_table.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

class Saves {
 public:
  struct Parts {  // all outlive the saves
    const ModelSpec& model;
    HostPools& host;
    RadixTree& tree;
    SpaceTable& spaces;
    HostRoom& room;
    OpTable& ops;
    PageCopier& copier;
    CacheCounters& counters;
  };
  Saves(const ConnectorConfig& config, const Parts& parts);

  // What is wrong with the call itself.
  [[nodiscard]] Status check(const SaveRequest& request) const;
  // Arguments as in Connector::save(), checked; `id` names no transfer yet.
  [[nodiscard]] Status begin(TransferId id, NamespaceId space, const SaveRequest& request);
  void done(Op& op, bool is_ok);
  // As Connector::save_result().
  [[nodiscard]] Result<SaveResult> take_result(TransferId id) { return saves_.take_result(id); }
  // Those whose result can be taken, each once; as many as there is room for.
  std::size_t take_ended(std::span<ConnectorEvent> out) { return saves_.take_ended(out); }
  [[nodiscard]] bool note_ended() { return saves_.note_ended(); }
  [[nodiscard]] bool has(TransferId id) const { return saves_.has(id); }
  [[nodiscard]] std::size_t size() const { return saves_.size(); }  // under way, or with a result to take
  [[nodiscard]] std::uint64_t blocks() const { return blocks_; }    // of the host, that saves under way hold
  // Host slots that saves under way hold, for the invariants.
  [[nodiscard]] std::array<std::uint64_t, kComponentCount> slots_held() const;

 private:
  static constexpr std::size_t kMostSpare = 4;
  static constexpr int kTries = 8;  // each evicts; a host that is this full is better left alone

  struct Run {  // pages [begin, end) of the window
    std::uint64_t begin = 0, end = 0;
  };
  // What the host lacks of what was given, up to `end`.
  struct Plan {
    std::uint64_t end = 0, full_from = 0;
    std::vector<Run> windows;
    std::vector<std::uint64_t> states;  // restore points
    ComponentCounts counts{};
  };
  // What was given, against what the host has.
  struct Given {
    std::uint64_t known = 0;          // pages of full on the host, from 0
    std::vector<bool> window, state;  // by page: given, and not on the host
  };
  struct Save : ConnectorTransfer<SaveResult> {
    NamespaceId space;
    SpaceTable::Use use;
    std::vector<TokenId> tokens;  // [0, plan.end)
    Plan plan;
    LockHandle path;
    std::vector<LockHandle> states;  // of those that the host has
    std::array<std::vector<HostSlot>, kComponentCount> slots;
    std::uint64_t blocks = 0;
  };

  [[nodiscard]] std::vector<PoolPresence> there(const SaveRequest& request, const TreePosition& walked) const;
  [[nodiscard]] Given compare(const SaveRequest& request, const MatchResult& match) const;
  [[nodiscard]] OutcomeBits points_with(const SaveRequest& request, const Given& given, const TreePosition& path) const;
  [[nodiscard]] Plan plan_to(const SaveRequest& request, const Given& given, std::uint64_t end) const;
  [[nodiscard]] std::uint64_t largest_that_fits(const SaveRequest& request, const Given& given,
                                                const OutcomeBits& points, std::uint64_t before,
                                                const HostSpace& space) const;
  [[nodiscard]] bool is_parent_coming(NamespaceId space, const SaveRequest& request) const;
  [[nodiscard]] HostSpace reach_of(const Save& save, const HostSpace& needed, int tries) const;
  [[nodiscard]] HostAnswer take_room(const SaveRequest& request, const Given& given, Save& save);
  void fill_result(const SaveRequest& request, const Given& given, Save& save) const;
  void fill_copy(const SaveRequest& request, const PlaceTable& places, const Save& save, PageCopy& copy) const;
  void publish(Save& save);
  [[nodiscard]] bool insert(const HostInsertRequest& request);
  void lock_known_states(const SaveRequest& request, const Given& given, const MatchResult& match, Save& save);
  void unlock(Save& save);
  void let_go(Save& save);

  const ConnectorConfig& config_;
  const ModelSpec& model_;
  HostPools& host_;
  RadixTree& tree_;
  SpaceTable& spaces_;
  HostRoom& room_;
  OpTable& ops_;
  PageCopier& copier_;
  CacheCounters& counters_;
  TransferTable<Save> saves_;
  std::uint64_t blocks_ = 0;                 // of the host, that saves under way hold
  std::vector<std::vector<TokenId>> spare_;  // of saves that are over, at most kMostSpare: fresh memory costs more
};

}  // namespace larder
