// SPDX-License-Identifier: Apache-2.0
#include "server/llama/prefix_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <future>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "door/engine_connector.h"
#include "events/kv_event_publisher.h"

namespace larder::llama {

namespace {

constexpr Nanos kPollWait = std::chrono::milliseconds(20);
constexpr Nanos kSaveLimit = std::chrono::seconds(5);  // for a place among the saves
constexpr Nanos kExistsLimit = std::chrono::seconds(5);
constexpr Nanos kCopyLimit = std::chrono::seconds(120);  // for bytes of memory
constexpr Nanos kCloseLimit = std::chrono::seconds(10);
constexpr std::size_t kBuffersKept = 3;    // a draft, a file of it, and one that is being saved
constexpr std::uint64_t kBuffersPart = 8;  // of the host's bytes they keep this part at most
constexpr std::size_t kEventsAtOnce = 64;

}  // namespace

PrefixStore::Found::Found(PrefixStore* store, LookupId id, const LookupResult& result, std::uint32_t page_size)
    : store_(store),
      id_(id),
      known_(result.known_pages * page_size),
      storage_(result.from_storage * page_size),
      reason_(result.reason),
      component_(result.component),
      miss_(result.miss) {
  miss_.by = {};  // a lookup, whose number nobody knows
  if (result.points.empty()) return;
  point_ = result.points.back();
  tokens_ = point_.pages * page_size;
  bytes_ = point_.bytes;
}

PrefixStore::Found& PrefixStore::Found::operator=(Found&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->release(id_);
  store_ = std::exchange(other.store_, nullptr);
  id_ = other.id_;
  point_ = other.point_;
  tokens_ = std::exchange(other.tokens_, 0);
  known_ = other.known_;
  storage_ = other.storage_;
  bytes_ = other.bytes_;
  reason_ = other.reason_;
  component_ = other.component_;
  miss_ = other.miss_;
  return *this;
}

PrefixStore::Found::~Found() {
  if (store_ != nullptr) store_->release(id_);
}

class PrefixStoreImpl final : public PrefixStore {
 public:
  PrefixStoreImpl(const SlotFormat& format, const PrefixStoreOptions& options, std::unique_ptr<PageStore> storage)
      : format_(format),
        options_(options),
        buffers_(kBuffersKept, static_cast<std::size_t>(options.host_bytes / kBuffersPart)),
        store_(std::move(storage)),
        thread_("prefixes", 1, 1) {}
  ~PrefixStoreImpl() override;

  [[nodiscard]] Status start();
  Result<Found> find(std::span<const TokenId> prompt, const std::string& salt, bool asks_storage) override;
  Result<std::optional<StoredPrefix>> stored(std::span<const TokenId> prompt, const std::string& salt) override;
  Result<std::shared_ptr<ByteBuffers::Buffer>> load(const Found& found, std::span<const TokenId> prompt) override;
  Result<SaveResult> save(const std::shared_ptr<const SavedSlot>& slot, std::uint64_t end,
                          const std::string& salt) override;
  Status drain(Nanos limit) override;
  void flush() override;
  PrefixStoreCounters counters() override;
  ByteBuffers& buffers() override { return buffers_; }

 protected:
  void release(LookupId id) override;

 private:
  template <class T>
  using Promise = std::shared_ptr<std::promise<Result<T>>>;
  struct WaitingSave {
    std::shared_ptr<const SavedSlot> slot;
    std::uint64_t end = 0;
    std::string salt;
    TimePoint limit;
    Promise<SaveResult> answer;
  };

  // ---- any thread
  // False: the store is ending, and the task is dropped.
  bool post(std::function<void()> task) LARDER_EXCLUDES(mutex_);
  // Runs `task` on the thread, and waits for it.
  void run_there(const std::function<void()>& task);
  template <class T>
  [[nodiscard]] static Result<T> wait_for(std::future<Result<T>> answer, Nanos limit, const char* what);

  // ---- the thread
  void loop();
  [[nodiscard]] bool run_tasks();
  void begin_find(const std::vector<TokenId>& prompt, const std::string& salt, bool asks_storage,
                  const Promise<Found>& answer);
  void answer_find(std::uint64_t id);
  void begin_load(LookupId lookup, std::uint64_t pages, const std::shared_ptr<SlotDraft>& draft,
                  const Promise<LoadResult>& answer);
  // Not ok: it cannot begin now.
  [[nodiscard]] Status try_save(const WaitingSave& save);
  void try_saves();
  void tell_events();
  void end_transfer(std::uint64_t id);
  [[nodiscard]] Connector& connector() { return engine_->connector(); }

