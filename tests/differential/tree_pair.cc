// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/tree_pair.h"

#include <algorithm>

namespace larder::differential {

namespace {

constexpr std::array<std::pair<StepKind, std::uint32_t>, 10> kWeights = {{{StepKind::kLookup, 8},
                                                                          {StepKind::kInsert, 16},
                                                                          {StepKind::kAdopt, 6},
                                                                          {StepKind::kBackUp, 20},
                                                                          {StepKind::kLoadBack, 20},
                                                                          {StepKind::kLock, 12},
                                                                          {StepKind::kUnlock, 8},
                                                                          {StepKind::kRelease, 4},
                                                                          {StepKind::kEvictDevice, 18},
                                                                          {StepKind::kEvictHost, 8}}};

ReferenceShape shape_of(const TreeConfig& config) {
  return {config.page_size, config.window_tokens, config.has_mamba, static_cast<ReferencePolicy>(config.policy),
          config.allow_host_gaps};
}

std::size_t tier_index(Tier tier) { return tier == Tier::kDevice ? kOnDevice : kOnHost; }

std::string numbers(std::uint64_t have, std::uint64_t want) {
  return std::to_string(have) + ", the reference " + std::to_string(want);
}

}  // namespace

PairStep random_step(Rng& rng) {
  std::uint32_t total = 0;
  for (const auto& [kind, weight] : kWeights) total += weight;
  std::uint64_t draw = rng.below(total);
  PairStep step;
  for (const auto& [kind, weight] : kWeights) {
    step.kind = kind;
    if (draw < weight) break;
    draw -= weight;
  }
  for (std::uint64_t& r : step.r) r = rng.next_u64() >> 32;
  return step;
}

std::string describe(const std::vector<PairStep>& steps) {
  std::string text;
  for (const PairStep& step : steps) {
    text += "  {StepKind(" + std::to_string(static_cast<int>(step.kind)) + "), {";
    for (const std::uint64_t r : step.r) text += std::to_string(r) + "u, ";
    text += "}},\n";
  }
  return text;
}

std::vector<PairConfig> pair_configs() {
  std::vector<PairConfig> configs;
  for (const std::uint32_t page : {1u, 4u}) {
    for (const std::uint32_t window : {0u, page, page * 2, page * 2 + page / 2 + 1, page * 30}) {
      for (const bool state : {false, true}) {
        const auto policy = static_cast<EvictionPolicy>(configs.size() % 7);
        TreeConfig tree = tree_test::config_of(page, window, state, policy);
        tree.allow_host_gaps = configs.size() % 3 == 2;  // write_back
        configs.push_back({"page " + std::to_string(page) + ", window " + std::to_string(window) +
                               (state ? ", state, " : ", ") + std::string(eviction_policy_name(policy)) +
                               (tree.allow_host_gaps ? ", write_back" : ""),
                           tree});
      }
    }
  }
  return configs;
}

TreePair::TreePair(const PairConfig& config, const Rules& rules, DifferenceCounts& counts)
    : config_(config),
      tree_(config.tree, ledger_),
      rules_(rules),
      counts_(counts),
      reference_(shape_of(config.tree), rules, counts) {
  spaces_[0] = tree_.spaces().open(std::nullopt, {}, PathHash());
  seed_.bytes[3] = 1;
  spaces_[1] = tree_.spaces().open(seed_, {}, PathHash::of_space({}, "other"));
}

std::string TreePair::step(const PairStep& step) {
  const Path path = path_of(step.r[0]);
  std::string error = apply(step, path);
  if (step.kind == StepKind::kInsert || step.kind == StepKind::kAdopt) remember(path);
  if (error.empty()) error = compare_freed();
  if (error.empty()) error = compare_contents();
  if (error.empty()) error = compare_answer(path, reference_.answer(extra_of(path), path.tokens));
  if (error.empty()) error = reference_.broken_invariant();
  return error;
}

void TreePair::remember(const Path& path) {
  constexpr std::size_t kRecent = 4;
  if (recent_.size() == kRecent) recent_.erase(recent_.begin());
  recent_.push_back(path);
}

// Often one that was inserted lately. Pages differ in their last token only; some paths end inside a page.
TreePair::Path TreePair::path_of(std::uint64_t r) const {
  const std::uint64_t page_size = config_.tree.page_size;
  if (r % 3 == 0 && !recent_.empty()) return recent_[r / 3 % recent_.size()];
  r /= 3;
  Path path{(r & 7) == 7 ? 1u : 0u, {}};
  r >>= 3;
  const std::uint64_t pages = 1 + r % config_.pages_max;
  r /= config_.pages_max;
  for (std::uint64_t i = 0; i < pages; ++i, r /= 3) {
    path.tokens.resize(path.tokens.size() + page_size, 1);
    path.tokens.back() = r % 3 == 0 ? 3 : 2;  // most of them share a good deal
  }
  path.tokens.resize(path.tokens.size() + r % page_size, 1);
  return path;
}

NodeId TreePair::node_at(const Path& path, std::uint64_t pages) {
  return tree_.settle({match(path).walked.node, pages});
}

std::string TreePair::apply(const PairStep& step, const Path& path) {
  switch (step.kind) {
    case StepKind::kLookup: return step.r[1] % 4 == 0 ? compare_keys(path) : use(path);
    case StepKind::kInsert: return insert(path, step);
    case StepKind::kAdopt: return adopt(path, step);
    case StepKind::kBackUp: return back_up(path, step);
    case StepKind::kLoadBack: return load_back(path, step);
    case StepKind::kLock: return lock(path, step);
    case StepKind::kUnlock: return unlock(step);
    case StepKind::kRelease: return release(step);
    case StepKind::kEvictDevice: return evict(step, Tier::kDevice);
    case StepKind::kEvictHost: return evict(step, Tier::kHost);
  }
  return {};
}

std::string TreePair::use(const Path& path) {
  const MatchResult found = match(path);
  if (std::string error = compare_answer(path, reference_.match(extra_of(path), path.tokens)); !error.empty()) {
    return error;
  }
  tree_.touch(found.any.at, false);
  return {};
}

// As a request does it that looked its path up, resumed where it may without copies, and computed the rest.
std::string TreePair::insert(const Path& path, const PairStep& step) {
  const bool looked_up = step.r[1] % 3 != 0;  // else it was begun when nothing was there
  if (std::string error = looked_up ? use(path) : ""; !error.empty()) return error;
  const MatchResult found = match(path);
  const std::uint64_t pages = path.tokens.size() / config_.tree.page_size;
  const bool resumes = looked_up && found.device.at.pages == found.any.at.pages;
  const std::uint64_t owned = resumes ? found.device.at.pages : 0;
  const std::uint64_t window_pages = shape_of(config_.tree).window_pages();
  const std::uint64_t window_begin = pages - std::min(pages, window_pages);

  ReferenceInsert wanted{extra_of(path), path.first(pages, config_.tree.page_size),
                         owned,          Slots(pages),
                         pages,          Slots(pages),
                         std::nullopt,   static_cast<int>(step.r[2] % 3)};
  std::vector<DeviceSlot> full(pages), window(window_pages == 0 ? 0 : pages);
  if (window_pages != 0) {
    const std::uint64_t earliest = std::min(window_begin, std::max(owned, found.walked.pages));
    wanted.window_from = std::max(owned, step.r[3] % 2 == 0 ? window_begin : earliest);
  }
  for (std::uint64_t i = owned; i < pages; ++i) {
    full[i] = ledger_.device(ComponentKind::kFull);
    wanted.full[i] = full[i].v;
    if (i < wanted.window_from) continue;
    window[i] = ledger_.device(ComponentKind::kSwa);
    wanted.window[i] = window[i].v;
  }
  std::vector<Checkpoint> checkpoints;
  if (config_.tree.has_mamba && owned < pages && step.r[3] % 8 < 6) {
    checkpoints.push_back({pages, ledger_.device(ComponentKind::kMamba)});
    wanted.state = checkpoints.front().slot.v;
  }
  const auto done =
      tree_test::insert_pages(tree_, config_.tree.page_size,
                              {spaces_[path.space], wanted.tokens, owned, full, window, checkpoints, wanted.priority});
  if (!done.is_ok()) return "insert says " + done.status().to_string();
  // The reference counts a hit; production is told of one.
  const bool counts_hits = config_.tree.policy == EvictionPolicy::kLfu || config_.tree.policy == EvictionPolicy::kSlru;
  wanted.used = counts_hits || step.r[2] % 2 == 0;
  if (wanted.used) tree_.touch({done->node, pages}, true);
  const ReferenceInserted want = reference_.insert(wanted);
  if (done->new_pages != want.fresh) return "insert: new pages " + numbers(done->new_pages, want.fresh);
  if (done->duplicate_pages != want.duplicate) {
    return "insert: duplicates " + numbers(done->duplicate_pages, want.duplicate);
  }
  if (done->recovered_pages != want.recovered) {
    return "insert: recovered " + numbers(done->recovered_pages, want.recovered);
  }
  return (done->checkpoints_kept == 1) == want.took_state ? "" : "insert: only one of them took the state";
}

// A prefetch that arrived whole.
std::string TreePair::adopt(const Path& path, const PairStep& step) {
  const MatchResult found = match(path);
  const std::uint64_t pages = path.tokens.size() / config_.tree.page_size, from = found.walked.pages;
  if (from == pages) return {};
  std::vector<PageLocation> above;
  tree_.locate(found.walked.node, ComponentKind::kFull, 0, from, above);
  bool reference_adopts = true;
  if (!above.empty() && !above.back().host.valid()) {
    counts_.meet(Difference::kAdoptBeneathDevice);
    reference_adopts = rules_.contains(Difference::kAdoptBeneathDevice);
  }
  const auto full = ledger_.host(ComponentKind::kFull, pages - from);
  const auto window = ledger_.host(ComponentKind::kSwa, adoptable_window(path, from, pages));
  HostSlot state;
  if (config_.tree.has_mamba && step.r[1] % 4 != 0) state = ledger_.host(ComponentKind::kMamba);
  const auto tokens = path.first(pages, config_.tree.page_size);
  const auto done = tree_.insert_host({spaces_[path.space], tokens, from, full, window, state});
  if (!done.is_ok()) return "insert_host says " + done.status().to_string();
  const bool used = step.r[2] % 2 == 0;
  if (used) tree_.touch({done->node, pages}, false);
  Slots full_slots, window_slots;
  for (const HostSlot slot : full) full_slots.push_back(slot.v);
  for (const HostSlot slot : window) window_slots.push_back(slot.v);
  if (!reference_adopts) return {};
  reference_.insert_host(extra_of(path), tokens, from, full_slots, window_slots,
                         state.valid() ? std::optional<Slot>(state.v) : std::nullopt, used);
  return done->new_pages == pages - from ? "" : "insert_host: new pages " + numbers(done->new_pages, pages - from);
}

// All of a window or nothing. What the published rules leave open is left out: the host's side of a window that the
// device has.
std::uint64_t TreePair::adoptable_window(const Path& path, std::uint64_t from, std::uint64_t pages) const {
  const std::uint64_t window = shape_of(config_.tree).window_pages();
  if (pages < window) return 0;
  std::vector<PageLocation> above, full;
  if (pages - window < from) {
    tree_.locate(match(path).walked.node, ComponentKind::kSwa, pages - window, from, above);
    tree_.locate(match(path).walked.node, ComponentKind::kFull, pages - window, from, full);
  }
  if (std::any_of(full.begin(), full.end(), [](const PageLocation& at) { return !at.host.valid(); })) return 0;
  const bool clear = std::none_of(above.begin(), above.end(),
                                  [](const PageLocation& at) { return at.device.valid() && !at.host.valid(); });
  return clear ? window : 0;
}

std::string TreePair::back_up(const Path& path, const PairStep& step) {
  const std::uint64_t on_device = match(path).full_device_pages;
  if (on_device == 0) return {};
  const std::uint64_t end = 1 + step.r[1] % on_device;
  std::vector<NodeId> nodes;
  for (NodeId at = node_at(path, end); tree_.view(at).end != 0; at = tree_.view(at).parent) nodes.push_back(at);
  const OpId op(next_op_++);
  std::array<Slots, 3> given;
  for (auto at = nodes.rbegin(); at != nodes.rend(); ++at) {
    if (!tree_.view(*at).host[index_of(ComponentKind::kFull)].empty()) continue;
    for (const ComponentKind c : kAllComponents) {
      const auto slots = ledger_.host(c, tree_.view(*at).device[index_of(c)].size());
      if (slots.empty()) continue;
      const Status status = tree_.attach_host(op, *at, c, slots);
      if (!status.is_ok()) return "attach_host says " + status.to_string();
      for (const HostSlot slot : slots) given[index_of(c)].push_back(slot.v);
    }
  }
  (void)tree_.finish_op(op, true);
  std::array<std::size_t, 3> taken{};
  bool too_many = false;
  reference_.back_up(extra_of(path), path.tokens, end, [&](std::size_t part) {
    too_many = too_many || taken[part] == given[part].size();
    return too_many ? Slot{0} : given[part][taken[part]++];
  });
  return too_many ? "back_up: the reference backs more up" : "";
}

std::string TreePair::load_back(const Path& path, const PairStep& step) {
  if (step.r[1] % 2 == 0) {
    if (std::string error = use(path); !error.empty()) return error;
  }
  const std::string extra = extra_of(path);
  const std::uint64_t end = match(path).any.at.pages;
  const ReferenceTree::LoadPlan plan = reference_.plan_load(extra, path.tokens, end);
  std::array<Slots, 3> slots;
  for (const ComponentKind c : kAllComponents) {
    for (std::size_t i = 0; i < plan.pages[index_of(c)].size(); ++i) slots[index_of(c)].push_back(ledger_.device(c).v);
  }
  const OpId op(next_op_++);
  if (std::string error = attach(op, path, end, plan, slots); !error.empty()) return error;
  const std::uint64_t under_way = match(path).device.at.pages;
  const std::string refused = insert_under_way(path, plan);
  (void)tree_.finish_op(op, true);
  if (!refused.empty()) return refused;

  std::uint64_t want = reference_.answer(extra, path.tokens).device;
  reference_.load_back(extra, path.tokens, end, slots);
  const std::uint64_t loaded = reference_.answer(extra, path.tokens).device;
  if (loaded != want) {
    counts_.meet(Difference::kCopyUnderWay);
    if (!rules_.contains(Difference::kCopyUnderWay)) want = loaded;
  }
  if (under_way != want) return "while pages are copied to the device: " + numbers(under_way, want);
  return use(path);
}

std::string TreePair::attach(OpId op, const Path& path, std::uint64_t end, const ReferenceTree::LoadPlan& plan,
                             const std::array<Slots, 3>& slots) {
  for (const ComponentKind c : kAllComponents) {
    const std::vector<std::size_t>& pages = plan.pages[index_of(c)];
    for (std::size_t i = 0, next = 0; i < pages.size(); i = next) {
      std::vector<DeviceSlot> run;
      for (next = i; next < pages.size() && pages[next] == pages[i] + (next - i); ++next) {
        run.emplace_back(slots[index_of(c)][next]);
      }
      const Status status = tree_.attach_device(op, node_at(path, end), c, pages[i], run);
      if (!status.is_ok()) return "attach_device says " + status.to_string();
    }
  }
  return {};
}

// Somebody has computed the whole path meanwhile.
std::string TreePair::insert_under_way(const Path& path, const ReferenceTree::LoadPlan& plan) {
  if (plan.pages[kFullPart].empty() && plan.pages[kWindowPart].empty()) return {};
  counts_.meet(Difference::kInsertWaits);
  const std::uint64_t pages = path.tokens.size() / config_.tree.page_size;
  const auto tokens = path.first(pages, config_.tree.page_size);
  const auto full = ledger_.device(ComponentKind::kFull, pages);
  const auto done = tree_test::insert_pages(tree_, config_.tree.page_size, {spaces_[path.space], tokens, 0, full});
  const StatusCode want = rules_.contains(Difference::kInsertWaits) ? StatusCode::kConflict : StatusCode::kOk;
  if (done.status().code() != want) return "insert over a copy under way says " + done.status().to_string();
  if (!done.is_ok()) {
    ledger_.free_device(ComponentKind::kFull, full);
    (void)ledger_.came_back(ComponentKind::kFull, Tier::kDevice);
  }
  return {};
}

std::string TreePair::lock(const Path& path, const PairStep& step) {
  const MatchResult found = match(path);
  const Tier tier = step.r[1] % 2 == 0 ? Tier::kHost : Tier::kDevice;
  const bool resident = tier == Tier::kDevice && step.r[2] % 4 != 0;
  const std::uint64_t end = resident ? found.device.at.pages : found.any.at.pages;
  if (held_.size() == 4 || end == 0) return {};
  const NodeId node = node_at(path, end);
  held_.push_back({tree_.lock(node, tier, {true, false, false}), tree_.lock(node, tier, {false, true, true}),
                   reference_.lock(extra_of(path), path.tokens, end, tier_index(tier))});
  return {};
}

// Decoding has passed the window, so what the request resumed from is needed as pages of full only.
std::string TreePair::release(const PairStep& step) {
  if (held_.empty()) return {};
  Held& held = held_[step.r[1] % held_.size()];
  tree_.unlock(held.rest);
  reference_.release_window(held.reference);
  return {};
}

std::string TreePair::unlock(const PairStep& step) {
  if (held_.empty()) return {};
  std::swap(held_[step.r[1] % held_.size()], held_.back());
  tree_.unlock(held_.back().full);
  tree_.unlock(held_.back().rest);
  reference_.unlock(held_.back().reference);
  held_.pop_back();
  return {};
}

std::string TreePair::evict(const PairStep& step, Tier tier) {
  const ComponentKind c = kAllComponents[step.r[1] % 3];
  const bool in_model = c == ComponentKind::kFull || (c == ComponentKind::kSwa && config_.tree.window_tokens != 0) ||
                        (c == ComponentKind::kMamba && config_.tree.has_mamba);
  if (!in_model) return {};
  std::uint64_t count = 1 + step.r[2] % (tier == Tier::kDevice ? 9 : 5);
  for (bool has_named = true; has_named && count > 0;) {
    if (std::string error = evict_once(c, tier, count, has_named); !error.empty()) return error;
  }
  return {};
}

std::string TreePair::evict_once(ComponentKind c, Tier tier, std::uint64_t& count, bool& has_named) {
  const VictimRule rule = config_.tree.allow_host_gaps ? VictimRule::kBackUpFirst : VictimRule::kDrop;
  const EvictResult have = tier == Tier::kDevice ? tree_.evict_device(c, count, rule) : tree_.evict_host(c, count);
  collect_freed();
  const ReferenceEvicted want =
      reference_.evict(index_of(c), tier_index(tier), count, freed_[kFullPart][tier_index(tier)]);
  const std::string what = std::string("evict ") + std::string(component_name(c)) +
                           (tier == Tier::kDevice ? " from the device" : " from the host");
  if (have.freed != want.freed) return what + ": freed " + numbers(have.freed, want.freed);
  if (have.demoted != want.demoted) return what + ": demoted " + numbers(have.demoted, want.demoted);
  if (have.dropped != want.dropped) return what + ": dropped " + numbers(have.dropped, want.dropped);
  count -= std::min(count, have.freed);
  has_named = !have.needs_backup.empty();
  if (std::string error = back_up_named(have.needs_backup, want.needs_backup); !error.empty()) return what + error;
  if (std::string error = compare_freed(); !error.empty()) return what + ", " + error;
  return compare_contents();
}

// The same nodes are named, in the same order. They get their copies.
std::string TreePair::back_up_named(const std::vector<NodeId>& have, const std::vector<ReferenceNode*>& want) {
  if (have.size() != want.size()) return ": nodes to back up " + numbers(have.size(), want.size());
  for (std::size_t i = 0; i < have.size(); ++i) {
    std::vector<TokenId> tokens;
    for (NodeView view = tree_.view(have[i]); view.end != 0; view = tree_.view(view.parent)) {
      tokens.insert(tokens.begin(), view.tokens.begin(), view.tokens.end());
    }
    const bool in_first = tree_.view(have[i]).space == spaces_[0];
    if (tokens != reference_.tokens_to(*want[i]) || in_first != want[i]->extra.empty()) return ": names another node";
    const OpId op(next_op_++);
    std::array<Slots, 3> given;
    for (const ComponentKind c : kAllComponents) {
      if (!tree_.view(have[i]).host[index_of(c)].empty()) continue;
      const auto slots = ledger_.host(c, tree_.view(have[i]).device[index_of(c)].size());
      if (slots.empty()) continue;
      if (const Status status = tree_.attach_host(op, have[i], c, slots); !status.is_ok()) return status.to_string();
      for (const HostSlot slot : slots) given[index_of(c)].push_back(slot.v);
    }
    (void)tree_.finish_op(op, true);
    std::array<std::size_t, 3> taken{};
    reference_.back_up_node(*want[i], [&](std::size_t part) {
      return taken[part] < given[part].size() ? given[part][taken[part]++] : Slot{0};
    });
  }
  return {};
}

// ---- comparison

std::string TreePair::compare_answer(const Path& path, const ReferenceAnswer& want) const {
  const MatchResult have = match(path);
  if (have.walked.pages != want.walked) return "walked " + numbers(have.walked.pages, want.walked);
  if (have.device.at.pages != want.device)
    return "resumes on the device at " + numbers(have.device.at.pages, want.device);
  return have.any.at.pages == want.any ? "" : "resumes at " + numbers(have.any.at.pages, want.any);
}

// The key of each page goes over the key before it and the page's tokens; where it begins is the question.
std::string TreePair::compare_keys(const Path& path) {
  const std::uint64_t page_size = config_.tree.page_size;
  std::optional<PageKey> key;
  if (path.space == 1) {
    counts_.meet(Difference::kKeysKnowTenant);
    if (rules_.contains(Difference::kKeysKnowTenant)) key = seed_;
  }
  std::vector<PageKey> want;
  for (std::uint64_t page = 0; page < match(path).walked.pages; ++page) {
    key = page_key(std::span(path.tokens).subspan(page * page_size, page_size), key);
    want.push_back(*key);
  }
  for (NodeId at = match(path).walked.node; tree_.view(at).end != 0; at = tree_.view(at).parent) {
    const std::span<const PageKey> have = tree_.keys().of_edge(at);
    const std::uint64_t begin = tree_.view(at).begin, end = std::min<std::uint64_t>(tree_.view(at).end, want.size());
    for (std::uint64_t page = begin; page < end; ++page) {
      if (have[page - begin] != want[page]) return "the key of page " + std::to_string(page) + " differs";
    }
  }
  return {};
}

void TreePair::collect_freed() {
  for (const ComponentKind c : kAllComponents) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const std::vector<std::uint32_t> back = ledger_.came_back(c, tier);
      Slots& freed = freed_[index_of(c)][tier_index(tier)];
      freed.insert(freed.end(), back.begin(), back.end());
    }
  }
}

