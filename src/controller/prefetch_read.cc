// What comes from storage: batches, their adoption by the tree, and the end of a fetch.
#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/joint.h"
#include "controller/prefetcher.h"
#include "model/restorable_lengths.h"

namespace larder {

namespace {
bool is_whole(const FetchBatch& batch) {
  for (std::size_t i = 0; i < batch.slots[0].size(); ++i) {
    if (!batch.has(ComponentKind::kFull, i)) return false;
  }
  return true;
}
}  // namespace

// One is always under way: it takes the place of the operation that ends now.
void Prefetcher::begin_batches(Fetch& f) {
  while (f.next < f.batches.size() && f.reading < kBatchesInFlight &&
         (f.reading == 0 || ops_.has_room(OpKind::kRead))) {
    begin_batch(f, f.batches[f.next++]);
  }
}

void Prefetcher::begin_batch(Fetch& f, FetchBatch& batch) {
  for (const ComponentKind c : kAllComponents) {
    for (const HostSlot slot : batch.slots[index_of(c)]) {
      if (defect(Defect::kReadWithoutLease)) continue;
      if (host_->add_lease(c, slot).is_ok()) batch.leases.push_back({c, slot.v, host_->generation(c, slot)});
    }
  }
  Op& op = ops_.add(OpKind::kRead);
  op.fetch = f.id;
  op.batch = static_cast<std::size_t>(&batch - f.batches.data());
  batch.op = op.id;
  batch.state = FetchBatch::State::kReading;
  ++f.reading;
  if (!unsubmitted_.empty() || !submit_batch(f, batch)) unsubmitted_.push_back(op.id);
}

ReadRequest Prefetcher::read_of(const Fetch& f, const FetchBatch& batch) const {
  ReadRequest request;
  request.scope = spaces_.scope(f.space);
  request.terms = {f.urgency, f.deadline, f.cancel};
  const std::array<std::uint64_t, kComponentCount> first = {batch.begin, batch.window_from, batch.end - 1};
  for (const ComponentKind c : kAllComponents) {
    const std::vector<HostSlot>& slots = batch.slots[index_of(c)];
    if (slots.empty()) continue;
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        ReadItem item{pool->name, f.keys[first[index_of(c)] + i - f.key_from], {}};
        host_->append_page(pool->name, slots[i], item.payload);
        request.items.push_back(std::move(item));
      }
    }
  }
  return request;
}

// False: storage's queue is full, which is no failure.
bool Prefetcher::submit_batch(const Fetch& f, FetchBatch& batch) {
  ReadRequest request = read_of(f, batch);
  batch.bytes = 0;
  for (const ReadItem& item : request.items) batch.bytes += payload_bytes(item.payload);
  auto complete = ops_.completion_for(batch.op);
  const Status submitted =
      storage_->submit_read(std::move(request), [complete](ReadResult done) { complete(std::move(done)); });
  if (submitted.code() == StatusCode::kOverloaded) return false;
  if (!submitted.is_ok()) complete(ReadResult{});
  return true;
}

// When a batch is submitted is this rank's own; that it is under way is not.
void Prefetcher::pump() {
  while (!unsubmitted_.empty()) {
    const Op& op = *ops_.find(unsubmitted_.front());
    Fetch& f = fetches_.at(op.fetch.v);
    if (!submit_batch(f, f.batches[op.batch])) return;
    unsubmitted_.pop_front();
  }
}

// What storage has not been given is not needed any more.
void Prefetcher::end_planned(Fetch& f) {
  f.state = Fetch::State::kEnding;
  std::erase_if(unsubmitted_, [&](OpId id) {
    if (ops_.find(id)->fetch != f.id) return false;
    ops_.completion_for(id)(ReadResult{});
    return true;
  });
  std::uint64_t blocks = 0;
  for (std::size_t i = f.next; i < f.batches.size(); ++i) {
    for (const ComponentKind c : kAllComponents) {
      blocks += f.batches[i].slots[index_of(c)].size() * host_->blocks_per_slot(c);
    }
    give_back(f.batches[i]);
  }
  f.batches.resize(f.next);
  blocks = std::min(blocks, f.blocks);  // none, once they were abandoned
  f.blocks -= blocks;
  queue_.drop_blocks(blocks);
}

