// SPDX-License-Identifier: Apache-2.0
#include "tests/exactness/exactness_rig.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "door/register_backends.h"
#include "engine/reference/sampler.h"
#include "metadata/open_metadata.h"
#include "model/presets.h"
#include "sim/sim_file_system.h"
#include "tests/support/passing_backend.h"
#include "tests/support/temporary_directory.h"

namespace larder::exactness {
namespace {

constexpr std::uint32_t kThreads = 1;
constexpr int kMostPolls = 100'000;

// A rig without one of its parts can test nothing: says why and ends the process.
template <class T>
T must(Result<T> result) {
  if (!result.is_ok()) {
    std::fprintf(stderr, "exactness rig: %s\n", result.status().to_string().c_str());
    std::abort();
  }
  return std::move(result).value();
}

// A backend with threads of its own, made to end each operation inside submit: the rig's clock runs with its polls, and
// must not run away from real threads.
class InlineBackend final : public support::PassingBackend {
 public:
  using PassingBackend::PassingBackend;
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return wait_for(done, [&](ExistsDone then) { return inner_->submit_exists(std::move(request), std::move(then)); });
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return wait_for(done, [&](ReadDone then) { return inner_->submit_read(std::move(request), std::move(then)); });
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return wait_for(done, [&](WriteDone then) { return inner_->submit_write(std::move(request), std::move(then)); });
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return wait_for(done, [&](ClearDone then) { return inner_->submit_clear(std::move(scope), std::move(then)); });
  }

 private:
  template <class Outcome, class Submit>
  static Status wait_for(const std::function<void(Outcome)>& done, const Submit& submit) {
    std::promise<Outcome> promise;
    std::future<Outcome> outcome = promise.get_future();
    const Status submitted = submit([&promise](Outcome result) { promise.set_value(std::move(result)); });
    if (submitted.is_ok()) done(outcome.get());
    return submitted;
  }
};

StepLogits logits_of(const StepResult& result) { return {result.logits, result.draft_logits}; }

}  // namespace

Tokens random_tokens(std::uint64_t seed, std::size_t count, std::uint32_t vocab) {
  Rng rng(seed);
  Tokens tokens(count);
  for (TokenId& t : tokens) t = static_cast<TokenId>(rng.below(vocab));
  return tokens;
}

std::vector<std::string> tiny_presets() {
  std::vector<std::string> names;
  for (const PresetInfo& info : all_presets()) {
    if (info.is_tiny) names.push_back(info.name);
  }
  return names;
}

std::string slot_bytes(const DevicePools& pools, ComponentKind c, DeviceSlot slot) {
  std::string bytes;
  for (const PoolSpec* pool : pools.model().pools_of(c)) {
    for (std::size_t layer = 0; layer < pool->layers.size(); ++layer) {
      for (std::size_t plane = 0; plane < pool->planes.size(); ++plane) {
        const std::byte* at = pools.page(pool->name, layer, plane, slot);
        bytes.append(reinterpret_cast<const char*>(at), pool->planes[plane].layer_bytes());
      }
    }
  }
  return bytes;
}

Truth::Truth(const ModelSpec& model, std::size_t most_tokens) : model_(model) {
  const auto pages = static_cast<std::uint32_t>((most_tokens + model.page_size - 1) / model.page_size);
  ComponentCounts slots{};
  for (const ComponentKind c : kAllComponents) slots[index_of(c)] = model.has(c) ? pages + 1 : 0;
  pools_ = must(DevicePools::create(model_, slots, host_memory_source()));
  engine_ = must(ReferenceEngine::create(model_, *pools_, kThreads));
  for (std::uint32_t i = 0; i < pages; ++i) {
    if (model.has(ComponentKind::kFull)) table_.full.push_back(*pools_->allocate(ComponentKind::kFull));
    if (model.has(ComponentKind::kSwa)) table_.swa.push_back(*pools_->allocate(ComponentKind::kSwa));
    if (model.has(ComponentKind::kMamba)) states_[i + 1] = *pools_->allocate(ComponentKind::kMamba);
  }
  if (model.has(ComponentKind::kMamba)) table_.state = *pools_->allocate(ComponentKind::kMamba);
}

StepLogits Truth::feed(std::span<const TokenId> tokens) {
  SequenceStep step;
  step.tokens = tokens;
  step.start = tokens_.size();
  step.pages = &table_;
  std::vector<StateSnapshot> snapshots;
  for (const auto& [page, slot] : states_) {
    const std::uint64_t position = page * model_.page_size;
    if (position > step.start && position <= step.start + tokens.size()) snapshots.push_back({position, slot});
  }
  step.snapshots = snapshots;
  const std::vector<StepResult> results = engine_->step(std::span(&step, 1));
  EXPECT_TRUE(results[0].status.is_ok()) << results[0].status.to_string();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return logits_of(results[0]);
}

