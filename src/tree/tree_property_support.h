// SPDX-License-Identifier: Apache-2.0
// Random operations on a RadixTree beside NaiveTree, with comparison after each, replay and shrinking.
//
// An operation is a kind and four random numbers; what they mean depends on the state when it runs. So any sub-list of
// a failing list can be replayed, which is what shrinking does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tree/tree_naive_model.h"
#include "tree/tree_page_witness.h"
#include "tree/tree_property_tenants.h"
#include "tree/tree_test_support.h"

namespace larder::tree_test {

enum class OpKind : std::uint8_t {
  kMatch,
  kTouch,
  kSettle,
  kLock,
  kUnlock,
  kInsert,
  kExtend,
  kInsertHost,
  kAttachDevice,
  kAttachHost,
  kFinish,
  kCover,
  kEvictDevice,
  kEvictHost,
  kSetStored,
  kKeys,
  kFlush,
};
struct Op {
  OpKind kind{};
  std::array<std::uint64_t, 4> r{};
};

struct PropertyConfig {
  std::string name;
  TreeConfig tree;
  std::uint64_t pages_max = 8;   // of a path
  std::uint32_t vocabulary = 3;  // different pages
  bool watches_pages = false;    // with a PageObserver, which has keys hashed early
  TenantWatch::Bounds bounds{};  // of the tenants whose the two namespaces are; none: everybody's
};

class PropertyRun {
 public:
  explicit PropertyRun(const PropertyConfig& config)
      : config_(config),
        tree_(std::make_unique<RadixTree>(config.tree, ledger_)),
        tenants_(config.bounds, config.tree, config.pages_max) {
    const std::uint64_t page_size = config.tree.page_size;
    model_.window = (config.tree.window_tokens + page_size - 1) / page_size;
    model_.mamba = config.tree.has_mamba;
    model_.gaps = config.tree.allow_host_gaps || config.tree.is_exclusive;
    spaces_[0] = tree_->spaces().open(std::nullopt, tenants_.open(*tree_, 0), PathHash());
    const PageKey seed = *seed_of("B");
    spaces_[1] = tree_->spaces().open(seed, tenants_.open(*tree_, 1), PathHash::of_space({}, "other"));
    witness_.emplace(config.tree.page_size, seed);
    if (config.watches_pages) tree_->observers().set_pages(&*witness_);
  }

  static Op random_op(Rng& rng) {
    constexpr std::pair<OpKind, std::uint32_t> kWeights[] = {
        {OpKind::kMatch, 10},        {OpKind::kTouch, 8},       {OpKind::kSettle, 5},    {OpKind::kLock, 10},
        {OpKind::kUnlock, 10},       {OpKind::kInsert, 14},     {OpKind::kExtend, 12},   {OpKind::kInsertHost, 9},
        {OpKind::kAttachDevice, 10}, {OpKind::kAttachHost, 12}, {OpKind::kFinish, 16},   {OpKind::kCover, 3},
        {OpKind::kEvictDevice, 10},  {OpKind::kEvictHost, 8},   {OpKind::kSetStored, 2}, {OpKind::kKeys, 2},
        {OpKind::kFlush, 1}};
    Op op;
    std::uint32_t total = 0;
    for (const auto& [kind, weight] : kWeights) total += weight;
    std::uint64_t draw = rng.below(total);
    for (const auto& [kind, weight] : kWeights) {
      op.kind = kind;
      if (draw < weight) break;
      draw -= weight;
    }
    for (std::uint64_t& r : op.r) r = rng.next_u64() >> 16;
    return op;
  }

  // Runs one operation on both and compares. Empty: all is well.
  std::string step(const Op& op) {
    for (auto& tiers : model_.freed) {
      for (auto& slots : tiers) slots.clear();
    }
    const Path path = path_of(op.r[0]);
    std::string error = apply(op, path);
    if (error.empty()) error = compare_returned();
    if (error.empty()) error = compare_path(path);
    if (error.empty()) error = compare_counts();
    if (error.empty()) error = tenants_.compare_held(model_);
    if (error.empty() && config_.watches_pages) error = witness_->compare(model_);
    if (error.empty()) {
      const Status status = tree_->check_invariants();
      if (!status.is_ok()) error = status.to_string();
    }
    return error;
  }

