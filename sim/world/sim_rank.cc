// SPDX-License-Identifier: Apache-2.0
#include "sim/world/sim_rank.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/mix.h"
#include "pool/memory.h"
#include "sim/world/sim_page_store.h"
#include "storage/clear_order.h"
#include "storage/file/file_backend.h"
#include "storage/hf3fs/hf3fs_backend.h"
#include "storage/memory/memory_backend.h"
#include "tree/tree_backlog.h"

namespace larder::sim {

namespace {

constexpr std::uint64_t kClearsSalt = 0x636c65617273;  // half of the worlds order their clears

// From the heap, without asking the machine how much it has: a world needs little, and there are thousands of them.
class HeapSource final : public MemorySource {
 public:
  [[nodiscard]] Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override {
    if (bytes == 0) return invalid_argument("a memory region of 0 bytes was asked for");
    return std::unique_ptr<Memory>(std::make_unique<HeapMemory>(bytes));
  }
  static HeapSource& instance() {
    static HeapSource source;
    return source;
  }

 private:
  class HeapMemory final : public Memory {
   public:
    explicit HeapMemory(std::size_t bytes) : size_(bytes), data_(new (kPage) std::byte[bytes]) {}
    HeapMemory(const HeapMemory&) = delete;
    HeapMemory& operator=(const HeapMemory&) = delete;
    ~HeapMemory() override { ::operator delete[](data_, kPage); }
    [[nodiscard]] std::byte* data() const override { return data_; }
    [[nodiscard]] std::size_t size() const override { return size_; }

   private:
    static constexpr std::align_val_t kPage{4096};
    const std::size_t size_;
    std::byte* const data_;
  };
};

}  // namespace

class FailingDevice final : public Device {
 public:
  FailingDevice(std::unique_ptr<Device> inner, std::uint64_t& struck) : inner_(std::move(inner)), struck_(struck) {}
  // `count` copies of a direction, from the n-th from now on.
  void fail(CopyDirection direction, std::uint64_t n, std::uint64_t count) {
    left_[static_cast<std::size_t>(direction)] = n;
    more_[static_cast<std::size_t>(direction)] = count;
  }
  // Whether the copy that begins now is one that fails.
  [[nodiscard]] bool strikes(CopyDirection direction) {
    std::uint64_t& left = left_[static_cast<std::size_t>(direction)];
    if (left == 0 || --left > 0) return false;
    std::uint64_t& more = more_[static_cast<std::size_t>(direction)];
    left = more > 1 ? 1 : 0;
    more -= more > 0 ? 1 : 0;
    ++struck_;
    return true;
  }

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] MemorySource& memory() override { return HeapSource::instance(); }
  [[nodiscard]] Result<StreamId> create_stream(std::size_t queue_limit) override {
    return inner_->create_stream(queue_limit);
  }
  void destroy_streams(std::span<const StreamId> streams) override { inner_->destroy_streams(streams); }
  [[nodiscard]] Status enqueue(StreamId stream, CopyDirection direction, StreamWork work) override {
    if (strikes(direction)) spoil(work);
    return inner_->enqueue(stream, direction, std::move(work));
  }
  void synchronize() override { inner_->synchronize(); }

 private:
  static void spoil(StreamWork& work) {
    work.make_ops = [make = std::move(work.make_ops)](std::uint32_t step, std::vector<CopyOp>& out) {
      if (make) make(step, out);
      for (const CopyOp& op : out) {
        for (std::size_t row = 0; row < op.rows; ++row) {
          std::fill_n(op.dst + row * op.dst_pitch, op.width, std::byte{0xA7});
        }
      }
      out.clear();
    };
    work.done = [done = std::move(work.done)](std::uint32_t step, const Status&) {
      if (done) done(step, unavailable("simulated: the copy failed"));
    };
  }

  const std::unique_ptr<Device> inner_;
  std::uint64_t& struck_;
  std::array<std::uint64_t, 3> left_{}, more_{};  // by CopyDirection
};

SimRank::SimRank(const WorldSpec& world, const ModelSpec& model, std::uint32_t number, SimClock& clock,
                 SimService* service, SimFileSystem* mount)
    : world_(world),
      model_(model),
      number_(number),
      clock_(clock),
      service_(service),
      mount_(mount),
      disk_(world.seed * 31 + number, std::uint64_t{4} << 20) {
  if (service_ != nullptr && world.service == "remote") {
    line_ = std::make_shared<ServiceLine>(*service_, clock_, world.seed * 131 + number,
                                          std::chrono::microseconds(world.service_us), struck_);
  }
  (void)register_memory_backend(factory_);
  (void)register_file_backend(factory_);
}

