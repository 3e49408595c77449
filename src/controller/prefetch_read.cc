// SPDX-License-Identifier: Apache-2.0
// What comes from storage: batches, their adoption by the tree, and the end of a fetch.
#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/prefetcher.h"
#include "tree/tree_backlog.h"

namespace larder {

// One is always under way, or waits for a place. The others leave places for requests that are still to come.
void Prefetcher::begin_batches(Fetch& f, bool has_place) {
  while (f.next < f.batches.size() && f.reading < kBatchesInFlight) {
    const bool is_first = f.reading == 0;
    if (!(is_first && has_place) &&
        !ops_.places().has_room(OpKind::kRead, is_first ? 1 : 1 + ops_.places().spare_reads())) {
      if (is_first) turns_.wait_for_place(f);
      return;
    }
    if (!is_first && !ops_.budget().has_left()) return turns_.step_later(f);
    FetchBatch& batch = f.batches[f.next];
    ops_.budget().spend(batch.slot_count() + 1);
    for (const ComponentKind c : kAllComponents) {
      for (const HostSlot slot : batch.slots[index_of(c)]) {
        if (defect(Defect::kReadWithoutLease)) continue;
        if (const auto generation = host_->add_lease(c, slot)) batch.leases.push_back({c, slot.v, *generation});
      }
    }
    Op& op = ops_.add(OpKind::kRead);
    op.fetch = f.id;
    op.batch = f.next++;
    batch.op = op.id;
    batch.state = FetchBatch::State::kReading;
    ++f.reading;
    reads_.give(f, batch, queue_.any_waits_for(f.requests, f.id));
  }
}

// What storage has not been given is not needed any more.
void Prefetcher::end_planned(Fetch& f) {
  // Who goes on without what storage would have said. Who waits is told when it gives up.
  for (const RequestId id : f.requests) {
    QueuedRequest* const r = f.state == Fetch::State::kAsking ? queue_.find(id) : nullptr;
    if (r != nullptr && r->waits_for == OpId{}) r->trouble = std::max(r->trouble, FetchTrouble::kLate);
  }
  f.state = Fetch::State::kEnding;
  query_.close(f);
  reads_.drop(f);
  const std::uint64_t blocks = std::min(fetch_room_.drop_batches(f, f.next), f.blocks);  // none, once abandoned
  f.blocks -= blocks;
  queue_.drop_blocks(blocks);
}

namespace {
// Not what storage lacks, and not what nobody wanted any more.
bool is_failure(const Status& status) {
  return !status.is_ok() && status.code() != StatusCode::kNotFound && status.code() != StatusCode::kCancelled;
}

// What failed its checksum is dropped there.
bool is_absent(const Status& status) {
  return status.code() == StatusCode::kNotFound || status.code() == StatusCode::kCorrupt;
}

// That storage did not answer in time is no failure of its own.
FetchTrouble trouble_of(const Fetch& f, const Status& failure, TimePoint now) {
  if (failure.code() == StatusCode::kCorrupt) return FetchTrouble::kDamaged;
  const bool is_late = failure.code() == StatusCode::kDeadlineExceeded && now >= f.deadline;
  return is_late ? FetchTrouble::kLate : FetchTrouble::kFailed;
}

// It shares the fetch of a longer prompt, and its own part has come.
bool is_served(const Fetch& f, const QueuedRequest* r, std::uint64_t page_size) {
  if (r == nullptr || r->waits_for != f.id) return false;
  const std::uint64_t come = f.arrived > 0 ? f.batches[f.arrived - 1].end : f.full_from;
  const std::uint64_t own = r->tokens.size() / page_size;
  return own < f.target && own <= come;
}
}  // namespace

OutcomeBits Prefetcher::outcome_of(const Op& op) {
  const auto it = fetches_.find(op.fetch.v);
  if (it == fetches_.end()) return {};
  const Fetch& f = it->second;
  if (op.kind == OpKind::kExists) {
    const auto* answer = std::get_if<ExistsResult>(&op.completion);
    if (answer != nullptr && is_failure(answer->status)) {
      queue_.note_trouble(f.requests, trouble_of(f, answer->status, clock_.now()));
    }
    return query_.outcome_of(f, op);
  }
  reads_.note_ended(f.batches[op.batch]);
  // A page has come when all of its pools have.
  const auto* done = std::get_if<ReadResult>(&op.completion);
  const FetchBatch& batch = f.batches[op.batch];
  // After them, a bit for each that is not said to be absent, and one that says that this rank has an answer at all.
  const std::size_t words = words_for(batch.slot_count());
  OutcomeBits bits(2 * words + 1, ~std::uint64_t{0});
  std::size_t item = 0, place = 0;
  for (const ComponentKind c : kAllComponents) {
    const std::size_t slots = batch.slots[index_of(c)].size();
    if (slots == 0) continue;
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t i = 0; i < slots; ++i, ++item) {
        if (done == nullptr || item >= done->items.size()) return {};
        const Status& status = done->items[item];
        if (status.code() == StatusCode::kCorrupt) ++counters_.corrupt, probe(Probe::kPrefetchCorrupt);
        if (is_failure(status)) queue_.note_trouble(f.requests, trouble_of(f, status, clock_.now()));
        const bool is_sidecar = pool->name != model_.anchor(ComponentKind::kFull).name;
        if (status.is_ok() || (defect(Defect::kSidecarMissIgnored) && is_sidecar)) continue;
        const std::uint64_t others = ~(std::uint64_t{1} << ((place + i) % 64));
        bits[(place + i) / 64] &= others;
        if (is_absent(status)) bits[words + (place + i) / 64] &= others;
      }
    }
    place += slots;
  }
  return bits;
}

