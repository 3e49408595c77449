// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/hf3fs_backend.h"

#include <algorithm>
#include <utility>

#include "storage/hf3fs/hf3fs_jobs.h"

namespace larder::hf3fs {
namespace {

// More pages than these are looked up by a task, not by the caller.
constexpr std::size_t kQuickItems = 4;

void add_counts(BackendStats& out, const NamespaceStats& numbers, const NamedGeometry& geometry) {
  out.pages += numbers.stored;
  out.bytes += numbers.stored * geometry.payload_bytes;
  out.physical_bytes += numbers.stored * geometry.slots.slot_bytes;
  out.capacity_bytes += numbers.pages * geometry.slots.slot_bytes;
  out.evicted += numbers.evicted;
}

}  // namespace

Hf3fsBackend::Hf3fsBackend(const Hf3fsOptions& options, std::shared_ptr<MetadataService> service,
                           std::unique_ptr<PageStore> store, Executor& executor, Clock& clock,
                           std::array<std::uint64_t, 2> seed)
    : options_(options),
      service_(std::move(service)),
      store_(std::move(store)),
      executor_(executor),
      clock_(clock),
      process_(seed),
      gate_("hf3fs", options.queue_limit),
      counts_(service_, executor),
      spaces_(options_, *service_, clock) {
  info_.name = "hf3fs";
  info_.persistent = true;
  info_.atomic_groups = true;
}

Hf3fsBackend::~Hf3fsBackend() { gate_.drain(); }

Status Hf3fsBackend::submit_exists(ExistsRequest request, ExistsDone done) {
  if (service_->is_remote()) {
    return submit_operation<ExistsOperation>(gate_, executor_, std::move(request), std::move(done),
                                             [this](const auto& op) { run_exists(op); });
  }
  // A look-up in this process's memory: done here, sooner than a thread would wake.
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  LARDER_ASSIGN_OR_RETURN(OperationGate::Ticket ticket, gate_.enter_inline());
  run_exists(std::make_shared<ExistsOperation>(std::move(request), std::move(done), std::move(ticket)));
  return Status::ok();
}
Status Hf3fsBackend::submit_read(ReadRequest request, ReadDone done) {
  return submit_operation<ReadOperation>(
      gate_, executor_, std::move(request), std::move(done), [this](const auto& op) { run_read(op); },
      [this](const ReadRequest& asked) { return asked.terms.caller_waits || is_quick(asked); });
}
Status Hf3fsBackend::submit_write(WriteRequest request, WriteDone done) {
  return submit_operation<WriteOperation>(
      gate_, executor_, std::move(request), std::move(done), [this](const auto& op) { run_write(op); },
      [this](const WriteRequest& asked) { return asked.terms.caller_waits || is_quick(asked); });
}
Status Hf3fsBackend::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  return submit_operation<ClearOperation>(gate_, executor_, std::move(scope), std::move(done),
                                          [this](const auto& op) { run_clear(op); });
}

Status Hf3fsBackend::close(std::chrono::nanoseconds limit) {
  LARDER_RETURN_IF_ERROR(gate_.close_within(limit));
  return store_->close(limit);
}

bool Hf3fsBackend::is_quick(const ReadRequest& request) const {
  const std::vector<ReadItem>& items = request.items;
  if (service_->is_remote() || items.size() > kQuickItems) return false;
  return std::all_of(items.begin(), items.end(), [&](const ReadItem& item) {
    return is_known(*request.scope, item.pool, payload_bytes(item.payload), PageTransfer::Kind::kRead);
  });
}

bool Hf3fsBackend::is_quick(const WriteRequest& request) const {
  if (service_->changes_may_wait() || request.groups.size() != 1) return false;
  const std::vector<WriteItem>& items = request.groups[0].items;
  return items.size() <= kQuickItems && std::all_of(items.begin(), items.end(), [&](const WriteItem& item) {
           return is_known(*request.scope, item.pool, payload_bytes(item.payload), PageTransfer::Kind::kWrite);
         });
}