SimRank::~SimRank() { end(); }

// Of two tenants of the stories, and of all others together with those of no salt.
TenantLimits SimRank::tenant_limits(std::uint64_t seed) {
  TenantLimits limits;
  for (std::uint64_t i = 1; i <= 2; ++i) {
    TenantRule rule;
    rule.name = "tenant-" + std::to_string(i);
    rule.salt = "tenant " + std::to_string(i);
    const double floor = 0.125 * static_cast<double>((seed + i) % 5);
    rule.bounds[0] = {TierShare{.share = floor}, TierShare{.share = floor + 0.125}};
    rule.bounds[1] = {TierShare{.share = 0.5 - floor}, {}};
    limits.tenants.push_back(std::move(rule));
  }
  if (seed % 2 == 0) limits.others[0].ceiling = limits.others[1].ceiling = TierShare{.share = 0.25};
  return limits;
}

CacheConfig SimRank::config() const {
  const std::uint32_t page = model_.page_size;
  CacheConfig config;
  config.write_policy = parse_write_policy(world_.write).value_or(WritePolicy::kWriteThrough);
  config.prefetch_policy = parse_prefetch_policy(world_.prefetch).value_or(PrefetchPolicy::kTimeout);
  config.eviction_policy = parse_eviction_policy(world_.eviction).value_or(EvictionPolicy::kLru);
  config.exclusive_tiers = world_.tiers == "exclusive";
  if (world_.tenants == "bounded") config.tenant_limits = tenant_limits(world_.seed);
  config.prefetch_threshold = world_.seed / 64 % 4 == 1 ? 3 * page : page;
  config.prefetch_timeout_base = std::chrono::milliseconds(300);
  config.load_back_threshold = static_cast<std::uint32_t>(world_.seed % 2) * page;
  config.chunked_prefill_tokens = 4 * page;
  config.loads_by_layer = world_.seed % 3 != 0;
  config.decode_headroom_tokens = static_cast<std::uint32_t>(world_.headroom);
  config.checkpoint_grid = static_cast<std::uint32_t>(world_.seed / 2 % 2) * 4 * page;
  // Large batches, and writes of a node or a page each, of which several are under way at once.
  config.store_batch_nodes = world_.seed / 4 % 2 == 0 ? 64 : 1;
  config.store_group_bytes = world_.seed / 8 % 2 == 0 ? std::uint64_t{32} << 20 : 1;
  // One read for a whole prefetch, or one for each page.
  config.prefetch_batch_bytes = world_.seed / 16 % 2 == 0 ? std::uint64_t{8} << 20 : 1;
  config.poll_budget = world_.seed / 32 % 2 == 0 ? 4096 : 16;
  config.max_operations = static_cast<std::uint32_t>(world_.operations);
  config.storage_durable = world_.seed / 128 % 2 == 1;
  if (world_.odd == 1) {
    const std::uint64_t bits = mix64(world_.seed);
    config.selective_hits = static_cast<std::uint32_t>(1 + bits % 3);
    config.load_back_threshold = static_cast<std::uint32_t>(bits / 4 % 4) * page;
    config.checkpoint_grid = static_cast<std::uint32_t>(bits / 16 % 4) * 2 * page;
    config.max_open_steps = static_cast<std::uint32_t>(world_.ahead + 2 + bits / 64 % 4);
    config.prefetch_capacity = std::array{0.05, 0.25, 0.5, 1.0}[bits / 256 % 4];
    // So few that some are forgotten.
    const bool forgets = bits / 1024 % 2 == 1 && config.eviction_policy == EvictionPolicy::kValue;
    if (forgets) config.eviction_order = value_order({.checkpoints = {.entries = 16}});
  }
  if (world_.door != "cache") return config;
  config.max_namespaces = static_cast<std::uint32_t>(world_.namespaces);
  config.max_requests = static_cast<std::uint32_t>(world_.requests);
  config.enabled = world_.without != "cache";
  config.host_tier_for_state = world_.without != "host_states";
  config.host_tier_for_full = world_.without != "host_full";
  return config;
}

bool SimRank::listens() const { return world_.listeners == "all" || (world_.listeners == "first" && number_ == 0); }