void Prefetcher::drop_unwanted(bool drops_speculative) {
  for (auto& [id, f] : fetches_) {
    const bool is_wanted = drops_speculative ? queue_.any_waits_for(f.requests, f.id) : queue_.any_queues(f.requests);
    if (is_wanted || !(f.device_lock.held || f.host_lock.held)) continue;
    (void)adopt_arrived(f);
    end_planned(f);
    fetch_room_.unlock(f);
    turns_.step_later(f);
  }
}

bool Prefetcher::yields_device(std::optional<RequestId> starts, const std::function<bool()>& suffices) {
  std::vector<Fetch*> fetches;
  if (starts) {
    const QueuedRequest* const r = queue_.find(*starts);
    if (r == nullptr || queue_.waits()) return false;
    for (const OpId fetch : r->fetches) fetches.push_back(&fetches_.at(fetch.v));
  } else {
    for (auto& [id, f] : fetches_) fetches.push_back(&f);
  }
  std::erase_if(fetches, [](const Fetch* f) { return !f->device_lock.held; });
  for (Fetch* const f : fetches) tree_.unlock(f->device_lock);
  if (fetches.empty() || suffices()) return !fetches.empty();
  for (Fetch* const f : fetches) {
    f->device_lock =
        tree_.lock(f->device_lock.node, Tier::kDevice, LockParts{.full = true, .swa = false, .mamba = false});
  }
  return false;
}

void Prefetcher::read_done(const Op& op, const OutcomeBits& bits) {
  const auto it = fetches_.find(op.fetch.v);
  if (it == fetches_.end()) return;
  Fetch& f = it->second;
  FetchBatch& batch = f.batches[op.batch];
  host_->drop_leases(std::exchange(batch.leases, {}));
  batch.state = FetchBatch::State::kArrived;
  const std::size_t words = words_for(batch.slot_count());
  batch.arrived.assign(bits.begin(), bits.begin() + static_cast<std::ptrdiff_t>(std::min(words, bits.size())));
  adopter_.forget_lost(f, batch, bits);
  --f.reading;
  while (f.arrived < f.next && f.batches[f.arrived].state != FetchBatch::State::kReading && !f.is_broken) {
    const FetchBatch& next = f.batches[f.arrived];
    if (next.is_stop) f.come = next.end;
    f.is_broken = !next.is_whole();
    if (!f.is_broken) ++f.arrived;
  }
  if (f.state == Fetch::State::kReading && (f.is_broken || !is_wanted(f))) end_planned(f);
  ops_.budget().spend(batch.slot_count() / 16);
  if (f.state == Fetch::State::kReading) begin_batches(f, true);
  use_what_came(f);
}

// Adopts what somebody can use now; and what more than a piece of it has come, so that it need not be done all at once
// in the end.
void Prefetcher::use_what_came(Fetch& f) {
  const bool is_over = f.reading == 0 && f.next == f.batches.size();
  const bool has_piece = f.come >= f.full_to + ops_.budget().piece();
  const bool serves = std::any_of(f.requests.begin(), f.requests.end(),
                                  [&](RequestId id) { return is_served(f, queue_.find(id), model_.page_size); });
  if (is_over || f.is_broken || serves || has_piece) {
    if (!adopt_arrived(f)) return turns_.step_later(f);
  }
  f.is_broken ? let_go(f) : release_served(f);
  end_if_over(f);
}