Tokens Truth::generate(std::span<const TokenId> tokens, std::size_t count, std::vector<StepLogits>& logits) {
  Tokens output;
  logits = {feed(tokens)};
  output.push_back(sample_greedy(logits.back().main));
  while (output.size() < count) {
    logits.push_back(feed(std::span(&output.back(), 1)));
    output.push_back(sample_greedy(logits.back().main));
  }
  return output;
}

std::string Truth::bytes(ComponentKind c, std::uint64_t page) const {
  const DeviceSlot slot = c == ComponentKind::kFull  ? table_.full.at(page)
                          : c == ComponentKind::kSwa ? table_.swa.at(page)
                                                     : states_.at(page);
  return slot_bytes(*pools_, c, slot);
}

Rig::Rig(const ModelSpec& model, const RigOptions& options) : model_(model) {
  executor_ = options.real_threads ? std::unique_ptr<Executor>(std::make_unique<ThreadPoolExecutor>("copy", 2, 1 << 14))
                                   : std::make_unique<InlineExecutor>();
  device_ = make_cpu_device(*executor_);
  ComponentCounts slots = options.device;
  for (const ComponentKind c : kAllComponents) slots[index_of(c)] = model.has(c) ? slots[index_of(c)] : 0;
  if (options.lending) {
    ReservedSlots reserved;
    for (const ComponentKind c : kAllComponents) {
      if (slots[index_of(c)]++ > 0) reserved[index_of(c)] = {DeviceSlot(0)};
      if (!model.has(c)) slots[index_of(c)] = 0;
    }
    lent_ = std::make_unique<pool_test::LentBytes>(model_, slots, *options.lending);
    device_pools_ = must(DevicePools::create(model_, slots, lent_->planes, reserved));
  } else {
    device_pools_ = must(DevicePools::create(model_, slots, device_->memory()));
  }
  const auto budget = static_cast<std::size_t>(options.host_ratio * static_cast<double>(device_pools_->bytes()));
  host_pools_ = must(HostPools::create(model_, options.layout, budget, host_memory_source()));
  transfer_ = must(TransferEngine::create(*device_, *device_pools_, host_pools_.get(), options.config.max_operations));
  CacheParts parts;
  parts.model = &model_;
  parts.device = device_pools_.get();
  parts.host = host_pools_.get();
  parts.transfer = transfer_.get();
  parts.clock = &clock_;
  parts.scope.layout = options.layout;
  cache_ = must(Cache::create(options.config, parts));
  engine_ = must(ReferenceEngine::create(model_, *device_pools_, kThreads));
  if (options.storage != nullptr) {
    EXPECT_TRUE(cache_->attach_storage(*options.storage).is_ok());
  }
}

Rig::~Rig() {
  settle();
  const Status status = cache_->check_invariants();
  EXPECT_TRUE(status.is_ok()) << status.to_string();
}

void Rig::settle() {
  for (int i = 0; i < kMostPolls; ++i) {
    const bool moved = cache_->poll(Nanos{0});
    if (!moved && cache_->operations_in_flight() == 0) return;
    clock_.advance(std::chrono::milliseconds(1));  // retries and deadlines become due
    std::this_thread::yield();
  }
  ADD_FAILURE() << "operations never end: " << cache_->operations_in_flight() << " in flight";
}

bool Rig::start(RequestId id, RunResult& result) {
  for (int i = 0; i < kMostPolls; ++i) {
    (void)cache_->poll(Nanos{0});
    clock_.advance(std::chrono::milliseconds(1));
    std::this_thread::yield();
    if (cache_->phase(id) == RequestPhase::kPrefetching) continue;
    const Result<CachedTokens> started = cache_->start(id);
    if (started.is_ok()) {
      result.cached = *started;
      while (cache_->phase(id) == RequestPhase::kLoading) (void)cache_->poll(Nanos{0});
      return true;
    }
    if (started.status().code() == StatusCode::kOverloaded) continue;
    ADD_FAILURE() << "start: " << started.status().to_string();
    return false;
  }
  ADD_FAILURE() << "the request never starts";
  return false;
}

Result<StepGrant> Rig::prepare(RequestId id, std::uint64_t until) {
  for (int i = 0; i < kMostPolls; ++i) {
    Result<StepGrant> grant = cache_->prepare_step(id, until);
    if (grant.is_ok() || grant.status().code() != StatusCode::kOverloaded) return grant;
    (void)cache_->poll(Nanos{0});  // a backup must end first
    clock_.advance(std::chrono::milliseconds(1));
    std::this_thread::yield();
  }
  return cache_->prepare_step(id, until);
}