  // At the end everything can be let go, and every slot comes back.
  std::string finish() {
    for (Held& held : held_) tree_->unlock(held.handle);
    witness_->forget();
    tree_->observers().tell_pages(*witness_);
    if (const std::string error = witness_->compare(model_); !error.empty()) return "told at once: " + error;
    while (!ops_.empty()) {
      (void)tree_->finish_op(OpId(ops_.back()), true);
      ops_.pop_back();
    }
    if (tree_->flush() != 0) return "flush left " + std::to_string(tree_->node_count()) + " nodes";
    for (const ComponentKind c : kAllComponents) {
      for (const Tier t : {kDev, kHst}) {
        if (!ledger_.out(c, t).empty()) return "slots leaked";
      }
    }
    return ledger_.wrong_frees() == 0 ? "" : "slots freed twice";
  }

 private:
  using Path = NaiveTree::Path;
  struct Held {
    LockHandle handle;
    Path path;
    std::uint64_t pages;
    std::uint64_t begin;  // of the node when it was locked: an edge's place is the tree's own choice
  };

  Path path_of(std::uint64_t r) const {
    Path path(1, static_cast<char>('A' + (r & 7) / 7));  // the second namespace one time in eight
    r >>= 3;
    const std::uint64_t pages = 1 + r % config_.pages_max;
    r /= config_.pages_max;
    for (std::uint64_t i = 0; i < pages; ++i, r /= config_.vocabulary) {
      path.push_back(static_cast<char>('a' + r % config_.vocabulary));
    }
    return path;
  }
  NamespaceId space_of(const Path& path) const { return spaces_[path[0] == 'A' ? 0 : 1]; }
  Tokens tokens_of(const Path& path) const { return tokens_of_path(path, config_.tree.page_size); }
  MatchResult match(const Path& path) const { return tree_->match(space_of(path), tokens_of(path)); }
  std::uint64_t random_end(const Path& path, std::uint64_t r) { return r % (model_.walked(path) + 1); }
  // Node that stands at the end of `pages` pages of the path.
  NodeId node_at(const Path& path, std::uint64_t pages) { return tree_->settle({match(path).walked.node, pages}); }
  std::uint64_t new_or_known_op(std::uint64_t r) {
    if (!ops_.empty() && r % 4 == 0) return ops_[r / 4 % ops_.size()];
    ops_.push_back(next_op_++);
    return ops_.back();
  }

  std::string apply(const Op& op, const Path& path) {
    switch (op.kind) {
      case OpKind::kMatch: return {};  // compare_path() does it
      case OpKind::kTouch:
        tree_->note_prompt(space_of(path), tokens_of(path));
        tree_->touch({match(path).walked.node, random_end(path, op.r[1])}, op.r[2] % 2 == 0);
        return {};
      case OpKind::kSettle: return settle(path, random_end(path, op.r[1]));
      case OpKind::kLock: return lock(path, random_end(path, op.r[1]), op.r[2]);
      case OpKind::kUnlock: return unlock(op.r[1]);
      case OpKind::kInsert: return insert(path, op, nullptr);
      case OpKind::kExtend: return extend(path, op);
      case OpKind::kInsertHost: return insert_host(path, op);
      case OpKind::kAttachDevice: return attach_device(path, op);
      case OpKind::kAttachHost: return attach_host(path, op);
      case OpKind::kFinish: return finish_op(op);
      case OpKind::kCover: return cover(path, op);
      case OpKind::kEvictDevice: return evict(Tier::kDevice, op);
      case OpKind::kEvictHost: return evict(Tier::kHost, op);
      case OpKind::kSetStored:
        if (op.r[2] % 4 == 0) tree_->backlog().track(static_cast<std::uint32_t>((op.r[2] >> 2) % 3));
        tree_->backlog().set_stored(match(path).walked.node, static_cast<std::uint32_t>(op.r[1] % 3));
        return {};
      case OpKind::kKeys: return keys(path, random_end(path, op.r[1]));
      case OpKind::kFlush: (void)tree_->flush(); return take_evicted();
    }
    return {};
  }

  std::string settle(const Path& path, std::uint64_t pages) {
    return tree_->view(node_at(path, pages)).end == pages ? "" : "settle stands elsewhere";
  }

