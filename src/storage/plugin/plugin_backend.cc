// SPDX-License-Identifier: Apache-2.0
#include "storage/plugin/plugin_backend.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "storage/operation.h"
#include "storage/option_text.h"
#include "storage/plugin/plugin_call.h"
#include "storage/plugin/plugin_library.h"

namespace larder {
namespace {

using plugin::Answers;
using plugin::PluginCall;

static_assert(LARDER_BACKEND_ENVELOPE_BYTES == kEnvelopeBytes && LARDER_BACKEND_DIGEST_BYTES == sizeof(Digest256));

void put_digest(const Digest256& digest, std::uint8_t (&to)[LARDER_BACKEND_DIGEST_BYTES]) {
  std::memcpy(to, digest.bytes.data(), sizeof to);
}

LarderBackendPage page_of(const StoreScope& scope, PoolName pool, const PageKey& key) {
  LarderBackendPage page{};
  put_digest(scope.namespace_digest, page.namespace_digest);
  put_digest(scope.fingerprint(pool), page.layout_fingerprint);
  put_digest(key, page.key);
  page.pool_name = pool_name(pool).data();  // a literal: ended by 0
  page.pool = static_cast<std::uint32_t>(pool);
  page.status = LARDER_BACKEND_NOT_ANSWERED;
  return page;
}

// Pages of one call with what they point at. Nothing moves after reserve().
struct Batch {
  std::vector<LarderBackendPage> pages;
  std::vector<EnvelopeBytes> envelopes;
  std::vector<LarderBackendSegment> segments;

  void reserve(std::size_t page_count, std::size_t segment_count) {
    pages.reserve(page_count);
    envelopes.reserve(page_count);
    segments.reserve(segment_count + page_count);
  }
  // Adds a page with content: the envelope's bytes, then the payload's.
  void add(LarderBackendPage page, const EnvelopeBytes& envelope, std::span<const Segment> payload) {
    envelopes.push_back(envelope);
    const std::size_t first = segments.size();
    segments.push_back({envelopes.back().data(), envelope.size()});
    for (const Segment& piece : payload) segments.push_back({piece.data, piece.size});
    page.segments = segments.data() + first;
    page.segment_count = segments.size() - first;
    page.bytes = kEnvelopeBytes + payload_bytes(payload);
    pages.push_back(page);
  }
};

class PluginBackend final : public StorageBackend {
 public:
  PluginBackend(const LarderBackendTable& table, LarderBackend* backend, std::size_t queue_limit, Executor& executor,
                std::uint64_t first_generation)
      : table_(table),
        backend_(backend),
        place_(std::string("backend library '") + table.name + "'"),
        executor_(executor),
        gate_("plugin", queue_limit),
        next_generation_(first_generation) {
    info_.name = "plugin";
    info_.persistent = (table.flags & LARDER_BACKEND_PERSISTENT) != 0;
    info_.atomic_groups = (table.flags & LARDER_BACKEND_ATOMIC_GROUPS) != 0;
    info_.counts_pages = table.stats != nullptr;
    info_.supports_clear = table.clear != nullptr;
    info_.alignment = std::max(table.alignment, 1u);
  }
  ~PluginBackend() override {
    gate_.drain();
    finish();
  }

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return submit<ExistsOperation>(std::move(request), std::move(done), &PluginBackend::run_exists);
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return submit<ReadOperation>(std::move(request), std::move(done), &PluginBackend::run_read);
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return submit<WriteOperation>(std::move(request), std::move(done), &PluginBackend::run_write);
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    if (table_.clear == nullptr) return unsupported(place_ + ": has no entry 'clear'");
    return submit<ClearOperation>(std::move(scope), std::move(done), &PluginBackend::run_clear);
  }
  [[nodiscard]] BackendStats stats() const override;
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override {
    LARDER_RETURN_IF_ERROR(gate_.close_within(limit));
    finish();
    return Status::ok();
  }

 private:
  template <class Op, class Request, class Done>
  Status submit(Request request, Done done, void (PluginBackend::*run)(Op&)) {
    return submit_operation<Op>(gate_, executor_, std::move(request), std::move(done),
                                [this, run](const std::shared_ptr<Op>& op) { (this->*run)(*op); });
  }

  void run_exists(ExistsOperation& op);
  void run_read(ReadOperation& op) LARDER_EXCLUDES(mutex_);
  void run_write(WriteOperation& op) LARDER_EXCLUDES(mutex_);
  void run_clear(ClearOperation& op);
  [[nodiscard]] Status read_status(const PluginCall& call, const StoreScope& scope, const ReadItem& item,
                                   const LarderBackendPage& page, const EnvelopeBytes& envelope) const;
  void drop(const std::vector<LarderBackendPage>& damaged);
  void add_group(const StoreScope& scope, const PageGroup& group, Batch& batch);
  [[nodiscard]] static Status group_status(const PluginCall& call, const LarderBackendGroup& group,
                                           std::uint64_t& duplicates);
  [[nodiscard]] LarderBackendStatistics library_statistics() const;
  void finish() LARDER_EXCLUDES(mutex_);