// A block has all layers and planes of a slot, and some bytes of the engine's.
Result<std::unique_ptr<DevicePools>> SimRank::make_pools(ComponentCounts slots) {
  constexpr std::size_t kOwnBytes = 24;
  if (world_.seed / 32 % 2 == 0) return DevicePools::create(model_, slots, device_->memory());
  ReservedSlots reserved;
  std::vector<LentPlane> planes;
  for (const ComponentKind c : kAllComponents) {
    if (slots[index_of(c)]++ > 0) reserved[index_of(c)] = {DeviceSlot(0)};
    if (!model_.has(c)) slots[index_of(c)] = 0;
    std::vector<std::byte>& memory = lent_[index_of(c)];
    const std::size_t block = (model_.has(c) ? model_.slot_bytes(c) : 0) / 8 * 8 + 8 + kOwnBytes;
    memory.resize(slots[index_of(c)] * block);
    std::size_t offset = 0;
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t layer = 0; layer < pool->layers.size(); ++layer) {
        for (std::size_t plane = 0; plane < pool->planes.size(); ++plane) {
          planes.push_back({pool->name, layer, plane, memory.data() + offset, block});
          offset += pool->planes[plane].layer_bytes();
        }
      }
    }
  }
  return DevicePools::create(model_, slots, planes, reserved);
}

Status SimRank::start(RankGroup* group) {
  ++lives_;
  executor_ = std::make_unique<SimExecutor>(clock_, world_.seed * 977 + std::uint64_t{13} * number_ + lives_,
                                            std::chrono::microseconds(world_.least_us),
                                            std::chrono::microseconds(world_.most_us), std::size_t{1} << 20);
  auto failing = std::make_unique<FailingDevice>(make_cpu_device(*executor_), struck_);
  failing_ = failing.get();
  device_ = std::move(failing);
  const auto pages = static_cast<std::uint32_t>(world_.device_pages);
  ComponentCounts slots = {pages, pages, static_cast<std::uint32_t>(world_.device_states)};
  for (const ComponentKind c : kAllComponents) {
    if (!model_.has(c)) slots[index_of(c)] = 0;
  }
  Result<std::unique_ptr<DevicePools>> pools = make_pools(slots);
  if (!pools.is_ok()) return pools.status();
  pools_ = std::move(pools).value();
  pattern_ = std::make_unique<Pattern>(model_, *pools_, number_);
  const HostLayout host_layout = layout();
  const std::size_t bytes = world_.host_pages * std::max<std::size_t>(64, model_.slot_bytes(ComponentKind::kFull));
  Result<std::unique_ptr<HostPools>> host = HostPools::create(model_, host_layout, bytes, HeapSource::instance());
  if (!host.is_ok()) return host.status();
  host_ = std::move(host).value();
  NamespaceScope scope;
  scope.layout = host_layout;
  scope.tp_rank = number_;
  scope.tp_size = static_cast<std::uint32_t>(world_.ranks);
  events_ = std::make_unique<EventIndex>(world_.seed * 31 + number_ + lives_);
  return world_.door == "connector" ? open_connector(scope, group) : open_cache(scope, group);
}

Status SimRank::open_cache(const NamespaceScope& scope, RankGroup* group) {
  Result<std::unique_ptr<TransferEngine>> transfer =
      TransferEngine::create(*device_, *pools_, host_.get(), static_cast<std::uint32_t>(world_.operations));
  if (!transfer.is_ok()) return transfer.status();
  transfer_ = std::move(transfer).value();
  CacheParts parts;
  parts.model = &model_;
  parts.device = pools_.get();
  parts.host = host_.get();
  parts.transfer = transfer_.get();
  parts.clock = &clock_;
  parts.ranks = group;
  parts.scope = scope;
  parts.events = listens() ? events_.get() : nullptr;
  Result<std::unique_ptr<Cache>> cache = Cache::create(config(), parts);
  if (!cache.is_ok()) return cache.status();
  door_ = std::make_unique<DoorOf<Cache>>(std::move(cache).value());
  return Status::ok();
}

Status SimRank::open_connector(const NamespaceScope& scope, RankGroup* group) {
  ConnectorConfig of_door;
  of_door.tiers = config();
  of_door.max_points = static_cast<std::uint32_t>(1 + world_.seed % 5);
  ConnectorParts parts;
  parts.model = &model_;
  parts.host = host_.get();
  parts.clock = &clock_;
  parts.executor = executor_.get();
  parts.ranks = group;
  parts.scope = scope;
  parts.events = listens() ? events_.get() : nullptr;
  Result<std::unique_ptr<Connector>> connector = Connector::create(of_door, parts);
  if (!connector.is_ok()) return connector.status();
  door_ = std::make_unique<DoorOf<Connector>>(std::move(connector).value());
  return Status::ok();
}

HostLayout SimRank::layout() const { return parse_host_layout(world_.layout).value_or(HostLayout::kPageFirst); }