  std::string lock(const Path& path, std::uint64_t pages, std::uint64_t r) {
    if (held_.size() >= 6) return {};
    const Tier t = r % 3 == 0 ? kHst : kDev;
    const LockParts parts{(r >> 2) % 8 != 0, (r >> 5) % 8 != 0, (r >> 8) % 8 != 0, (r >> 11) % 4 == 0};
    const NodeId node = node_at(path, pages);
    const std::uint64_t begin = tree_->view(node).begin;
    held_.push_back({tree_->lock(node, t, parts), path, pages, begin});
    count_lock(held_.back(), 1);
    return held_.back().handle.held ? "" : "lock does not hold";
  }
  std::string unlock(std::uint64_t r) {
    if (held_.empty()) return {};
    std::swap(held_[r % held_.size()], held_.back());
    count_lock(held_.back(), -1);
    tree_->unlock(held_.back().handle);
    held_.pop_back();
    return {};
  }
  void count_lock(const Held& held, int by) {
    const std::size_t t = held.handle.tier == kDev ? 0 : 1;
    const LockParts& parts = held.handle.parts;
    if (!parts.full && !parts.swa && !parts.mamba) return;  // claims nothing, so the pages may be gone by now
    for (std::uint64_t i = 0; i < held.pages; ++i) {
      NaiveTree::Page& page = *model_.page(held.path, i);
      const bool last = i + 1 == held.pages;
      const bool own = parts.own_pages && i >= held.begin;
      // On the host leaves go first, so a lock of the last page's full is all that counts.
      if (parts.full && (t == 0 || last || own)) page.locks[0][t] += by;
      if (parts.swa && (parts.own_pages ? own : i >= model_.window_begin(held.pages))) page.locks[1][t] += by;
      if (parts.mamba && last) page.locks[2][t] += by;
    }
  }

  // Goes on from the end of a lock of full on the device, with what `given` has beyond that many pages.
  std::string extend(const Path& given, const Op& op) {
    for (std::size_t i = 0; i < held_.size(); ++i) {
      Held& held = held_[(op.r[1] + i) % held_.size()];
      if (held.handle.tier != kDev || !held.handle.parts.full) continue;
      Path path = NaiveTree::prefix(held.path, held.pages);
      if (given.size() > path.size()) path += given.substr(path.size());
      return insert(path, op, &held);
    }
    return {};
  }

  std::string insert(const Path& path, const Op& op, Held* held) {
    const std::uint64_t pages = path.size() - 1, known = model_.walked(path);
    // Mostly what a request would own; sometimes anything.
    const std::uint64_t full = model_.lookup(path, false).full;
    std::uint64_t owned = op.r[1] % 16 == 0 ? (op.r[1] >> 4) % (pages + 1) : (op.r[1] >> 4) % (full + 1);
    if (held != nullptr) owned = held->pages;
    InsertRequest request{space_of(path), {}, owned};
    request.priority = static_cast<std::int32_t>(op.r[3] >> 40) % 3;
    const Tokens tokens = tokens_of(path);
    request.tokens = tokens;
    std::vector<DeviceSlot> full_slots(pages), swa(model_.window == 0 || op.r[2] % 4 == 0 ? 0 : pages);
    std::vector<Checkpoint> checkpoints;
    for (std::uint64_t i = owned; i < pages; ++i) {
      full_slots[i] = ledger_.device(kFull);
      // Usually the trailing window, at times any pattern.
      const bool in_window = (op.r[2] >> 2) % 2 == 0 ? i + model_.window >= pages : (op.r[2] >> (3 + i)) % 2 == 0;
      if (!swa.empty() && in_window) swa[i] = ledger_.device(kSwa);
      if (model_.mamba && ((op.r[3] >> i) % 4 == 0 || (i + 1 == pages && op.r[3] % 4 != 0))) {
        const auto kind = static_cast<CheckpointKind>((op.r[3] >> 32) % kCheckpointKinds);
        checkpoints.push_back({i + 1, ledger_.device(kMamba), {.kind = kind}});
      }
    }
    request.full = full_slots;
    request.swa = swa;
    request.checkpoints = checkpoints;
    const StatusCode expected = model_.may_insert(path, owned);
    const auto result =
        held == nullptr ? insert_pages(*tree_, config_.tree.page_size, request) : extend_by(request, *held);
    if (result.status().code() != expected) return "insert says " + result.status().to_string();
    if (expected != StatusCode::kOk) {
      give_back_own(full_slots, swa, checkpoints);
      return {};
    }
    std::uint64_t duplicates = 0, recovered = 0, kept = 0;
    for (std::uint64_t i = owned; i < pages; ++i) {
      const bool is_new = model_.put(path, i, 0, 0, full_slots[i].v);
      duplicates += !is_new;
      recovered += is_new && i < known;
    }
    for (std::uint64_t i = owned; i < swa.size(); ++i) {
      if (swa[i].valid() && model_.put(path, i, 1, 0, swa[i].v)) recovered += i < known;
    }
    for (const Checkpoint& at : checkpoints) kept += model_.put(path, at.page - 1, 2, 0, at.slot.v);
    const std::uint64_t fresh = pages - std::min(pages, known);
    if (tree_->view(result->node).end != pages) return "insert ends elsewhere";
    if (held != nullptr) {
      count_lock(*held, -1);
      held->path = path;
      held->pages = pages;
      count_lock(*held, 1);
    }
    if (result->new_pages != fresh || result->duplicate_pages != duplicates || result->recovered_pages != recovered ||
        result->checkpoints_kept != kept) {
      return "insert counts differ";
    }
    return {};
  }
  Result<InsertResult> extend_by(const InsertRequest& all, Held& held) {
    const std::span<const DeviceSlot> swa = all.swa.empty() ? all.swa : all.swa.subspan(held.pages);
    return tree_->extend(held.handle, {held.pages, all.tokens.subspan(held.pages * config_.tree.page_size),
                                       all.full.subspan(held.pages), swa, all.checkpoints, all.priority});
  }
  void give_back_own(const std::vector<DeviceSlot>& full, const std::vector<DeviceSlot>& swa,
                     const std::vector<Checkpoint>& checkpoints) {
    const auto take = [&](ComponentKind c, DeviceSlot slot) {
      if (slot.valid()) ledger_.free_device(c, {&slot, 1});
    };
    for (const DeviceSlot slot : full) take(kFull, slot);
    for (const DeviceSlot slot : swa) take(kSwa, slot);
    for (const Checkpoint& at : checkpoints) take(kMamba, at.slot);
    for (const ComponentKind c : kAllComponents) (void)ledger_.came_back(c, kDev);
  }

