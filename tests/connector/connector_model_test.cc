// SPDX-License-Identifier: Apache-2.0
// Random engines against a naive model: what was saved, and so may be found; every byte that comes back is compared.
//
//   roomy     the host never evicts: the points are exactly those of the model
//   tight     the host is too small: the points are some of the model's, and leases hold
//   stored    tight, over storages that fail, hang, come and go; and connectors that end with whatever is under way
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

constexpr std::uint32_t kMostPoints = 5;
enum class Mode : std::uint8_t { kRoomy, kTight, kStored };

// What has been saved, by the tokens before it.
struct Naive {
  std::set<Tokens> full, window, state;

  [[nodiscard]] static Tokens head(const Tokens& tokens, std::uint64_t pages, const ModelSpec& model) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(pages * model.page_size)};
  }
  void add(const ModelSpec& model, const Tokens& tokens, std::uint64_t from, std::uint64_t window_from,
           const std::vector<std::uint64_t>& states, std::uint64_t kept) {
    for (std::uint64_t p = from + 1; p <= kept; ++p) full.insert(head(tokens, p, model));
    for (std::uint64_t p = window_from + 1; p <= kept; ++p) window.insert(head(tokens, p, model));
    for (const std::uint64_t p : states) {
      if (p <= kept) state.insert(head(tokens, p, model));
    }
  }
  [[nodiscard]] std::vector<std::uint64_t> points(const ModelSpec& model, const Tokens& tokens) const {
    std::vector<std::uint64_t> found;
    const std::uint64_t most = (tokens.size() - 1) / model.page_size;
    for (std::uint64_t p = 1; p <= most && full.contains(head(tokens, p, model)); ++p) {
      bool is_point = !model.has(ComponentKind::kMamba) || state.contains(head(tokens, p, model));
      for (std::uint64_t w = p - (model.has(ComponentKind::kSwa) ? model.window_pages_at(p) : 0) + 1; w <= p; ++w) {
        is_point = is_point && window.contains(head(tokens, w, model));
      }
      if (is_point) found.push_back(p);
    }
    return found;
  }
};

class RandomEngine {
 public:
  RandomEngine(const std::string& model, Mode mode, std::uint64_t seed)
      : mode_(mode), name_(model), seed_(seed), rng_(seed) {
    if (mode == Mode::kStored) {
      const sim::FaultPlan plan{
          .refuse_percent = 3, .hang_percent = 2, .fail_percent = 5, .partial_percent = 10, .is_holding = true};
      for (auto& storage : storages_) storage = std::make_unique<Storage>(++seed, plan);
    }
    restart();
  }
  ~RandomEngine() {
    for (auto& [id, open] : lookups_) rig_->connector->release(LookupId(id));
    rig_->settle();
    take_results();
  }

  void step() {
    switch (rng_.below(10)) {
      case 0:
      case 1: save(); break;
      case 2: look_up(); break;
      case 3: ask(); break;
      case 4: load(); break;
      case 5: release(); break;
      case 6: (void)rig_->copies->run_one(); break;
      case 7: background(); break;
      case 8:
        if (mode_ != Mode::kRoomy && rng_.chance(1, 20)) (void)rig_->connector->flush();
        if (mode_ == Mode::kStored) trouble();
        break;
      default: rig_->clock.advance(std::chrono::milliseconds(rng_.below(20)));
    }
    (void)rig_->connector->poll(Nanos{0});
    take_results();
  }
  void check() {
    ASSERT_TRUE(rig_->connector->check_invariants().is_ok()) << rig_->connector->check_invariants().to_string();
  }
  // Nothing is under way: what the model says is what is found.
  void check_all_prompts() {
    for (auto& [id, open] : lookups_) rig_->connector->release(LookupId(id));
    lookups_.clear();
    rig_->settle();
    take_results();
    for (const auto& [tenant, prompts] : prompts_) {
      for (const Tokens& tokens : prompts) {
        LookupId id;
        const LookupResult found = rig_->look_up(tokens, id, {}, tenant);
        expect_points(found, tokens, tenant, 0);
        for (const LoadPoint& point : found.points) ASSERT_EQ(rig_->load(id, point, tokens, tenant), "");
        rig_->connector->release(id);
      }
    }
  }
  std::uint64_t loads = 0, hits = 0;

 private:
  struct Open {
    Tokens tokens;
    std::string tenant;
    std::uint64_t has = 0;
    LookupResult result;
    bool is_ready = false;
  };
  struct Saving {
    Tokens tokens;
    std::string tenant;
    std::uint64_t from = 0, window_from = 0, to = 0;
    std::vector<std::uint64_t> states;
    std::unique_ptr<EngineMemory> memory;
  };
  struct Loading {
    Tokens tokens;
    std::unique_ptr<EngineMemory> memory;
  };