OutcomeBits Prefetcher::outcome_of(const Op& op) const {
  const auto it = fetches_.find(op.fetch.v);
  if (it == fetches_.end()) return {};
  const Fetch& f = it->second;
  if (op.kind == OpKind::kExists) {
    const auto* done = std::get_if<ExistsResult>(&op.completion);
    if (done == nullptr || !done->status.is_ok() || !f.device_lock.held) return {};
    return planner_.candidates(f, *done);
  }
  // A page has come when all of its pools have.
  const auto* done = std::get_if<ReadResult>(&op.completion);
  const FetchBatch& batch = f.batches[op.batch];
  OutcomeBits bits(words_for(batch.slot_count()), ~std::uint64_t{0});
  std::size_t item = 0, place = 0;
  for (const ComponentKind c : kAllComponents) {
    const std::size_t slots = batch.slots[index_of(c)].size();
    if (slots == 0) continue;
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t i = 0; i < slots; ++i, ++item) {
        if (done == nullptr || item >= done->items.size()) return {};
        const Status& status = done->items[item];
        if (status.code() == StatusCode::kCorrupt) ++counters_.corrupt, probe(Probe::kPrefetchCorrupt);
        const bool is_sidecar = pool->name != model_.anchor(ComponentKind::kFull).name;
        if (status.is_ok() || (defect(Defect::kSidecarMissIgnored) && is_sidecar)) continue;
        bits[(place + i) / 64] &= ~(std::uint64_t{1} << ((place + i) % 64));
      }
    }
    place += slots;
  }
  return bits;
}

void Prefetcher::read_done(const Op& op, const OutcomeBits& bits) {
  const auto it = fetches_.find(op.fetch.v);
  if (it == fetches_.end()) return;
  Fetch& f = it->second;
  FetchBatch& batch = f.batches[op.batch];
  for (const LeasedSlot& l : std::exchange(batch.leases, {})) {
    (void)host_->drop_lease(l.component, HostSlot(l.slot), l.generation);
  }
  batch.state = FetchBatch::State::kArrived;
  batch.arrived = bits;
  --f.reading;
  bool is_broken = false;  // nothing behind the first hole can ever be adopted
  while (f.arrived < f.next && f.batches[f.arrived].state != FetchBatch::State::kReading && !is_broken) {
    is_broken = !is_whole(f.batches[f.arrived]);
    if (!is_broken) ++f.arrived;
  }
  // For those that start without waiting, it goes on as long as one of them has not started.
  const bool is_wanted = std::any_of(f.requests.begin(), f.requests.end(), [&](RequestId id) {
    const QueuedRequest* const r = queue_.find(id);
    return r != nullptr && !r->tokens.empty();
  });
  if (f.state == Fetch::State::kReading && (is_broken || !is_wanted)) end_planned(f);
  if (f.state == Fetch::State::kReading) begin_batches(f);
  is_broken ? let_go(f) : release_served(f);
  end_if_over(f);
}

// Requests that share the fetch of a longer prompt go on when their own part has come.
void Prefetcher::release_served(Fetch& f) {
  const std::uint64_t come = f.arrived > 0 ? f.batches[f.arrived - 1].end : f.full_from;
  const auto is_served = [&](RequestId id) {
    const QueuedRequest* const r = queue_.find(id);
    return r != nullptr && r->waits_for == f.id && r->tokens.size() / model_.page_size < f.target &&
           r->tokens.size() / model_.page_size <= come;
  };
  if (std::none_of(f.requests.begin(), f.requests.end(), is_served)) return;
  adopt_arrived(f);
  std::erase_if(f.requests, [&](RequestId id) {
    if (!is_served(id)) return false;
    QueuedRequest& r = *queue_.find(id);
    std::erase(r.fetches, f.id);
    queue_.end_wait(r, clock_.now());
    queue_.hold_what_is_there(r);
    return true;
  });
}

