// SPDX-License-Identifier: Apache-2.0
// One rank of a simulated world: a cache or a connector with everything under it, on simulated time and a simulated
// disk.
//
//   disk (lives through crashes) ◄─ storage: witness ► pipeline ► (order of clears ►) faults ► file | hf3fs | memory
//   clock, background tasks      ◄─ device, pools, transfers ◄─ cache
//                                   memory of the engine     ◄─ connector
//
// Threads: confined to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "controller/cache.h"
#include "controller/connector.h"
#include "controller/rank_group.h"
#include "sim/faulty_backend.h"
#include "sim/sim_clock.h"
#include "sim/sim_file_system.h"
#include "sim/world/event_index.h"
#include "sim/world/pattern.h"
#include "sim/world/service_line.h"
#include "sim/world/sim_door.h"
#include "sim/world/store_witness.h"
#include "sim/world/story.h"
#include "storage/factory.h"
#include "storage/hf3fs/metadata_service.h"
#include "storage/pipeline/storage_pipeline.h"
#include "transfer/transfer.h"

namespace larder::sim {

// Passes copies on; the n-th one of a direction fails, its destination full of garbage.
class FailingDevice;

// A storage that was opened, and what has to live as long.
struct SimStorage {
  std::unique_ptr<StoragePipeline> pipeline;
  std::unique_ptr<StoreWitness> witness;  // in front of it: what the door is given
  FaultyBackend* faults = nullptr;        // inside
};

class SimRank {
 public:
  // All outlive the rank. `service` null: no hf3fs in this world. `mount`: files that it shares with the other ranks;
  // null: its storage lies on its own disk.
  SimRank(const WorldSpec& world, const ModelSpec& model, std::uint32_t number, SimClock& clock, SimService* service,
          SimFileSystem* mount);
  ~SimRank();

  // The process begins; `group` null: it is the only rank. No storage yet.
  [[nodiscard]] Status start(RankGroup* group);
  // ... ends. Its storages are closed already; copies that are under way are ended.
  void end();

  // Storage number `which` of this rank's disk (a directory of its own).
  [[nodiscard]] Status open_storage(std::uint64_t which);  // not attached yet
  void drop_opened();
  [[nodiscard]] Status attach_opened();
  void detach();
  [[nodiscard]] bool has_storage() const { return storage_.pipeline != nullptr; }
  [[nodiscard]] SimStorage& storage() { return storage_; }
  // Closes detached storages whose operations have ended.
  void close_retired();
  [[nodiscard]] std::size_t retired() const { return retired_.size(); }
  // What hangs in a storage, attached or detached, goes on.
  void release_hung();
  // From now on no operation fails or hangs; what hung goes on.
  void heal();
  void set_plan(const FaultPlan& plan);

  // ---- what its storages have said (store_witness.h)
  // After a crash, when its process has ended.
  void power_went();
  // One of them has let pages go, or wanted none: to be asked before what was acknowledged counts.
  [[nodiscard]] bool has_let_go();
  // Empty, or which rule for storages is broken. is_calm: pages that were acknowledged must be there.
  [[nodiscard]] std::string broken_word(bool is_calm) const;
  // Empty, or that the cache counts more pages as stored than were acknowledged. In a calm world, with no clear under
  // way.
  [[nodiscard]] std::string unstored() const;

  [[nodiscard]] bool is_started() const { return door_ != nullptr; }
  [[nodiscard]] SimDoor& door() { return *door_; }
  // Precondition: the world has that door.
  [[nodiscard]] Cache& cache() { return **static_cast<DoorOf<Cache>*>(door_.get()); }
  [[nodiscard]] Connector& connector() { return **static_cast<DoorOf<Connector>*>(door_.get()); }
  // Of an engine that keeps its books itself, what the cache has otherwise.
  [[nodiscard]] DevicePools& memory() { return *pools_; }
  [[nodiscard]] HostLayout layout() const;
  // Where its storage lies.
  [[nodiscard]] SimFileSystem& disk() { return mount_ != nullptr ? *mount_ : disk_; }
  [[nodiscard]] Pattern& pattern() { return *pattern_; }
  // Whether the copy that an engine of its own begins now is one that fails.
  [[nodiscard]] bool is_copy_to_fail(CopyDirection direction);
  // The n-th from now (1: the next) fails, and those after it, `count` in all; 0: none does.
  void fail_copy(CopyDirection direction, std::uint64_t n, std::uint64_t count = 1);
  void fail_operation(std::uint64_t n, StorageFault fault);
  void fail_call(std::uint64_t n, LineFault fault, std::uint64_t count);  // to a remote service
  void fail_post(std::uint64_t n, std::uint64_t count);                   // to the executor
  // How many of these have struck.
  [[nodiscard]] std::uint64_t struck() const { return struck_ + (executor_ ? executor_->refused() : 0); }
  // Empty; or after a flush, which slots are still taken.
  [[nodiscard]] std::string leaks() const;
  // Empty; or how a router that listens to it is wrong. After a poll.
  [[nodiscard]] std::string compare_events() const { return listens() ? events_->compare(door_->tree()) : ""; }
  // Of the pages that the router knows of, the same on ranks that keep the same ones. After a poll.
  [[nodiscard]] std::optional<std::uint64_t> pages() const { return listens() ? events_->digest() : std::nullopt; }
  // What all ranks must agree on, in a line.
  [[nodiscard]] std::string outline() const;

 private:
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> make_backend(std::uint64_t which);
  [[nodiscard]] static TenantLimits tenant_limits(std::uint64_t seed);
  [[nodiscard]] CacheConfig config() const;
  [[nodiscard]] bool listens() const;  // somebody to its events
  // Its storage keeps what it took, and is its own: what hf3fs has also depends on what its service forgot.
  [[nodiscard]] bool is_watched() const { return world_.storage != "hf3fs"; }
  void note_let_go(const SimStorage& one);
  // Of own memory or, in one world of two, of blocks that the engine lends, with a slot of each component that it
  // keeps.
  [[nodiscard]] Result<std::unique_ptr<DevicePools>> make_pools(ComponentCounts slots);
  [[nodiscard]] Status open_cache(const NamespaceScope& scope, RankGroup* group);
  [[nodiscard]] Status open_connector(const NamespaceScope& scope, RankGroup* group);

  const WorldSpec& world_;
  const ModelSpec& model_;
  const std::uint32_t number_;
  SimClock& clock_;
  SimService* const service_;
  SimFileSystem* const mount_;
  SimFileSystem disk_;
  std::uint64_t struck_ = 0;
  std::shared_ptr<ServiceLine> line_;  // null: the service is inside, or there is none
  BackendFactory factory_;
  std::uint64_t lives_ = 0;
  std::map<std::uint64_t, std::shared_ptr<StoreRecord>> records_;  // by directory
  bool has_let_go_ = false;
  FaultPlan plan_;

  // Of one life; in this order, and ended in the reverse one.
  std::unique_ptr<SimExecutor> executor_;
  std::unique_ptr<Device> device_;
  FailingDevice* failing_ = nullptr;  // device_
  std::array<std::vector<std::byte>, kComponentCount> lent_;
  std::unique_ptr<DevicePools> pools_;
  std::unique_ptr<HostPools> host_;
  std::unique_ptr<Pattern> pattern_;
  std::unique_ptr<TransferEngine> transfer_;
  std::vector<SimStorage> retired_;
  SimStorage storage_, opened_;
  std::unique_ptr<EventIndex> events_;
  std::unique_ptr<SimDoor> door_;
};

}  // namespace larder::sim
