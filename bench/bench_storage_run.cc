// SPDX-License-Identifier: Apache-2.0
// The backend's runs: requests kept in flight at a fixed depth.
#include <algorithm>
#include <cstring>
#include <future>
#include <numeric>

#include "base/clock.h"
#include "base/inbox.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "bench/bench_storage.h"
#include "bench/quantile.h"
#include "door/register_backends.h"
#include "metadata/open_metadata.h"
#include "storage/option_text.h"

namespace larder {
namespace {

constexpr std::size_t kThreads = 4, kQueue = 16'384;
constexpr std::uint64_t kSourceBytes = std::uint64_t{256} << 20;  // new content for longer runs comes from stamps
constexpr std::size_t kExistsPayload = 64, kExistsBatch = 1000, kExistsRequests = 4;
constexpr auto kLook = std::chrono::seconds(1);

double seconds_since(TimePoint begin) { return std::chrono::duration<double>(real_clock().now() - begin).count(); }

PageKey key_of(std::uint64_t run, std::uint64_t page) {
  Rng rng(run * 0x9e3779b97f4a7c15ull + page);
  PageKey key;
  for (std::size_t i = 0; i < key.bytes.size(); i += 8) store_le<std::uint64_t>(key.bytes.data() + i, rng.next_u64());
  return key;
}

std::shared_ptr<const StoreScope> bench_scope() {
  auto scope = std::make_shared<StoreScope>();
  scope->namespace_digest = key_of(~std::uint64_t{0}, 1);
  scope->set_pool(PoolName::kKv, key_of(~std::uint64_t{0}, 2));
  return scope;
}

Status first_failure(const std::vector<Status>& statuses) {
  if (statuses.empty()) return internal_error("no answer");
  const auto failed = std::find_if(statuses.begin(), statuses.end(), [](const Status& s) { return !s.is_ok(); });
  return failed == statuses.end() ? Status::ok() : *failed;
}

struct Completion {
  std::size_t lane = 0;
  Status status;
};

// `depth` lanes with at most one request each. begin(lane) submits the lane's next request.
class Lanes {
 public:
  explicit Lanes(std::uint32_t depth) : inbox_(depth), depth_(depth) {}

  // What a request's callback does when it has ended.
  [[nodiscard]] std::function<void(Status)> finisher(std::size_t lane) {
    auto ticket = inbox_.reserve();
    auto shared = std::make_shared<Inbox<Completion>::Ticket>(std::move(ticket).value());
    return [shared, lane](Status status) { Inbox<Completion>::push(std::move(*shared), {lane, std::move(status)}); };
  }

  // Keeps all lanes busy until begin() has no more (false), or fails. Returns when all have ended.
  [[nodiscard]] Status run(const std::function<Result<bool>(std::size_t lane)>& begin) {
    Status failed;
    std::vector<std::size_t> idle(depth_);
    std::iota(idle.begin(), idle.end(), std::size_t{0});
    std::size_t busy = 0;
    bool has_more = true;
    std::vector<Completion> done;
    while (has_more || busy > 0) {
      while (has_more && !idle.empty()) {
        const Result<bool> begun = begin(idle.back());
        if (!begun.is_ok()) failed = begun.status();
        has_more = begun.is_ok() && *begun;
        if (!has_more) break;
        idle.pop_back();
        ++busy;
      }
      if (busy == 0) break;
      done.clear();
      while (inbox_.drain(done) == 0) (void)inbox_.wait_for(kLook);
      for (Completion& completion : done) {
        idle.push_back(completion.lane);
        --busy;
        if (completion.status.is_ok() || !failed.is_ok()) continue;
        failed = completion.status;
        has_more = false;
      }
    }
    return failed;
  }

 private:
  Inbox<Completion> inbox_;
  const std::size_t depth_;
};

}  // namespace

struct StorageRunner::Parts {
  StorageBenchOptions options;
  std::string directory;
  BackendFactory factory;
  BackendOptions backend_options;
  std::unique_ptr<ThreadPoolExecutor> threads;
  std::unique_ptr<Memory> source, target;
  std::shared_ptr<const StoreScope> scope = bench_scope();
  std::uint64_t run = 0;                 // of the store that is there: names its keys and stamps
  std::vector<std::uint64_t> source_of;  // [page]: where its content is in `source`
  std::unique_ptr<StorageBackend> backend;
  bool lies_in_directory = false;

