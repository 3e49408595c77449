// Inside of the cache: requests, operations, and the parts of the state machine. Included by controller/*.cc only.
//
//   cache.cc       create, begin, phase, poll, finish, abort        prefetch.cc  storage -> host
//   start.cc       restore point, reservation, load-back            backup.cc    device -> host -> storage
//   step.cc        prepare_step, complete_step, commit to the tree  operator.cc  flush, attach, explain, invariants
//   room.cc        making room on device and host                   queue.cc     what a request keeps while it queues
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/inbox.h"
#include "controller/cache.h"
#include "controller/cache_metrics.h"
#include "controller/checkpoint_plan.h"
#include "controller/rank_group.h"
#include "controller/space_table.h"

namespace larder {

// Everything a request holds. Owned by the cache thread.
struct Request {
  RequestId id;
  NamespaceId space;
  SpaceTable::Use space_use;
  std::int32_t priority = 0;
  std::vector<TokenId> tokens;  // prompt, then what was computed beyond it
  std::uint64_t prompt = 0;     // tokens
  std::uint64_t max_new = 0;    // tokens
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
  std::uint32_t store_waits = 0;  // times that room was refused to it so that storage could take what would go
  std::uint32_t restarts = 0;     // 1: uses the device only, its host copy could not be loaded; more: nothing

  // While running.
  PageTable table;
  LockHandle lock;                         // device, at `committed`
  std::uint64_t committed = 0;             // pages that are the tree's; entries of `table` beyond are the request's own
  std::uint64_t computed = 0;              // tokens
  std::vector<PlannedCheckpoint> plan;     // ascending; front: the next one
  std::vector<Checkpoint> taken;           // computed, not yet given to the tree
  Checkpoint tracked;                      // last page boundary reached beyond the plan; slot reused at the next one
  std::vector<StateSnapshotSlot> granted;  // of the step that is under way
  std::uint64_t prepared = 0;              // tokens: how far prepare_step() gave slots
  std::shared_ptr<LayerGate> gate;
  OpId load, state_copy;  // 0: none in flight
  bool failed = false;    // one of the two failed: nothing it computes may be kept, restart() is due
  CachedTokens cached;
};

enum class OpKind : std::uint8_t { kLoad, kStateCopy, kBackup, kExists, kRead, kStore, kTimer, kExplain };
inline constexpr std::size_t kOpKindCount = 8;

// A prefetch from its existence query to its adoption. Outlives its request (rule 3: buffers belong to the operation).
struct Prefetch {
  std::vector<RequestId> requests;  // who wants it, the one that began it first; empty: all of them were aborted
  NamespaceId space;
  SpaceTable::Use space_use;    // none: of an explanation, which is one rank's own
  std::vector<TokenId> tokens;  // whole pages, up to the last that may be reused
  std::vector<PageKey> keys;    // of pages [key_from, pages)
  std::uint64_t key_from = 0;
  std::uint64_t pages = 0;
  std::uint64_t base = 0;         // best restore point of the tree when it began
  std::uint64_t tree_full = 0;    // pages of full the tree had, in whatever tier
  std::uint64_t full_from = 0;    // from here on pages of full are read: tree_full, or before it (prefetch_counts())
  std::uint64_t target = 0;       // restore point being fetched
  std::uint64_t swa_from = 0;     // first window page fetched
  bool waits_for_room = false;    // reserve_prefetch(): the host has none now, and will have
  std::uint64_t room_needed = 0;  // blocks that reserve_prefetch() tried to get last
  // Keep full in place until the wait is over (timer_done): [0, tree_full) in some tier, [0, full_from) on the host as
  // far as it is there.
  LockHandle device_lock, host_lock;
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  std::vector<LeasedSlot> leases;
  std::vector<std::pair<PoolName, std::uint64_t>> items;  // (pool, page) of each read item
  std::uint64_t blocks = 0;                               // host blocks held, for the capacity limit
  TimePoint begun;                                        // where the wait that `timer` bounds starts
  OpId timer;
  Urgency urgency = Urgency::kWaiting;        // kSpeculative: nobody waits
  TimePoint deadline = TimePoint::max();      // for the storage's queue: when those that wait go on without
  std::shared_ptr<std::atomic<bool>> cancel;  // for the storage's queue: `requests` became empty
  std::uint32_t epoch = 0;                    // of the storage it reads
  TimePoint read_begun;                       // for the metrics
  std::uint64_t bytes = 0;                    // of the read, for the metrics
};

// A write to storage, of one namespace. Its pages are kept on the host (locked and leased), but not on the device: a
// storage that hangs must not take the device from the engine.
struct Store {
  struct Piece {  // pages [begin, end of node) of a path; more than one node once it was split
    NodeId node;  // locked with all of these pages: the tree forgets none of it, nor merges it with what is around
    std::uint64_t begin = 0;
    LockHandle lock;
  };
  std::vector<Piece> pieces;  // parents first
  struct Group {              // of the request
    std::size_t piece = 0;    // whose pages it has: place in `pieces`
    std::uint64_t pages = 0;  // of full
    bool has_window = false;  // of all its pages
    bool has_state = false;   // at its end
  };
  WriteRequest request;  // until it is submitted
  std::vector<Group> groups;
  std::vector<LeasedSlot> leases;
  std::uint64_t blocks = 0;  // that it keeps on the host, counted in kept_by_stores_ or kept_by_abandoned_
  std::uint32_t attempts = 0;
  std::uint32_t epoch = 0;
  TimePoint not_before;  // retry back-off
  TimePoint submitted;   // for the metrics
  std::uint64_t bytes = 0;
};

struct ExplainOp {
  std::function<void(Explanation)> done;
  Explanation report;
  std::vector<PoolPresence> presence;
  std::uint64_t pages = 0;
};

using Completion = std::variant<std::monostate, TransferDone, ExistsResult, ReadResult, WriteResult>;

struct Op {
  OpId id;
  OpKind kind = OpKind::kLoad;
  RequestId request;                   // kLoad, kStateCopy; kTimer: who waits for its turn to fetch
  LockHandle host_lock;                // kLoad: keeps the source
  std::unique_ptr<Prefetch> prefetch;  // kExists, kRead
  std::unique_ptr<Store> store;
  std::unique_ptr<ExplainOp> explain;
  Completion completion;  // this rank's, once it arrived
  TimePoint due;          // kTimer
  OpId guards;            // kTimer: the query or read whose wait it bounds; 0: the wait of `request` for its turn
  bool reported = false;
  bool is_abandoned = false;     // its storage was detached, and nobody waits for it: it holds its buffers, no more
  std::uint32_t attachment = 0;  // which attach gave it its storage
  std::uint64_t pages = 0;       // kLoad: full pages, for the counter
  TimePoint begun;               // kLoad: for the metrics
};

struct Arrival {
  OpId op;
  Completion completion;
};

class CacheImpl final : public Cache, private SlotSink {
 public:
  CacheImpl(const CacheConfig& config, const CacheParts& parts);
  ~CacheImpl() override;

