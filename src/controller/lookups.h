// SPDX-License-Identifier: Apache-2.0
// Lookups of an engine that owns its device memory: what each may load, and the lease that keeps it on the host.
//
//   begin() ─► (storage is read) ─► points(): the restore points, and locks on what they need ─► release()
//
// Where full alone is a restore point, one lock at the last point keeps all; else there is one for each point. Blocks
// are counted for each lookup by itself, also where they share pages: what leases keep is at most what they are
// charged.
//
// Threads: the cache thread. Ranks: by the tree alone, so all decide alike. Cost: connector.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "controller/connector.h"
#include "controller/miss_reasons.h"
#include "controller/prefetcher.h"
#include "controller/space_table.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

class Lookups {
 public:
  struct Parts {  // all outlive the lookups
    const ModelSpec& model;
    const HostPools& host;
    RadixTree& tree;
    SpaceTable& spaces;
    Prefetcher& prefetcher;
    const MissReasons& reasons;
  };
  struct Lookup {
    NamespaceId space;
    SpaceTable::Use use;
    std::vector<TokenId> tokens;  // whole pages that may be reused; none any more once it is leased
    EngineHas has;
    bool asks_storage = false;
    bool is_leased = false;  // result and locks are there
    LookupResult result;
    std::vector<LockHandle> locks;
    NodeId end;                 // of the last point; locked
    std::uint64_t blocks = 0;   // that it is charged
    std::uint64_t refused = 0;  // that it was refused at last: no answer before other leases leave room for them
    bool is_told = false;       // take_ready() has named it since it had no answer
    bool is_noted = false;      // note_ready() has found it since it had no answer
  };
  Lookups(const ConnectorConfig& config, const Parts& parts);

  // Arguments as in Connector::lookup().
  [[nodiscard]] Result<LookupId> begin(NamespaceId space, const LookupRequest& request);
  [[nodiscard]] const Lookup* find(LookupId id) const;
  // kOverloaded: it waits for storage, or the leases' share of the host is taken.
  [[nodiscard]] Status lease(LookupId id);
  // Whether a load may take this point now.
  [[nodiscard]] Result<LoadPoint> point(LookupId id, std::uint64_t pages) const;
  void release(LookupId id);
  // Those that have an answer now, and have not been named since they had none; as many as there is room for.
  // has_parted: this rank has lost the others, so all have one.
  std::size_t take_ready(std::span<ConnectorEvent> out, bool has_parted);
  // Is there one that take_ready() would name, and that this call has not found before?
  [[nodiscard]] bool note_ready(bool has_parted);
  // After a flush: those without points find what `open` gives for their names, and wait for no storage.
  void renew(const std::function<Result<NamespaceId>(const SpaceTable::Name&)>& open);
  // Unlocks everything; for the end of the connector.
  void release_all();

  [[nodiscard]] bool empty() const { return lookups_.empty(); }
  [[nodiscard]] std::size_t size() const { return lookups_.size(); }
  [[nodiscard]] std::uint64_t leased_blocks() const { return leased_; }

 private:
  [[nodiscard]] bool is_ready(std::uint64_t id, const Lookup& lookup, bool has_parted) const;
  [[nodiscard]] LookupResult points_of(const Lookup& lookup, const MatchResult& match) const;
  [[nodiscard]] LoadPoint load_point(const Lookup& lookup, std::uint64_t pages) const;
  [[nodiscard]] std::uint64_t blocks_of(const LookupResult& result) const;
  [[nodiscard]] std::uint64_t most_leased() const;
  [[nodiscard]] bool is_room_for(std::uint64_t blocks) const {
    return blocks == 0 || leased_ == 0 || leased_ + blocks <= most_leased();
  }
  [[nodiscard]] bool is_worth_fetching(const Lookup& lookup) const;
  void account(LookupId id, LookupResult& result) const;

  const ConnectorConfig& config_;
  const ModelSpec& model_;
  const HostPools& host_;
  RadixTree& tree_;
  SpaceTable& spaces_;
  Prefetcher& prefetcher_;
  const MissReasons& reasons_;
  std::map<std::uint64_t, Lookup> lookups_;  // by id
  std::uint64_t next_ = 1;
  std::uint64_t leased_ = 0;  // host blocks
};

}  // namespace larder