  const SlotFormat& format_;
  const PrefixStoreOptions options_;
  ByteBuffers buffers_;
  std::unique_ptr<KvEventPublisher> events_;  // null: nobody is told
  std::unique_ptr<PageStore> store_;          // null: no storage
  std::unique_ptr<EngineConnector> engine_;   // used on the thread alone

  RankedMutex mutex_{LockRank::kController};
  std::deque<std::function<void()>> tasks_ LARDER_GUARDED_BY(mutex_);
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;

  // of the thread
  std::map<std::uint64_t, Promise<Found>> finds_;       // by lookup
  std::map<std::uint64_t, Promise<LoadResult>> loads_;  // by transfer
  std::map<std::uint64_t, Promise<SaveResult>> saves_;
  std::deque<WaitingSave> waiting_saves_;

  ThreadPoolExecutor thread_;  // last: it uses the rest
};

Result<std::unique_ptr<PageStore>> PrefixStore::open_storage(const PrefixStoreOptions& options) {
  if (options.storage.empty()) return std::unique_ptr<PageStore>();
  auto store = PageStore::open({options.storage, options.storage_config, {}});
  if (!store.is_ok()) return Status(store.status().code(), "--store, --store-size: " + store.status().message());
  return store;
}

Result<std::unique_ptr<PrefixStore>> PrefixStore::open(const SlotFormat& format, const PrefixStoreOptions& options,
                                                       std::unique_ptr<PageStore> storage) {
  auto store = std::make_unique<PrefixStoreImpl>(format, options, std::move(storage));
  LARDER_RETURN_IF_ERROR(store->start());
  return std::unique_ptr<PrefixStore>(std::move(store));
}

Status PrefixStoreImpl::start() {
  EngineConnectorOptions options;
  options.model = format_.pools.space;
  options.host_bytes = options_.host_bytes;
  options.config.max_points = 1;
  options.config.tiers.prefetch_threshold = format_.page_size();
  options.config.tiers.prefetch_timeout_max = options_.storage_limit;
  options.config.tiers.tenant_limits = options_.tenant_limits;
  if (options_.events.is_on) {
    const KvEventShape shape{options_.events.form, options_.events.all_components, format_.page_size(),
                             static_cast<std::uint32_t>(format_.pools.window.pages * format_.page_size()), 0};
    LARDER_ASSIGN_OR_RETURN(events_, open_kv_event_publisher(options_.events, shape, nullptr));
    options.events = events_.get();
  }
  LARDER_ASSIGN_OR_RETURN(engine_, EngineConnector::open(options));
  if (store_) LARDER_RETURN_IF_ERROR(connector().attach_storage(store_->backend()));
  return thread_.post([this] { loop(); });
}

PrefixStoreImpl::~PrefixStoreImpl() {
  {
    LockGuard guard(mutex_);
    is_stopping_ = true;
  }
  if (!engine_) return;
  connector().wake();
  thread_.wait_idle();
  std::deque<std::function<void()>> rest;  // somebody may wait for one
  {
    LockGuard guard(mutex_);
    rest.swap(tasks_);
  }
  for (const auto& task : rest) task();
  const Status closed = engine_->close(kCloseLimit);
  if (!closed.is_ok()) {  // what storage works on must stay
    log_error("proxy", "host memory is left to the storage that hangs: " + closed.message());
    (void)events_.release();
    (void)engine_.release();
    (void)store_.release();
    tell_left("a write or a read of the store has not ended");
    return;
  }
  engine_.reset();
  if (store_) (void)store_->close(kCloseLimit);
}

bool PrefixStoreImpl::post(std::function<void()> task) {
  {
    LockGuard guard(mutex_);
    if (is_stopping_) return false;
    tasks_.push_back(std::move(task));
  }
  connector().wake();
  return true;
}

void PrefixStoreImpl::run_there(const std::function<void()>& task) {
  auto done = std::make_shared<std::promise<void>>();
  const bool is_taken = post([&task, done] {
    task();
    done->set_value();
  });
  if (is_taken) done->get_future().wait();
}

template <class T>
Result<T> PrefixStoreImpl::wait_for(std::future<Result<T>> answer, Nanos limit, const char* what) {
  if (answer.wait_for(limit) != std::future_status::ready) {
    return deadline_exceeded(
        fmt::format("{} took longer than {} s", what, std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
  }
  return answer.get();
}

// ---- the thread

void PrefixStoreImpl::loop() {
  bool has_more = false;
  while (run_tasks()) {
    has_more = connector().poll(has_more || !waiting_saves_.empty() ? std::chrono::milliseconds(1) : kPollWait);
    tell_events();
    try_saves();
  }
}

bool PrefixStoreImpl::run_tasks() {
  std::deque<std::function<void()>> tasks;
  {
    LockGuard guard(mutex_);
    if (is_stopping_) return false;
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
  return true;
}

void PrefixStoreImpl::begin_find(const std::vector<TokenId>& prompt, const std::string& salt, bool asks_storage,
                                 const Promise<Found>& answer) {
  LookupRequest request;
  request.tokens = prompt;
  request.salt = salt;
  request.asks_storage = asks_storage;
  const Result<LookupId> id = connector().lookup(request);
  if (!id.is_ok()) return answer->set_value(id.status());
  finds_.emplace(id->v, answer);
  answer_find(id->v);
}

void PrefixStoreImpl::answer_find(std::uint64_t id) {
  const auto it = finds_.find(id);
  if (it == finds_.end()) return;
  const Result<LookupResult> result = connector().points(LookupId(id));
  if (result.status().code() == StatusCode::kOverloaded) return;  // an event tells when to ask again
  const Promise<Found> answer = std::move(it->second);
  finds_.erase(it);
  if (!result.is_ok()) return answer->set_value(result.status());
  answer->set_value(Found(this, LookupId(id), *result, format_.page_size()));
}

void PrefixStoreImpl::begin_load(LookupId lookup, std::uint64_t pages, const std::shared_ptr<SlotDraft>& draft,
                                 const Promise<LoadResult>& answer) {
  LoadRequest request;
  request.lookup = lookup;
  request.pages = pages;
  request.writer = [this, draft](PoolName pool, std::uint64_t page, std::span<const ConstBytes> bytes) {
    LARDER_ASSIGN_OR_RETURN(std::span<std::byte> place, draft->place(engine_->model().index_of(pool), page));
    std::byte* to = place.data();
    for (const ConstBytes& piece : bytes) to = std::copy(piece.begin(), piece.end(), to);
    return Status::ok();
  };
  const Result<TransferId> id = connector().load(request);
  if (!id.is_ok()) return answer->set_value(id.status());
  loads_.emplace(id->v, answer);
}

Status PrefixStoreImpl::try_save(const WaitingSave& save) {
  const std::uint32_t page = format_.page_size();
  const std::uint64_t pages = save.end / page;
  const std::vector<std::uint64_t> states = {pages};
  SaveRequest request;
  request.tokens = save.slot->tokens().first(static_cast<std::size_t>(save.end));
  request.salt = save.salt;
  request.to = pages;
  if (format_.pools.window.pages > 1) {
    request.window_pages = std::min<std::uint64_t>(format_.pools.window.pages, pages);
  }
  const bool has_state = format_.pools.state || format_.pools.window.pages == 1;
  if (has_state) request.states = states;
  request.reader = [this, slot = save.slot](PoolName pool, std::uint64_t at, std::span<const Segment> bytes) {
    const std::size_t index = engine_->model().index_of(pool);
    if (bytes.size() == 1) return slot->cut(index, at, {bytes[0].data, bytes[0].size});
    std::size_t size = 0;
    for (const Segment& piece : bytes) size += piece.size;
    std::vector<std::byte> whole(size);
    LARDER_RETURN_IF_ERROR(slot->cut(index, at, whole));
    const std::byte* from = whole.data();
    for (const Segment& piece : bytes) {
      std::copy_n(from, piece.size, piece.data);
      from += piece.size;
    }
    return Status::ok();
  };
  LARDER_ASSIGN_OR_RETURN(const TransferId id, connector().save(request));
  saves_.emplace(id.v, save.answer);
  return Status::ok();
}

void PrefixStoreImpl::try_saves() {
  while (!waiting_saves_.empty()) {
    const WaitingSave& save = waiting_saves_.front();
    const Status begun = try_save(save);
    if (begun.code() == StatusCode::kOverloaded && real_clock().now() < save.limit) return;
    if (!begun.is_ok()) save.answer->set_value(begun);
    waiting_saves_.pop_front();
  }
}

void PrefixStoreImpl::tell_events() {
  std::vector<ConnectorEvent> events(kEventsAtOnce);
  for (;;) {
    const std::size_t count = connector().take_events(events);
    for (const ConnectorEvent& event : std::span(events).first(count)) {
      event.kind == ConnectorEventKind::kLookup ? answer_find(event.id) : end_transfer(event.id);
    }
    if (count < events.size()) return;
  }
}

void PrefixStoreImpl::end_transfer(std::uint64_t id) {
  if (const auto load = loads_.find(id); load != loads_.end()) {
    load->second->set_value(connector().load_result(TransferId(id)));
    loads_.erase(load);
  } else if (const auto save = saves_.find(id); save != saves_.end()) {
    save->second->set_value(connector().save_result(TransferId(id)));
    saves_.erase(save);
  }
}

// ---- any thread

Result<PrefixStore::Found> PrefixStoreImpl::find(std::span<const TokenId> prompt, const std::string& salt,
                                                 bool asks_storage) {
  const auto answer = std::make_shared<std::promise<Result<Found>>>();
  auto future = answer->get_future();
  post([this, prompt = std::vector<TokenId>(prompt.begin(), prompt.end()), salt, asks_storage, answer] {
    begin_find(prompt, salt, asks_storage, answer);
  });
  // The connector ends reading at storage_limit; this is for a lookup that waits for its turn, too. One that comes too
  // late is released with its promise.
  return wait_for(std::move(future), 2 * options_.storage_limit, "looking up a prefix");
}

Result<std::optional<StoredPrefix>> PrefixStoreImpl::stored(std::span<const TokenId> prompt, const std::string& salt) {
  if (!store_) return std::optional<StoredPrefix>();
  const EngineModel& model = engine_->model();
  NamespaceScope scope;  // one rank, as the connector's
  scope.salt = salt;
  LARDER_ASSIGN_OR_RETURN(StoredPrefix found, find_stored(store_->backend(), model.spec, scope, prompt, kExistsLimit));
  std::vector<std::uint64_t> in_order;  // the model may list its pools otherwise
  for (const PoolName name : model.numbers) {
    const auto at = std::ranges::find(model.spec.pools, name, &PoolSpec::name) - model.spec.pools.begin();
    in_order.push_back(found.pool_pages.at(static_cast<std::size_t>(at)));
  }
  found.pool_pages = std::move(in_order);
  return std::optional<StoredPrefix>(std::move(found));
}

Result<std::shared_ptr<ByteBuffers::Buffer>> PrefixStoreImpl::load(const Found& found,
                                                                   std::span<const TokenId> prompt) {
  const std::uint64_t pages = found.point_.pages;
  const auto draft = std::make_shared<SlotDraft>(format_, pages, found.point_.window_from, buffers_);
  const auto answer = std::make_shared<std::promise<Result<LoadResult>>>();
  auto future = answer->get_future();
  post([this, id = found.id_, pages, draft, answer] { begin_load(id, pages, draft, answer); });
  LARDER_ASSIGN_OR_RETURN(const LoadResult loaded,
                          wait_for(std::move(future), kCopyLimit, "reading a prefix from host memory"));
  LARDER_RETURN_IF_ERROR(loaded.status);
  return draft->compose(prompt, 1, buffers_);
}

Result<SaveResult> PrefixStoreImpl::save(const std::shared_ptr<const SavedSlot>& slot, std::uint64_t end,
                                         const std::string& salt) {
  if (end == 0 || end % format_.page_size() != 0 || end > slot->tokens().size()) {
    return internal_error(fmt::format("a save up to token {}", end));
  }
  const auto answer = std::make_shared<std::promise<Result<SaveResult>>>();
  auto future = answer->get_future();
  post([this, slot, end, salt, answer] {
    waiting_saves_.push_back({slot, end, salt, real_clock().now() + kSaveLimit, answer});
    try_saves();
  });
  Result<SaveResult> saved = wait_for(std::move(future), kSaveLimit + kCopyLimit, "saving a prefix");
  if (saved.is_ok()) LARDER_RETURN_IF_ERROR(saved->status);
  return saved;
}

Status PrefixStoreImpl::drain(Nanos limit) {
  const TimePoint end = real_clock().now() + limit;
  for (;;) {
    bool is_idle = false;
    run_there([&] {
      (void)connector().poll(std::chrono::milliseconds(10));
      tell_events();
      is_idle = waiting_saves_.empty() && connector().operations_in_flight() == 0;
    });
    if (is_idle) return Status::ok();
    if (real_clock().now() >= end) return deadline_exceeded("storage has not taken all of what is on the host");
  }
}

void PrefixStoreImpl::flush() {
  run_there([&] {
    (void)connector().flush();
    // Of before, too.
    for (const WaitingSave& save : std::exchange(waiting_saves_, {})) {
      save.answer->set_value(cancelled("host memory was flushed"));
    }
  });
}

PrefixStoreCounters PrefixStoreImpl::counters() {
  PrefixStoreCounters out;
  run_there([&] { out.tiers = connector().counters(); });
  const HostPools& host = engine_->host();
  run_there([&] {
    out.host_blocks = host.total_blocks();
    out.host_blocks_free = host.free_blocks();
    out.block_bytes = host.block_bytes();
  });
  if (store_) {
    out.storage_json = store_->stats_json();
    out.storage_metrics = store_->metrics_text();
  }
  return out;
}

void PrefixStoreImpl::release(LookupId id) {
  post([this, id] { connector().release(id); });
}

}  // namespace larder::llama
