// Inside of the cache: requests, operations, and the parts of the state machine. Included by controller/*.cc only.
//
//   cache.cc       create, begin, phase, poll, finish, abort        prefetch.cc  storage -> host
//   start.cc       restore point, reservation, load-back            backup.cc    device -> host -> storage
//   running_request.h  its steps, and what it gives to the tree     operator.cc  flush, attach, explain, invariants
//   room.cc        making room on device and host                   queue.cc     what a request keeps while it queues
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "controller/cache.h"
#include "controller/cache_metrics.h"
#include "controller/op_table.h"
#include "controller/operation.h"
#include "controller/running_request.h"
#include "controller/space_table.h"
#include "controller/store_backlog.h"

namespace larder {

// Everything a request holds. Owned by the cache thread.
struct Request : RequestText {
  explicit Request(const RunningParts& parts) : run(parts) {}

  RequestId id;
  SpaceTable::Use space_use;
  RequestPhase phase = RequestPhase::kReady;

  TimePoint begun;                                 // begin(): where the time it may wait for storage starts
  bool gave_up = false;                            // it waited as long as it may: it starts with what is there
  OpId waits_for;                                  // prefetch that the request still waits for; 0: none
  std::uint64_t fetched_from = 0, fetched_to = 0;  // pages that its prefetch brought to the host
  std::uint64_t known = 0;                         // pages: best restore point seen in any tier
  std::uint64_t asked_from = ~std::uint64_t{0};    // pages: least restore point in memory when it asked storage
  std::uint64_t room_needed = 0;                   // host blocks that its last prefetch did not get; 0: it got them
  std::uint32_t short_fetches = 0;                 // of which less came, or stayed, than storage had promised
  bool fetch_refused = false;                      // a prefetch was wanted and there was no capacity
  std::uint32_t fetches = 0;                       // prefetches made since it lost something; bounded by kMaxFetches
  LockHandle hold;                                 // host: what it will use stays until start()
  std::uint64_t hold_blocks = 0;                   // of it, counted against the prefetch capacity
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
  [[nodiscard]] Result<NamespaceId> space_for(const std::string& adapter, const std::string& salt);
  // Makes room for one: closes the namespace that nothing uses for the longest time, with what is cached of it.
  void close_idle_space();
  [[nodiscard]] std::optional<NamespaceId> space_to_close();
  [[nodiscard]] std::uint32_t page_size() const { return model_.page_size; }
  [[nodiscard]] std::uint64_t reusable_pages(const Request& r) const { return r.reusable_tokens() / page_size(); }
  [[nodiscard]] std::uint64_t pages_for(std::uint64_t tokens) const { return (tokens + page_size() - 1) / page_size(); }
  void queue_up(Request& r);  // it begins to wait for its start
  void release(Request& r);
  void hand_over(Request& r);
  void forget(Request& r);  // the request is over: what its open steps may touch stays until they have ended
  [[nodiscard]] Status end_departed(StepToken step, bool completes);
  void abandon(Op& op);
  [[nodiscard]] OutcomeBits outcome_of(Op& op);
  void apply(OpId id, const OutcomeBits& bits);
  void drop_leases(const TransferDone& done);
  void drop_host_leases(const std::vector<LeasedSlot>& leases);

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
  // The wait for a turn to fetch, which one timer bounds: that of the request that began first.
  void wait_for_turn(Request& r);
  void end_turn_wait(const Request& r);
  void arm_turn_timer();
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

  // ---- queue.cc
  // What a request that queues will use stays on the host, as far as capacity allows.
  void hold_what_is_there(Request& r);
  void drop_hold(Request& r);
  void drop_holds();                               // of all that queue
  [[nodiscard]] std::uint64_t least_gain() const;  // pages: a shorter gain is not fetched
  [[nodiscard]] std::uint64_t prefetch_capacity() const;
  [[nodiscard]] std::uint64_t host_blocks_in_reach() const;  // free, or evictable
  [[nodiscard]] bool may_ask_again(Request& r, std::uint64_t found) const;
  [[nodiscard]] bool fetch_again(Request& r, std::uint64_t found);

  // ---- room.cc
  [[nodiscard]] Status make_device_room(Request& r, const ComponentCounts& counts);
  [[nodiscard]] Status make_room(std::uint32_t& store_waits, ComponentKind c, std::uint32_t count,
                                 bool may_wait) override;
  // gently: what storage lacks stays while storage is taking it.
  [[nodiscard]] bool make_host_room(const ComponentCounts& counts, bool gently);
  [[nodiscard]] std::uint64_t gentle_share(ComponentKind c, std::uint64_t want);
  EvictResult evict_device(ComponentKind c, std::uint32_t slots, VictimRule rule);
  [[nodiscard]] VictimRule gentle_rule(ComponentKind c) const;
  [[nodiscard]] bool back_up_for_room(std::uint32_t& store_waits, ComponentKind c, const std::vector<NodeId>& victims);
  void note_copied_path(NodeId at, std::vector<NodeId>& out) const;  // nodes from `at` up that are being copied to host
  [[nodiscard]] bool are_copied(std::vector<NodeId>& nodes) const;   // any of them, still
  [[nodiscard]] bool is_room_coming(ComponentKind c) override;
  [[nodiscard]] bool could_make_room(ComponentKind c, std::uint32_t count) const;
  [[nodiscard]] bool tier_keeps(ComponentKind c) const;  // may this component have host copies?