  Result<RequestId> begin(const BeginRequest& request) override;
  RequestPhase phase(RequestId id) const override;
  Result<CachedTokens> start(RequestId id) override;
  std::uint64_t computed_tokens(RequestId id) const override;
  Result<StepGrant> prepare_step(RequestId id, std::uint64_t until) override;
  Status complete_step(RequestId id, std::span<const TokenId> tokens) override;
  Status restart(RequestId id) override;
  void finish(RequestId id) override;
  void abort(RequestId id) override;
  bool poll(Nanos wait) override;
  void wake() override { inbox_.wake(); }
  bool idle() const override { return ops_.empty() && requests_.empty(); }
  std::size_t operations_in_flight() const override;
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
  [[nodiscard]] std::uint64_t reusable_pages(const Request& r) const { return (r.prompt - 1) / page_size(); }
  [[nodiscard]] std::uint64_t final_tokens(const Request& r) const;
  void release(Request& r);
  // Registers an operation; the caller checked that there is room. Its id is the same on every rank, but for kExplain,
  // which is one rank's own.
  Op& new_op(OpKind kind);
  void erase_op(OpId id);
  [[nodiscard]] std::size_t open(OpKind kind) const { return open_[static_cast<std::size_t>(kind)]; }
  void abandon(Op& op);
  // Writes to the storage that is attached: those to one that was detached may hang for ever.
  [[nodiscard]] std::size_t live_stores() const {
    return open(OpKind::kStore) - abandoned_[static_cast<std::size_t>(OpKind::kStore)];
  }
  // Storage may hang. Stores and prefetches each have a quarter of the places, so that copies always find some.
  [[nodiscard]] std::size_t storage_share() const { return std::max<std::size_t>(1, config_.max_operations / 4); }
  // Writes to storages that were detached have places of their own, as many as the stores: the next storage finds its
  // own free, and so do copies. What goes beyond counts like any other store.
  [[nodiscard]] std::size_t stores_aside() const {
    return std::min(abandoned_[static_cast<std::size_t>(OpKind::kStore)], storage_share());
  }
  // Timers complete nowhere and explanations have places of their own: neither may change what other ranks decide.
  [[nodiscard]] std::size_t open_ops() const {
    return ops_.size() - open(OpKind::kTimer) - open(OpKind::kExplain) - stores_aside();
  }
  [[nodiscard]] bool has_room_for_op() const { return open_ops() < config_.max_operations; }
  [[nodiscard]] bool has_room_for_store() const {
    return has_room_for_op() && open(OpKind::kStore) - stores_aside() < storage_share();
  }
  [[nodiscard]] bool has_room_for_prefetch() const {
    return has_room_for_op() && open(OpKind::kExists) + open(OpKind::kRead) < storage_share();
  }
  // A place in the inbox for the op's completion, shared because callbacks must be copyable.
  [[nodiscard]] std::function<void(Completion)> completion_for(OpId id);
  bool apply_arrivals();
  void take_agreed();
  void part_from_ranks(const Status& why);
  void report(Op& op);
  void report_refused();
  [[nodiscard]] OutcomeBits outcome_of(Op& op);
  [[nodiscard]] OutcomeBits store_outcome(const Op& op) const;
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
  void fail_request(Request& r, const std::string& why);