  static RigOptions options_of(const std::string& name, Mode mode, std::uint64_t seed) {
    RigOptions options;
    options.layout = kAllHostLayouts[seed % 4];
    options.copies_seed = seed;
    const ModelSpec model = rig_model(name);
    std::size_t bytes = 0;
    for (const ComponentKind c : kAllComponents) bytes += model.has(c) ? host_slot_bytes(model, c) : 0;
    options.host_bytes = mode == Mode::kRoomy ? std::size_t{16} << 20 : 40 * bytes;
    options.config.max_points = kMostPoints;
    if (mode == Mode::kRoomy) options.config.lease_share = options.config.save_share = 1;
    options.config.tiers.prefetch_threshold = 1;
    options.config.tiers.backup_retry_delay = std::chrono::milliseconds(5);
    return options;
  }
  // A prompt that was there before, a fork of one, or a new one.
  Tokens some_prompt(const std::string& tenant) {
    std::vector<Tokens>& known = prompts_[tenant];
    const std::uint64_t pages = rng_.between(1, 12);
    if (known.empty() || rng_.chance(1, 4)) {
      known.push_back(rig_->prompt(rng_.next_u64(), pages));
    } else if (rng_.chance(1, 3)) {
      Tokens fork = known[rng_.below(known.size())];
      fork.resize(rng_.between(1, fork.size()));
      const Tokens tail = rig_->prompt(rng_.next_u64(), pages);
      fork.insert(fork.end(), tail.begin(), tail.end());
      known.push_back(std::move(fork));
    } else {
      return known[rng_.below(known.size())];
    }
    return known.back();
  }
  std::string some_tenant() { return rng_.chance(1, 4) ? "other" : ""; }

  void save() {
    const ModelSpec& model = rig_->model;
    Saving s;
    s.tenant = some_tenant();
    s.tokens = some_prompt(s.tenant);
    const std::uint64_t pages = rig_->pages_in(s.tokens);
    if (pages == 0) return;
    s.to = rng_.between(1, pages);
    s.from = rng_.chance(1, 2) ? 0 : rng_.below(s.to + 1);
    s.window_from = model.has(ComponentKind::kSwa) ? rng_.below(s.to + 1) : s.to;
    for (std::uint64_t p = 1; p <= s.to && model.has(ComponentKind::kMamba); ++p) {
      if (rng_.chance(1, 3)) s.states.push_back(p);
    }
    if (s.from == s.to && s.window_from == s.to && s.states.empty()) return;
    s.memory = std::make_unique<EngineMemory>(model, rig_->options.layout, s.tenant);
    s.memory->compute(s.tokens, {s.from, s.window_from, s.to, s.states});
    SaveRequest request;
    request.tokens = s.tokens;
    request.salt = s.tenant;
    request.from = s.from;
    request.to = s.to;
    request.window_pages = s.to - s.window_from;
    request.states = s.states;
    request.places = s.memory->places();
    request.may_wait = rng_.chance(1, 4);
    const Result<TransferId> id = rig_->connector->save(request);
    if (id.is_ok()) {
      saving_.emplace(id->v, std::move(s));
    } else {
      ASSERT_EQ(id.status().code(), StatusCode::kOverloaded) << id.status().to_string();
    }
  }

  void take_results() {
    for (auto it = saving_.begin(); it != saving_.end();) {
      const Result<SaveResult> result = rig_->connector->save_result(TransferId(it->first));
      if (!result.is_ok()) {
        ASSERT_EQ(result.status().code(), StatusCode::kOverloaded);
        ++it;
        continue;
      }
      const Saving& s = it->second;
      if (mode_ == Mode::kRoomy) {
        ASSERT_NE(result->stop, SaveStop::kNoRoom);
        ASSERT_NE(result->stop, SaveStop::kCopyFailed);
      }
      if (result->stop == SaveStop::kNone) {
        ASSERT_EQ(result->kept, s.to);
      }
      naive_[s.tenant].add(rig_->model, s.tokens, s.from, s.window_from, s.states, result->kept);
      it = saving_.erase(it);
    }
    for (auto it = loading_.begin(); it != loading_.end();) {
      const Result<LoadResult> result = rig_->connector->load_result(TransferId(it->first));
      if (!result.is_ok()) {
        ++it;
        continue;
      }
      ASSERT_TRUE(result->status.is_ok()) << result->status.to_string();
      ASSERT_EQ(it->second.memory->difference(it->second.tokens), "");
      ++loads;
      it = loading_.erase(it);
    }
  }

  void look_up() {
    if (lookups_.size() > 8) return;
    Open open;
    open.tenant = some_tenant();
    open.tokens = some_prompt(open.tenant);
    open.has = rng_.chance(1, 3) ? rng_.below(rig_->pages_in(open.tokens) + 1) : 0;
    LookupRequest request;
    request.tokens = open.tokens;
    request.salt = open.tenant;
    request.has.pages = open.has;
    request.has.window_pages = rng_.below(open.has + 1);
    const Result<LookupId> id = rig_->connector->lookup(request);
    ASSERT_TRUE(id.is_ok()) << id.status().to_string();
    lookups_.emplace(id->v, std::move(open));
  }

