// SPDX-License-Identifier: Apache-2.0
#include "engine/composition.h"

#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "door/register_backends.h"
#include "engine/reference/reference_engine.h"
#include "metadata/open_metadata.h"
#include "transfer/cuda/cuda_device.h"

namespace larder {
namespace {

// Two copy threads: one direction's memcpy leaves most of the memory bandwidth unused, three are no faster than two.
constexpr std::size_t kCopyThreads = 2;
// A stream has one task in it at a time, and there are three.
constexpr std::size_t kCopyQueue = 64;
constexpr std::size_t kStorageThreads = 4;  // of each backend
constexpr std::size_t kStorageQueue = 16'384;
constexpr std::size_t kClosingThreads = 2, kClosingQueue = 256;
constexpr double kBytesPerGigabyte = 1e9;

Status with_place(const Status& status, std::string_view place) {
  return Status(status.code(), std::string(place) + ": " + status.message());
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(const Options& options, Executor& copy_threads) {
  const std::string_view name = options.device;
  if (name == "cpu") return make_cpu_device(copy_threads);
  CudaOptions cuda;
  bool is_cuda = name == "cuda";
  if (constexpr std::string_view kPrefix = "cuda:"; name.starts_with(kPrefix)) {
    const char* const end = name.data() + name.size();
    const auto [stopped, error] = std::from_chars(name.data() + kPrefix.size(), end, cuda.ordinal);
    is_cuda = error == std::errc() && stopped == end && cuda.ordinal >= 0;
  }
  if (!is_cuda) return invalid_argument("no such device; choose cpu, cuda or cuda:N, where N counts GPUs from 0");
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, open_cuda_device(cuda));
  return std::unique_ptr<Device>(std::move(device));
}

ComponentCounts device_slots(const Options& options, const ModelSpec& model) {
  ComponentCounts slots{};
  const auto pages = static_cast<std::uint32_t>(options.max_total_tokens / model.page_size);
  if (model.has(ComponentKind::kFull)) slots[index_of(ComponentKind::kFull)] = pages;
  if (model.has(ComponentKind::kSwa)) {
    slots[index_of(ComponentKind::kSwa)] =
        static_cast<std::uint32_t>(std::ceil(static_cast<double>(pages) * options.swa_full_tokens_ratio));
  }
  if (model.has(ComponentKind::kMamba)) slots[index_of(ComponentKind::kMamba)] = options.max_mamba_cache_size;
  return slots;
}

std::size_t host_bytes(const Options& options, std::size_t device_bytes) {
  const double bytes = options.hicache_size_gb > 0 ? options.hicache_size_gb * kBytesPerGigabyte
                                                   : options.hicache_ratio * static_cast<double>(device_bytes);
  constexpr double kMost = 1e18;  // what no machine has: the pools say so, and the conversion stays defined
  return static_cast<std::size_t>(std::min(bytes, kMost));
}

Result<std::unique_ptr<Composition>> Composition::create(const Options& options, FileSystem& files, Clock& clock,
                                                         MetricsRegistry& metrics, const MoreBackends& more,
                                                         const OpenDevice& open) {
  LARDER_RETURN_IF_ERROR(validate_options(options));
  LARDER_ASSIGN_OR_RETURN(ModelSpec model, load_model(options, files));
  LARDER_RETURN_IF_ERROR(validate_options_for(options, model));
  LARDER_RETURN_IF_ERROR(ReferenceEngine::check(model));
  LARDER_ASSIGN_OR_RETURN(const CacheConfig config, cache_config(options, files));
  LARDER_ASSIGN_OR_RETURN(
      const ExtraConfig extra,
      parse_extra_config(
          extra_config_source(options.hicache_storage_backend, options.hicache_storage_backend_extra_config), files));

  std::unique_ptr<Composition> out(new Composition());
  out->options = options;
  out->model = std::move(model);
  out->config = config;
  out->files = &files;
  out->clock = &clock;
  out->metrics = &metrics;
  LARDER_RETURN_IF_ERROR(register_backends(out->factory));
  if (more) LARDER_RETURN_IF_ERROR(more(out->factory));
  LARDER_RETURN_IF_ERROR(out->build_pools(open));
  LARDER_RETURN_IF_ERROR(out->open_events());
  LARDER_RETURN_IF_ERROR(out->build_cache(extra));
  return out;
}

Status Composition::build_pools(const OpenDevice& open) {
  copy_threads = std::make_unique<ThreadPoolExecutor>("copy", kCopyThreads, kCopyQueue);
  closing_threads = std::make_unique<ThreadPoolExecutor>("closing", kClosingThreads, kClosingQueue);
  Result<std::unique_ptr<Device>> opened = open(options, *copy_threads);
  if (!opened.is_ok()) return with_place(opened.status(), "--device " + options.device);
  device = std::move(opened).value();
  Result<std::unique_ptr<DevicePools>> on_device =
      DevicePools::create(model, device_slots(options, model), device->memory());
  if (!on_device.is_ok())
    return with_place(on_device.status(), "device pools (--max-total-tokens, --max-mamba-cache-size)");
  device_pools = std::move(on_device).value();
  if (options.enable_hierarchical_cache && !options.disable_radix_cache) {
    const HostLayout layout = parse_host_layout(options.hicache_mem_layout).value_or(HostLayout::kPageFirst);
    Result<std::unique_ptr<HostPools>> on_host =
        HostPools::create(model, layout, host_bytes(options, device_pools->bytes()), device->host_memory());
    if (!on_host.is_ok()) return with_place(on_host.status(), "host pools (--hicache-ratio, --hicache-size)");
    host_pools = std::move(on_host).value();
  }
  LARDER_ASSIGN_OR_RETURN(transfer,
                          TransferEngine::create(*device, *device_pools, host_pools.get(), config.max_operations));
  return Status::ok();
}

Status Composition::open_events() {
  const Result<KvEventConfig> wanted = parse_kv_event_config(options.kv_events_config);
  if (!wanted.is_ok() || !wanted->is_on) return wanted.status();
  const KvEventShape shape{wanted->form, wanted->all_components, model.page_size, model.dims.window, 0};
  LARDER_ASSIGN_OR_RETURN(events, open_kv_event_publisher(*wanted, shape, metrics));
  return Status::ok();
}

Status Composition::build_cache(const ExtraConfig& extra) {
  CacheParts parts;
  parts.model = &model;
  parts.device = device_pools.get();
  parts.host = host_pools.get();
  parts.transfer = transfer.get();
  parts.clock = clock;
  parts.metrics = metrics;
  parts.scope.layout = parse_host_layout(options.hicache_mem_layout).value_or(HostLayout::kPageFirst);
  parts.events = events.get();
  Result<std::unique_ptr<Cache>> made = Cache::create(config, parts);
  if (!made.is_ok()) {
    return with_place(made.status(),
                      "--max-total-tokens, --swa-full-tokens-ratio, --max-mamba-cache-size, --chunked-prefill-size");
  }
  cache = std::move(made).value();
  if (options.hicache_storage_backend.empty()) return Status::ok();
  Result<std::unique_ptr<StoragePipeline>> backend = make_backend(options.hicache_storage_backend, extra.backend);
  if (!backend.is_ok()) {
    return with_place(backend.status(), "Failed to create storage backend (--hicache-storage-backend)");
  }
  storage = std::move(backend).value();
  storage_options = extra.backend;
  return cache->attach_storage(*storage);
}

Result<std::unique_ptr<StoragePipeline>> Composition::make_backend(std::string_view name,
                                                                   const BackendOptions& backend_options) const {
  auto threads = std::make_unique<ThreadPoolExecutor>("storage", kStorageThreads, kStorageQueue);
  BackendEnvironment environment{files, clock, threads.get(), {}};
  environment.open_metadata = [this](const MetadataOptions& wanted) { return open_metadata(wanted, *clock); };
  if (host_pools) environment.host_memory.push_back(host_pools->memory());
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<StorageBackend> made, factory.create(name, backend_options, environment));
  const auto seed = static_cast<std::uint64_t>(clock->now().time_since_epoch().count());
  return make_pipeline(std::move(made), PipelineOptions{}, *clock, metrics, seed, std::move(threads));
}

// False: another has it, or it is gone.
bool RetiredBackend::take(bool waits) {
  LockGuard guard(mutex_);
  while (is_taken_ && waits) given_back_.wait(mutex_);
  if (is_taken_ || is_gone_) return false;
  is_taken_ = true;
  return true;
}

void RetiredBackend::give_back() {
  LockGuard guard(mutex_);
  is_taken_ = false;
  is_gone_ = backend_ == nullptr;
  given_back_.notify_all();
}

void RetiredBackend::try_to_close() {
  if (!take(false)) return;
  if (backend_->close(Nanos(0)).is_ok()) backend_.reset();
  give_back();
}

void RetiredBackend::end() {
  if (!take(true)) return;
  backend_.reset();
  give_back();
}

void Composition::retire(std::unique_ptr<StorageBackend> backend) {
  retired.push_back(std::make_shared<RetiredBackend>(std::move(backend)));
  close_retired();
}

void Composition::close_retired() {
  std::erase_if(retired, [](const auto& one) { return one->is_gone(); });
  for (const std::shared_ptr<RetiredBackend>& one : retired) {
    if (one->is_posted.exchange(true, std::memory_order_acq_rel)) continue;
    const Status posted = closing_threads->post([one] {
      one->try_to_close();
      one->is_posted.store(false, std::memory_order_release);
    });
    if (!posted.is_ok()) one->is_posted.store(false, std::memory_order_release);
  }
}

// A task may still hold a retired backend, in the queue of threads that hang: the backend is taken from it here, so
// that it ends before the memory that its operations use.
Composition::~Composition() {
  cache.reset();
  transfer.reset();
  for (const std::shared_ptr<RetiredBackend>& one : retired) one->end();
  storage.reset();
}

}  // namespace larder