  std::string insert_host(const Path& path, const Op& op) {
    const std::uint64_t pages = path.size() - 1, known = model_.walked(path);
    const std::uint64_t from = op.r[1] % (std::min(pages, known) + 1);
    const Tokens tokens = tokens_of(path);
    const auto full = ledger_.host(kFull, pages - from);
    const auto swa = ledger_.host(kSwa, model_.window == 0 ? 0 : std::min(pages, op.r[2] % (model_.window + 2)));
    const HostSlot state = model_.mamba && op.r[3] % 2 == 0 ? ledger_.host(kMamba) : HostSlot();
    const auto keys = keys_of(path);
    const auto given = std::span(keys).subspan(op.r[3] % 4 < 2 ? from : pages);
    const auto result = tree_->insert_host({space_of(path), tokens, from, full, swa, state, given});
    if (!result.is_ok()) return "insert_host says " + result.status().to_string();
    for (std::uint64_t i = from; i < pages; ++i) model_.put(path, i, 0, 1, full[i - from].v);
    for (std::uint64_t i = 0; i < swa.size(); ++i) model_.put(path, pages - swa.size() + i, 1, 1, swa[i].v);
    if (state.valid()) model_.put(path, pages - 1, 2, 1, state.v);
    return tree_->view(result->node).end == pages ? "" : "insert_host ends elsewhere";
  }

  std::string attach_device(const Path& path, const Op& op) {
    const std::uint64_t end = random_end(path, op.r[1]);
    if (end == 0) return {};
    const std::size_t component = op.r[2] % 4 == 0 ? (op.r[2] >> 2) % 3 : 0;
    if ((component == 1 && model_.window == 0) || (component == 2 && !model_.mamba)) return {};
    const auto c = static_cast<ComponentKind>(component);
    // Mostly the missing suffix, as a load-back does.
    std::uint64_t from = op.r[2] % 8 == 1 ? (op.r[2] >> 3) % end : model_.lookup(path, false).full;
    if (component == 2) from = end - 1;
    if (component == 1) from = model_.window_begin(end);
    if (from >= end) return {};
    const auto slots = ledger_.device(c, end - from);
    const std::uint64_t id = new_or_known_op(op.r[3]);
    const bool expected = model_.may_attach_device(path, component, from, end);
    const Status status = tree_->attach_device(OpId(id), node_at(path, end), c, from, slots);
    if (status.is_ok() != expected) return "attach_device says " + status.to_string();
    if (!expected) {
      ledger_.free_device(c, slots);
      (void)ledger_.came_back(c, kDev);
      return status.code() == StatusCode::kConflict ? "" : status.to_string();
    }
    for (std::uint64_t i = from; i < end; ++i) model_.attach(path, component, 0, i, slots[i - from].v, id);
    return put_nodes_under(path, from, end, id);
  }
  // An op covers whole edges: the tree says which.
  std::string put_nodes_under(const Path& path, std::uint64_t from, std::uint64_t end, std::uint64_t id) {
    for (std::uint64_t at = end; at > from;) {
      const NodeView view = tree_->view(node_at(path, at));
      for (std::uint64_t i = view.begin; i < view.end; ++i) model_.page(path, i)->ops.insert(id);
      at = view.begin;
    }
    return {};
  }

