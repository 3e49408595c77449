// SPDX-License-Identifier: Apache-2.0
#include "door/page_store.h"

#include <algorithm>
#include <utility>

#include "door/get_call.h"
#include "door/put_call.h"
#include "door/real_ticker.h"
#include "door/register_backends.h"
#include "door/share_place.h"
#include "door/store_config.h"
#include "metadata/open_metadata.h"
#include "pool/memory.h"
#include "storage/clear_order.h"
#include "storage/shared/shared_backend.h"

namespace larder {
namespace {

constexpr std::size_t kStorageThreads = 4, kShareThreads = 2, kStorageQueue = 16'384;
constexpr Nanos kTick = std::chrono::milliseconds(100);

const BackendFactory& build_factory() {
  static const BackendFactory factory = [] {
    BackendFactory out;
    (void)register_backends(out);
    return out;
  }();
  return factory;
}

// As the factory does, but knows what every store takes.
Status check_options(const BackendFactory& factory, const std::string& backend, const BackendOptions& given) {
  const std::vector<BackendOptionHelp>& known = *factory.options_of(backend);
  const auto is_known = [&](const std::string& key) {
    return std::any_of(known.begin(), known.end(),
                       [&](const BackendOptionHelp& option) { return option.key == key || option.key == kAnyOption; });
  };
  for (const auto& [key, value] : given) {
    if (is_known(key)) continue;
    std::string message = "storage backend '" + backend + "' has no option '" + key + "'; its options:";
    for (const BackendOptionHelp& option : known) message += " " + option.key;
    message += "; of every store:";
    for (const BackendOptionHelp& option : store_option_help()) message += " " + option.key;
    return invalid_argument(std::move(message));
  }
  return Status::ok();
}

Result<std::unique_ptr<StorageBackend>> open_shared(StoreCore& core, const std::string& directory, SharePlace place,
                                                    OpenInner create) {
  core.share_threads = std::make_unique<ThreadPoolExecutor>("larder-share", kShareThreads, kStorageQueue);
  SharedStoreOptions options;
  options.directory = directory;
  options.store = place.store;
  options.store_text = std::move(place.text);
  options.arena_bytes = core.limits.staging_bytes;
  options.arena_option = "staging_bytes";
  Result<std::unique_ptr<SharedBackend>> shared =
      open_shared_store(options, std::move(create), *core.share_threads, *core.clock);
  if (!shared.is_ok()) return Status(shared.status().code(), "share_directory: " + shared.status().message());
  return std::unique_ptr<StorageBackend>(std::move(shared).value());
}

Status check_page(const PageSpace& space, const CallPage& page) {
  if (page.pool >= space.pools().size()) {
    return invalid_argument("pool " + std::to_string(page.pool) + ": the namespace has " +
                            std::to_string(space.pools().size()));
  }
  const PoolDescription& pool = space.pools()[page.pool];
  const std::size_t bytes = payload_bytes(page.segments);
  if (bytes != pool.page_bytes) {
    return invalid_argument("the segments have " + std::to_string(bytes) + " bytes; a page of pool '" + pool.name +
                            "' has " + std::to_string(pool.page_bytes));
  }
  const bool has_null = std::any_of(page.segments.begin(), page.segments.end(),
                                    [](const Segment& piece) { return piece.data == nullptr && piece.size != 0; });
  return has_null ? invalid_argument("a segment without memory") : Status::ok();
}

}  // namespace

std::string store_backend_names() {
  std::string out;
  for (const std::string& name : build_factory().names()) out += (out.empty() ? "" : ",") + name;
  return out;
}

const std::vector<BackendOptionHelp>* store_backend_options(std::string_view name) {
  return build_factory().options_of(name);
}

Result<std::unique_ptr<PageStore>> PageStore::open(const StoreOptions& options, const BackendFactory* factory) {
  if (factory == nullptr) factory = &build_factory();
  LARDER_RETURN_IF_ERROR(factory->check_name(options.backend));
  LARDER_ASSIGN_OR_RETURN(StoreConfig config, parse_store_config(options.config));

  LARDER_RETURN_IF_ERROR(check_options(*factory, options.backend, config.backend));
  SharePlace place;
  if (!config.share_directory.empty()) {
    LARDER_ASSIGN_OR_RETURN(place, share_place(options.backend, config.backend, config.share_directory));
  }

  std::unique_ptr<PageStore> out(new PageStore());
  StoreCore& core = out->core_;
  core.backend_name = options.backend;
  core.limits = config.limits;
  core.clock = &real_clock();
  core.metrics = std::make_unique<MetricsRegistry>();
  Result<std::unique_ptr<StagingArena>> arena = StagingArena::create(core.limits.staging_bytes, host_memory_source());
  if (!arena.is_ok()) return Status(arena.status().code(), "staging_bytes: " + arena.status().message());
  core.arena = std::move(arena).value();
  core.threads = std::make_unique<ThreadPoolExecutor>("larder-io", kStorageThreads, kStorageQueue);

  BackendEnvironment environment{&real_file_system(), core.clock, core.threads.get(), {}};
  const Segment staging = core.arena->memory();
  core.memory.add({&staging, 1});
  core.memory.add(options.memory);
  environment.open_metadata = [&core](const MetadataOptions& wanted) { return open_metadata(wanted, *core.clock); };
  const auto create = [&core, factory, name = options.backend, given = config.backend, environment] {
    BackendEnvironment current = environment;
    current.host_memory = core.memory.regions();
    return factory->create(name, given, current);
  };
  LARDER_ASSIGN_OR_RETURN(
      std::unique_ptr<StorageBackend> backend,
      config.share_directory.empty() ? create() : open_shared(core, config.share_directory, std::move(place), create));
  const auto seed = static_cast<std::uint64_t>(core.clock->now().time_since_epoch().count());
  // Of a shared store the process that hosts it orders the clears of all.
  if (config.share_directory.empty()) {
    backend = std::unique_ptr<StorageBackend>(
        std::make_unique<ClearOrder>(std::move(backend), ClearHistory::anew(*core.clock, seed)));
  }
  PipelineOptions pipeline;
  // An engine does not ask again by itself: a read that failed once must not hide its page for long.
  pipeline.negative_ttl = std::chrono::seconds(2);
  core.pipeline = make_pipeline(std::move(backend), pipeline, *core.clock, core.metrics.get(), seed);
  core.retry = std::make_shared<WriteRetry>(*core.pipeline, *core.clock, core.limits.retry);
  out->ticker_ = std::make_unique<Ticker>(kTick, [&core] {
    core.pipeline->tick();
    core.retry->tick();
  });
  return out;
}

PageStore::~PageStore() {
  ticker_.reset();
  if (core_.retry) core_.retry->stop();
}

Status PageStore::close(Nanos limit) {
  ticker_.reset();
  core_.retry->stop();
  return core_.pipeline->close(limit > Nanos{0} ? limit : core_.limits.timeout);
}

Status PageStore::exists(const PageSpace& space, std::vector<PageKey> keys, std::span<const PoolNeed> needs,
                         const CallTerms& terms, std::span<std::uint64_t> restorable,
                         std::span<std::uint64_t> present) {
  if (keys.size() > kMostKeys) {
    return invalid_argument("exists: " + std::to_string(keys.size()) + " keys; at most " + std::to_string(kMostKeys) +
                            " go into one call");
  }
  for (const PoolNeed& need : needs) {
    if (need.pool >= space.pools().size()) {
      return invalid_argument("exists: a need of pool " + std::to_string(need.pool) + "; the namespace has " +
                              std::to_string(space.pools().size()));
    }
    if (need.policy == HitPolicy::kTrailingPages && need.trailing_pages == 0) {
      return invalid_argument("exists: TRAILING_PAGES of pool '" + space.pools()[need.pool].name +
                              "' needs trailing_pages of 1 or more");
    }
    if (need.policy == HitPolicy::kAllPages && need.trailing_pages != 0) {
      return invalid_argument("exists: ALL_PAGES of pool '" + space.pools()[need.pool].name +
                              "' with trailing_pages; say TRAILING_PAGES, or 0");
    }
  }
  return run_exists(core_, space, std::move(keys), needs, terms, restorable, present);
}

template <class Call>
void PageStore::run(const PageSpace& space, std::span<CallPage> pages, const CallTerms& terms) {
  if (pages.size() > kMostPages) {
    for (CallPage& page : pages) page.status = invalid_argument("at most 65536 pages go into one call");
    return;
  }
  bool all_fit = true;
  for (CallPage& page : pages) {
    page.status = check_page(space, page);
    all_fit = all_fit && page.status.is_ok();
  }
  if (all_fit) {
    Call(core_, space, pages, terms).run();
    return;
  }
  // One wrong page is a mistake in the call: nothing of it begins, so that no group is stored in part.
  for (CallPage& page : pages) {
    if (page.status.is_ok()) page.status = cancelled("another page of the call is wrong");
  }
}

void PageStore::get(const PageSpace& space, std::span<CallPage> pages, const CallTerms& terms) {
  ++core_.counters.get_calls;
  run<GetCall>(space, pages, terms);
}

void PageStore::put(const PageSpace& space, std::span<CallPage> pages, const CallTerms& terms) {
  ++core_.counters.put_calls;
  run<PutCall>(space, pages, terms);
}

Status PageStore::add_memory(std::span<const Segment> regions) {
  core_.memory.add(regions);
  return core_.pipeline->register_memory(regions);
}

Status PageStore::clear(const PageSpace* space, const CallTerms& terms) {
  struct Answer {
    RankedMutex mutex{LockRank::kController};
    RankedCondition posted;
    bool is_there LARDER_GUARDED_BY(mutex) = false;
    Status status LARDER_GUARDED_BY(mutex);
  };
  const std::shared_ptr<const StoreScope> scope = space == nullptr ? nullptr : space->scope();
  const TimePoint deadline = core_.deadline_of(terms);
  const ClearMark before = core_.pipeline->clear_mark();
  const auto answer = std::make_shared<Answer>();
  LARDER_RETURN_IF_ERROR(
      core_.pipeline->submit_clear(scope, [answer, retry = core_.retry, scope, before](Status status) {
        if (status.is_ok()) retry->forget(scope.get(), before);
        LockGuard guard(answer->mutex);
        answer->status = std::move(status);
        answer->is_there = true;
        answer->posted.notify_one();
      }));
  LockGuard guard(answer->mutex);
  while (!answer->is_there) {
    (void)answer->posted.wait_for(answer->mutex, kCallSlice);
    if (!answer->is_there) LARDER_RETURN_IF_ERROR(check_patience(core_, deadline, terms));
  }
  return answer->status;
}

}  // namespace larder