  [[nodiscard]] Status open() {
    LARDER_RETURN_IF_ERROR(real_file_system().make_dirs(directory));
    BackendEnvironment environment;
    environment.files = &real_file_system();
    environment.clock = &real_clock();
    environment.executor = threads.get();
    environment.host_memory = {{source->data(), source->size()}, {target->data(), target->size()}};
    environment.open_metadata = [](const MetadataOptions& wanted) { return open_metadata(wanted, real_clock()); };
    Result<std::unique_ptr<StorageBackend>> made = factory.create(options.backend, backend_options, environment);
    if (!made.is_ok()) return made.status();
    backend = std::move(made).value();
    return Status::ok();
  }
  // A store that does not lie in the directory has what earlier runs left, under the same keys.
  [[nodiscard]] Status open_empty() {
    backend.reset();
    remove_bench_directory(directory);
    ++run;
    LARDER_RETURN_IF_ERROR(open());
    if (!backend->info().supports_clear) return Status::ok();
    const auto cleared = std::make_shared<std::promise<Status>>();
    LARDER_RETURN_IF_ERROR(backend->submit_clear(scope, [cleared](Status status) { cleared->set_value(status); }));
    return cleared->get_future().get();
  }
  [[nodiscard]] Status close() {
    const Status status = backend->close(std::chrono::hours(1));
    backend.reset();
    return status;
  }
  [[nodiscard]] bool keeps_pages() const { return backend->info().persistent; }

  // The first and the last bytes of a page say which one it is; between them it is as the source has it.
  void stamp(std::byte* page, std::uint64_t page_bytes, std::uint64_t number) const {
    store_le<std::uint64_t>(page, run);
    store_le<std::uint64_t>(page + 8, number);
    store_le<std::uint64_t>(page + page_bytes - 8, ~number);
  }
  [[nodiscard]] bool is_right(const std::byte* got, std::uint64_t page_bytes, std::uint64_t number) const {
    return load_le<std::uint64_t>(got) == run && load_le<std::uint64_t>(got + 8) == number &&
           load_le<std::uint64_t>(got + page_bytes - 8) == ~number &&
           std::memcmp(got + 16, source->data() + source_of[number] + 16, page_bytes - 24) == 0;
  }

  // Pages `first`, `first` + 1 ... whose contents lie one after the other.
  [[nodiscard]] Status submit_set(std::uint64_t first, std::span<std::byte> contents, std::uint64_t page_bytes,
                                  bool is_alone, std::function<void(Status)> done) {
    WriteRequest request;
    request.scope = scope;
    request.terms.caller_waits = is_alone;
    for (std::size_t at = 0; at < contents.size(); at += page_bytes, ++first) {
      request.groups.emplace_back().items.push_back(
          {PoolName::kKv, key_of(run, first), {{contents.data() + at, page_bytes}}});
    }
    return backend->submit_write(std::move(request), [done = std::move(done)](const WriteResult& result) {
      done(first_failure(result.groups));
    });
  }
  [[nodiscard]] Status submit_get(std::span<const std::uint64_t> numbers, std::byte* into, std::uint64_t page_bytes,
                                  bool is_alone, std::function<void(Status)> done) {
    ReadRequest request;
    request.scope = scope;
    request.terms.caller_waits = is_alone;
    for (const std::uint64_t number : numbers) {
      request.items.push_back({PoolName::kKv, key_of(run, number), {{into, page_bytes}}});
      into += page_bytes;
    }
    return backend->submit_read(
        std::move(request), [done = std::move(done)](const ReadResult& result) { done(first_failure(result.items)); });
  }

