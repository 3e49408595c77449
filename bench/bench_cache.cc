// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_cache.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <utility>

#include "base/rng.h"
#include "bench/bench_cache_world.h"
#include "bench/quantile.h"

namespace larder {
namespace {

constexpr std::array<const char*, 3> kShapes = {"full", "full+swa", "full+mamba"};
constexpr std::uint64_t kTurns = 8;           // of a conversation, then it begins anew
constexpr std::uint64_t kSystemPrompts = 64;  // pages that many conversations begin with
constexpr std::uint64_t kDecoded = 4;         // tokens of an answer
constexpr std::uint64_t kChunks[] = {1024, 8192};
constexpr std::size_t kMostPollsOfOne = 1'000'000;  // for one prompt
constexpr std::size_t kChunksSeen = 32;             // at the beginning and at the end of the long prompt

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

template <class Call>
double time_us(Call call) {
  const auto start = real_clock().now();
  call();
  return std::chrono::duration<double, std::micro>(real_clock().now() - start).count();
}

// The kinds of calls that are timed, and what they took in one repeat.
enum Kind : std::size_t { kBegin, kStart, kPrepare, kPrefill, kDecode, kFinish, kPoll, kRequest, kKinds };
constexpr std::array<const char*, kKinds> kKindNames = {
    "begin",  "start", "prepare_step", "complete_step, prompt", "complete_step, output",
    "finish", "poll",  "one request"};
using Repeat = std::array<CacheBenchSamples, kKinds>;

void set_bar(CacheBenchRow& row, const char* figure, double us) {
  row.bar_of = figure;
  row.bar = us;
}

CacheBenchRow make_row(const std::string& model, const char* load, std::string call,
                       std::span<CacheBenchSamples*> repeats) {
  CacheBenchRow row;
  row.model = model;
  row.load = load;
  row.call = std::move(call);
  row.calls = repeats.empty() ? 0 : repeats.front()->us.size();
  const auto spread = [&](double q) {
    std::vector<double> values;
    for (CacheBenchSamples* repeat : repeats) values.push_back(repeat->quantile(q));
    return spread_of(std::move(values));
  };
  row.p50 = spread(0.5);
  row.p99 = spread(0.99);
  row.p999 = spread(0.999);
  row.most = spread(1);
  return row;
}

// ---- live: requests of conversations, many at once, in tiers that are full

class LiveLoad {
 public:
  LiveLoad(const CacheBenchOptions& options, const std::string& shape)
      : options_(options),
        shape_(shape),
        rng_(options.seed),
        turns_(conversations(), 0),
        busy_(conversations(), false) {}

  Status run(CacheBenchResult& out) {
    LARDER_RETURN_IF_ERROR(make_world());
    LARDER_RETURN_IF_ERROR(fill());
    std::vector<Repeat> repeats(options_.repeats);
    for (Repeat& repeat : repeats) {
      for (std::uint64_t i = 0; i < options_.requests; ++i) LARDER_RETURN_IF_ERROR(one_request(&repeat));
    }
    out.notes.push_back(shape_ + ", live: " + std::to_string(world_->cache->tree().node_count()) + " nodes, " +
                        std::to_string(live_count()) + " requests under way, " + std::to_string(filled_) +
                        " requests to fill the tiers, " + std::to_string(refused_) + " calls refused for now");
    add_rows(repeats, out);
    return end();
  }

 private:
  struct Live {
    RequestId id;
    std::uint64_t conversation = 0;
    std::vector<TokenId> tokens;
    std::uint64_t prompt = 0;
    double us = 0;
  };
  // What a turn adds to its conversation: about a page, and never an exact one.
  [[nodiscard]] std::uint64_t turn_tokens() const { return options_.page_size + 2; }
  [[nodiscard]] std::uint64_t conversations() const { return options_.nodes / (kTurns / 2) + 2 * options_.requests; }

