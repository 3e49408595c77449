// SPDX-License-Identifier: Apache-2.0
#include "controller/requests.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"

namespace larder {

namespace {
constexpr std::uint64_t kReservedOutput = 8192;  // tokens
}

Requests::Requests(const CacheConfig& config, const Parts& parts)
    : config_(config),
      device_(parts.device),
      tree_(parts.tree),
      spaces_(parts.spaces),
      ops_(parts.ops),
      room_(parts.room),
      events_(parts.events),
      running_parts_{.model = parts.model,
                     .config = config,
                     .device = parts.device,
                     .tree = parts.tree,
                     .counters = parts.counters,
                     .room = parts.room,
                     .in_limbo = in_limbo_,
                     .chunk_pages = parts.chunk_pages,
                     .has_ranks = parts.has_ranks} {}

// ---- who is there

Request* Requests::find(RequestId id) { return requests_.find(id.v); }

const Request* Requests::find(RequestId id) const { return requests_.find(id.v); }

Status Requests::check(const BeginRequest& request) const {
  if (request.tokens.empty()) return invalid_argument("the prompt is empty; send at least one token");
  LARDER_RETURN_IF_ERROR(check_count());
  const std::uint64_t prompt = request.tokens.size(), max_new = request.max_new_tokens;
  const std::uint32_t capacity = device_.slots(ComponentKind::kFull).capacity();
  const std::uint64_t room = std::uint64_t{capacity} * running_parts_.model.page_size;
  // Compared without their sum, final_tokens(), which may not fit into 64 bits before this.
  if (prompt > room || (max_new > 0 && max_new - 1 > room - prompt)) {
    return invalid_argument("prompt of " + std::to_string(prompt) + " + " + std::to_string(max_new) +
                            " new tokens needs more than the " + std::to_string(capacity) +
                            " pages of the device; give the device more, or send fewer");
  }
  return Status::ok();
}

Status Requests::check_count() const {
  if (requests_.size() + departed_.size() < config_.max_requests) return Status::ok();
  return overloaded("cache: " + std::to_string(requests_.size()) + " requests are under way and " +
                    std::to_string(departed_.size()) + " that are over have open steps, which is the limit");
}

Request& Requests::add_fork(const Request& from) {
  const RequestId id(next_++);
  Request& r = requests_.add(id.v, running_parts_);
  static_cast<RequestText&>(r) = from;
  r.tokens.reserve(r.prompt + std::min(r.max_new, kReservedOutput));
  r.id = id;
  r.space_use = spaces_.use(r.space);
  r.run.seeker().tenant = tree_.spaces().tenant_of(r.space);
  r.cached.prompt = r.prompt;
  r.is_told = true;
  return r;
}

Request& Requests::add(NamespaceId space, const BeginRequest& request) {
  const RequestId id(next_++);
  Request& r = requests_.add(id.v, running_parts_);
  r.id = id;
  r.space = space;
  r.space_use = spaces_.use(space);
  r.run.seeker().tenant = tree_.spaces().tenant_of(space);
  r.priority = request.priority;
  r.turn.will_return = request.will_return;
  r.prompt = request.tokens.size();
  r.max_new = request.max_new_tokens;
  // The first tokens of the output must not move a long prompt.
  r.tokens.reserve(r.prompt + std::min(r.max_new, kReservedOutput));
  r.tokens.assign(request.tokens.begin(), request.tokens.end());
  r.cached.prompt = r.prompt;
  return r;
}

// ---- their lives

void Requests::run(Request& r, RequestPhase phase) {
  r.phase = phase;
  r.has_computed = false;
  ++running_;
}

void Requests::hand_over(Request& r) {
  if (r.phase == RequestPhase::kRunning && ops_.parted().is_ok()) r.run.hand_over(r);
}

void Requests::release(Request& r) {
  if (!r.has_started()) return;
  room_.path_let_go(r.run.lock().node);
  r.run.release(defect(Defect::kLoadedSlotsLeak) && r.restarts == 0);
  r.load = r.state_copy = OpId{};
  r.is_starved = false;
  r.phase = RequestPhase::kReady;
  --running_;
}

void Requests::forget(Request& r) {
  const std::uint64_t id = r.id.v;
  release(r);
  if (r.run.ledger().has_open()) departed_.emplace(id, Departed{r.run.take_ledger(), std::move(r.space_use)});
  requests_.erase(id);
}

void Requests::close(const std::function<void(RequestId)>& each) {
  requests_.for_each([&](Request& r) {
    release(r);
    each(r.id);
  });
  requests_.clear();
  departed_.clear();
}

// ---- steps

Result<StepGrant> Requests::prepare_step(RequestId id, std::uint64_t until) {
  Request* r = find(id);
  if (r != nullptr) r->is_starved = false;
  LARDER_RETURN_IF_ERROR(ops_.parted());
  if (!r) return not_found("prepare_step: no such request");
  if (r->phase == RequestPhase::kLoading) return overloaded("prepare_step: the checkpoint is still being copied");
  if (r->phase != RequestPhase::kRunning) return invalid_argument("prepare_step: the request has not started");
  if (r->forks > 0) return overloaded("prepare_step: a fork of the request is still being copied");
  Result<StepGrant> grant = r->run.prepare(*r, until);
  r->is_starved = r->run.is_starved();
  if (grant.is_ok()) grant->token.request = id;
  return grant;
}

Status Requests::complete_step(StepToken step, std::span<const TokenId> tokens, std::shared_ptr<DeviceEvent> over) {
  Request* r = find(step.request);
  events_.ended(std::move(over));  // before anything is freed
  if (!r) return end_departed(step, true);
  // Steps end whatever happens to the ranks: they hold slots.
  if (const Status parted = ops_.parted(); !parted.is_ok()) {
    (void)r->run.cancel(step.number);
    return parted;
  }
  LARDER_RETURN_IF_ERROR(r->run.complete(*r, step.number, tokens));
  r->has_computed = true;
  return Status::ok();
}

Status Requests::cancel_step(StepToken step, std::shared_ptr<DeviceEvent> over) {
  events_.ended(std::move(over));
  Request* r = find(step.request);
  return r ? r->run.cancel(step.number) : end_departed(step, false);
}

Status Requests::end_departed(StepToken step, bool completes) {
  const auto at = departed_.find(step.request.v);
  if (at == departed_.end() || at->second.ledger.find(step.number) == nullptr) {
    return not_found("step " + std::to_string(step.number) + " of request " + std::to_string(step.request.v) +
                     " has ended, or never was");
  }
  StepLedger& ledger = at->second.ledger;
  for (const GrantedState& s : ledger.take(step.number).states) room_.give_back(ComponentKind::kMamba, s.slot);
  ledger.release([this](ComponentKind c, DeviceSlot slot) { room_.give_back(c, slot); },
                 [this](LockHandle& lock) { tree_.unlock(lock); });
  if (!ledger.has_open()) departed_.erase(at);
  return completes ? conflict("complete_step: the tokens do not count: the request is over") : Status::ok();
}

Status Requests::check_slots() const {
  ComponentCounts own{};  // beyond the tree
  ComponentCounts limbo{};
  const auto add = [](ComponentCounts& sum, const ComponentCounts& more) {
    for (std::size_t i = 0; i < kComponentCount; ++i) sum[i] += more[i];
  };
  requests_.for_each([&](const Request& r) { add(own, r.run.slots()), add(limbo, r.run.ledger().in_limbo()); });
  for (const auto& [id, d] : departed_) add(own, d.ledger.slots()), add(limbo, d.ledger.in_limbo());
  if (limbo != in_limbo_) return internal_error("device slots in limbo are miscounted");
  for (const ComponentKind c : kAllComponents) {
    const std::uint32_t live = device_.slots(c).counts().live;
    const TierCounts& counts = tree_.counts(c, Tier::kDevice);
    const std::uint64_t tree = counts.resident + counts.pending;
    if (live != tree + own[index_of(c)]) {
      return internal_error("device slots of " + std::string(component_name(c)) + ": " + std::to_string(live) +
                            " live, but the tree holds " + std::to_string(tree) + " and requests and open steps " +
                            std::to_string(own[index_of(c)]));
    }
  }
  return Status::ok();
}

}  // namespace larder