  // constant after construction
  const LarderBackendTable table_;
  LarderBackend* const backend_;
  const std::string place_;
  Executor& executor_;
  BackendInfo info_;

  mutable OperationGate gate_;                  // synchronises itself
  std::atomic<std::uint64_t> next_generation_;  // relaxed: only its growth matters
  std::atomic<std::uint64_t> next_group_{1};    // likewise
  mutable RankedMutex mutex_{LockRank::kStorage};
  BackendStats counted_ LARDER_GUARDED_BY(mutex_);  // what the host sees itself
  bool is_finished_ LARDER_GUARDED_BY(mutex_) = false;
  LarderBackendStatistics last_ LARDER_GUARDED_BY(mutex_){};  // as it was at the end
};

void PluginBackend::run_exists(ExistsOperation& op) {
  const StoreScope& scope = *op.request.scope;
  std::vector<LarderBackendPage> pages;
  for (const PoolName pool : op.request.pools) {
    if (scope.fingerprint(pool).is_zero()) continue;  // the model has none: the library is not asked
    for (const PageKey& key : op.request.keys) pages.push_back(page_of(scope, pool, key));
  }
  PluginCall call(place_ + ", exists");
  const std::int32_t answer =
      call.run([&](LarderBackendCall* abi) { return table_.exists(backend_, abi, pages.data(), pages.size()); });
  ExistsResult result;
  result.status = call.status_of(answer, Answers::kWholeCall);
  auto page = pages.cbegin();
  for (const PoolName pool : op.request.pools) {
    PoolPresence& out = result.presence.emplace_back(PoolPresence{pool, Presence(op.request.keys.size())});
    if (scope.fingerprint(pool).is_zero()) continue;
    for (std::size_t i = 0; i < op.request.keys.size() && result.status.is_ok(); ++i, ++page) {
      const Status status = call.status_of(page->status, Answers::kExistsItem);
      out.present[i] = status.is_ok();
      if (!status.is_ok() && status.code() != StatusCode::kNotFound) result.status = status;
    }
  }
  if (!result.status.is_ok()) result.presence.clear();
  op.result = std::move(result);
}

void PluginBackend::run_read(ReadOperation& op) {
  const StoreScope& scope = *op.request.scope;
  Batch batch;
  std::size_t segment_count = 0;
  for (const ReadItem& item : op.request.items) segment_count += item.payload.size();
  batch.reserve(op.request.items.size(), segment_count);
  std::vector<std::size_t> asked;  // items that the library sees
  for (std::size_t i = 0; i < op.request.items.size(); ++i) {
    const ReadItem& item = op.request.items[i];
    op.result.items[i] = not_found("the scope's model has no such pool");
    if (scope.fingerprint(item.pool).is_zero()) continue;
    batch.add(page_of(scope, item.pool, item.key), EnvelopeBytes{}, item.payload);
    asked.push_back(i);
  }
  PluginCall call(place_ + ", read");
  const Status answer = call.status_of(call.run([&](LarderBackendCall* abi) {
    return table_.read(backend_, abi, batch.pages.data(), batch.pages.size());
  }),
                                       Answers::kWholeCall);
  std::vector<LarderBackendPage> damaged;
  for (std::size_t at = 0; at < asked.size(); ++at) {
    const ReadItem& item = op.request.items[asked[at]];
    Status& status = op.result.items[asked[at]];
    status = answer.is_ok() ? read_status(call, scope, item, batch.pages[at], batch.envelopes[at]) : answer;
    if (status.code() == StatusCode::kCorrupt) damaged.push_back(page_of(scope, item.pool, item.key));
  }
  drop(damaged);
  LockGuard guard(mutex_);
  for (const Status& status : op.result.items) count_read(counted_, status);
}

Status PluginBackend::read_status(const PluginCall& call, const StoreScope& scope, const ReadItem& item,
                                  const LarderBackendPage& page, const EnvelopeBytes& envelope) const {
  Status status = call.status_of(page.status, Answers::kReadItem);
  if (!status.is_ok()) return status;
  const std::uint64_t wanted = payload_bytes(item.payload);
  if (page.bytes_done != kEnvelopeBytes + wanted) {
    return call.broken("gave " + std::to_string(page.bytes_done) + " bytes for " +
                       std::to_string(kEnvelopeBytes + wanted) + ", and called it OK");
  }
  return verify_page({item.pool, item.key, scope.namespace_digest, scope.fingerprint(item.pool), wanted}, envelope,
                     item.payload);
}

void PluginBackend::drop(const std::vector<LarderBackendPage>& damaged) {
  if (damaged.empty() || table_.drop == nullptr) return;
  std::vector<LarderBackendPage> pages = damaged;
  PluginCall call(place_ + ", drop");
  // A page that could not be dropped is found again by the next read.
  (void)call.run([&](LarderBackendCall* abi) { return table_.drop(backend_, abi, pages.data(), pages.size()); });
}

void PluginBackend::add_group(const StoreScope& scope, const PageGroup& group, Batch& batch) {
  const std::uint64_t id = next_group_.fetch_add(1, std::memory_order_relaxed);
  std::uint64_t generation = next_generation_.fetch_add(group.items.size(), std::memory_order_relaxed);
  for (const WriteItem& item : group.items) {
    const bool is_last = &item == &group.items.back();
    const EnvelopeBytes envelope = encode_envelope(
        {item.pool, is_last ? kEnvelopeCommitMark : std::uint8_t{0}, item.key, scope.namespace_digest,
         scope.fingerprint(item.pool), generation++, payload_bytes(item.payload), payload_checksum(item.payload), id});
    LarderBackendPage page = page_of(scope, item.pool, item.key);
    put_digest(item.parent, page.parent);
    batch.add(page, envelope, item.payload);
  }
}

Status PluginBackend::group_status(const PluginCall& call, const LarderBackendGroup& group, std::uint64_t& duplicates) {
  const Status status = call.status_of(group.status, Answers::kWriteItem);
  if (!status.is_ok()) return status;
  std::uint64_t found = 0;
  for (std::uint64_t i = 0; i < group.page_count; ++i) {
    const LarderBackendPage& page = group.pages[i];
    const Status of_page = call.status_of(page.status, Answers::kWriteItem);
    if (!of_page.is_ok()) return call.broken("a group is OK and a page of it is not (" + of_page.message() + ")");
    found += page.status == LARDER_BACKEND_ALREADY ? 1 : 0;
    if (page.status == LARDER_BACKEND_OK && page.bytes_done != page.bytes) {
      return call.broken("took " + std::to_string(page.bytes_done) + " bytes of " + std::to_string(page.bytes) +
                         ", and called it OK");
    }
  }
  duplicates += found;
  return status;
}

void PluginBackend::run_write(WriteOperation& op) {
  const StoreScope& scope = *op.request.scope;
  Batch batch;
  std::size_t page_count = 0, segment_count = 0;
  for (const PageGroup& group : op.request.groups) {
    page_count += group.items.size();
    for (const WriteItem& item : group.items) segment_count += item.payload.size();
  }
  batch.reserve(page_count, segment_count);
  std::vector<LarderBackendGroup> groups;
  std::vector<std::size_t> asked;  // groups that the library sees
  for (std::size_t i = 0; i < op.request.groups.size(); ++i) {
    op.result.groups[i] = check_group(scope, op.request.groups[i]);
    if (!op.result.groups[i].is_ok()) continue;
    const std::size_t first = batch.pages.size();
    add_group(scope, op.request.groups[i], batch);
    groups.push_back(
        {batch.pages.data() + first, batch.pages.size() - first, LARDER_BACKEND_NOT_ANSWERED, /*reserved=*/0});
    asked.push_back(i);
  }
  const std::vector<LarderBackendGroup> given = groups;  // pointers and counts, whatever the library does to its own
  PluginCall call(place_ + ", write", op.request.durable ? LARDER_BACKEND_DURABLE : 0);
  const std::int32_t code =
      call.run([&](LarderBackendCall* abi) { return table_.write(backend_, abi, groups.data(), groups.size()); });
  const Status answer = call.status_of(code, Answers::kWholeCall);
  std::uint64_t duplicates = 0;
  for (std::size_t at = 0; at < asked.size(); ++at) {
    LarderBackendGroup group = given[at];
    group.status = groups[at].status;
    op.result.groups[asked[at]] = answer.is_ok() ? group_status(call, group, duplicates) : answer;
  }
  LockGuard guard(mutex_);
  counted_.writes += groups.size();
  counted_.duplicate_writes += duplicates;
  for (const Status& status : op.result.groups) {
    if (status.is_ok()) continue;
    ++(status.code() == StatusCode::kUnsupported ? counted_.declined : counted_.write_errors);
  }
}

void PluginBackend::run_clear(ClearOperation& op) {
  PluginCall call(place_ + ", clear");
  const std::uint8_t* const digest = op.request ? op.request->namespace_digest.bytes.data() : nullptr;
  const std::int32_t code = call.run([&](LarderBackendCall* abi) { return table_.clear(backend_, abi, digest); });
  op.result = call.status_of(code, Answers::kWholeCall);
}

LarderBackendStatistics PluginBackend::library_statistics() const {
  LarderBackendStatistics out{};
  if (table_.stats == nullptr) return out;
  PluginCall call(place_ + ", stats");
  const std::int32_t code = call.run([&](LarderBackendCall*) -> std::int32_t {
    table_.stats(backend_, &out);
    return LARDER_BACKEND_OK;
  });
  return code == LARDER_BACKEND_OK ? out : LarderBackendStatistics{};
}

BackendStats PluginBackend::stats() const {
  const std::uint64_t queued = gate_.in_flight();
  LarderBackendStatistics library{};
  bool is_open = false;
  if (const Result<OperationGate::Ticket> ticket = gate_.enter_inline(); ticket.is_ok()) {  // close() waits for it
    library = library_statistics();
    is_open = true;
  }
  LockGuard guard(mutex_);
  if (!is_open) library = last_;
  BackendStats out = counted_;
  out.queued = queued;
  out.pages = library.objects;
  const std::uint64_t envelopes = library.objects * kEnvelopeBytes;
  out.bytes = library.bytes >= envelopes ? library.bytes - envelopes : 0;
  out.physical_bytes = library.physical_bytes;
  out.capacity_bytes = library.capacity_bytes;
  out.evicted = library.evicted;
  return out;
}

// Once, after the last call.
void PluginBackend::finish() {
  {
    LockGuard guard(mutex_);
    if (std::exchange(is_finished_, true)) return;
  }
  const LarderBackendStatistics statistics = library_statistics();
  {
    LockGuard guard(mutex_);
    last_ = statistics;
  }
  if (table_.close == nullptr) return;
  PluginCall call(place_ + ", close");
  (void)call.run([&](LarderBackendCall*) -> std::int32_t {
    table_.close(backend_);
    return LARDER_BACKEND_OK;
  });
}

// "key=value" lines.
Result<std::string> options_text(const BackendOptions& options) {
  std::string out;
  for (const auto& [key, value] : options) {
    const std::string line = key + '=' + value;
    if (key.empty() || line.find('=') != key.size() || line.find_first_of(std::string("\n\0", 2)) != line.npos) {
      return invalid_argument("option '" + key + "': a key without '=', and one line, can be given to a library");
    }
    out += line + '\n';
  }
  return out;
}

Result<std::unique_ptr<StorageBackend>> create_plugin(const BackendOptions& options,
                                                      const BackendEnvironment& environment) {
  const std::string path = text_option(options, "library", "");
  if (path.empty()) return invalid_argument("plugin backend: option 'library' is missing: the path of a .so file");
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t queue_limit, count_option(options, "queue_limit", 1024, 1, 1'000'000));
  LARDER_ASSIGN_OR_RETURN(const LarderBackendTable table, plugin::load_library(path));
  BackendOptions rest = options;
  rest.erase("library");
  rest.erase("queue_limit");
  return plugin::open_backend(table, rest, static_cast<std::size_t>(queue_limit), environment);
}

}  // namespace