  std::string attach_host(const Path& path, const Op& op) {
    const std::uint64_t end = random_end(path, op.r[1]);
    if (end == 0) return {};
    const NodeId node = op.r[2] % 2 == 0 ? match(path).walked.node : node_at(path, end);
    const NodeView view = tree_->view(node);
    if (view.end == 0) return {};
    // The walked node may reach further than the path: then its page names come from the tokens.
    Path whole = path.substr(0, 1 + std::min<std::uint64_t>(path.size() - 1, view.begin));
    for (std::uint64_t i = 0; i < view.end - view.begin; ++i) {
      whole.push_back(static_cast<char>(view.tokens[(i + 1) * config_.tree.page_size - 1]));
    }
    const std::uint64_t id = new_or_known_op(op.r[3]);
    for (std::size_t component = 0; component < 3; ++component) {
      if ((component == 1 && model_.window == 0) || (component == 2 && !model_.mamba)) continue;
      if ((op.r[2] >> (1 + 2 * component)) % 4 == 0) continue;
      const auto c = static_cast<ComponentKind>(component);
      const std::uint64_t from = component == 2 ? view.end - 1 : view.begin;
      const auto slots = ledger_.host(c, view.end - from);
      const bool expected = model_.may_attach_host(whole, component, from, view.end);
      const Status status = tree_->attach_host(OpId(id), node, c, slots);
      if (status.is_ok() != expected) return "attach_host says " + status.to_string();
      if (!expected) {
        ledger_.free_host(c, slots);
        (void)ledger_.came_back(c, kHst);
        continue;
      }
      for (std::uint64_t i = from; i < view.end; ++i) model_.attach(whole, component, 1, i, slots[i - from].v, id);
      if (auto error = put_nodes_under(whole, view.begin, view.end, id); !error.empty()) return error;
    }
    return {};
  }

  std::string cover(const Path& path, const Op& op) {
    const std::uint64_t end = random_end(path, op.r[1]);
    if (end == 0) return {};
    const std::uint64_t id = new_or_known_op(op.r[3]);
    const NodeId node = node_at(path, end);
    tree_->cover(OpId(id), node);
    return put_nodes_under(path, tree_->view(node).begin, end, id);
  }

  std::string finish_op(const Op& op) {
    if (ops_.empty()) return {};
    std::swap(ops_[op.r[1] % ops_.size()], ops_.back());
    const std::uint64_t id = ops_.back();
    ops_.pop_back();
    std::uint64_t covered = 0;
    for (const auto& [path, page] : model_.pages) covered += page.ops.contains(id);
    model_.finish(id, op.r[2] % 4 != 0);
    const std::vector<NodeId> nodes = tree_->finish_op(OpId(id), op.r[2] % 4 != 0);
    std::uint64_t last = 0;
    for (const NodeId node : nodes) {
      const NodeView view = tree_->view(node);
      if (view.begin < last) return "finish_op gives a child before its parent";
      last = view.begin;
      covered -= view.end - view.begin;
    }
    if (!tree_->finish_op(OpId(id), true).empty()) return "finish_op twice";
    return covered == 0 ? "" : "finish_op covers other pages";
  }

