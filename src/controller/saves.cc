// SPDX-License-Identifier: Apache-2.0
#include "controller/saves.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"
#include "controller/host_presence.h"
#include "controller/joint.h"

namespace larder {

Saves::Saves(const ConnectorConfig& config, const Parts& parts)
    : config_(config),
      model_(parts.model),
      host_(parts.host),
      tree_(parts.tree),
      spaces_(parts.spaces),
      room_(parts.room),
      ops_(parts.ops),
      copier_(parts.copier),
      counters_(parts.counters),
      saves_("save", parts.ops) {}

Status Saves::check(const SaveRequest& request) const {
  const auto pages = [](std::uint64_t count) { return std::to_string(count) + " pages"; };
  const std::string range = "[" + std::to_string(request.from) + ", " + pages(request.to) + ")";
  if (request.to == 0 || request.from > request.to) {
    return invalid_argument("save: " + range + " are none: `from` is at most `to`, which is 1 or more");
  }
  if (request.to > request.tokens.size() / model_.page_size) {
    return invalid_argument("save: " + std::to_string(request.tokens.size()) + " tokens do not cover " + range);
  }
  if (request.window_pages > request.to || (request.window_pages > 0 && !model_.has(ComponentKind::kSwa))) {
    return invalid_argument("save: there are no " + pages(request.window_pages) + " of a window");
  }
  std::uint64_t last = 0;
  for (const std::uint64_t point : request.states) {
    if (!model_.has(ComponentKind::kMamba)) return invalid_argument("save: the model has no state");
    if (point <= last || point > request.to) {
      return invalid_argument("save: states must ascend and lie in (0, " + pages(request.to) + "]");
    }
    last = point;
  }
  if (request.from == request.to && request.window_pages == 0 && request.states.empty()) {
    return invalid_argument("save: it has neither pages nor states");
  }
  if (request.reader && !request.places.empty())
    return invalid_argument("save: give places or a callback for pages, not both");
  return Status::ok();
}

// What the host has of the given path, page by page; as long as the path, also where it has nothing.
std::vector<PoolPresence> Saves::there(const SaveRequest& request, const TreePosition& walked) const {
  std::vector<PoolPresence> presence = host_presence(tree_, model_, walked);
  for (PoolPresence& of : presence) of.present.resize(request.to, false);
  return presence;
}

Saves::Given Saves::compare(const SaveRequest& request, const MatchResult& match) const {
  Given given;
  given.known = match.full_any_pages;
  given.window.resize(request.to, false);
  given.state.resize(request.to, false);
  if (request.window_pages == 0 && request.states.empty()) return given;
  const std::vector<PoolPresence> presence =
      there(request, position_on_path(tree_, match.walked.node, match.walked.pages));
  if (const Presence* const window = presence_of(model_, presence, ComponentKind::kSwa)) {
    for (std::uint64_t page = request.to - request.window_pages; page < request.to; ++page) {
      given.window[page] = !(*window)[page];
    }
  }
  if (const Presence* const state = presence_of(model_, presence, ComponentKind::kMamba)) {
    for (const std::uint64_t point : request.states) given.state[point - 1] = !(*state)[point - 1];
  }
  return given;
}

// The restore points of the host with what was given.
OutcomeBits Saves::points_with(const SaveRequest& request, const Given& given, const TreePosition& path) const {
  std::vector<PoolPresence> presence = there(request, path);
  for (PoolPresence& of : presence) {
    const ComponentKind c = model_.find_pool(of.pool)->component;
    for (std::uint64_t page = 0; page < request.to; ++page) {
      const bool comes = c == ComponentKind::kFull  ? page >= request.from
                         : c == ComponentKind::kSwa ? given.window[page]
                                                    : given.state[page];
      if (comes) of.present[page] = true;
    }
  }
  return restore_candidates(model_, presence, 0, request.to);
}

Saves::Plan Saves::plan_to(const SaveRequest& request, const Given& given, std::uint64_t end) const {
  Plan plan;
  plan.end = end;
  plan.full_from = std::min(end, std::max(request.from, given.known));
  plan.counts[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(end - plan.full_from);
  for (std::uint64_t page = 0; page < end; ++page) {
    if (given.state[page]) plan.states.push_back(page + 1);
    if (!given.window[page]) continue;
    if (plan.windows.empty() || plan.windows.back().end != page) plan.windows.push_back({page, page});
    ++plan.windows.back().end;
    ++plan.counts[index_of(ComponentKind::kSwa)];
  }
  plan.counts[index_of(ComponentKind::kMamba)] = static_cast<std::uint32_t>(plan.states.size());
  return plan;
}

// The largest restore point before `before` for which `space` is enough; 0: there is none.
std::uint64_t Saves::largest_that_fits(const SaveRequest& request, const Given& given, const OutcomeBits& points,
                                       std::uint64_t before, const HostSpace& space) const {
  ComponentCounts counts = plan_to(request, given, before).counts;
  for (std::uint64_t end = before; end > 0; --end) {
    if (end < before && has_bit(points, end - 1) && host_.space_of(counts).fits_in(space)) return end;
    if (end > std::max(request.from, given.known)) --counts[index_of(ComponentKind::kFull)];
    if (given.window[end - 1]) --counts[index_of(ComponentKind::kSwa)];
    if (given.state[end - 1]) --counts[index_of(ComponentKind::kMamba)];
  }
  return 0;
}

bool Saves::is_parent_coming(NamespaceId space, const SaveRequest& request) const {
  const std::uint64_t tokens = request.from * model_.page_size;
  return std::any_of(saves_.all().begin(), saves_.all().end(), [&](const auto& entry) {
    const Save& save = entry.second;
    return !save.is_over && save.space == space && save.tokens.size() >= tokens &&
           std::equal(save.tokens.begin(), save.tokens.begin() + static_cast<std::ptrdiff_t>(tokens),
                      request.tokens.begin());
  });
}

// What to try next, where `needed` could not be had. The path itself is locked by its end, and counts as evictable
// above it. What else is in reach may stand beneath what is not: then each try counts on less.
HostSpace Saves::reach_of(const Save& save, const HostSpace& needed, int tries) const {
  const auto left = static_cast<std::uint64_t>(kTries - tries);
  const HostSpace own = host_.space_of(ComponentKind::kFull, tree_.view(save.path.node).begin);
  const HostSpace reach = room_.in_reach(tree_.spaces().tenant_of(save.space));
  const bool is_in_reach = (needed + own).fits_in(reach);
  const auto next = [&](std::uint64_t in_reach, std::uint64_t of_path, std::uint64_t wanted) {
    return std::min(in_reach - std::min(in_reach, of_path), is_in_reach ? wanted - wanted / left : wanted);
  };
  return {next(reach.blocks, own.blocks, needed.blocks), next(reach.markers, own.markers, needed.markers)};
}

// Takes slots for as much as fits. Not there: `save.plan.end` is what could not be taken last, or 0.
HostAnswer Saves::take_room(const SaveRequest& request, const Given& given, Save& save) {
  save.plan = plan_to(request, given, request.to);
  const HostEffort effort = request.may_wait ? HostEffort::kGently : HostEffort::kAll;
  OutcomeBits points;  // once they are needed
  for (int i = 0; i < kTries; ++i) {
    if (save.plan.counts == ComponentCounts{}) return HostAnswer::kThere;
    const HostSpace needed = host_.space_of(save.plan.counts);
    const HostAnswer answer = room_.take(save.plan.counts, effort, save.slots, tree_.spaces().tenant_of(save.space));
    if (answer == HostAnswer::kThere) save.blocks = needed.blocks;
    if (answer != HostAnswer::kNone) return answer;
    const TreePosition path{save.path.node, tree_.view(save.path.node).end};
    if (points.empty()) points = points_with(request, given, path);
    const HostSpace reach = reach_of(save, needed, i);
    save.plan = plan_to(request, given, largest_that_fits(request, given, points, save.plan.end, reach));
  }
  save.plan = plan_to(request, given, 0);
  return HostAnswer::kNone;
}

void Saves::fill_result(const SaveRequest& request, const Given& given, Save& save) const {
  SaveResult& result = save.result;
  const Plan& plan = save.plan;
  result.stop = plan.end < request.to ? SaveStop::kNoRoom : SaveStop::kNone;
  result.kept = plan.end;
  result.new_pages = plan.counts[index_of(ComponentKind::kFull)];
  result.known_pages = std::min(given.known, plan.end) - std::min({given.known, plan.end, request.from});
  result.new_window = plan.counts[index_of(ComponentKind::kSwa)];
  const std::uint64_t window_from = request.to - request.window_pages;
  result.known_window = plan.end - std::min(plan.end, window_from) - result.new_window;
  result.new_states = plan.states.size();
  const auto last = std::upper_bound(request.states.begin(), request.states.end(), plan.end);
  result.known_states = static_cast<std::uint64_t>(last - request.states.begin()) - result.new_states;
}

void Saves::fill_copy(const SaveRequest& request, const PlaceTable& places, const Save& save, PageCopy& copy) const {
  std::vector<Segment> bytes;  // of one page
  const auto add = [&](const PoolSpec& pool, std::uint64_t page, HostSlot slot) {
    bytes.clear();
    host_.append_page(pool.name, slot, bytes);
    if (request.reader) {
      copy.add_page(pool.name, page, std::exchange(bytes, {}));
    } else {
      copy.add(places.at(pool, page), bytes);
    }
  };
  for (const PoolSpec& pool : model_.pools) {
    if (pool.page_bytes() == 0) continue;
    const std::vector<HostSlot>& slots = save.slots[index_of(pool.component)];
    std::size_t next = 0;
    switch (pool.component) {
      case ComponentKind::kFull:
        for (std::uint64_t page = save.plan.full_from; page < save.plan.end; ++page) add(pool, page, slots[next++]);
        break;
      case ComponentKind::kSwa:
        for (const Run& run : save.plan.windows) {
          for (std::uint64_t page = run.begin; page < run.end; ++page) add(pool, page, slots[next++]);
        }
        break;
      case ComponentKind::kMamba:
        for (const std::uint64_t point : save.plan.states) add(pool, point - 1, slots[next++]);
        break;
    }
  }
}

Status Saves::begin(TransferId id, NamespaceId space, const SaveRequest& request) {
  const PageNeeds needs{
      request.from, request.to - request.window_pages, request.to, {request.states.begin(), request.states.end()}};
  Result<PlaceTable> places = PlaceTable{};
  if (!request.reader) places = PlaceTable::create(model_, needs, request.places);
  if (!places.is_ok()) return invalid_argument("save: " + places.status().message());
  if (!ops_.places().has_room(OpKind::kBackup)) return overloaded("save: too many operations are in flight");

  const std::span<const TokenId> tokens = request.tokens.first(request.to * model_.page_size);
  const MatchResult match = tree_.match(space, tokens);
  Save save;
  save.space = space;
  save.use = spaces_.use(space);
  if (match.full_any_pages < request.from) {
    if (is_parent_coming(space, request)) return overloaded("save: the pages before are being saved; after a poll");
    save.result.stop = SaveStop::kParentMissing;
    save.result.path_pages = match.full_any_pages;
    save.use = SpaceTable::Use();
    save.is_over = true;
    saves_.add(id, std::move(save));
    return Status::ok();
  }
  const Given given = compare(request, match);
  const auto most = static_cast<std::uint64_t>(config_.save_share * static_cast<double>(host_.total_blocks()));
  if (blocks_ > 0 && blocks_ + host_.space_of(plan_to(request, given, request.to).counts).blocks > most) {
    return overloaded("save: saves under way hold " + std::to_string(blocks_) + " of the host's " +
                      std::to_string(host_.total_blocks()) + " blocks, and may hold " + std::to_string(most));
  }
  // What it continues must not go while room is made for it.
  const std::uint64_t path = std::min(given.known, request.to);
  save.path = tree_.lock(tree_.settle(position_on_path(tree_, match.walked.node, path)), Tier::kHost,
                         LockParts{.full = true, .swa = true, .mamba = false});
  lock_known_states(request, given, match, save);
  const HostAnswer room = take_room(request, given, save);
  if (room == HostAnswer::kWaitsForStores) {
    unlock(save);
    return overloaded("save: storage is taking what would have to go; after a poll");
  }
  fill_result(request, given, save);
  if (!spare_.empty()) {
    save.tokens = std::move(spare_.back());
    spare_.pop_back();
    save.tokens.clear();
  }
  // Chunks of a prompt come with ever more tokens before them.
  if (save.tokens.capacity() < tokens.size()) save.tokens.reserve(tokens.size() + tokens.size() / 2);
  save.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(save.plan.end * model_.page_size));
  blocks_ += save.blocks;
  if (save.plan.counts == ComponentCounts{}) {
    if (save.plan.end > 0) tree_.touch(position_on_path(tree_, save.path.node, save.plan.end), false);
    let_go(save);
    save.is_over = true;
    saves_.add(id, std::move(save));
    return Status::ok();
  }
  auto copy = std::make_shared<PageCopy>();
  copy->set_reader(request.reader);
  fill_copy(request, *places, save, *copy);
  save.result.bytes = copy->bytes();
  Op& op = ops_.add(OpKind::kBackup);
  op.transfer = id.v;
  save.op = op.id;
  Save& added = saves_.add(id, std::move(save));
  if (defect(Defect::kSavedBeforeCopied)) publish(added);
  copier_.submit(op.id, std::move(copy));
  return Status::ok();
}

void Saves::done(Op& op, bool is_ok) {
  copier_.forget(op.id);
  Save* const found = saves_.find(op.transfer);
  if (found == nullptr) return;
  Save& save = *found;
  if (is_ok) {
    publish(save);
  } else {
    save.result = SaveResult{};
    save.result.stop = SaveStop::kCopyFailed;
    save.result.status = saves_.failure_of(op);
  }
  let_go(save);
  save.is_over = true;
}

// What others brought meanwhile comes back through the sink: no eviction.
bool Saves::insert(const HostInsertRequest& request) {
  const std::uint64_t evicted = counters_.host_evicted;
  const Result<InsertResult> inserted = tree_.insert_host(request);
  if (inserted.is_ok()) counters_.backed_up += request.full.size() - (counters_.host_evicted - evicted);
  counters_.host_evicted = evicted;
  if (!inserted.is_ok()) ++counters_.internal_errors;
  return inserted.is_ok();
}

// Full first: windows and states stand on it. The last state comes last, so that it is the newest.
void Saves::publish(Save& save) {
  const auto request_to = [&](std::uint64_t end) {
    HostInsertRequest request;
    request.space = save.space;
    request.tokens = std::span<const TokenId>(save.tokens).first(end * model_.page_size);
    request.from = end;
    return request;
  };
  std::array<std::size_t, kComponentCount> given{};  // slots that are the tree's now
  const auto next = [&](ComponentKind c, std::size_t count) {
    return std::span<const HostSlot>(save.slots[index_of(c)]).subspan(given[index_of(c)], count);
  };
  const auto put = [&](ComponentKind c, const HostInsertRequest& request, std::size_t count) {
    const bool is_in = insert(request);
    if (!is_in) room_.give_back(c, next(c, count));
    given[index_of(c)] += count;
    return is_in;
  };
  if (save.plan.full_from < save.plan.end && !save.slots[0].empty()) {
    HostInsertRequest request = request_to(save.plan.end);
    request.from = save.plan.full_from;
    request.full = save.slots[0];
    (void)put(ComponentKind::kFull, request, save.slots[0].size());
  }
  for (const Run& run : save.plan.windows) {
    HostInsertRequest request = request_to(run.end);
    request.swa = next(ComponentKind::kSwa, run.end - run.begin);
    (void)put(ComponentKind::kSwa, request, run.end - run.begin);
  }
  for (const std::uint64_t point : save.plan.states) {
    HostInsertRequest request = request_to(point);
    request.state = next(ComponentKind::kMamba, 1).front();
    (void)put(ComponentKind::kMamba, request, 1);
  }
  for (std::vector<HostSlot>& slots : save.slots) slots.clear();
  save.plan = Plan{};
}

// They are counted as kept, so room must not be made of them.
void Saves::lock_known_states(const SaveRequest& request, const Given& given, const MatchResult& match, Save& save) {
  for (const std::uint64_t point : request.states) {
    if (given.state[point - 1] || point > given.known) continue;
    const NodeId node = tree_.settle(position_on_path(tree_, match.walked.node, point));
    save.states.push_back(tree_.lock(node, Tier::kHost, LockParts{.full = false, .swa = false, .mamba = true}));
  }
}

void Saves::unlock(Save& save) {
  tree_.unlock(save.path);
  for (LockHandle& state : save.states) tree_.unlock(state);
  save.states.clear();
}

// Slots that did not become the tree's go back.
void Saves::let_go(Save& save) {
  for (const ComponentKind c : kAllComponents) {
    room_.give_back(c, std::exchange(save.slots[index_of(c)], {}));
  }
  unlock(save);
  blocks_ -= std::exchange(save.blocks, 0);
  if (spare_.size() < kMostSpare) spare_.push_back(std::exchange(save.tokens, {}));
  save.tokens = {};
  save.use = SpaceTable::Use();
}

std::array<std::uint64_t, kComponentCount> Saves::slots_held() const {
  std::array<std::uint64_t, kComponentCount> held{};
  for (const auto& [id, save] : saves_.all()) {
    for (const ComponentKind c : kAllComponents) held[index_of(c)] += save.slots[index_of(c)].size();
  }
  return held;
}

}  // namespace larder