std::optional<StepLogits> Rig::compute(RequestId id, const Tokens& tokens, std::uint64_t from, std::uint64_t until,
                                       const Look& look) {
  const Result<StepGrant> grant = prepare(id, until);
  EXPECT_TRUE(grant.is_ok()) << grant.status().to_string();
  if (!grant.is_ok()) return std::nullopt;
  if (look) look(*grant);
  SequenceStep step;
  step.tokens = std::span<const TokenId>(tokens).subspan(from, until - from);
  step.start = from;
  step.pages = grant->pages;
  std::vector<StateSnapshot> snapshots;
  for (const CheckpointSlot& s : grant->checkpoints) snapshots.push_back({s.position, s.slot});
  step.snapshots = snapshots;
  step.gate = grant->gate.get();
  const std::vector<StepResult> results = engine_->step(std::span(&step, 1));
  EXPECT_TRUE(results[0].status.is_ok()) << results[0].status.to_string();
  if (!results[0].status.is_ok()) return std::nullopt;
  const Status completed = cache_->complete_step(grant->token, std::span<const TokenId>(tokens).first(until));
  EXPECT_TRUE(completed.is_ok()) << completed.to_string();
  (void)cache_->poll(Nanos{0});
  return logits_of(results[0]);
}

std::vector<RunResult> Rig::run_forks(const Tokens& prompt, const Tokens& first, std::size_t count) {
  std::vector<RunResult> results(first.size() + 1);
  BeginRequest begin;
  begin.tokens = prompt;
  begin.max_new_tokens = count + 1;
  const Result<RequestId> id = cache_->begin(begin);
  EXPECT_TRUE(id.is_ok()) << id.status().to_string();
  if (!id.is_ok() || !start(*id, results.back())) return results;
  const auto logits = compute(*id, prompt, cache_->computed_tokens(*id), prompt.size(), {});
  if (!logits) return results;
  std::vector<RequestId> ids;
  std::vector<Tokens> tokens(results.size(), prompt);
  for (std::size_t i = 0; i < first.size(); ++i) {
    Result<RequestId> fork = cache_->fork(*id);
    for (int polls = 0; fork.status().code() == StatusCode::kOverloaded && polls < kMostPolls; ++polls) {
      (void)cache_->poll(Nanos{0});
      fork = cache_->fork(*id);
    }
    EXPECT_TRUE(fork.is_ok()) << fork.status().to_string();
    if (!fork.is_ok()) return results;
    ids.push_back(*fork);
    tokens[i].push_back(first[i]);
  }
  ids.push_back(*id);
  tokens.back().push_back(sample_greedy(logits->main));
  for (std::size_t n = 0; n < count; ++n) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto next = compute(ids[i], tokens[i], tokens[i].size() - 1, tokens[i].size(), {});
      if (!next) return results;
      results[i].logits.push_back(*next);
      results[i].output.push_back(tokens[i].back());
      tokens[i].push_back(sample_greedy(next->main));
    }
  }
  for (const RequestId each : ids) cache_->finish(each);
  settle();
  return results;
}

RunResult Rig::run(const Tokens& prompt, std::size_t max_new_tokens, const RunOptions& options) {
  RunResult result;
  BeginRequest begin;
  begin.tokens = prompt;
  begin.max_new_tokens = max_new_tokens;
  begin.adapter = options.adapter;
  begin.salt = options.salt;
  const Result<RequestId> id = cache_->begin(begin);
  EXPECT_TRUE(id.is_ok()) << id.status().to_string();
  if (!id.is_ok() || !start(*id, result)) return result;
  Tokens tokens = prompt;
  std::uint64_t computed = cache_->computed_tokens(*id);
  EXPECT_EQ(computed, result.cached.cached());
  bool is_first = true;
  while (result.output.size() < max_new_tokens) {
    const std::uint64_t until = std::min<std::uint64_t>(tokens.size(), computed + options.chunk);
    const auto look = [&](const StepGrant& grant) {
      if (is_first && options.truth != nullptr) compare_restored(grant, computed, *options.truth, result);
      if (is_first && options.spoil) spoil_restored(grant, computed, *options.spoil);
      is_first = false;
    };
    const std::optional<StepLogits> logits = compute(*id, tokens, computed, until, look);
    if (!logits) break;
    computed = until;
    if (computed < tokens.size()) continue;
    result.logits.push_back(*logits);
    result.output.push_back(sample_greedy(logits->main));
    tokens.push_back(result.output.back());
  }
  cache_->finish(*id);
  settle();
  return result;
}