  std::string evict(Tier t, const Op& op) {
    const std::size_t component = op.r[1] % 3;
    if ((component == 1 && model_.window == 0) || (component == 2 && !model_.mamba)) return {};
    const auto c = static_cast<ComponentKind>(component);
    const std::size_t tier = t == kDev ? 0 : 1;
    const std::uint64_t want = 1 + op.r[2] % 6;
    constexpr std::array kRules = {VictimRule::kDrop, VictimRule::kBackUpFirst, VictimRule::kBackUpWorth};
    const VictimRule rule = kRules[op.r[3] % kRules.size()];
    const EvictFor who = tenants_.who(op.r[2] >> 8);
    tenants_.before_eviction(model_, who);
    const bool has_victim = tree_->next_host_victim(c, who).has_value();
    const EvictResult out = t == kDev ? tree_->evict_device(c, want, rule, who) : tree_->evict_host(c, want, who);
    if (out.demoted + out.dropped != out.freed) return "evict: demoted + dropped differs from freed";
    if (t == kHst && has_victim != (out.freed > 0)) return "evict_host frees nothing although a victim was named";
    drain();
    if (came_back_[component][tier].size() != out.freed) return "evict: freed differs from what came back";
    for (const NodeId node : out.needs_backup) {
      const bool may_stay = tree_->exists(node) && NaiveTree::lacks_copy(tree_->view(node));
      if (!may_stay) return "evict: needs_backup names a node that is dead, or has all copies";
    }
    const std::uint64_t held = rule == VictimRule::kBackUpFirst && t == kDev ? model_.held() : 0;
    if (std::string error = take_evicted(); !error.empty()) return error;
    if (held > model_.held()) return "evict took what has no copy";
    const bool must_reach = t == kHst || rule == VictimRule::kDrop;
    const bool has_given_up = out.freed < want && out.needs_backup.empty() && more_to_evict(component, tier);
    if (has_given_up) return must_reach ? "evict gave up early" : "evict names nothing to back up";
    const auto has_more = [&](char space) { return more_to_evict(component, tier, space); };
    return tenants_.judge(model_, component, tier, out, must_reach, {has_more('A'), has_more('B')});
  }

  // Could an eviction have freed more of (c, t)? Leaves for full; anything unlocked for the others.
  bool more_to_evict(std::size_t c, std::size_t t, std::optional<char> space = {}) {
    for (const auto& [path, p] : model_.pages) {
      if (!tenants_.may_leave(path, c, t) || (space && path[0] != *space)) continue;
      if (!NaiveTree::published(&p, c, t) || p.locks[c][t] != 0 || NaiveTree::covered(p)) continue;
      if (c != 0 || is_free_leaf(path, p, t)) return true;
    }
    return false;
  }
  bool is_free_leaf(const Path& path, const NaiveTree::Page& p, std::size_t t) {
    const auto claimed = [](const NaiveTree::Page& at, std::size_t tier) {
      return at.locks[0][tier] != 0 || at.locks[1][tier] != 0 || at.locks[2][tier] != 0;
    };
    if (claimed(p, t) || (!NaiveTree::published(&p, 0, 1 - t) && claimed(p, 1 - t))) return false;
    for (auto below = model_.pages.upper_bound(path); below != model_.pages.end() && below->first.starts_with(path);
         ++below) {
      if (below->first.size() == path.size() + 1 && NaiveTree::present(&below->second, 0, t)) return false;
      const bool in_use = NaiveTree::covered(below->second) || claimed(below->second, 0) || claimed(below->second, 1);
      if (t == 0 && !NaiveTree::published(&p, 0, 1) && in_use) return false;  // would take the path of a user
    }
    return true;
  }

