// Inside of the cache: requests, operations, and the parts of the state machine. Included by controller/*.cc only.
//
//   cache.cc       create, begin, phase, poll, finish, abort        backup.cc    device -> host -> storage
//   start.cc       restore point, reservation, load-back            operator.cc  flush, attach, explain, invariants
//   room.cc        making room on the device                        running_request.h  its steps, and what the tree
//   gets
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "controller/cache.h"
#include "controller/cache_metrics.h"
#include "controller/host_room.h"
#include "controller/op_table.h"
#include "controller/operation.h"
#include "controller/prefetcher.h"
#include "controller/running_request.h"
#include "controller/space_opener.h"
#include "controller/space_table.h"
#include "controller/store_backlog.h"

namespace larder {

// Everything a request holds. Owned by the cache thread.
struct Request : RequestText {
  explicit Request(const RunningParts& parts) : run(parts) {}

  RequestId id;
  SpaceTable::Use space_use;
  RequestPhase phase = RequestPhase::kReady;

  std::uint32_t retracts = 0;
  std::uint32_t restarts = 0;  // 1: uses the device only, its host copy could not be loaded; more: nothing

  // While running.
  RunningRequest run;
  OpId load, state_copy;  // 0: none in flight
  CachedTokens cached;
};

class CacheImpl final : public Cache, private SlotSink, private DeviceRoom {
 public:
  CacheImpl(const CacheConfig& config, const CacheParts& parts);
  ~CacheImpl() override;

  Result<RequestId> begin(const BeginRequest& request) override;
  RequestPhase phase(RequestId id) const override;
  Result<CachedTokens> start(RequestId id) override;
  std::uint64_t computed_tokens(RequestId id) const override;
  Result<StepGrant> prepare_step(RequestId id, std::uint64_t until) override;
  Status complete_step(StepToken step, std::span<const TokenId> tokens) override;
  Status cancel_step(StepToken step) override;
  bool is_starved(RequestId id) const override;
  Status retract(RequestId id) override;
  Status restart(RequestId id) override;
  void finish(RequestId id) override;
  void abort(RequestId id) override;
  bool poll(Nanos wait) override;
  void wake() override { ops_.wake(); }
  bool idle() const override { return ops_.has_timers_only() && requests_.empty() && departed_.empty(); }
  std::size_t operations_in_flight() const override { return ops_.live(); }
  std::uint64_t flush() override;
  Status attach_storage(StorageBackend& backend) override;
  void detach_storage() override;
  bool storage_idle() const override;
  void storage_cleared() override;
  void set_policies(PrefetchPolicy prefetch, WritePolicy write) override;
  void explain(const BeginRequest& request, std::function<void(Explanation)> done) override;
  const RadixTree& tree() const override { return tree_; }
  CacheCounters counters() const override;
  Status check_invariants() const override;

 private:
  // ---- cache.cc
  Request* find(RequestId id);
  [[nodiscard]] const Request* find(RequestId id) const;
  [[nodiscard]] std::uint32_t page_size() const { return model_.page_size; }
  [[nodiscard]] std::uint64_t reusable_pages(const Request& r) const { return r.reusable_tokens() / page_size(); }
  [[nodiscard]] std::span<const TokenId> reusable_tokens(const Request& r) const {
    return std::span<const TokenId>(r.tokens).first(reusable_pages(r) * page_size());
  }
  [[nodiscard]] std::uint64_t pages_for(std::uint64_t tokens) const { return (tokens + page_size() - 1) / page_size(); }
  void release(Request& r);
  void hand_over(Request& r);
  void forget(Request& r);  // the request is over: what its open steps may touch stays until they have ended
  [[nodiscard]] Status end_departed(StepToken step, bool completes);
  [[nodiscard]] OutcomeBits outcome_of(Op& op);
  void apply(OpId id, const OutcomeBits& bits);
  void drop_leases(const TransferDone& done);

  // ---- start.cc
  struct Restore {                           // what start() decided
    std::uint64_t pages = 0;                 // resume here
    std::uint64_t device_pages = 0;          // of full, already on the device
    std::uint64_t window_from = 0;           // first page of the window
    std::vector<PageLocation> full, window;  // [0, pages), [window_from, pages)
    PageLocation state;
    StopReason reason = StopReason::kNone;
    ComponentKind component = ComponentKind::kFull;
    std::uint64_t fork = 0;
    [[nodiscard]] bool loads() const;
  };
  [[nodiscard]] Result<Restore> choose_restore(Request& r, NodeId& node);
  [[nodiscard]] std::uint64_t pages_at_start(const Request& r) const;
  [[nodiscard]] ComponentCounts slots_to_start(const Request& r, const Restore& restore) const;
  [[nodiscard]] Status admit(Request& r, NodeId node, const Restore& restore);
  [[nodiscard]] Status attach_loads(Op& op, NodeId node, const Restore& restore,
                                    std::array<std::vector<DeviceSlot>, kComponentCount>& slots, TransferRequest& out);
  void fill_table(Request& r, const Restore& restore, const TransferRequest& load,
                  std::array<std::vector<DeviceSlot>, kComponentCount>& slots);
  void copy_state(Request& r, const Restore& restore, Op* load_op, TransferRequest& load);
  [[nodiscard]] Status check_admission() const;
  void submit_transfer(Op& op, TransferRequest request);
  void account_start(Request& r, const Restore& restore);
  void load_done(Op& op, bool ok);
  void state_copy_done(Op& op, bool ok);