  // ---- prefetch.cc
  // forced: at start(), when the request has its turn; the capacity limit is for those that still queue.
  void maybe_prefetch(Request& r, bool forced);
  [[nodiscard]] bool join_prefetch(Request& r, std::span<const TokenId> tokens, std::uint64_t base);
  void start_prefetch(Request& r, std::unique_ptr<Prefetch> p);
  void leave_prefetch(RequestId id);
  void prefetch_without_room(OpId op, const Prefetch& p);
  [[nodiscard]] bool may_prefetch() const;
  [[nodiscard]] Nanos wait_limit(std::uint64_t tokens) const;
  [[nodiscard]] TreePosition position_at(NodeId node, std::uint64_t pages) const;
  void collect_keys(Prefetch& p, const TreePosition& walked);
  void add_tree_presence(const Prefetch& p, NodeId node, std::vector<PoolPresence>& presence) const;
  void submit_exists(Op& op, std::shared_ptr<const StoreScope> scope);
  void exists_done(Op& op, const OutcomeBits& bits);
  [[nodiscard]] std::uint64_t held_host_blocks(const Prefetch& p) const;
  [[nodiscard]] bool host_room_will_come() const;
  [[nodiscard]] bool reserve_prefetch(Prefetch& p, const OutcomeBits& bits);
  [[nodiscard]] ComponentCounts prefetch_counts(Prefetch& p) const;
  void hold_host_path(Prefetch& p, const ComponentCounts& counts);
  [[nodiscard]] ReadRequest build_read(Prefetch& p);
  void submit_read(Op& op);
  [[nodiscard]] OutcomeBits exists_outcome(const Op& op) const;
  void drop_what_cannot_stand(const Prefetch& p, std::vector<PoolPresence>& presence) const;
  [[nodiscard]] OutcomeBits read_outcome(const Op& op);
  void read_done(Op& op, const OutcomeBits& bits);
  void use_arrived(Request& r, Prefetch& p, bool has_any);
  [[nodiscard]] bool still_has_path(const Prefetch& p) const;
  void adopt(Prefetch& p, std::uint64_t pages);
  void mark_adopted(NodeId node, const Prefetch& p, std::uint64_t pages);
  void end_prefetch(OpId id, Prefetch& p);
  void timer_done(Op& op);

  // ---- backup.cc
  // As the write policy says. What stands at or after page `from` is looked at also beneath a complete copy.
  void maybe_backup(NodeId node, std::uint64_t from);
  // gently: see make_host_room(). True: a copy was started.
  [[nodiscard]] bool backup_victims(const std::vector<NodeId>& victims, bool gently);
  [[nodiscard]] bool start_backup(const std::vector<NodeId>& nodes, bool gently);  // parents first
  [[nodiscard]] bool attach_backup(Op& op, NodeId node, TransferRequest& copy, bool gently);
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
  void return_host(ComponentKind c, std::span<const HostSlot> slots);
  // DeviceRoom: what running requests let go, and give to the tree
  void give_back(ComponentKind c, DeviceSlot slot) override { return_device(c, {&slot, 1}); }
  [[nodiscard]] Result<InsertResult> insert(const InsertRequest& request, StepLedger* keeper) override;
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
  std::uint32_t running_ = 0;           // requests in kLoading or kRunning
  std::set<std::uint64_t> turn_waits_;  // requests that wait for their turn to fetch
  OpId turn_timer_;                     // for the first of them; 0: none
  std::uint64_t prefetch_blocks_ = 0;
  std::array<std::vector<NodeId>, kComponentCount> leaving_;  // nodes whose copies were begun to make room
  std::vector<NodeId> handed_over_;                           // being copied, and let go by their request
  bool backup_failed_ = false;                                // the last one; the next victim is dropped instead
  bool refused_for_stores_ = false;                           // room was, since the last poll
  StorageBackend* storage_ = nullptr;
  CacheCounters counters_;
  CacheMetrics metrics_;
  StoreBacklog backlog_;
  const RunningParts running_parts_;
};

inline constexpr std::uint32_t kMaxFetches = 8;  // prefetches of one request that has lost nothing more since

}  // namespace larder