  void drain() {
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t t = 0; t < 2; ++t) {
        for (const std::uint32_t slot : ledger_.came_back(kAllComponents[c], t == 0 ? kDev : kHst)) {
          came_back_[c][t].insert(slot);
        }
      }
    }
  }
  std::string take_evicted() {
    drain();
    return model_.take_evicted(came_back_);
  }
  std::string compare_returned() {
    drain();
    const bool same = came_back_ == model_.freed;
    for (auto& tiers : came_back_) {
      for (auto& slots : tiers) slots.clear();
    }
    return same ? "" : "slots that came back differ";
  }

  static std::optional<PageKey> seed_of(const Path& path) {
    std::optional<PageKey> seed;
    if (path[0] == 'B') seed.emplace().bytes[5] = 1;
    return seed;
  }
  std::vector<PageKey> keys_of(const Path& path) const {
    PageKeyChain chain(config_.tree.page_size, seed_of(path));
    chain.extend(tokens_of(path));
    return {chain.keys().begin(), chain.keys().end()};
  }
  std::string keys(const Path& path, std::uint64_t pages) {
    const NodeId node = node_at(path, pages);
    if (pages % 2 == 0 && tree_->keys().hash(node, 2) > 2) return "more pages hashed than allowed";
    const std::vector<PageKey> chain = keys_of(path);
    if (tree_->keys().last(node) != (pages == 0 ? seed_of(path) : chain[pages - 1])) return "last key differs";
    for (NodeId at = node; tree_->view(at).end != 0; at = tree_->view(at).parent) {
      const std::span<const PageKey> keys = tree_->keys().of_edge(at);
      if (!std::equal(keys.begin(), keys.end(), chain.begin() + static_cast<std::ptrdiff_t>(tree_->view(at).begin))) {
        return "page keys differ";
      }
    }
    return {};
  }

  std::string compare_path(const Path& path) {
    const MatchResult m = match(path);
    const std::uint64_t walked = model_.walked(path);
    if (m.walked.pages != walked) return "walked " + std::to_string(m.walked.pages) + ", not " + std::to_string(walked);
    bool loading = false;
    for (std::uint64_t i = 0; i < walked; ++i) {
      for (const auto& tiers : model_.page(path, i)->cells) {
        loading |= tiers[0].state == NaiveTree::kPending || tiers[0].state == NaiveTree::kComplete;
      }
    }
    if (loading != m.meets_load) return "meets_load differs";
    for (const bool host_too : {false, true}) {
      const NaiveTree::Answer want = model_.lookup(path, host_too);
      const TierMatch& have = host_too ? m.any : m.device;
      const std::uint64_t full = host_too ? m.full_any_pages : m.full_device_pages;
      if (have.at.pages != want.at || full != want.full) {
        return std::string(host_too ? "any" : "device") + " match " + std::to_string(have.at.pages) + "/" +
               std::to_string(full) + ", not " + std::to_string(want.at) + "/" + std::to_string(want.full);
      }
      const StopReason reason = want.at == walked            ? StopReason::kNone
                                : want.at == want.full       ? StopReason::kFullMissing
                                : want.window_best > want.at ? StopReason::kStateMissing
                                                             : StopReason::kWindowMissing;
      if (have.reason != reason) return "stop reason differs";
    }
    return compare_locations(path, m, walked);
  }
  std::string compare_locations(const Path& path, const MatchResult& m, std::uint64_t walked) {
    for (std::size_t c = 0; c < 2; ++c) {
      std::vector<PageLocation> where;
      tree_->locate(m.walked.node, kAllComponents[c], 0, walked, where);
      for (std::uint64_t i = 0; i < walked; ++i) {
        const auto& cells = model_.page(path, i)->cells[c];
        const auto slot = [](const NaiveTree::Cell& cell) {
          return cell.state == NaiveTree::kPublished ? cell.slot : DeviceSlot::kNone;
        };
        if (where[i].device.v != slot(cells[0]) || where[i].host.v != slot(cells[1])) return "locations differ";
      }
    }
    return {};
  }
  std::string compare_counts() {
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t t = 0; t < 2; ++t) {
        TierCounts want;
        for (const auto& [path, page] : model_.pages) {
          const NaiveTree::State state = page.cells[c][t].state;
          want.pending += state == NaiveTree::kPending || state == NaiveTree::kComplete;
          if (state != NaiveTree::kPublished) continue;
          ++want.resident;
          want.locked += page.locks[c][t] != 0 || NaiveTree::covered(page);
        }
        const TierCounts& have = tree_->counts(kAllComponents[c], t == 0 ? kDev : kHst);
        if (have.resident != want.resident || have.pending != want.pending) return "resident or pending differ";
        const bool comparable = !(c == 0 && t == 1);  // a host lock of full covers an edge, the model its last page
        if (comparable && have.locked != want.locked) return "locked differs";
        if (ledger_.out(kAllComponents[c], t == 0 ? kDev : kHst).size() != want.resident + want.pending)
          return "slots lost";
      }
    }
    return ledger_.wrong_frees() == 0 ? "" : "a slot was freed twice";
  }

  PropertyConfig config_;
  Ledger ledger_;
  std::unique_ptr<RadixTree> tree_;
  NaiveTree model_;
  TenantWatch tenants_;
  std::array<NamespaceId, 2> spaces_;
  std::vector<Held> held_;
  std::vector<std::uint64_t> ops_;
  std::uint64_t next_op_ = 1;
  NaiveTree::Freed came_back_;
  std::optional<PageWitness> witness_;
};

}  // namespace larder::tree_test
