// SPDX-License-Identifier: Apache-2.0
// A whole engine in small: full attention with a draft model's KV, a sliding window and a recurrent state, several
// requests at once, prompts computed in chunks, and a store on disk behind device and host.
//
//     hybrid_engine DIRECTORY          twice, and the second time prompts come from the store
//
// What it "computes" of a token are numbers that follow from the token and from all before it. Before each step it
// reads all that a model would read, and says if anything is not what was computed: this is how to try the cache under
// an engine of your own, too.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "base/thread_pool.h"
#include "controller/cache.h"
#include "model/pool_list.h"
#include "storage/factory.h"
#include "storage/file/file_backend.h"
#include "storage/pipeline/storage_pipeline.h"

using namespace larder;

namespace {

constexpr std::uint32_t kPage = 16, kWindow = 40, kChunk = 64;  // tokens
constexpr std::size_t kAtOnce = 6, kTurns = 3, kConversations = 8;

ModelSpec hybrid_model() {
  const auto rows = [](const char* name) {
    return PlaneSpec{.name = name, .dtype = Dtype::kF32, .rows = kPage, .heads = 1, .head_dim = 4};
  };
  PoolSpec kv{.name = PoolName::kKv, .component = ComponentKind::kFull, .is_anchor = true};
  kv.layers = {0, 3};
  kv.planes = {rows("k"), rows("v")};
  PoolSpec draft{.name = PoolName::kDraft, .component = ComponentKind::kFull};  // a sidecar: its slots are those of kv
  draft.layers = {4};
  draft.planes = {rows("k"), rows("v")};
  PoolSpec swa{.name = PoolName::kSwa,
               .component = ComponentKind::kSwa,
               .is_anchor = true,
               .hit_policy = HitPolicy::kTrailingPages};
  swa.layers = {1};
  swa.planes = {rows("k"), rows("v")};
  PoolSpec state{.name = PoolName::kMamba,
                 .component = ComponentKind::kMamba,
                 .is_anchor = true,
                 .hit_policy = HitPolicy::kTrailingPages};
  state.layers = {2};
  state.planes = {{.name = "temporal", .dtype = Dtype::kF32, .rows = 1, .heads = 1, .head_dim = 4}};
  return model_of_pools({.id = "hybrid", .page_size = kPage, .window = kWindow, .pools = {kv, draft, swa, state}})
      .value();
}

struct Sequence {
  RequestId id;
  std::vector<TokenId> tokens;  // prompt, and what was sampled
  std::size_t prompt = 0, wanted = 0;
  std::size_t conversation = 0, turn = 0;
  bool has_started = false;
};

// What a model has seen after `count` tokens, as a number.
std::uint64_t seen(const std::vector<TokenId>& tokens, std::size_t count) {
  std::uint64_t h = 7;
  for (std::size_t i = 0; i < count; ++i) h = (h ^ tokens[i]) * 0x9e3779b97f4a7c15 + 1;
  return h;
}

class Engine {
 public:
  explicit Engine(std::string directory) : directory_(std::move(directory)) {
    CacheConfig config;
    config.chunked_prefill_tokens = kChunk;  // the engine's: the window slots of a request follow from it
    config.decode_headroom_tokens = kPage;   // of an answer, when a request starts; so the device may fill later
    config.prefetch_threshold = kPage;       // these prompts are short, and the disk is near
    config.checkpoint_grid = 128;
    const CacheParts parts{&model_, pages_.get(), host_.get(), copies_.get(), &real_clock(), &metrics_, nullptr, {}};
    cache_ = Cache::create(config, parts).value();
    attach();
  }
  ~Engine() {
    detach();
    cache_.reset();
    copies_.reset();  // before the memory that it copies, which goes with the other members
  }