Result<std::unique_ptr<StorageBackend>> plugin::open_backend(const LarderBackendTable& table,
                                                             const BackendOptions& options, std::size_t queue_limit,
                                                             const BackendEnvironment& environment) {
  if (environment.executor == nullptr || environment.clock == nullptr) {
    return invalid_argument("plugin backend: needs an executor and a clock");
  }
  LARDER_ASSIGN_OR_RETURN(const std::string text, options_text(options));
  PluginCall call(std::string("backend library '") + table.name + "', create");
  LarderBackend* backend = nullptr;
  const std::int32_t code = call.run([&](LarderBackendCall* abi) { return table.create(text.c_str(), abi, &backend); });
  LARDER_RETURN_IF_ERROR(call.status_of(code, Answers::kWholeCall));
  if (backend == nullptr) return call.broken("said OK and gave no handle");
  // Grows from one process to the next as the clock does.
  const auto now = static_cast<std::uint64_t>(environment.clock->now().time_since_epoch().count());
  return std::unique_ptr<StorageBackend>(
      std::make_unique<PluginBackend>(table, backend, queue_limit, *environment.executor, now + 1));
}

Status register_plugin_backend(BackendFactory& factory) {
  return factory.add("plugin",
                     {{"library", "", "path of the shared library (larder_backend.h). Required"},
                      {"queue_limit", "1024", "operations in flight before submit refuses"},
                      {std::string(kAnyOption), "", "every other key goes to the library"}},
                     create_plugin);
}

}  // namespace larder