  void ask() {
    for (auto& [id, open] : lookups_) {
      if (open.is_ready) continue;
      const Result<LookupResult> result = rig_->connector->points(LookupId(id));
      if (!result.is_ok()) {
        ASSERT_EQ(result.status().code(), StatusCode::kOverloaded) << result.status().to_string();
        continue;
      }
      open.is_ready = true;
      open.result = *result;
      hits += result->points.empty() ? 0 : 1;
      expect_points(*result, open.tokens, open.tenant, open.has);
    }
  }
  void expect_points(const LookupResult& result, const Tokens& tokens, const std::string& tenant, std::uint64_t has) {
    // What a save brought to the tree in this very poll, and the model has not been told of yet.
    std::vector<std::uint64_t> all = naive_[tenant].points(rig_->model, tokens), found;
    std::erase_if(all, [&](std::uint64_t p) { return p < has; });
    for (const LoadPoint& point : result.points) found.push_back(point.pages);
    if (mode_ == Mode::kRoomy) {
      all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(all.size(), kMostPoints)));
      ASSERT_EQ(found, all);
    } else {
      ASSERT_TRUE(std::includes(all.begin(), all.end(), found.begin(), found.end()));
    }
  }

  // Any open lookup, at any time after its points were told: the lease keeps them.
  void load() {
    for (auto& [id, open] : lookups_) {
      if (!open.is_ready || open.result.points.empty() || rng_.chance(1, 2)) continue;
      const LoadPoint& point = open.result.points[rng_.below(open.result.points.size())];
      Loading loading{open.tokens, std::make_unique<EngineMemory>(rig_->model, rig_->options.layout, open.tenant)};
      loading.memory->reserve(rig_->needs_of(point));
      LoadRequest request;
      request.lookup = LookupId(id);
      request.pages = point.pages;
      request.places = loading.memory->places();
      const Result<TransferId> transfer = rig_->connector->load(request);
      ASSERT_TRUE(transfer.is_ok()) << transfer.status().to_string();
      loading_.emplace(transfer->v, std::move(loading));
    }
  }
  void release() {
    if (lookups_.empty()) return;
    auto it = lookups_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(rng_.below(lookups_.size())));
    rig_->connector->release(LookupId(it->first));
    lookups_.erase(it);
  }
  void background() {
    for (const auto& storage : storages_) {
      if (!storage) continue;
      if (rng_.chance(1, 10)) (void)storage->backend->release_hung();
      (void)storage->backend->release_one();
      (void)storage->executor.run_one();
    }
  }
  void trouble() {
    if (rng_.chance(1, 10)) {
      rig_->connector->detach_storage();
      attached_ = rng_.below(2);
      rig_->attach(*storages_[attached_]);
    }
    if (rng_.chance(1, 40)) restart();
  }
  // The connector ends with what is under way, and the next one finds what storage has. What a save brought there
  // before it ended, nobody has been told.
  void restart() {
    for (const auto& [id, s] : saving_) {
      naive_[s.tenant].add(rig_->model, s.tokens, s.from, s.window_from, s.states, s.to);
    }
    if (rig_) rig_->connector.reset();
    saving_.clear();
    loading_.clear();
    lookups_.clear();
    if (rig_) (void)rig_->copies->run_all();  // they touch nothing any more
    rig_.reset();
    rig_ = std::make_unique<Rig>(name_, options_of(name_, mode_, seed_));
    if (mode_ == Mode::kStored) rig_->attach(*storages_[attached_]);
  }

  const Mode mode_;
  const std::string name_;
  const std::uint64_t seed_;
  Rng rng_;
  std::array<std::unique_ptr<Storage>, 2> storages_;
  std::size_t attached_ = 0;  // of them
  std::unique_ptr<Rig> rig_;
  std::map<std::string, Naive> naive_;
  std::map<std::string, std::vector<Tokens>> prompts_;
  std::map<std::uint64_t, Open> lookups_;
  std::map<std::uint64_t, Saving> saving_;
  std::map<std::uint64_t, Loading> loading_;
};

void run(Mode mode, std::uint64_t seeds, int steps) {
  std::vector<std::string> models = sim::small_model_names();
  models.emplace_back("recurrent");
  std::uint64_t loads = 0, hits = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::string& model = models[seed % models.size()];
    SCOPED_TRACE("seed " + std::to_string(seed) + ", model " + model);
    RandomEngine engine(model, mode, seed);
    for (int i = 0; i < steps; ++i) {
      engine.step();
      if (i % 64 == 0) engine.check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    engine.check_all_prompts();
    if (::testing::Test::HasFatalFailure()) return;
    loads += engine.loads;
    hits += engine.hits;
  }
  EXPECT_GT(loads, seeds * 2);
  EXPECT_GT(hits, seeds * 2);
}

TEST(ConnectorModel, RoomyHost) { run(Mode::kRoomy, 60, 500); }
TEST(ConnectorModel, TightHost) { run(Mode::kTight, 100, 800); }
TEST(ConnectorModel, TightHostAndStorage) { run(Mode::kStored, 100, 800); }

}  // namespace
}  // namespace larder::connector_test