  Status make_world() {
    const Result<ModelSpec> model = bench_model(shape_, options_.page_size);
    if (!model.is_ok()) return model.status();
    CacheWorldSizes sizes;
    sizes.config.max_requests = static_cast<std::uint32_t>(options_.requests + 2);
    // A node of the tree has a page, or a little more; a live request has one or two that are not the tree's yet.
    const std::uint64_t full_pages = options_.nodes + options_.nodes / 16 + 2 * options_.requests + 64 * kTurns;
    const std::uint64_t chunk = sizes.config.chunked_prefill_tokens / options_.page_size + 1;
    sizes.device[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(full_pages);
    if (model->has(ComponentKind::kSwa)) {
      const std::uint64_t each = model->window_pages() + chunk + 4;
      sizes.device[index_of(ComponentKind::kSwa)] =
          static_cast<std::uint32_t>(options_.nodes / 2 + (options_.requests + 2) * each);
    }
    if (model->has(ComponentKind::kMamba)) {
      sizes.device[index_of(ComponentKind::kMamba)] =
          static_cast<std::uint32_t>(options_.nodes / 2 + (options_.requests + 2) * 4);
    }
    if (options_.tiers != "device") sizes.host_pages = full_pages;
    sizes.has_storage = options_.tiers == "storage";
    sizes.has_events = options_.has_events;
    sizes.config.prefetch_threshold = 1u << 30;  // there is nothing to fetch
    auto world = make_cache_world(*model, sizes);
    if (!world.is_ok()) return world.status();
    world_ = std::move(*world);
    return Status::ok();
  }

  // Until each request takes the place of others.
  Status fill() {
    const std::uint64_t most = 4 * options_.nodes + options_.requests;
    const std::uint32_t least_free = static_cast<std::uint32_t>(2 * kTurns);
    for (; filled_ < most && world_->device->free_slots(ComponentKind::kFull) > least_free; ++filled_) {
      LARDER_RETURN_IF_ERROR(one_request(nullptr));
    }
    return Status::ok();
  }

  // Token `i` of a conversation: a page that others have too, and then its own.
  [[nodiscard]] TokenId token(std::uint64_t conversation, std::uint64_t i) const {
    const std::uint64_t owner = i < options_.page_size ? conversation % kSystemPrompts : conversation + kSystemPrompts;
    return static_cast<TokenId>(mix((owner << 24) + i) & 0x1ffff);
  }

  Live next_turn() {
    Live live;
    do {
      live.conversation = rng_.below(turns_.size());
    } while (busy_[live.conversation]);
    busy_[live.conversation] = true;
    std::uint32_t& turn = turns_[live.conversation];
    turn = turn % kTurns + 1;
    live.prompt = options_.page_size + turn * turn_tokens();
    live.tokens.resize(live.prompt + kDecoded);
    for (std::uint64_t i = 0; i < live.tokens.size(); ++i) live.tokens[i] = token(live.conversation, i);
    return live;
  }

  template <class Call>
  void timed(Repeat* repeat, Live& live, Kind kind, Call call) {
    const double us = time_us(call);
    live.us += us;
    if (repeat) (*repeat)[kind].us.push_back(us);
  }

  // One begins and computes its prompt, those under way decode a token now and then, the oldest ends, one poll.
  Status one_request(Repeat* repeat) {
    Live live = next_turn();
    LARDER_RETURN_IF_ERROR(begin(repeat, live));
    live_.push_back(std::move(live));
    for (std::uint64_t k = 1; k < kDecoded; ++k) {
      const std::uint64_t age = k * options_.requests / kDecoded;
      if (age > 0 && age < live_count()) LARDER_RETURN_IF_ERROR(decode(repeat, live_[live_.size() - 1 - age], k));
    }
    if (live_count() > options_.requests) finish_oldest(repeat);
    const double us = time_us([&] { (void)world_->cache->poll(Nanos{0}); });
    if (repeat) (*repeat)[kPoll].us.push_back(us);
    live_.back().us += us;
    return Status::ok();
  }

  Status begin(Repeat* repeat, Live& live) {
    Cache& cache = *world_->cache;
    const std::span<const TokenId> prompt = std::span<const TokenId>(live.tokens).first(live.prompt);
    Result<RequestId> id = RequestId{};
    timed(repeat, live, kBegin, [&] { id = cache.begin({prompt, kDecoded}); });
    if (!id.is_ok()) return id.status();
    live.id = *id;
    Result<CachedTokens> started = CachedTokens{};
    for (int tries = 0; tries < 100; ++tries) {
      timed(repeat, live, kStart, [&] { started = cache.start(live.id); });
      if (started.is_ok() || started.status().code() != StatusCode::kOverloaded) break;
      ++refused_;
      timed(repeat, live, kPoll, [&] { (void)cache.poll(Nanos{0}); });
    }
    if (!started.is_ok()) return started.status();
    while (cache.phase(live.id) == RequestPhase::kLoading) {
      timed(repeat, live, kPoll, [&] { (void)cache.poll(Nanos{0}); });
    }
    return step(repeat, live, live.prompt, kPrefill);
  }

  Status step(Repeat* repeat, Live& live, std::uint64_t until, Kind kind) {
    Cache& cache = *world_->cache;
    Status prepared;
    StepToken token;
    for (int tries = 0; tries < 100; ++tries) {
      timed(repeat, live, kPrepare, [&] {
        const Result<StepGrant> grant = cache.prepare_step(live.id, until);
        prepared = grant.status();
        if (grant.is_ok()) token = grant->token;
      });
      if (prepared.code() != StatusCode::kOverloaded) break;
      ++refused_;
      timed(repeat, live, kPoll, [&] { (void)cache.poll(Nanos{0}); });
    }
    LARDER_RETURN_IF_ERROR(prepared);
    Status completed;
    const std::span<const TokenId> done = std::span<const TokenId>(live.tokens).first(until);
    timed(repeat, live, kind, [&] { completed = cache.complete_step(token, done); });
    return completed;
  }

  Status decode(Repeat* repeat, Live& live, std::uint64_t k) { return step(repeat, live, live.prompt + k, kDecode); }

  void finish_oldest(Repeat* repeat) {
    Live& oldest = live_[first_];
    timed(repeat, oldest, kFinish, [&] { world_->cache->finish(oldest.id); });
    if (repeat) (*repeat)[kRequest].us.push_back(oldest.us);
    busy_[oldest.conversation] = false;
    oldest.tokens = {};
    if (++first_ >= options_.requests) {
      live_.erase(live_.begin(), live_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
  }
  [[nodiscard]] std::uint64_t live_count() const { return live_.size() - first_; }

  void add_rows(std::vector<Repeat>& repeats, CacheBenchResult& out) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      std::vector<CacheBenchSamples*> samples;
      for (Repeat& repeat : repeats) samples.push_back(&repeat[kind]);
      CacheBenchRow row = make_row(shape_, "live", kKindNames[kind], samples);
      if (kind == kPoll) set_bar(row, "p99.9", 1000);
      if (kind == kRequest) set_bar(row, "p50", 15);
      out.rows.push_back(std::move(row));
    }
  }

  // The books balance at the end, or the times mean nothing.
  Status end() {
    while (live_count() > 0) finish_oldest(nullptr);
    for (int i = 0; i < 1000 && !world_->cache->idle(); ++i) (void)world_->cache->poll(Nanos{0});
    if (world_->cache->counters().internal_errors > 0) return internal_error("the cache counts internal errors");
    return options_.nodes <= 100'000 ? world_->cache->check_invariants() : Status::ok();
  }

  const CacheBenchOptions& options_;
  const std::string shape_;
  Rng rng_;
  std::vector<std::uint32_t> turns_;  // by conversation: of its last request
  std::vector<bool> busy_;
  std::unique_ptr<CacheWorld> world_;
  std::vector<Live> live_;  // by age; those before first_ are over
  std::size_t first_ = 0;
  std::uint64_t filled_ = 0, refused_ = 0;
};

// ---- long: one prompt in chunks

struct LongTimes {
  CacheBenchSamples first, last, all;
  std::uint64_t nodes = 0;
};

Result<LongTimes> run_long_prompt(const CacheBenchOptions& options, const std::string& shape, std::uint64_t chunk) {
  const Result<ModelSpec> model = bench_model(shape, options.page_size);
  if (!model.is_ok()) return model.status();
  CacheWorldSizes sizes;
  sizes.config.chunked_prefill_tokens = static_cast<std::uint32_t>(chunk);
  const std::uint64_t pages = options.tokens / options.page_size + 2, chunk_pages = chunk / options.page_size + 1;
  sizes.device[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(pages);
  if (model->has(ComponentKind::kSwa)) {  // so that windows have to leave, some at a time
    sizes.device[index_of(ComponentKind::kSwa)] =
        static_cast<std::uint32_t>(2 * model->window_pages() + 2 * chunk_pages + pages / 8 + 4);
  }
  if (model->has(ComponentKind::kMamba)) sizes.device[index_of(ComponentKind::kMamba)] = 256;
  if (options.tiers != "device") sizes.host_pages = 2 * pages;
  sizes.has_storage = options.tiers == "storage";
  sizes.has_events = options.has_events;
  sizes.config.prefetch_threshold = 1u << 30;
  auto world = make_cache_world(*model, sizes);
  if (!world.is_ok()) return world.status();
  Cache& cache = *(*world)->cache;

  std::vector<TokenId> prompt(options.tokens);
  for (std::uint64_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(mix(i + options.seed) & 0x1ffff);
  const Result<RequestId> id = cache.begin({prompt, 1});
  if (!id.is_ok()) return id.status();
  if (const Result<CachedTokens> started = cache.start(*id); !started.is_ok()) return started.status();
  LongTimes times;
  for (std::uint64_t done = 0; done < prompt.size();) {
    done = std::min<std::uint64_t>(done + chunk, prompt.size());
    Status prepared = overloaded("");
    StepToken token;
    for (int tries = 0; tries < 100 && prepared.code() == StatusCode::kOverloaded; ++tries) {
      const Result<StepGrant> grant = cache.prepare_step(*id, done);
      prepared = grant.status();
      if (grant.is_ok()) token = grant->token;
      if (!prepared.is_ok()) (void)cache.poll(Nanos{0});
    }
    LARDER_RETURN_IF_ERROR(prepared);
    Status completed;
    times.all.us.push_back(
        time_us([&] { completed = cache.complete_step(token, std::span<const TokenId>(prompt).first(done)); }));
    LARDER_RETURN_IF_ERROR(completed);
    (void)cache.poll(Nanos{0});
  }
  const std::size_t seen = std::min(kChunksSeen, (times.all.us.size() + 1) / 2);
  times.first.us.assign(times.all.us.begin(), times.all.us.begin() + static_cast<std::ptrdiff_t>(seen));
  times.last.us.assign(times.all.us.end() - static_cast<std::ptrdiff_t>(seen), times.all.us.end());
  times.nodes = cache.tree().node_count();
  cache.finish(*id);
  if (cache.counters().internal_errors > 0) return internal_error("the cache counts internal errors");
  return times;
}

Status run_long(const CacheBenchOptions& options, const std::string& shape, CacheBenchResult& out) {
  for (const std::uint64_t chunk : kChunks) {
    std::vector<LongTimes> repeats;
    for (std::uint32_t i = 0; i < options.repeats; ++i) {
      Result<LongTimes> times = run_long_prompt(options, shape, chunk);
      if (!times.is_ok()) return times.status();
      repeats.push_back(std::move(*times));
    }
    const std::string name = "commit of " + std::to_string(chunk) + " tokens, ";
    const auto add = [&](const std::string& call, CacheBenchSamples LongTimes::*part, double bar) {
      std::vector<CacheBenchSamples*> samples;
      for (LongTimes& times : repeats) samples.push_back(&(times.*part));
      CacheBenchRow row = make_row(shape, "long", call, samples);
      if (bar > 0) set_bar(row, "p50", bar);
      out.rows.push_back(std::move(row));
    };
    add(name + "the first", &LongTimes::first, 0);
    add(name + "the last", &LongTimes::last, 100);
    add(name + "all", &LongTimes::all, 0);
    out.notes.push_back(shape + ", long: " + std::to_string(repeats.front().nodes) + " nodes after chunks of " +
                        std::to_string(chunk));
  }
  return Status::ok();
}

// ---- fetch: one prompt that storage has

struct FetchTimes {
  CacheBenchSamples begin, poll;
  std::uint64_t most_work = 0;  // of a poll, units
};

Result<FetchTimes> fetch_prompt(const CacheBenchOptions& options, const ModelSpec& model) {
  CacheWorldSizes sizes;
  const auto pages = static_cast<std::uint32_t>(options.tokens / options.page_size + 64);
  sizes.device[index_of(ComponentKind::kFull)] = pages;
  if (model.has(ComponentKind::kSwa)) sizes.device[index_of(ComponentKind::kSwa)] = pages;
  if (model.has(ComponentKind::kMamba)) sizes.device[index_of(ComponentKind::kMamba)] = 64;
  sizes.host_pages = 2 * pages;
  sizes.has_storage = true;
  sizes.answer = InstantAnswer::kAll;
  sizes.config.prefetch_capacity = 1;
  auto world = make_cache_world(model, sizes);
  if (!world.is_ok()) return world.status();
  Cache& cache = *(*world)->cache;
  std::vector<TokenId> prompt(options.tokens);
  for (std::uint64_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(mix(i + options.seed) & 0x1ffff);
  FetchTimes times;
  Result<RequestId> id = RequestId{};
  times.begin.us.push_back(time_us([&] { id = cache.begin({prompt, 1}); }));
  if (!id.is_ok()) return id.status();
  while (cache.phase(*id) == RequestPhase::kPrefetching && times.poll.us.size() < kMostPollsOfOne) {
    times.poll.us.push_back(time_us([&] { (void)cache.poll(Nanos{0}); }));
  }
  Result<CachedTokens> cached = cache.start(*id);
  // With small pages it takes its turn several times.
  while (cached.status().code() == StatusCode::kOverloaded && times.poll.us.size() < kMostPollsOfOne) {
    times.poll.us.push_back(time_us([&] { (void)cache.poll(Nanos{0}); }));
    cached = cache.start(*id);
  }
  if (!cached.is_ok()) return cached.status();
  if (cached->storage + options.page_size < options.tokens) return internal_error("storage brought less than it has");
  times.most_work = cache.counters().most_poll_work;
  cache.finish(*id);
  return times;
}

Status run_fetch(const CacheBenchOptions& options, const std::string& shape, CacheBenchResult& out) {
  const Result<ModelSpec> model = bench_model(shape, options.page_size);
  if (!model.is_ok()) return model.status();
  std::vector<FetchTimes> repeats;
  for (std::uint32_t i = 0; i < options.repeats; ++i) {
    Result<FetchTimes> times = fetch_prompt(options, *model);
    if (!times.is_ok()) return times.status();
    repeats.push_back(std::move(*times));
  }
  const auto add = [&](const char* call, CacheBenchSamples FetchTimes::*part) {
    std::vector<CacheBenchSamples*> samples;
    for (FetchTimes& times : repeats) samples.push_back(&(times.*part));
    out.rows.push_back(make_row(shape, "fetch", call, samples));
  };
  add("begin", &FetchTimes::begin);
  add("poll until it is there", &FetchTimes::poll);
  set_bar(out.rows.back(), "p99.9", 1000);
  out.notes.push_back(shape + ", fetch: " + std::to_string(repeats.front().most_work) +
                      " units of work in one poll at most");
  return Status::ok();
}

// ---- abort: of requests that wait for storage

Status run_abort(const CacheBenchOptions& options, const std::string& shape, CacheBenchResult& out) {
  const Result<ModelSpec> model = bench_model(shape, options.page_size);
  if (!model.is_ok()) return model.status();
  const std::uint64_t pages = 512 / options.page_size + 2;
  std::vector<CacheBenchSamples> begins(options.repeats), aborts(options.repeats), sums(options.repeats);
  for (std::uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    CacheWorldSizes sizes;
    const std::uint64_t slots = pages * 64 + 4096 / options.page_size;
    sizes.device = {static_cast<std::uint32_t>(slots), 0, 0};
    if (model->has(ComponentKind::kSwa)) sizes.device[index_of(ComponentKind::kSwa)] = sizes.device[0];
    if (model->has(ComponentKind::kMamba)) sizes.device[index_of(ComponentKind::kMamba)] = 64;
    sizes.host_pages = slots;
    sizes.has_storage = true;
    sizes.answer = InstantAnswer::kSilence;
    sizes.config.max_requests = static_cast<std::uint32_t>(options.requests);
    sizes.config.max_operations = static_cast<std::uint32_t>(8 * options.requests);
    auto world = make_cache_world(*model, sizes);
    if (!world.is_ok()) return world.status();
    Cache& cache = *(*world)->cache;
    std::vector<RequestId> ids;
    std::vector<TokenId> prompt(pages * options.page_size);
    for (std::uint64_t i = 0; i < options.requests; ++i) {
      for (std::uint64_t k = 0; k < prompt.size(); ++k) prompt[k] = static_cast<TokenId>(mix((i << 20) + k) & 0x1ffff);
      Result<RequestId> id = RequestId{};
      begins[repeat].us.push_back(time_us([&] { id = cache.begin({prompt, 1}); }));
      if (!id.is_ok()) return id.status();
      if (cache.phase(*id) != RequestPhase::kPrefetching) return internal_error("a request does not wait for storage");
      ids.push_back(*id);
    }
    double sum = 0;
    for (const RequestId id : ids) {
      aborts[repeat].us.push_back(time_us([&] { cache.abort(id); }));
      sum += aborts[repeat].us.back();
    }
    sums[repeat].us.push_back(sum);
    (*world)->cache->detach_storage();
  }
  const auto add = [&](const char* call, std::vector<CacheBenchSamples>& of) {
    std::vector<CacheBenchSamples*> samples;
    for (CacheBenchSamples& one : of) samples.push_back(&one);
    out.rows.push_back(make_row(shape, "abort", call, samples));
  };
  add("begin, then it waits", begins);
  add("abort of one that waits", aborts);
  add("abort of all", sums);
  set_bar(out.rows.back(), "p50", 50'000);
  return Status::ok();
}

}  // namespace

double CacheBenchSamples::quantile(double q) {
  std::sort(us.begin(), us.end());
  return quantile_of_sorted(us, q);
}

double CacheBenchRow::figure() const { return bar_of == "p99.9" ? p999.median : p50.median; }

Result<CacheBenchResult> run_cache_bench(const CacheBenchOptions& options) {
  CacheBenchResult result;
  for (const std::string shape : kShapes) {
    if (!options.model.empty() && options.model != shape) continue;
    const auto wanted = [&](const char* load) { return options.load.empty() || options.load == load; };
    if (wanted("live")) LARDER_RETURN_IF_ERROR(LiveLoad(options, shape).run(result));
    if (wanted("long")) LARDER_RETURN_IF_ERROR(run_long(options, shape, result));
    if (wanted("fetch")) LARDER_RETURN_IF_ERROR(run_fetch(options, shape, result));
    if (wanted("abort")) LARDER_RETURN_IF_ERROR(run_abort(options, shape, result));
  }
  return result;
}

}  // namespace larder