  void submit(std::size_t conversation, std::vector<TokenId> prompt, std::size_t turn) {
    Sequence s;
    s.prompt = prompt.size();
    s.wanted = prompt.size() + 60;
    s.conversation = conversation;
    s.turn = turn;
    s.tokens = std::move(prompt);
    waiting_.push_back(std::move(s));
  }
  // Until all have ended. In the middle somebody takes the store away for a while.
  void run() {
    for (int turn = 0; turn < 1'000'000 && (!waiting_.empty() || !running_.empty()); ++turn) {
      if (turn == 150) detach();
      if (turn == 200) attach();
      (void)cache_->poll(std::chrono::milliseconds(running_.empty() ? 5 : 0));
      if (store_) store_->tick();
      while (running_.size() < kAtOnce && !waiting_.empty()) admit();
      bool is_one_starved = false;
      for (std::size_t i = 0; i < running_.size(); ++i) is_one_starved = step(i, is_one_starved);
      for (std::size_t i = running_.size(); i-- > 0;) end(i);
    }
  }
  // While requests run: those that wait for the store go on without. close() waits for what is under way there.
  void detach() {
    if (!store_) return;
    cache_->detach_storage();
    if (const Status closed = store_->close(std::chrono::seconds(10)); !closed.is_ok()) {
      std::fprintf(stderr, "the store hangs, and keeps the host memory: %s\n", closed.to_string().c_str());
      std::abort();
    }
    store_.reset();
  }
  void attach() {
    BackendFactory factory;
    const BackendEnvironment around{&real_file_system(), &real_clock(), &io_, {host_->memory()}};
    if (!register_file_backend(factory).is_ok()) return;
    auto opened = factory.create("file", {{"directory", directory_}, {"max_size", "1G"}}, around);
    if (!opened.is_ok()) {
      std::fprintf(stderr, "%s\n", opened.status().to_string().c_str());  // and goes on without a store
      return;
    }
    store_ = make_pipeline(std::move(opened).value(), PipelineOptions{}, real_clock(), &metrics_, /*seed=*/1);
    if (!cache_->attach_storage(*store_).is_ok()) store_.reset();
  }
  // Until what was computed is stored.
  void settle() {
    for (int i = 0; i < 500 && cache_->operations_in_flight() > 0; ++i) {
      (void)cache_->poll(std::chrono::milliseconds(20));
      if (store_) store_->tick();
    }
  }

  std::uint64_t prompts = 0, device = 0, host = 0, storage = 0, wrong = 0;  // tokens, and numbers
  std::uint64_t cancelled = 0, retracted = 0;

 private:
  void admit() {
    Sequence s = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    BeginRequest request;
    request.tokens = s.tokens;
    request.max_new_tokens = s.wanted - s.prompt;
    const Result<RequestId> id = cache_->begin(request);
    if (!id.is_ok()) {
      std::fprintf(stderr, "%s\n", id.status().to_string().c_str());  // the client's answer
      return;
    }
    s.id = *id;
    running_.push_back(std::move(s));
  }

  // Returns whether the device is full for this one, or for one before it: no other may start then.
  bool step(std::size_t i, bool is_one_starved) {
    Sequence& s = running_[i];
    if (!s.has_started) {
      if (is_one_starved || cache_->phase(s.id) == RequestPhase::kPrefetching) return is_one_starved;
      const Result<CachedTokens> cached = cache_->start(s.id);
      if (!cached.is_ok()) return is_one_starved;  // kOverloaded: later
      s.has_started = true;
      prompts += cached->prompt, device += cached->device, host += cached->host, storage += cached->storage;
    }
    const std::uint64_t from = cache_->computed_tokens(s.id);
    Result<StepGrant> grant = cache_->prepare_step(s.id, std::min<std::uint64_t>(from + kChunk, s.tokens.size()));
    if (!grant.is_ok()) {  // kOverloaded: not in this step
      if (!cache_->is_starved(s.id)) return is_one_starved;
      set_aside_the_last(i);
      return true;
    }
    if (!compute(s, *grant, from)) {
      (void)cache_->cancel_step(grant->token);
      (void)cache_->restart(s.id);  // the copies from the host failed: start() again, without them
      s.has_started = false;
      return is_one_starved;
    }
    // The tokens that the step has computed, and not the one that comes out of it.
    (void)cache_->complete_step(grant->token, std::span<const TokenId>(s.tokens).first(grant->until));
    if (grant->until == s.tokens.size()) s.tokens.push_back(static_cast<TokenId>(seen(s.tokens, grant->until) % 1000));
    return is_one_starved;
  }
  void set_aside_the_last(std::size_t but_not_before) {
    for (std::size_t last = running_.size(); last-- > but_not_before;) {
      if (!running_[last].has_started) continue;
      (void)cache_->retract(running_[last].id);
      running_[last].has_started = false;
      ++retracted;
      return;
    }
  }