// The largest restore point in (after, the stop's end] that has come whole.
std::uint64_t Prefetcher::restore_point_of(const Fetch& f, std::size_t stop, std::uint64_t after) const {
  const FetchBatch& at = f.batches[stop];
  const std::uint64_t origin = std::min(at.window_begin, after);
  const std::size_t pages = at.end - origin;
  Presence full(pages, false), window(pages, false), state(pages, false);
  for (std::uint64_t p = origin; p < std::min(f.full_to, at.end); ++p) full[p - origin] = true;
  for (std::size_t i = f.first; i <= stop; ++i) {
    const FetchBatch& batch = f.batches[i];
    for (std::uint64_t p = std::max(batch.begin, origin); p < batch.end; ++p) {
      full[p - origin] = batch.has(ComponentKind::kFull, p - batch.begin);
    }
  }
  for (std::uint64_t p = at.window_begin; p < at.end; ++p) {
    window[p - origin] = p < at.window_from || at.has(ComponentKind::kSwa, p - at.window_from);
  }
  state[pages - 1] = !at.reads_state || at.has(ComponentKind::kMamba, 0);
  std::vector<JointNeed> needs = {{&full, HitPolicy::kAllPages, 0}};
  if (model_.has(ComponentKind::kSwa)) needs.push_back({&window, HitPolicy::kTrailingPages, model_.window_pages()});
  if (model_.has(ComponentKind::kMamba)) needs.push_back({&state, HitPolicy::kTrailingPages, 1});
  OutcomeBits bits(words_for(pages));
  restorable_lengths(needs, pages, bits);
  for (std::uint64_t p = at.end; p > after; --p) {
    const std::size_t bit = p - origin - 1;
    // A window that begins before `origin` is not all known here.
    if (p - model_.window_pages_at(p) >= origin && ((bits[bit / 64] >> (bit % 64)) & 1) != 0) return p;
  }
  return after;
}

// Hands the tree the largest restore point that has come whole so far. The windows and states of the stops before it
// are not kept: who can use them can use the later one.
void Prefetcher::adopt_arrived(Fetch& f) {
  std::uint64_t best = f.adopted, after = f.adopted;
  std::size_t stop = 0;
  for (std::size_t i = f.first; i < f.batches.size(); ++i) {
    const FetchBatch& batch = f.batches[i];
    if (batch.state != FetchBatch::State::kArrived) break;
    if (batch.is_stop) {
      const std::uint64_t reached = restore_point_of(f, i, after);
      if (reached > after) best = reached, stop = i;
      after = batch.end;
    }
    if (!is_whole(batch) && !defect(Defect::kBatchHoleIgnored)) break;
  }
  if (defect(Defect::kPartialFetchIsWhole) && best > f.adopted && stop + 1 == f.batches.size()) best = f.target;
  if (best == f.adopted) return;
  // What came late, or follows what was adopted before, may have lost what it continues: no lock keeps it.
  const std::span<const TokenId> path = std::span<const TokenId>(f.tokens).first(f.full_to * model_.page_size);
  const bool is_kept = f.device_lock.held && f.adopted == f.base;
  if (!is_kept && tree_.match(f.space, path).full_any_pages != f.full_to) return;
  if (!adopt(f, stop, best)) return;
  f.adopted = best;
  f.full_to = std::max(f.full_to, best);
  for (; f.first <= stop; ++f.first) {
    f.bytes += f.batches[f.first].bytes;
    give_back(f.batches[f.first]);
    f.batches[f.first].state = FetchBatch::State::kOver;
  }
}

// Hands [.., pages) to the tree; the slots that it takes are the batches' no more.
bool Prefetcher::adopt(Fetch& f, std::size_t stop, std::uint64_t pages) {
  FetchBatch& at = f.batches[stop];
  std::vector<HostSlot> full;
  HostInsertRequest insert;
  insert.space = f.space;
  insert.tokens = std::span<const TokenId>(f.tokens).first(pages * model_.page_size);
  insert.from = std::min(f.full_to, pages);
  const auto kept_of = [&](const FetchBatch& batch) {
    return pages > batch.begin ? std::min<std::uint64_t>(pages - batch.begin, batch.slots[0].size()) : 0;
  };
  for (std::size_t i = f.first; i <= stop; ++i) {
    const auto kept = static_cast<std::ptrdiff_t>(kept_of(f.batches[i]));
    full.insert(full.end(), f.batches[i].slots[0].begin(), f.batches[i].slots[0].begin() + kept);
  }
  const std::uint64_t window = pages > at.window_from ? pages - at.window_from : 0;
  const bool has_state = at.reads_state && pages == at.end;
  insert.full = full;
  insert.swa = std::span<const HostSlot>(at.slots[index_of(ComponentKind::kSwa)]).first(window);
  if (has_state) insert.state = at.slots[index_of(ComponentKind::kMamba)].front();
  const std::uint64_t evicted = counters_.host_evicted;
  const Result<InsertResult> inserted = tree_.insert_host(insert);
  if (!inserted.is_ok()) {
    ++counters_.internal_errors;
    return false;
  }
  // Duplicates of what others brought meanwhile come back through the sink: not evictions.
  probe(Probe::kPrefetchAdopted);
  counters_.prefetched += full.size() - (counters_.host_evicted - evicted);
  counters_.host_evicted = evicted;
  mark_adopted(inserted->node, f, at, pages);
  for (std::size_t i = f.first; i <= stop; ++i) {
    std::vector<HostSlot>& slots = f.batches[i].slots[0];
    slots.erase(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(kept_of(f.batches[i])));
  }
  std::vector<HostSlot>& swa = at.slots[index_of(ComponentKind::kSwa)];
  swa.erase(swa.begin(), swa.begin() + static_cast<std::ptrdiff_t>(window));
  if (has_state) at.slots[index_of(ComponentKind::kMamba)].clear();
  for (const RequestId id : f.requests) {
    QueuedRequest* const r = queue_.find(id);
    if (r == nullptr) continue;
    r->fetched_from = r->fetched_to > 0 ? std::min(r->fetched_from, f.tree_full) : f.tree_full;
    r->fetched_to = std::max(r->fetched_to, pages);
  }
  return true;
}

