// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_cache_world.h"

#include <algorithm>
#include <utility>

namespace larder {
namespace {

constexpr std::size_t kLeastBlockBytes = 64;  // choose_block_bytes()

// An address range without memory: what reads or writes a page of it ends the program. So a run also shows that the
// cache's thread moves no bytes.
class NoMemory final : public Memory {
 public:
  explicit NoMemory(std::size_t bytes) : bytes_(bytes) {}
  [[nodiscard]] std::byte* data() const override { return reinterpret_cast<std::byte*>(kNowhere); }
  [[nodiscard]] std::size_t size() const override { return bytes_; }

 private:
  static constexpr std::uintptr_t kNowhere = std::uintptr_t{1} << 46;
  const std::size_t bytes_;
};

class NoMemorySource final : public MemorySource {
 public:
  [[nodiscard]] Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override {
    return std::unique_ptr<Memory>(std::make_unique<NoMemory>(bytes));
  }
};

}  // namespace

std::unique_ptr<MemorySource> no_memory() { return std::make_unique<NoMemorySource>(); }

Status InstantTransfer::submit(TransferRequest request, Done done) {
  if (request.gate) request.gate->arrive(layers_ - 1);
  done(TransferDone{request.id, Status::ok(), {}, {}});
  return Status::ok();
}

InstantStorage::~InstantStorage() { (void)close(std::chrono::nanoseconds(0)); }

Status InstantStorage::submit_exists(ExistsRequest request, ExistsDone done) {
  if (answer_ == InstantAnswer::kSilence) {
    waiting_.push_back(std::move(done));
    return Status::ok();
  }
  ExistsResult result;
  const Presence present(answer_ == InstantAnswer::kAll ? request.keys.size() : 0, true);
  for (const PoolName pool : request.pools) result.presence.push_back({pool, present});
  done(std::move(result));
  return Status::ok();
}

Status InstantStorage::submit_read(ReadRequest request, ReadDone done) {
  const bool has_all = answer_ == InstantAnswer::kAll;
  done({std::vector<Status>(request.items.size(), has_all ? Status::ok() : not_found("this storage keeps nothing"))});
  return Status::ok();
}

Status InstantStorage::submit_write(WriteRequest request, WriteDone done) {
  done({std::vector<Status>(request.groups.size())});
  return Status::ok();
}

Status InstantStorage::submit_clear(std::shared_ptr<const StoreScope>, ClearDone done) {
  done(Status::ok());
  return Status::ok();
}

Status InstantStorage::close(std::chrono::nanoseconds) {
  for (const ExistsDone& done : std::exchange(waiting_, {})) done({cancelled("this storage never answers"), {}});
  return Status::ok();
}

Result<ModelSpec> bench_model(const std::string& shape, std::uint32_t page_size) {
  ModelSpec model;
  model.id = "bench-" + shape;
  model.page_size = page_size;
  model.dims = ModelDims{};
  model.dims.q_heads = model.dims.kv_heads = model.dims.hidden = 1;
  model.dims.head_dim = 2;
  model.layers = {LayerKind::kAttention};
  if (shape == "full+swa") {
    model.layers.push_back(LayerKind::kSlidingAttention);
    model.dims.window = 128;
  } else if (shape == "full+mamba") {
    model.layers.push_back(LayerKind::kShortConv);
    model.dims.conv_kernel = 2;
  }
  LARDER_RETURN_IF_ERROR(finalize_model(model));
  return model;
}

Result<std::unique_ptr<CacheWorld>> make_cache_world(const ModelSpec& model, const CacheWorldSizes& sizes) {
  auto world = std::make_unique<CacheWorld>();
  world->model = model;
  world->memory = no_memory();
  Result<std::unique_ptr<DevicePools>> device = DevicePools::create(model, sizes.device, *world->memory);
  if (!device.is_ok()) return device.status();
  world->device = std::move(*device);
  if (sizes.host_pages > 0) {
    // Small pages, too, take a block of the host, which has so many bytes at least.
    std::size_t budget = sizes.host_pages * std::max(kLeastBlockBytes, host_slot_bytes(model, ComponentKind::kFull));
    if (model.has(ComponentKind::kSwa)) budget += sizes.host_pages * host_slot_bytes(model, ComponentKind::kSwa);
    if (model.has(ComponentKind::kMamba))
      budget += sizes.host_pages / 2 * host_slot_bytes(model, ComponentKind::kMamba);
    Result<std::unique_ptr<HostPools>> host = HostPools::create(model, HostLayout::kPageFirst, budget, *world->memory);
    if (!host.is_ok()) return host.status();
    world->host = std::move(*host);
  }
  world->transfer = std::make_unique<InstantTransfer>(model.layer_count());
  CacheParts parts;
  parts.model = &world->model;
  parts.device = world->device.get();
  parts.host = world->host.get();
  parts.transfer = world->transfer.get();
  parts.clock = &world->clock;
  if (sizes.has_events) parts.events = &world->events;
  Result<std::unique_ptr<Cache>> cache = Cache::create(sizes.config, parts);
  if (!cache.is_ok()) return cache.status();
  world->cache = std::move(*cache);
  if (sizes.has_storage) {
    world->storage = std::make_unique<InstantStorage>(sizes.answer);
    LARDER_RETURN_IF_ERROR(world->cache->attach_storage(*world->storage));
  }
  return world;
}

}  // namespace larder
