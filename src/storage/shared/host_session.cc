// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/host_session.h"

#include <atomic>
#include <utility>

#include "storage/shared/arena_room.h"

namespace larder::share {
namespace {

Status broken_client(std::string_view what) { return corrupt("shared store: a client sent " + std::string(what)); }

}  // namespace

// What an operation in flight needs when the session is gone.
struct HostSession::Link {
  Link(StorageBackend& backend, std::shared_ptr<ShareMemory> memory, std::shared_ptr<AnswerSink> answers)
      : inner(backend), arena(std::move(memory)), sink(std::move(answers)) {}

  void end(std::string frame) {
    // The last one tells how things stand. Another may begin meanwhile: then its end tells it again.
    if (in_flight.fetch_sub(1, std::memory_order_acq_rel) == 1) sink->answer(encode_stats(inner.stats()));
    sink->answer(std::move(frame));
  }

  StorageBackend& inner;
  const std::shared_ptr<ShareMemory> arena;
  const std::shared_ptr<AnswerSink> sink;
  std::atomic<std::uint64_t> in_flight{0};
};

HostSession::HostSession(StorageBackend& inner, Clock& clock, std::shared_ptr<ShareMemory> arena,
                         std::shared_ptr<AnswerSink> sink, std::size_t queue_limit)
    : inner_(inner),
      clock_(clock),
      queue_limit_(queue_limit),
      link_(std::make_shared<Link>(inner, std::move(arena), std::move(sink))),
      scopes_(kMaxScopes) {}

std::uint64_t HostSession::in_flight() const { return link_->in_flight.load(std::memory_order_acquire); }

Status HostSession::on_frame(const Head& head, std::string_view body) {
  switch (head.kind) {
    case Kind::kScope: return on_scope(body);
    case Kind::kExists: return on_exists(head.operation, body);
    case Kind::kRead: return on_read(head.operation, body);
    case Kind::kWrite: return on_write(head.operation, body);
    case Kind::kClear: return on_clear(head.operation, body);
    case Kind::kAskStats:
      if (!body.empty()) return broken_client("a question with an answer");
      link_->sink->answer(encode_stats(inner_.stats()));
      return Status::ok();
    default: return broken_client("a message that only a host sends, or a second hello");
  }
}

Status HostSession::on_scope(std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(ScopeEntry entry, decode_scope(body));
  // Operations in flight hold the one before.
  scopes_[entry.slot] = std::make_shared<const StoreScope>(std::move(entry.scope));
  return Status::ok();
}

const std::shared_ptr<const StoreScope>& HostSession::scope_of(std::uint16_t slot) const { return scopes_[slot]; }

OperationTerms HostSession::terms_of(const Terms& terms) const {
  OperationTerms out;
  out.urgency = terms.urgency;
  const TimePoint now = clock_.now();
  const Nanos left(terms.left_ns);
  if (terms.left_ns != kNoDeadline && left < TimePoint::max() - now) out.deadline = now + left;
  return out;
}

bool HostSession::add_segment(const Place& place, std::vector<Segment>& out) const {
  const std::span<std::byte> arena = link_->arena->bytes();
  if (!lies_within(place, arena.size())) return false;
  if (place.bytes > 0) out.push_back({arena.data() + place.offset, static_cast<std::size_t>(place.bytes)});
  return true;
}

Status HostSession::begin() {
  if (link_->in_flight.fetch_add(1, std::memory_order_acq_rel) < queue_limit_) return Status::ok();
  return overloaded("the host of a shared store: " + std::to_string(queue_limit_) +
                    " operations of this client are in flight, the most it takes");
}

Status HostSession::on_exists(std::uint64_t operation, std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(ExistsAsk ask, decode_exists(body));
  const auto& scope = scope_of(ask.terms.scope);
  if (!scope) return broken_client("an operation in an unknown scope");
  Status status = begin();
  if (status.is_ok()) {
    ExistsRequest request{scope, std::move(ask.keys), std::move(ask.pools), terms_of(ask.terms)};
    status = inner_.submit_exists(std::move(request), [link = link_, operation](ExistsResult result) {
      link->end(encode_presence(operation, result));
    });
  }
  if (!status.is_ok()) link_->end(encode_presence(operation, {std::move(status), {}}));
  return Status::ok();
}

Status HostSession::on_read(std::uint64_t operation, std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(ReadAsk ask, decode_read(body));
  const auto& scope = scope_of(ask.terms.scope);
  if (!scope) return broken_client("an operation in an unknown scope");
  ReadRequest request{scope, {}, terms_of(ask.terms)};
  const std::size_t count = ask.items.size();
  request.items.reserve(count);
  for (const ReadAsk::Item& item : ask.items) {
    ReadItem& out = request.items.emplace_back(ReadItem{item.pool, item.key, {}});
    if (!add_segment(item.place, out.payload)) return broken_client("a place outside its arena");
  }
  Status status = begin();
  if (status.is_ok()) {
    status = inner_.submit_read(std::move(request), [link = link_, operation](ReadResult result) {
      link->end(encode_statuses(operation, result.items));
    });
  }
  if (!status.is_ok()) link_->end(encode_statuses(operation, std::vector<Status>(count, status)));
  return Status::ok();
}

Status HostSession::on_write(std::uint64_t operation, std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(WriteAsk ask, decode_write(body));
  const auto& scope = scope_of(ask.terms.scope);
  if (!scope) return broken_client("an operation in an unknown scope");
  WriteRequest request{scope, {}, ask.durable, terms_of(ask.terms), ask.as_of};
  const std::size_t count = ask.groups.size();
  request.groups.reserve(count);
  for (const auto& group : ask.groups) {
    PageGroup& out = request.groups.emplace_back();
    out.items.reserve(group.size());
    for (const WriteAsk::Item& item : group) {
      WriteItem& page = out.items.emplace_back(WriteItem{item.pool, item.key, {}, item.parent});
      if (!add_segment(item.place, page.payload)) return broken_client("a place outside its arena");
    }
  }
  Status status = begin();
  if (status.is_ok()) {
    status = inner_.submit_write(std::move(request), [link = link_, operation](WriteResult result) {
      link->end(encode_statuses(operation, result.groups));
    });
  }
  if (!status.is_ok()) link_->end(encode_statuses(operation, std::vector<Status>(count, status)));
  return Status::ok();
}

Status HostSession::on_clear(std::uint64_t operation, std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(const std::uint16_t slot, decode_clear(body));
  std::shared_ptr<const StoreScope> scope;
  if (slot != kNoScope) {
    scope = scope_of(slot);
    if (!scope) return broken_client("an operation in an unknown scope");
  }
  Status status = begin();
  if (status.is_ok()) {
    status = inner_.submit_clear(std::move(scope), [link = link_, operation](Status result) {
      link->end(encode_statuses(operation, {std::move(result)}));
    });
  }
  if (!status.is_ok()) link_->end(encode_statuses(operation, {std::move(status)}));
  return Status::ok();
}

}  // namespace larder::share