  [[nodiscard]] Status store_small_pages();
  // One query of exists_keys keys, some of them stored. Microseconds from submit to the answer.
  [[nodiscard]] Result<double> ask(Rng& rng);
};

Status StorageRunner::Parts::store_small_pages() {
  Lanes lanes(kExistsRequests);
  std::uint64_t next = 0;
  return lanes.run([&](std::size_t lane) -> Result<bool> {
    if (next == options.exists_pages) return false;
    WriteRequest request;
    request.scope = scope;
    for (std::size_t i = 0; i < kExistsBatch && next < options.exists_pages; ++i, ++next) {
      std::byte* const content = source->data() + next % (source->size() / kExistsPayload) * kExistsPayload;
      request.groups.emplace_back().items.push_back({PoolName::kKv, key_of(run, next), {{content, kExistsPayload}}});
    }
    const Status taken = backend->submit_write(
        std::move(request),
        [done = lanes.finisher(lane)](const WriteResult& result) { done(first_failure(result.groups)); });
    return taken.is_ok() ? Result<bool>(true) : Result<bool>(taken);
  });
}

Result<double> StorageRunner::Parts::ask(Rng& rng) {
  const std::uint32_t keys = options.exists_keys;
  ExistsRequest request;
  request.scope = scope;
  request.pools = {PoolName::kKv};
  const std::uint64_t hits = rng.below(keys + std::uint64_t{1});  // from none to all
  std::vector<bool> is_stored;
  for (std::uint32_t k = 0; k < keys; ++k) {
    is_stored.push_back(rng.below(keys) < hits);
    request.keys.push_back(key_of(run, rng.below(options.exists_pages) + (is_stored[k] ? 0 : options.exists_pages)));
  }
  Inbox<ExistsResult> inbox(1);
  const auto ticket = std::make_shared<Inbox<ExistsResult>::Ticket>(std::move(inbox.reserve()).value());
  std::vector<ExistsResult> answers;
  const TimePoint asked = real_clock().now();
  LARDER_RETURN_IF_ERROR(backend->submit_exists(std::move(request), [ticket](ExistsResult result) {
    Inbox<ExistsResult>::push(std::move(*ticket), std::move(result));
  }));
  while (inbox.drain(answers) == 0) (void)inbox.wait_for(kLook);
  const double micros = seconds_since(asked) * 1e6;
  LARDER_RETURN_IF_ERROR(answers[0].status);
  Presence present = answers[0].presence.at(0).present;
  present.resize(keys);
  if (present != is_stored) return corrupt("exists gave a wrong answer");
  return micros;
}

StorageRunner::StorageRunner(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
StorageRunner::~StorageRunner() = default;

Result<std::unique_ptr<StorageRunner>> StorageRunner::create(const StorageBenchOptions& options,
                                                             const std::string& store_directory) {
  auto parts = std::make_unique<Parts>();
  parts->options = options;
  parts->directory = store_directory;
  LARDER_RETURN_IF_ERROR(register_backends(parts->factory));
  LARDER_RETURN_IF_ERROR(parts->factory.check_name(options.backend));
  const std::vector<BackendOptionHelp>* known = parts->factory.options_of(options.backend);
  const auto has_option = [known](std::string_view key) {
    return std::any_of(known->begin(), known->end(), [key](const auto& option) { return option.key == key; });
  };
  if (has_option("directory")) parts->backend_options["directory"] = store_directory;
  if (has_option("file_path_prefix")) {  // hf3fs: on a mount, or under a directory that the fake library takes for one
    parts->backend_options["file_path_prefix"] = store_directory + "/pages";
  }
  parts->lies_in_directory = !parts->backend_options.empty();
  BackendOptions extra;
  LARDER_RETURN_IF_ERROR(add_options("", options.extra, extra));
  for (const auto& [key, value] : extra) {
    if (!has_option(key)) return invalid_argument("backend '" + options.backend + "' has no option '" + key + "'");
    parts->backend_options[key] = value;
  }
  const std::uint64_t page = *std::max_element(options.page_sizes.begin(), options.page_sizes.end());
  const std::uint64_t lanes =
      page * options.pages_per_request * *std::max_element(options.depths.begin(), options.depths.end());
  for (auto [memory, bytes] : {std::pair(&parts->source, std::max(std::min(kSourceBytes, options.bytes), lanes)),
                               std::pair(&parts->target, lanes)}) {
    Result<std::unique_ptr<Memory>> made = host_memory_source().allocate(bytes);
    if (!made.is_ok()) return made.status();
    *memory = std::move(made).value();
  }
  Rng rng(options.seed);
  std::byte* const source = parts->source->data();
  for (std::size_t i = 0; i + 8 <= parts->source->size(); i += 8) store_le<std::uint64_t>(source + i, rng.next_u64());
  parts->threads = std::make_unique<ThreadPoolExecutor>("bench", kThreads, kQueue);
  return std::unique_ptr<StorageRunner>(new StorageRunner(std::move(parts)));
}

Result<StorageRun> StorageRunner::set(std::uint64_t page_bytes, std::uint32_t depth) {
  Parts& p = *parts_;
  LARDER_RETURN_IF_ERROR(p.open_empty());
  const std::uint64_t pages = std::max<std::uint64_t>(p.options.bytes / page_bytes, 1);
  const std::uint64_t most = p.options.pages_per_request;
  const std::uint64_t per_lane = std::max<std::uint64_t>(p.source->size() / page_bytes / most / depth, 1);
  p.source_of.clear();
  p.source_of.reserve(pages);
  std::vector<std::uint64_t> uses(depth);
  Lanes lanes(depth);
  const double cpu = process_cpu_seconds();
  const TimePoint begin = real_clock().now();
  Status status = lanes.run([&](std::size_t lane) -> Result<bool> {
    const std::uint64_t first = p.source_of.size();
    if (first == pages || seconds_since(begin) > p.options.seconds) return false;
    const std::uint64_t count = std::min(most, pages - first);
    const std::uint64_t at =
        (lane * per_lane + uses[lane]++ % per_lane) * most * page_bytes;  // no other lane's content
    for (std::uint64_t i = 0; i < count; ++i) {
      p.source_of.push_back(at + i * page_bytes);
      p.stamp(p.source->data() + p.source_of.back(), page_bytes, first + i);
    }
    const Status taken =
        p.submit_set(first, {p.source->data() + at, count * page_bytes}, page_bytes, depth == 1, lanes.finisher(lane));
    return taken.is_ok() ? Result<bool>(true) : Result<bool>(taken);
  });
  double seconds = seconds_since(begin);
  if (p.keeps_pages()) {
    Status closed = p.close();
    if (closed.is_ok()) closed = drop_page_cache(p.directory);  // what it left to the operating system
    if (status.is_ok()) status = closed;
    // Closing writes and syncs what is left. Elsewhere it only ends connections and processes.
    if (p.lies_in_directory) seconds = seconds_since(begin);
  }
  if (!status.is_ok()) return status;
  const auto count = static_cast<double>(p.source_of.size());
  return StorageRun{count * static_cast<double>(page_bytes) / seconds, (process_cpu_seconds() - cpu) * 1e6 / count,
                    p.source_of.size()};
}

Result<StorageRun> StorageRunner::get(std::uint64_t page_bytes, std::uint32_t depth) {
  Parts& p = *parts_;
  if (!p.backend) {
    LARDER_RETURN_IF_ERROR(drop_page_cache(p.directory));
    LARDER_RETURN_IF_ERROR(p.open());
  }
  std::vector<std::uint64_t> order(p.source_of.size());
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  Rng(p.options.seed + p.run).shuffle(std::span(order));
  const std::uint64_t most = p.options.pages_per_request;
  std::vector<std::span<const std::uint64_t>> held(depth);  // the pages in each lane's memory
  std::size_t next = 0;
  Lanes lanes(depth);
  const auto memory_of = [&](std::size_t lane) { return p.target->data() + lane * most * page_bytes; };
  const double cpu = process_cpu_seconds();
  const TimePoint begin = real_clock().now();
  const Status status = lanes.run([&](std::size_t lane) -> Result<bool> {
    if (next == order.size() || seconds_since(begin) > p.options.seconds) return false;
    held[lane] = std::span(order).subspan(next, std::min<std::size_t>(most, order.size() - next));
    next += held[lane].size();
    const Status taken = p.submit_get(held[lane], memory_of(lane), page_bytes, depth == 1, lanes.finisher(lane));
    return taken.is_ok() ? Result<bool>(true) : Result<bool>(taken);
  });
  const double seconds = seconds_since(begin);
  const double cpu_us = (process_cpu_seconds() - cpu) * 1e6;
  if (!status.is_ok()) return status;
  for (std::size_t lane = 0; lane < depth; ++lane) {
    for (std::size_t i = 0; i < held[lane].size(); ++i) {
      if (p.is_right(memory_of(lane) + i * page_bytes, page_bytes, held[lane][i])) continue;
      return corrupt("page " + std::to_string(held[lane][i]) + " came back with other bytes than were written");
    }
  }
  const auto count = static_cast<double>(next);
  return StorageRun{count * static_cast<double>(page_bytes) / seconds, cpu_us / count, next};
}

Result<ExistsFigures> StorageRunner::exists() {
  Parts& p = *parts_;
  LARDER_RETURN_IF_ERROR(p.open_empty());
  ExistsFigures figures;
  figures.pages = p.options.exists_pages;
  figures.keys = p.options.exists_keys;
  const TimePoint begin = real_clock().now();
  LARDER_RETURN_IF_ERROR(p.store_small_pages());
  figures.writes_per_second = static_cast<double>(figures.pages) / seconds_since(begin);
  Rng rng(p.options.seed + 77);
  std::vector<double> micros;
  for (std::uint32_t q = 0; q < p.options.exists_queries; ++q) {
    const Result<double> took = p.ask(rng);
    if (!took.is_ok()) return took.status();
    micros.push_back(*took);
  }
  std::sort(micros.begin(), micros.end());
  figures.queries = micros.size();
  figures.p50_us = quantile_of_sorted(micros, 0.5);
  figures.p99_us = quantile_of_sorted(micros, 0.99);
  figures.max_us = micros.back();
  LARDER_RETURN_IF_ERROR(p.close());
  return figures;
}

}  // namespace larder