void Rig::compare_restored(const StepGrant& grant, std::uint64_t restored, const Truth& truth, RunResult& result) {
  if (grant.gate) {
    const Status arrived = grant.gate->wait(model_.layer_count() - 1, std::chrono::seconds(10));
    EXPECT_TRUE(arrived.is_ok()) << arrived.to_string();
  }
  const std::uint64_t pages = restored / model_.page_size;
  const auto compare = [&](ComponentKind c, std::uint64_t page, DeviceSlot slot) {
    ASSERT_TRUE(slot.valid()) << component_name(c) << " page " << page << " is not there";
    ++result.pages_compared;
    EXPECT_TRUE(slot_bytes(*device_pools_, c, slot) == truth.bytes(c, page))
        << component_name(c) << " page " << page << " differs from a run without the cache";
  };
  if (model_.has(ComponentKind::kFull)) {
    for (std::uint64_t i = 0; i < pages; ++i) compare(ComponentKind::kFull, i, grant.pages->full.at(i));
  }
  if (model_.has(ComponentKind::kSwa)) {
    for (std::uint64_t i = pages - model_.window_pages_at(pages); i < pages; ++i) {
      compare(ComponentKind::kSwa, i, grant.pages->swa.at(i));
    }
  }
  if (model_.has(ComponentKind::kMamba) && pages > 0) compare(ComponentKind::kMamba, pages, grant.pages->state);
}

void Rig::spoil_restored(const StepGrant& grant, std::uint64_t restored, PoolName name) {
  ASSERT_GT(restored, 0u);
  const PoolSpec& pool = *model_.find_pool(name);
  const std::uint64_t last = restored / model_.page_size - 1;
  const DeviceSlot slot = pool.component == ComponentKind::kFull  ? grant.pages->full.at(last)
                          : pool.component == ComponentKind::kSwa ? grant.pages->swa.at(last)
                                                                  : grant.pages->state;
  if (grant.gate) {
    ASSERT_TRUE(grant.gate->wait(model_.layer_count() - 1, std::chrono::seconds(10)).is_ok());
  }
  for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
    for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
      std::byte* at = device_pools_->page(name, layer, plane, slot);
      for (std::size_t i = 0; i < pool.planes[plane].layer_bytes(); ++i) at[i] ^= std::byte{0x15};
    }
  }
}

void Rig::press_device(std::uint64_t seed) {
  // All pages of the device; a node's window pages and states leave with its KV.
  const std::uint64_t pages = device_pools_->slots(ComponentKind::kFull).capacity();
  const Tokens filler = random_tokens(seed, pages * model_.page_size, model_.vocab_size);
  BeginRequest begin;
  begin.tokens = filler;
  begin.adapter = "filler";
  const Result<RequestId> id = cache_->begin(begin);
  ASSERT_TRUE(id.is_ok()) << id.status().to_string();
  RunResult result;
  ASSERT_TRUE(start(*id, result));
  for (std::uint64_t until = model_.page_size; until <= filler.size(); until += model_.page_size) {
    const Result<StepGrant> grant = prepare(*id, until);
    ASSERT_TRUE(grant.is_ok()) << grant.status().to_string();
    ASSERT_TRUE(cache_->complete_step(grant->token, std::span<const TokenId>(filler).first(until)).is_ok());
    (void)cache_->poll(Nanos{0});
  }
  cache_->finish(*id);
  settle();
}

struct Stores::Parts {
  sim::SimFileSystem files{7};
  support::TemporaryDirectory mount;  // of the fake 3FS
  ManualClock clock;
  InlineExecutor executor;
  BackendFactory factory;
};

Stores::Stores() : parts_(std::make_unique<Parts>()) { EXPECT_TRUE(register_backends(parts_->factory).is_ok()); }
Stores::~Stores() = default;

// A directory that the fake 3FS takes for a mount.
void Stores::name_files_on_mount(BackendOptions& options) {
  std::filesystem::create_directories(parts_->mount.path() + "/3fs-virt/iovs");
  options["file_path_prefix"] = parts_->mount.path() + "/pages";
  options["file_size"] = "1Gi";
  options["library"] = LARDER_FAKE_HF3FS;
}

std::unique_ptr<StorageBackend> Stores::open(const std::string& name, BackendOptions options) {
  if (name == "file") options["directory"] = "/store";
  if (name == "hf3fs") name_files_on_mount(options);
  BackendEnvironment environment{&parts_->files, &parts_->clock, &parts_->executor};
  environment.open_metadata = [this](const MetadataOptions& wanted) { return open_metadata(wanted, parts_->clock); };
  Result<std::unique_ptr<StorageBackend>> backend = parts_->factory.create(name, options, environment);
  EXPECT_TRUE(backend.is_ok()) << backend.status().to_string();
  if (!backend.is_ok()) return nullptr;
  if (name == "hf3fs" || name == "mooncake") return std::make_unique<InlineBackend>(std::move(backend).value());
  return std::move(backend).value();
}

}  // namespace larder::exactness