std::string TreePair::compare_freed() {
  collect_freed();
  const auto have = std::exchange(freed_, {});
  const FreedSlots want = reference_.take_freed();
  for (const ComponentKind c : kAllComponents) {
    for (std::size_t tier = 0; tier < 2; ++tier) {
      const Slots& back = have[index_of(c)][tier];
      const std::multiset<Slot> own(back.begin(), back.end()), &other = want[index_of(c)][tier];
      if (own == other) continue;
      return "other slots of " + std::string(component_name(c)) + " came back: " + numbers(own.size(), other.size());
    }
  }
  return {};
}

std::string TreePair::compare_contents() {
  for (ReferenceNode* node : reference_.nodes()) {
    if (!node->children.empty()) continue;
    if (std::string error = compare_path(*node); !error.empty()) return error;
  }
  for (const ComponentKind c : kAllComponents) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const std::uint64_t have = tree_.counts(c, tier).resident, want = reference_.count(index_of(c), tier_index(tier));
      if (have != want) return std::string(component_name(c)) + " in a tier: " + numbers(have, want);
    }
  }
  return {};
}

// Slot by slot, and the reference's nodes are cut like ours.
std::string TreePair::compare_path(ReferenceNode& leaf) {
  using Places = std::map<std::pair<std::size_t, std::size_t>, std::map<std::uint64_t, Slot>>;  // (part, tier) -> page
  const auto put = [](Places& places, std::size_t part, std::size_t tier, std::uint64_t end, const auto& slots) {
    for (std::size_t i = 0; i < slots.size(); ++i) places[{part, tier}][end - slots.size() + i] = slots[i];
  };
  Places have, want;
  for (const ReferenceNode* at = &leaf; !at->is_root(); at = at->parent) {
    for (std::size_t part = 0; part < 3; ++part) {
      for (std::size_t tier = 0; tier < 2; ++tier) {
        if (at->has(part, tier)) put(want, part, tier, at->end(), *at->parts[part].slots[tier]);
      }
    }
  }
  std::set<std::size_t> ends;
  const Path path{leaf.extra.empty() ? 0u : 1u, reference_.tokens_to(leaf)};
  for (NodeView view = tree_.view(match(path).walked.node); view.end != 0; view = tree_.view(view.parent)) {
    ends.insert(view.end);
    for (std::size_t part = 0; part < 3; ++part) {
      Slots device, host;
      for (const DeviceSlot slot : view.device[part]) device.push_back(slot.v);
      for (const HostSlot slot : view.host[part]) host.push_back(slot.v);
      put(have, part, kOnDevice, view.end, device);
      put(have, part, kOnHost, view.end, host);
    }
  }
  std::erase_if(have, [](const auto& place) { return place.second.empty(); });
  if (have != want) return "slots on a path of " + std::to_string(leaf.end()) + " pages differ";
  reference_.take_shape(leaf, ends);
  return {};
}