void Prefetcher::release_served(Fetch& f) {
  std::erase_if(f.requests, [&](RequestId id) {
    QueuedRequest* const r = queue_.find(id);
    if (!is_served(f, r, model_.page_size)) return false;
    std::erase(r->fetches, f.id);
    queue_.end_wait(*r, clock_.now());
    queue_.hold_what_is_there(*r);
    return true;
  });
}

bool Prefetcher::adopt_arrived(Fetch& f) {
  const FetchAdopter::Given given = adopter_.adopt(f);
  for (const RequestId id : f.requests) {
    QueuedRequest* const r = queue_.find(id);
    if (r == nullptr || given.pages == 0) continue;
    r->fetched_from = r->fetched_to > 0 ? std::min(r->fetched_from, f.base) : f.base;
    r->fetched_to = std::max(r->fetched_to, given.pages);
  }
  return given.is_all;
}

// A request that still waits keeps what came for it on the host until it starts, within the same capacity. What should
// have come and did not, or could not stay, is asked for once more, in case that was passing trouble. Not more often:
// storage would answer the same, and the request could be computing.
void Prefetcher::use_arrived(Fetch& f, QueuedRequest& r) {
  if (f.target == 0) return;  // nothing was read
  const std::uint64_t own = std::min<std::uint64_t>(f.target, r.tokens.size() / model_.page_size);
  const MatchResult match = tree_.match(f.space, r.tokens.first(own * model_.page_size));
  if (match.any.at.pages < own && r.short_fetches++ > 0) {
    r.known = std::min(r.known, match.any.at.pages);
    r.reach = r.reach.within(match.any.at.pages);
  }
  if (f.adopted == f.base) return;
  queue_.hold(r, match.any.at, std::exchange(f.blocks, 0));  // counted once, with the first of those that share it
}

// All has come that can be used: its requests go on.
void Prefetcher::let_go(Fetch& f) {
  if (f.adopted < f.target && !f.requests.empty()) ++counters_.prefetch_partial, probe(Probe::kPrefetchPartial);
  fetch_room_.unlock(f);
  for (const RequestId id : std::exchange(f.requests, {})) {
    QueuedRequest* const r = queue_.find(id);
    if (r == nullptr) continue;
    std::erase(r->fetches, f.id);
    if (r->waits_for != f.id) continue;
    use_arrived(f, *r);
    queue_.end_wait(*r, clock_.now());
    queue_.hold_what_is_there(*r);
  }
  // The limit has nothing left to guard. Every rank gets here by the same event, so every rank reports it.
  if (Op* const timer = ops_.find(std::exchange(f.timer, OpId{}))) ops_.end(*timer);
}

void Prefetcher::end_if_over(Fetch& f) {
  if (f.state != Fetch::State::kReading && f.state != Fetch::State::kEnding) return;
  if (f.reading > 0 || f.next < f.batches.size()) return;
  let_go(f);
  for (FetchBatch& batch : f.batches) fetch_room_.give_back(batch);
  f.batches.clear();  // a step that is still to come finds nothing to adopt
  f.first = f.arrived = f.next = 0;
  queue_.drop_blocks(std::exchange(f.blocks, 0));
  if (!f.parts.empty()) return;  // answers that nobody waits for
  if (f.adopted > f.base) {
    const std::uint64_t pages = f.adopted - std::min(f.full_from, f.adopted);
    metrics_.prefetched(pages, f.bytes, clock_.now() - f.read_begun);
  }
  joinable_.erase(f.space, f.tokens, f.id);
  fetches_.erase(f.id.v);
}

void Prefetcher::abandon(Fetch& f) {
  for (const QueryPart& part : f.parts) {
    if (Op* const query = ops_.find(part.op)) (void)ops_.abandon(*query);
  }
  for (const FetchBatch& batch : f.batches) {
    if (batch.state != FetchBatch::State::kReading) continue;
    if (Op* const read = ops_.find(batch.op)) (void)ops_.abandon(*read);
  }
  queue_.drop_blocks(std::exchange(f.blocks, 0));  // no share of the next storage's
}

}  // namespace larder