  // ---- queue.cc
  // What a request that queues will use stays on the host, as far as capacity allows.
  void hold_what_is_there(Request& r);
  void drop_hold(Request& r);
  [[nodiscard]] std::uint64_t least_gain() const;  // pages: a shorter gain is not fetched
  [[nodiscard]] std::uint64_t prefetch_capacity() const;
  [[nodiscard]] std::uint64_t host_blocks_in_reach() const;  // free, or evictable
  [[nodiscard]] bool may_ask_again(Request& r, std::uint64_t found) const;
  [[nodiscard]] bool fetch_again(Request& r, std::uint64_t found);

  // ---- step.cc
  [[nodiscard]] Status grant_window(Request& r, std::uint64_t until);
  [[nodiscard]] Status grant_snapshots(Request& r, std::uint64_t until);
  [[nodiscard]] Status grant_planned(Request& r, std::uint64_t until, bool weak);
  [[nodiscard]] bool has_promised_state(const Request& r) const;
  void grant_tracked(Request& r, std::uint64_t until);
  void drop_granted(Request& r);
  [[nodiscard]] Result<DeviceSlot> snapshot_slot(Request& r, bool weak);
  void collect_snapshots(Request& r);
  void commit_due(Request& r);
  void hand_over(Request& r);  // the request ends: what is left of whole pages, and the last state
  // Gives whole pages [committed, pages) and taken checkpoints to the tree. kConflict: met a copy under way; later.
  [[nodiscard]] Status commit(Request& r, std::uint64_t pages);
  void drop_window(Request& r);
  void refresh_table(Request& r, NodeId node, std::uint64_t from, std::uint64_t to);

  // ---- room.cc
  [[nodiscard]] Status make_device_room(Request& r, const ComponentCounts& counts);
  [[nodiscard]] Status make_device_room_for(Request& r, ComponentKind c, std::uint32_t count);
  // gently: what storage lacks stays while storage is taking it.
  [[nodiscard]] bool make_host_room(const ComponentCounts& counts, bool gently);
  [[nodiscard]] std::uint64_t gentle_share(ComponentKind c, std::uint64_t want);
  [[nodiscard]] bool may_wait_for_stores() const;
  void renew_store_patience();
  void count_store_wait();
  EvictResult evict_device(ComponentKind c, std::uint32_t slots, VictimRule rule);
  [[nodiscard]] bool could_make_device_room(ComponentKind c, std::uint32_t count) const;
  [[nodiscard]] std::size_t copies_in_flight() const {
    return open(OpKind::kLoad) + open(OpKind::kStateCopy) + open(OpKind::kBackup);
  }
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
  void check_timers();

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
  void enqueue_store(const std::vector<NodeId>& nodes);
  void enqueue_store_of(std::vector<NodeId> nodes);  // of one namespace
  [[nodiscard]] std::size_t nodes_that_stores_may_keep(const std::vector<NodeId>& nodes) const;
  [[nodiscard]] std::uint64_t blocks_on_host(NodeId node) const;
  void cancel_store(Op& op);
  void prepare_store(Store& store, const std::vector<NodeId>& nodes);  // parents first
  void hold_nodes(Store& store, const std::vector<NodeId>& nodes);
  void submit_store(Op& op);
  [[nodiscard]] PageGroup build_group(std::size_t piece, Store& store);
  [[nodiscard]] std::vector<NodeId> nodes_of(const Store& store) const;
  [[nodiscard]] std::vector<NodeId> nodes_of(const Store::Piece& piece) const;
  void release_store(Store& store, bool is_abandoned);
  void store_done(Op& op, const OutcomeBits& bits);
  [[nodiscard]] bool was_asked(const Store& store, const Store::Group& group, NodeId at);
  // current: the store went to the storage that is attached, as it is now.
  void mark_declined(Store& store, bool current, const OutcomeBits& bits);
  void mark_stored(const Store& store, bool current, bool ok, const OutcomeBits& bits);
  void pump_stores();
  void store_unstored();
  void abandon_stores();
  void unlock_abandoned_stores();