  // ---- room.cc
  [[nodiscard]] Status make_device_room(Request& r, const ComponentCounts& counts);
  [[nodiscard]] Status make_room(std::uint32_t& store_waits, ComponentKind c, std::uint32_t count,
                                 bool may_wait) override;
  EvictResult evict_device(ComponentKind c, std::uint32_t slots, VictimRule rule);
  [[nodiscard]] VictimRule gentle_rule(ComponentKind c) const;
  [[nodiscard]] bool back_up_for_room(std::uint32_t& store_waits, ComponentKind c, const std::vector<NodeId>& victims);
  void note_leaving(ComponentKind c, const std::vector<NodeId>& victims);
  [[nodiscard]] bool is_room_coming(ComponentKind c);
  [[nodiscard]] bool could_make_room(ComponentKind c, std::uint32_t count) const override;
  [[nodiscard]] bool tier_keeps(ComponentKind c) const;  // may this component have host copies?

  // ---- backup.cc
  // As the write policy says. What stands at or after page `from` is looked at also beneath a complete copy.
  void maybe_backup(NodeId node, std::uint64_t from);
  struct BackupStart {
    bool copies = false;            // a copy was started
    bool waits_for_stores = false;  // the rest finds room once storage has taken more (host_room.h)
  };
  [[nodiscard]] BackupStart backup_victims(const std::vector<NodeId>& victims, bool gently);
  BackupStart start_backup(const std::vector<NodeId>& nodes, bool gently);  // parents first
  [[nodiscard]] HostAnswer attach_backup(Op& op, NodeId node, TransferRequest& copy, bool gently);
  void append_unbacked_path(NodeId node, bool by_policy, std::uint64_t from, std::vector<NodeId>& out) const;
  [[nodiscard]] ComponentCounts missing_on_host(const NodeView& view) const;
  void backup_done(Op& op, bool ok);

  // ---- operator.cc
  void explain_done(Op& op);
  void explain_pools(Explanation& report, const std::vector<PoolPresence>& presence, std::uint64_t pages) const;
  [[nodiscard]] Status check_device_slots() const;
  [[nodiscard]] Status check_host_slots() const;
  void add_tier_lines(Explanation& report, NodeId node, std::uint64_t pages) const;

  void return_device(ComponentKind c, std::span<const DeviceSlot> slots);
  // DeviceRoom: what running requests let go, and give to the tree
  void give_back(ComponentKind c, DeviceSlot slot) override { return_device(c, {&slot, 1}); }
  [[nodiscard]] Result<InsertResult> extend(LockHandle& held, const ExtendRequest& request,
                                            StepLedger* keeper) override;
  void committed(NodeId node, std::uint64_t from) override { maybe_backup(node, from); }
  // SlotSink: what the tree lets go
  void free_device(ComponentKind c, std::span<const DeviceSlot> slots) override;
  void free_host(ComponentKind c, std::span<const HostSlot> slots) override;

  // const after create, but the policies
  CacheConfig config_;
  const ModelSpec& model_;
  DevicePools& device_;
  HostPools* const host_;
  TransferEngine* const transfer_;
  Clock& clock_;
  const NamespaceScope scope_;
  const std::uint32_t chunk_pages_;

  // owned by the cache thread
  RadixTree tree_;
  SpaceTable spaces_;           // before requests_ and ops_, which use it to their end
  ComponentCounts in_limbo_{};  // before requests_ and departed_
  std::unordered_map<std::uint64_t, Request> requests_;
  std::map<std::uint64_t, StepLedger> departed_;  // of requests that are over, while steps of theirs are open
  StepLedger* keeper_ = nullptr;                  // while the tree is given pages: where those go that it has already
  OpTable ops_;
  std::uint64_t next_request_ = 1;
  std::uint32_t running_ = 0;                                 // requests in kLoading or kRunning
  std::array<std::vector<NodeId>, kComponentCount> leaving_;  // nodes whose copies were begun to make room
  bool backup_failed_ = false;                                // the last one; the next victim is dropped instead
  StorageBackend* storage_ = nullptr;
  CacheCounters counters_;
  SpaceOpener space_opener_;
  CacheMetrics metrics_;
  StoreBacklog backlog_;
  HostRoom host_room_;
  Prefetcher prefetcher_;
  const RunningParts running_parts_;
};

}  // namespace larder