// The storage first: that ends its operations, whose buffers are in the pools. Copies that nobody runs any more are
// ended by synchronize(): the cache waits for them.
void SimRank::end() {
  if (door_) door_->detach_storage();
  opened_ = {};
  storage_ = {};
  retired_.clear();
  if (device_) device_->synchronize();
  door_.reset();
  transfer_.reset();
  pattern_.reset();
  host_.reset();
  pools_.reset();
  device_.reset();
  if (executor_) struck_ += executor_->refused();
  executor_.reset();
}

Result<std::unique_ptr<StorageBackend>> SimRank::make_backend(std::uint64_t which) {
  const std::string size = std::to_string(world_.disk_kib) + "Ki";
  BackendEnvironment environment{&disk(), &clock_, executor_.get()};
  const std::string directory = "/cache" + std::to_string(which);
  if (world_.storage == "memory") return factory_.create("memory", {{"max_size", size}}, environment);
  if (world_.storage == "file") {
    // Small segments are rolled and cleaned often; large ones let small writes go together.
    const bool is_large = world_.disk_kib >= 1024;
    BackendOptions options = {
        {"directory", directory}, {"max_size", size}, {"segment_size", is_large ? "256Ki" : "64Ki"}};
    if (world_.seed % 5 == 0) options["admission"] = "second_offer";
    return factory_.create("file", options, environment);
  }
  if (world_.storage != "hf3fs") return not_found("no simulated storage is called '" + world_.storage + "'");
  hf3fs::Hf3fsOptions options;
  options.file_path_prefix = directory + "/pages";
  options.file_size = world_.disk_kib << 10;
  options.rank = static_cast<std::int64_t>(number_);
  const std::uint64_t session = world_.seed * 1000 + std::uint64_t{100} * number_ + lives_;
  Result<std::unique_ptr<SimPageStore>> store = SimPageStore::create(disk(), directory, *executor_, clock_, session);
  if (!store.is_ok()) return store.status();
  return std::unique_ptr<StorageBackend>(
      std::make_unique<hf3fs::Hf3fsBackend>(options, line_ ? line_ : service_->shared(), std::move(store).value(),
                                            *executor_, clock_, std::array<std::uint64_t, 2>{session, which}));
}

Status SimRank::open_storage(std::uint64_t which) {
  Result<std::unique_ptr<StorageBackend>> made = make_backend(which);
  if (!made.is_ok()) return made.status();
  auto faults = std::make_unique<FaultyBackend>(std::move(made).value(), world_.seed * 7 + number_ + lives_, plan_);
  opened_.faults = faults.get();
  PipelineOptions pipeline;
  if (world_.seed % 7 == 0) pipeline.queue_limit = 1, pipeline.max_reads_in_flight = pipeline.max_writes_in_flight = 1;
  std::unique_ptr<StorageBackend> below = std::move(faults);
  const std::uint64_t session = world_.seed * 1000 + std::uint64_t{100} * number_ + lives_;
  if (mix64(world_.seed ^ kClearsSalt) % 2 == 0) {
    below = std::make_unique<ClearOrder>(std::move(below), ClearHistory::anew(clock_, session));
  }
  opened_.pipeline = make_pipeline(std::move(below), pipeline, clock_, nullptr, world_.seed);
  std::shared_ptr<StoreRecord>& record = records_[which];
  if (!record || world_.storage == "memory") record = std::make_shared<StoreRecord>();
  opened_.witness = std::make_unique<StoreWitness>(*opened_.pipeline, record, config().storage_durable);
  return Status::ok();
}

Status SimRank::attach_opened() {
  if (storage_.pipeline) detach();
  storage_ = std::exchange(opened_, {});
  return door_->attach_storage(*storage_.witness);
}

// It may have begun something already: it closes when that is over.
void SimRank::drop_opened() {
  if (opened_.pipeline) retired_.push_back(std::exchange(opened_, {}));
  close_retired();
}

void SimRank::detach() {
  door_->detach_storage();
  retired_.push_back(std::exchange(storage_, {}));
  close_retired();
}

void SimRank::close_retired() {
  std::erase_if(retired_, [this](SimStorage& one) {
    const bool is_closed = one.pipeline->close(Nanos(0)).is_ok();
    note_let_go(one);
    return is_closed;
  });
}

void SimRank::power_went() {
  for (const auto& [which, record] : records_) record->power_went();
}

void SimRank::note_let_go(const SimStorage& one) {
  if (!one.pipeline || !is_watched()) return;  // stats() of hf3fs asks its service
  const BackendStats stats = one.pipeline->stats();
  has_let_go_ = has_let_go_ || stats.evicted + stats.declined > 0;
}