bool Hf3fsBackend::is_known(const StoreScope& scope, PoolName pool, std::uint64_t payload_bytes,
                            PageTransfer::Kind purpose) const {
  const SpacePtr space = spaces_.known(scope, pool, payload_bytes);
  return space != nullptr && store_->has_open(space->base, purpose);
}

Result<std::shared_ptr<PageFiles>> Hf3fsBackend::files_of(const Space& space, PageTransfer::Kind purpose) {
  return store_->open_files(space.base, space.slots.files, purpose);
}

void Hf3fsBackend::post_finish(std::function<void()> task) {
  if (!executor_.post(task).is_ok()) task();
}

void Hf3fsBackend::run_exists(const std::shared_ptr<ExistsOperation>& op) {
  const ExistsRequest& request = op->request;
  std::vector<std::array<char, 64>> keys;
  for (const PageKey& key : request.keys) keys.push_back(metadata_key(request.scope->namespace_digest, key));
  std::vector<MetadataKeys> wanted;
  std::vector<SpacePtr> kept;            // whose names `wanted` points to
  std::vector<std::size_t> pool_number;  // of each entry of `wanted`
  ExistsResult result;
  for (std::size_t i = 0; i < request.pools.size(); ++i) {
    result.presence.push_back({request.pools[i], std::vector<bool>(keys.size(), false)});
    Result<std::vector<SpacePtr>> spaces = spaces_.spaces_of(*request.scope, request.pools[i]);
    if (!spaces.is_ok()) {
      op->result = {spaces.status(), {}};
      return;
    }
    for (SpacePtr& space : *spaces) {
      MetadataKeys& part = wanted.emplace_back();
      part.name_space = &space->name;
      for (const auto& key : keys) part.keys.push_back(view_of(key));
      pool_number.push_back(i);
      kept.push_back(std::move(space));
    }
  }
  if (wanted.empty()) {
    op->result = std::move(result);
    return;
  }
  const auto found = spaces_.call_service([&] { return service_->find(wanted, Nanos(0)); });
  const Status status = found.is_ok()
                            ? check_shape(*found, wanted, [](const MetadataKeys& part) { return part.keys.size(); })
                            : found.status();
  if (!status.is_ok()) {
    op->result = {status, {}};
    return;
  }
  for (std::size_t part = 0; part < wanted.size(); ++part) {
    auto& present = result.presence[pool_number[part]].present;
    for (std::size_t i = 0; i < keys.size(); ++i) present[i] = present[i] || (*found)[part][i].has_value();
  }
  op->result = std::move(result);
}

void Hf3fsBackend::run_clear(const std::shared_ptr<ClearOperation>& op) {
  const std::string_view prefix = op->request ? view_of(op->request->namespace_digest) : std::string_view();
  std::set<MetadataNamespace> names;
  Status worst = spaces_.names_to_clear(names);
  for (const MetadataNamespace& name : names) {
    const Status cleared = service_failure(service_->clear(name, prefix).status());
    // A namespace that the service has lost holds nothing; whoever writes to it next makes it anew.
    if (!cleared.is_ok() && cleared.code() != StatusCode::kNotFound) worst = cleared;
  }
  op->result = worst;
}

BackendStats Hf3fsBackend::stats() const {
  BackendStats out;
  {
    LockGuard guard(mutex_);
    out = stats_;
  }
  out.queued = gate_.in_flight();
  out.suspended_volumes = store_->stats().is_down ? 1 : 0;
  for (const auto& [name, numbers] : counts_.read()) {
    const std::optional<NamedGeometry> geometry = spaces_.readable(name);
    if (geometry && spaces_.is_counted(name)) add_counts(out, numbers, *geometry);
  }
  return out;
}

}  // namespace larder::hf3fs