  // False: a layer that was cached on the host did not come.
  bool compute(const Sequence& s, const StepGrant& grant, std::uint64_t from) {
    for (std::uint32_t layer = 0; grant.gate != nullptr && layer < model_.layer_count(); ++layer) {
      if (!grant.gate->wait(layer, std::chrono::seconds(30)).is_ok()) return false;
    }
    const PageTable& table = *grant.pages;
    // A state slot holds what its last owner left there. A model begins with zeros; this one with what it has seen.
    visit(PoolName::kMamba, table.state, 0, seen(s.tokens, from), /*is_read=*/from > 0);
    for (std::uint64_t p = 0; p < grant.until; ++p) {
      const std::uint64_t value = seen(s.tokens, p + 1);
      visit(PoolName::kKv, table.full[p / kPage], p % kPage, value, p < from);
      visit(PoolName::kDraft, table.full[p / kPage], p % kPage, value, p < from);
      if (p + kWindow >= from) visit(PoolName::kSwa, table.swa[p / kPage], p % kPage, value, p < from);
    }
    for (const CheckpointSlot& copy : grant.checkpoints) {  // the state on the way, at these positions
      visit(PoolName::kMamba, copy.slot, 0, seen(s.tokens, copy.position), false);
    }
    visit(PoolName::kMamba, table.state, 0, seen(s.tokens, grant.until), false);
    return true;
  }
  // Reads a row of all layers and planes of a pool, or writes it.
  void visit(PoolName name, DeviceSlot slot, std::size_t row, std::uint64_t value, bool is_read) {
    const PoolSpec& pool = *model_.find_pool(name);
    for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
      for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
        const std::uint64_t mine[] = {value, layer * 2 + plane};  // a row: four numbers of four bytes
        std::byte* const at = pages_->page(name, layer, plane, slot) + row * sizeof mine;
        if (!is_read) std::memcpy(at, mine, sizeof mine);
        wrong += std::memcmp(at, mine, sizeof mine) != 0 ? 1 : 0;
      }
    }
  }

  void end(std::size_t i) {
    Sequence& s = running_[i];
    const bool is_cancelled = s.conversation == 5 && s.turn == 1 && s.tokens.size() == s.prompt + 4;
    if (!is_cancelled && s.tokens.size() < s.wanted) return;
    if (is_cancelled) {
      cache_->abort(s.id);  // the client has gone; what was computed stays cached
      ++cancelled;
    } else {
      cache_->finish(s.id);
    }
    if (s.turn + 1 < kTurns) {  // the answer, and a new question
      for (TokenId t = 0; t < 50; ++t) s.tokens.push_back(static_cast<TokenId>(s.conversation * 100 + s.turn * 10 + t));
      submit(s.conversation, std::move(s.tokens), s.turn + 1);
    }
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // In the order of their lifetimes: what stands above outlives what stands below.
  const std::string directory_;
  MetricsRegistry metrics_;
  ThreadPoolExecutor io_{"storage", 2, 16'384}, threads_{"copy", 2, 1024};
  const ModelSpec model_ = hybrid_model();
  const std::unique_ptr<Device> device_ = make_cpu_device(threads_);
  const std::unique_ptr<DevicePools> pages_ = DevicePools::create(model_, {64, 60, 24}, device_->memory()).value();
  const std::unique_ptr<HostPools> host_ =
      HostPools::create(model_, HostLayout::kPageFirst, 256u << 10, device_->host_memory()).value();
  std::unique_ptr<TransferEngine> copies_ = TransferEngine::create(*device_, *pages_, host_.get(), 1024).value();
  std::unique_ptr<StoragePipeline> store_;
  std::unique_ptr<Cache> cache_;
  std::vector<Sequence> waiting_, running_;
};

// Conversations that share a system prompt.
std::vector<TokenId> first_prompt(std::size_t conversation) {
  std::vector<TokenId> prompt;
  for (TokenId t = 0; t < 100; ++t) prompt.push_back(t);
  for (TokenId t = 0; t < 120; ++t) prompt.push_back(static_cast<TokenId>(1000 * conversation + t));
  return prompt;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
    return 2;
  }
  std::uint64_t wrong = 0;
  for (int life = 1; life <= 2; ++life) {
    Engine engine(argv[1]);
    for (std::size_t c = 0; c < kConversations; ++c) engine.submit(c, first_prompt(c), 0);
    engine.run();
    engine.settle();
    const auto count = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
    std::printf("run %d: of %llu prompt tokens %llu were on the device, %llu on the host, %llu in the store; ", life,
                count(engine.prompts), count(engine.device), count(engine.host), count(engine.storage));
    std::printf("%llu requests cancelled, %llu set aside; %llu wrong numbers\n", count(engine.cancelled),
                count(engine.retracted), count(engine.wrong));
    wrong += engine.wrong;
  }
  return wrong == 0 ? 0 : 1;
}