  // ---- operator.cc
  void explain_done(Op& op);
  void explain_pools(Explanation& report, const std::vector<PoolPresence>& presence, std::uint64_t pages) const;
  [[nodiscard]] Status check_device_slots() const;
  [[nodiscard]] Status check_host_slots() const;
  void add_tier_lines(Explanation& report, NodeId node, std::uint64_t pages) const;

  void return_device(ComponentKind c, std::span<const DeviceSlot> slots);
  void return_host(ComponentKind c, std::span<const HostSlot> slots);
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
  RankGroup* const ranks_;
  const NamespaceScope scope_;
  const std::uint32_t chunk_pages_;

  // owned by the cache thread
  RadixTree tree_;
  SpaceTable spaces_;  // before requests_ and ops_, which use it to their end
  std::unordered_map<std::uint64_t, Request> requests_;
  std::map<std::uint64_t, Op> ops_;                    // ordered: ranks iterate alike
  std::array<std::size_t, kOpKindCount> open_{};       // of ops_, by kind
  std::array<std::size_t, kOpKindCount> abandoned_{};  // of those, Op::is_abandoned
  std::uint64_t next_request_ = 1, next_op_ = 1, next_explain_ = 1, step_ = 0;
  Status parted_;                       // not ok: this rank has lost the others
  std::uint32_t running_ = 0;           // requests in kLoading or kRunning
  std::set<std::uint64_t> turn_waits_;  // requests that wait for their turn to fetch
  OpId turn_timer_;                     // for the first of them; 0: none
  std::uint64_t prefetch_blocks_ = 0;
  std::deque<OpId> store_queue_;  // waiting to be submitted, in order
  std::size_t stores_in_flight_ = 0;
  std::uint64_t kept_by_stores_ = 0;     // host blocks: what stores keep there, of all components
  std::uint64_t kept_by_abandoned_ = 0;  // the same of stores whose storage was detached
  bool backup_failed_ = false;           // the last one; the next victim is dropped instead of backed up
  bool unstored_hint_ = false;           // the tree may hold host pages that storage lacks
  bool store_again_ = false;             // storage lost pages: look for them again once it takes some
  std::uint32_t store_patience_ = 0;     // polls for which room may still be refused before storage takes something
  bool refused_for_stores_ = false;      // room was, since the last poll
  std::size_t loads_in_flight_ = 0;
  StorageBackend* storage_ = nullptr;
  std::uint32_t storage_epoch_ = 0;
  std::uint32_t attachment_ = 0;  // counts attaches
  CacheCounters counters_;
  CacheMetrics metrics_;
  std::vector<Arrival> arrivals_;     // scratch of poll()
  std::vector<AgreedEvent> agreed_;   // scratch of poll()
  std::vector<AgreedEvent> refused_;  // outcomes that the rank group had no room for: reported again, in order
  Inbox<Arrival> inbox_;
};

inline constexpr std::uint32_t kMaxFetches = 8;     // prefetches of one request that has lost nothing more since
inline constexpr std::size_t kStoresInFlight = 16;  // storage writes at once; the rest waits in store_queue_
inline constexpr std::size_t kMaxExplains = 16;     // explanations that wait for storage
// Ids of explanations: apart from those that all ranks must give alike.
inline constexpr std::uint64_t kFirstExplainId = std::uint64_t{1} << 63;

}  // namespace larder