// ---- histories

std::string run_history(const PairConfig& config, const Rules& rules, const std::vector<PairStep>& steps,
                        DifferenceCounts& counts) {
  TreePair pair(config, rules, counts);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (std::string error = pair.step(steps[i]); !error.empty()) return "step " + std::to_string(i) + ": " + error;
  }
  return {};
}

std::vector<PairStep> shrink(const PairConfig& config, const Rules& rules, std::vector<PairStep> steps) {
  for (std::size_t length = steps.size() / 2; length > 0; length /= 2) {
    for (std::size_t at = 0; at + length <= steps.size();) {
      std::vector<PairStep> fewer(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(at));
      fewer.insert(fewer.end(), steps.begin() + static_cast<std::ptrdiff_t>(at + length), steps.end());
      DifferenceCounts unused;
      if (run_history(config, rules, fewer, unused).empty()) {
        at += length;
      } else {
        steps = std::move(fewer);
      }
    }
  }
  return steps;
}

std::vector<PairStep> random_history(std::uint64_t seed, std::uint64_t steps) {
  Rng rng(seed);
  std::vector<PairStep> history;
  while (history.size() < steps) history.push_back(random_step(rng));
  return history;
}

std::string compare_histories(const HistoryRange& range, DifferenceCounts& counts) {
  for (const PairConfig& config : pair_configs()) {
    for (std::uint64_t seed = range.first_seed; seed < range.first_seed + range.count; ++seed) {
      const std::vector<PairStep> history = random_history(seed, range.steps);
      const std::string error = run_history(config, all_rules(), history, counts);
      if (error.empty()) continue;
      const std::vector<PairStep> fewer = shrink(config, all_rules(), history);
      DifferenceCounts unused;
      return config.name + ": " + error + "; replay: LARDER_TEST_SEED=" + std::to_string(seed) + "\nshrunk to " +
             std::to_string(fewer.size()) + " steps (" + run_history(config, all_rules(), fewer, unused) + "):\n" +
             describe(fewer);
    }
  }
  return {};
}

}  // namespace larder::differential