// What came from the storage that is attached need not be written there again.
void Prefetcher::mark_adopted(NodeId node, const Fetch& f, const FetchBatch& stop, std::uint64_t pages) {
  if (storage_ == nullptr || f.epoch != backlog_.epoch()) return;
  const bool read_state = stop.reads_state && pages == stop.end;
  for (NodeView view = tree_.view(node); view.end > 0 && view.begin >= f.full_to; view = tree_.view(node)) {
    const bool has_window = !view.host[index_of(ComponentKind::kSwa)].empty();
    const bool has_state = !view.host[index_of(ComponentKind::kMamba)].empty();
    // What else the node has on the host was computed here, and storage may lack it.
    const bool all_read =
        (!has_window || view.begin >= stop.window_from) && (!has_state || (read_state && view.end == pages));
    if (all_read) tree_.set_stored(node, backlog_.epoch());
    node = view.parent;
  }
}

void Prefetcher::give_back(FetchBatch& batch) {
  for (const ComponentKind c : kAllComponents) {
    for (const HostSlot slot : std::exchange(batch.slots[index_of(c)], {})) {
      if (!defect(Defect::kPrefetchLeaks) && !host_->free(c, slot).is_ok()) ++counters_.internal_errors;
    }
  }
}

// A request that still waits keeps what came for it on the host until it starts, within the same capacity. What should
// have come and did not, or could not stay, is asked for once more, in case that was passing trouble. Not more often:
// storage would answer the same, and the request could be computing.
void Prefetcher::use_arrived(Fetch& f, QueuedRequest& r) {
  if (f.target == 0) return;  // nothing was read
  const std::uint64_t own = std::min<std::uint64_t>(f.target, r.tokens.size() / model_.page_size);
  const MatchResult match = tree_.match(f.space, r.tokens.first(own * model_.page_size));
  if (match.any.at.pages < own && r.short_fetches++ > 0) r.known = std::min(r.known, match.any.at.pages);
  if (f.adopted == f.base) return;
  queue_.hold(r, match.any.at, std::exchange(f.blocks, 0));  // counted once, with the first of those that share it
}

// All has come that can be used: its requests go on.
void Prefetcher::let_go(Fetch& f) {
  adopt_arrived(f);
  if (f.adopted < f.target && !f.requests.empty()) ++counters_.prefetch_partial, probe(Probe::kPrefetchPartial);
  tree_.unlock(f.device_lock);
  tree_.unlock(f.host_lock);
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
  if (f.reading > 0 || f.next < f.batches.size()) return;
  let_go(f);
  if (f.adopted > f.base) {
    const std::uint64_t pages = f.adopted - std::min(f.full_from, f.adopted);
    metrics_.prefetched(pages, f.bytes, clock_.now() - f.read_begun);
  }
  for (FetchBatch& batch : f.batches) give_back(batch);
  queue_.drop_blocks(std::exchange(f.blocks, 0));
  const auto joinable = joinable_.find(join_key(f.space, f.tokens));
  std::erase(joinable->second, f.id);
  if (joinable->second.empty()) joinable_.erase(joinable);
  fetches_.erase(f.id.v);
}

void Prefetcher::abandon(Fetch& f) {
  if (Op* const query = ops_.find(f.id)) (void)ops_.abandon(*query);
  for (const FetchBatch& batch : f.batches) {
    if (batch.state != FetchBatch::State::kReading) continue;
    if (Op* const read = ops_.find(batch.op)) (void)ops_.abandon(*read);
  }
  queue_.drop_blocks(std::exchange(f.blocks, 0));  // no share of the next storage's
}

}  // namespace larder