bool SimRank::has_let_go() {
  note_let_go(storage_);
  for (const SimStorage& one : retired_) note_let_go(one);
  return has_let_go_;
}

std::string SimRank::broken_word(bool is_calm) const {
  if (!is_watched()) return "";
  for (const auto& [which, record] : records_) {
    const std::string& broken = !record->came_back().empty() || !is_calm ? record->came_back() : record->lost();
    if (!broken.empty()) return "rank " + std::to_string(number_) + ": " + broken;
  }
  return "";
}

std::string SimRank::unstored() const {
  if (!is_watched() || !has_storage() || !model_.has(ComponentKind::kFull)) return "";
  constexpr std::uint32_t kNoEpoch = 0xffff'ffff;  // under which all of the host's pages are unstored
  const RadixTree& tree = door_->tree();
  const std::size_t full = index_of(ComponentKind::kFull);
  std::uint64_t pages = 0;
  for (const NodeId node : tree.backlog().unstored(kNoEpoch, std::size_t{1} << 30)) {
    const NodeView view = tree.view(node);
    const bool is_declined = view.declined_epoch >= view.stored_epoch;  // the later one is of this storage
    const bool is_stored = !view.is_unstored && !view.is_storing && !view.rests && !is_declined;
    if (is_stored && !view.host[full].empty() && !view.host_pending[full]) pages += view.end - view.begin;
  }
  const std::uint64_t stored = storage_.witness->record().stored(model_.pools_of(ComponentKind::kFull).front()->name);
  if (pages <= stored) return "";
  return "rank " + std::to_string(number_) + ": the cache takes " + std::to_string(pages) +
         " pages for stored, and storage has acknowledged " + std::to_string(stored);
}

void SimRank::set_plan(const FaultPlan& plan) {
  plan_ = plan;
  if (storage_.faults != nullptr) storage_.faults->set_plan(plan);
}

void SimRank::release_hung() {
  const auto release = [](const SimStorage& one) {
    if (one.faults == nullptr) return;
    (void)one.faults->release_hung();
    (void)one.faults->release_all();
  };
  release(storage_);
  for (const SimStorage& one : retired_) release(one);
}

void SimRank::heal() {
  disk().clear_fault();
  set_plan({});
  fail_operation(0, StorageFault::kRefused);
  fail_post(0, 0);
  if (line_) line_->clear_fault();
  for (const CopyDirection direction :
       {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice, CopyDirection::kDeviceToDevice}) {
    fail_copy(direction, 0);
  }
  release_hung();
}

void SimRank::fail_copy(CopyDirection direction, std::uint64_t n, std::uint64_t count) {
  failing_->fail(direction, n, count);
}

bool SimRank::is_copy_to_fail(CopyDirection direction) { return failing_->strikes(direction); }

void SimRank::fail_operation(std::uint64_t n, StorageFault fault) {
  if (storage_.faults != nullptr) storage_.faults->fail_nth(n, fault, [this] { ++struck_; });
}

void SimRank::fail_post(std::uint64_t n, std::uint64_t count) { executor_->refuse_nth(n, count); }

void SimRank::fail_call(std::uint64_t n, LineFault fault, std::uint64_t count) {
  if (line_) line_->fail_nth(n, fault, count);
}

std::string SimRank::leaks() const {
  for (const ComponentKind c : kAllComponents) {
    if (!model_.has(c)) continue;
    for (const auto& [counts, tier] :
         {std::pair(pools_->slots(c).counts(), "device"), std::pair(host_->counts(c), "host")}) {
      if (counts.live + counts.quarantined + counts.leases == 0) continue;
      return "rank " + std::to_string(number_) + ": after a flush " + std::to_string(counts.live) + " slots of " +
             tier + " component " + std::string(component_name(c)) + " are taken, " +
             std::to_string(counts.quarantined) + " in quarantine, " + std::to_string(counts.leases) + " leases";
    }
  }
  return "";
}

std::string SimRank::outline() const {
  std::string out;
  for (const ComponentKind c : kAllComponents) {
    const SlotTable::Counts slots = pools_->slots(c).counts();
    out += std::to_string(slots.free) + '/' + std::to_string(slots.live) + ' ';
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const TierCounts& counts = door_->tree().counts(c, tier);
      out += std::to_string(counts.resident) + '/' + std::to_string(counts.locked) + '/' +
             std::to_string(counts.pending) + ' ';
    }
  }
  const CacheCounters counters = door_->counters();
  return out + "nodes " + std::to_string(door_->tree().node_count()) + " stored " + std::to_string(counters.stored) +
         " prefetched " + std::to_string(counters.prefetched);
}

}  // namespace larder::sim
