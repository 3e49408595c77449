// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/client_session.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace larder::share {
namespace {

Status broken_host(std::string_view what) { return corrupt("shared store: the host sent " + std::string(what)); }
Status too_large(std::string_view what, std::uint64_t bytes, std::uint64_t arena_bytes, std::string_view option) {
  return invalid_argument(std::string(what) + " of " + std::to_string(bytes) +
                          " bytes is larger than the memory that the processes of a shared store hand pages over in (" +
                          std::to_string(arena_bytes) + " bytes): raise " + std::string(option) + " in all of them");
}

// Goes through a payload's pieces and the bytes at `place` side by side.
template <class Move>
void move_pieces(std::span<std::byte> arena, const Place& place, std::span<const Segment> payload, Move move) {
  std::byte* at = arena.data() + place.offset;
  for (const Segment& piece : payload) {
    if (piece.size > 0) move(at, piece);
    at += piece.size;
  }
}

// Adds room for one more page at the end of a part; the place is relative to the part's begin.
Place add_place(std::uint64_t& part_bytes, std::uint64_t bytes) {
  if (bytes == 0) return {};
  const Place place{align_in_arena(part_bytes, bytes), bytes};
  part_bytes = place.offset + bytes;
  return place;
}

// null: a clear, which has none.
const OperationTerms* terms_of(const ClientOperation& operation) {
  return std::visit(
      [](const auto& op) -> const OperationTerms* {
        if constexpr (requires { op->request.terms; }) return &op->request.terms;
        return nullptr;
      },
      operation);
}

Urgency urgency_of(const ClientOperation& operation) {
  const OperationTerms* const terms = terms_of(operation);
  return terms == nullptr ? Urgency::kBackground : std::min(terms->urgency, Urgency::kBackground);
}

}  // namespace

Status check_fits(const ReadRequest& request, std::uint64_t arena_bytes, std::string_view option) {
  const std::uint64_t room = arena_bytes / kArenaPageBytes * kArenaPageBytes;
  for (const ReadItem& item : request.items) {
    const std::uint64_t bytes = payload_bytes(item.payload);
    if (bytes > room) return too_large("a page", bytes, room, option);
  }
  return Status::ok();
}

Status check_fits(const WriteRequest& request, std::uint64_t arena_bytes, std::string_view option) {
  const std::uint64_t room = arena_bytes / kArenaPageBytes * kArenaPageBytes;
  for (const PageGroup& group : request.groups) {
    std::uint64_t bytes = 0;
    for (const WriteItem& item : group.items) (void)add_place(bytes, payload_bytes(item.payload));
    if (bytes > room) return too_large(group.items.size() == 1 ? "a page" : "a group of pages", bytes, room, option);
    if (group.items.size() > kMaxItems) {
      return invalid_argument("a group of more than " + std::to_string(kMaxItems) +
                              " pages does not go into a shared store");
    }
  }
  return Status::ok();
}

void fail_operation(const ClientOperation& operation, std::size_t from, const Status& why) {
  if (const auto* exists = std::get_if<std::shared_ptr<ExistsOperation>>(&operation)) {
    (*exists)->result = {why, {}};
  } else if (const auto* read = std::get_if<std::shared_ptr<ReadOperation>>(&operation)) {
    auto& items = (*read)->result.items;
    std::fill(items.begin() + static_cast<std::ptrdiff_t>(from), items.end(), why);
  } else if (const auto* write = std::get_if<std::shared_ptr<WriteOperation>>(&operation)) {
    auto& groups = (*write)->result.groups;
    std::fill(groups.begin() + static_cast<std::ptrdiff_t>(from), groups.end(), why);
  } else if (const auto& clear = std::get<std::shared_ptr<ClearOperation>>(operation)) {
    clear->result = why;
  }
}

// One part's payloads, from or to the arena. Its end says whether it ran.
struct ClientSession::CopyJob {
  ~CopyJob() {
    if (is_told) port->copied(number, is_done);
  }
  void run() {
    const std::span<std::byte> bytes = arena->bytes();
    std::size_t at = 0;
    if (const auto* read = std::get_if<std::shared_ptr<ReadOperation>>(&operation)) {
      for (; at < places.size(); ++at) {
        if (!wanted[at]) continue;
        move_pieces(bytes, places[at], (*read)->request.items[begin + at].payload,
                    [](const std::byte* from, const Segment& to) { std::memcpy(to.data, from, to.size); });
      }
    } else if (const auto* write = std::get_if<std::shared_ptr<WriteOperation>>(&operation)) {
      for (std::size_t group = begin; group < end; ++group) {
        for (const WriteItem& item : (*write)->request.groups[group].items) {
          move_pieces(bytes, places[at++], item.payload,
                      [](std::byte* to, const Segment& from) { std::memcpy(to, from.data, from.size); });
        }
      }
    }
    is_done = true;
  }

  std::shared_ptr<ShareMemory> arena;
  std::shared_ptr<ClientPort> port;
  ClientOperation operation;
  std::uint64_t number = 0;
  std::size_t begin = 0, end = 0;
  std::vector<Place> places;
  std::vector<bool> wanted;  // reads: pages that arrived
  bool is_done = false, is_told = true;
};

ClientSession::ClientSession(std::shared_ptr<ShareMemory> arena, std::shared_ptr<ClientPort> port, Clock& clock,
                             Executor& executor)
    : arena_(std::move(arena)),
      port_(std::move(port)),
      clock_(clock),
      executor_(executor),
      room_(arena_->bytes().size()) {}

ClientSession::~ClientSession() { end(cancelled("the connection to the host of a shared store was closed")); }

void ClientSession::submit(ClientOperation operation) {
  auto& line = line_[static_cast<std::size_t>(urgency_of(operation))].of(operation);
  line.push_back({std::move(operation), next_order_++, 0});
  pump();
}

bool ClientSession::is_waiting() const {
  return std::any_of(line_.begin(), line_.end(),
                     [](const Line& line) { return !line.writes.empty() || !line.others.empty(); });
}

void ClientSession::expire() {
  std::vector<ClientOperation> ended;  // `done` runs when all is in order here
  for (Line& line : line_) {
    for (auto* const waiting : {&line.writes, &line.others}) {
      std::erase_if(*waiting, [&](Waiting& each) {
        const OperationTerms* const terms = terms_of(each.operation);
        const Status status = terms == nullptr ? Status::ok() : check_terms(*terms);
        if (status.is_ok()) return false;
        fail_operation(each.operation, each.begin, status);
        ended.push_back(std::move(each.operation));
        return true;
      });
    }
  }
  if (!ended.empty()) pump();  // others may have their turn
}

std::deque<ClientSession::Waiting>& ClientSession::Line::of(const ClientOperation& operation) {
  const bool is_write = std::holds_alternative<std::shared_ptr<WriteOperation>>(operation) ||
                        std::holds_alternative<std::shared_ptr<ClearOperation>>(operation);
  return is_write ? writes : others;
}

std::deque<ClientSession::Waiting>* ClientSession::Line::next(bool with_writes) {
  const bool has_write = with_writes && !writes.empty();
  if (others.empty()) return has_write ? &writes : nullptr;
  return has_write && writes.front().order < others.front().order ? &writes : &others;
}

void ClientSession::ask_stats() {
  if (std::exchange(is_asking_stats_, true)) return;
  port_->send(encode_ask_stats());
}

void ClientSession::pump() {
  bool with_writes = true;
  for (Line& line : line_) {
    while (std::deque<Waiting>* const at = line.next(with_writes)) {
      const Turn turn = begin(at->front());
      if (turn == Turn::kNoRoom) return;
      if (turn == Turn::kKeptBack) {
        with_writes = false;
        continue;
      }
      const Waiting ended = std::move(at->front());  // ends outside the line
      at->pop_front();
    }
  }
}

ClientSession::Turn ClientSession::begin(const Waiting& waiting) {
  const ClientOperation& operation = waiting.operation;
  if (const auto* exists = std::get_if<std::shared_ptr<ExistsOperation>>(&operation)) {
    return begin_exists(*exists, waiting.begin);
  }
  if (const auto* read = std::get_if<std::shared_ptr<ReadOperation>>(&operation)) {
    return begin_read(*read, waiting);
  }
  if (const auto* write = std::get_if<std::shared_ptr<WriteOperation>>(&operation)) {
    return begin_write(*write, waiting);
  }
  return begin_clear(std::get<std::shared_ptr<ClearOperation>>(operation));
}

Status ClientSession::check_terms(const OperationTerms& terms) const {
  if (terms.cancel && terms.cancel->load(std::memory_order_acquire)) {
    return cancelled("the storage operation was cancelled before it began");
  }
  if (terms.deadline != TimePoint::max() && terms.deadline <= clock_.now()) {
    return deadline_exceeded("the storage operation had not begun by its deadline");
  }
  return Status::ok();
}

Terms ClientSession::terms_for(const OperationTerms& terms, const std::shared_ptr<const StoreScope>& scope) {
  Terms out{slot_of(scope), std::min(terms.urgency, Urgency::kBackground), kNoDeadline};
  // A later part that comes too late says 0, and the host's backend decides.
  if (terms.deadline != TimePoint::max()) {
    out.left_ns = std::max<std::int64_t>((terms.deadline - clock_.now()).count(), 0);
  }
  return out;
}

std::uint16_t ClientSession::slot_of(const std::shared_ptr<const StoreScope>& scope) {
  if (const auto known = slot_by_scope_.find(scope.get()); known != slot_by_scope_.end()) return known->second;
  ScopeEntry entry{0, *scope};
  std::string bytes = encode_scope(entry);
  if (const auto same = slot_by_bytes_.find(bytes); same != slot_by_bytes_.end()) {
    Slot& slot = slots_[same->second];
    slot_by_scope_.erase(slot.scope.get());
    slot.scope = scope;
    slot_by_scope_.emplace(scope.get(), same->second);
    return same->second;
  }
  entry.slot = static_cast<std::uint16_t>(next_slot_);
  next_slot_ = (next_slot_ + 1) % kMaxScopes;
  if (entry.slot == slots_.size()) {
    slots_.emplace_back();
  } else {
    slot_by_scope_.erase(slots_[entry.slot].scope.get());
    slot_by_bytes_.erase(slots_[entry.slot].bytes);
  }
  port_->send(encode_scope(entry));
  slot_by_scope_.emplace(scope.get(), entry.slot);
  slot_by_bytes_.emplace(bytes, entry.slot);
  slots_[entry.slot] = {scope, std::move(bytes)};
  return entry.slot;
}

ClientSession::Turn ClientSession::begin_exists(const std::shared_ptr<ExistsOperation>& op, std::size_t begin) {
  const ExistsRequest& request = op->request;
  Status status = begin == 0 ? check_terms(request.terms) : Status::ok();
  if (request.pools.size() > kMaxPools) status = invalid_argument("an exists asks for more pools than there are");
  if (!status.is_ok()) {
    fail_operation(op, 0, status);
    return Turn::kEnded;
  }
  const std::size_t end = std::min(request.keys.size(), begin + kMaxItems);
  const auto at = [&](std::size_t i) { return request.keys.begin() + static_cast<std::ptrdiff_t>(i); };
  const std::uint64_t number = next_number_++;
  port_->send(encode_exists(number, {terms_for(request.terms, request.scope), request.pools, {at(begin), at(end)}}));
  flights_.emplace(number, Flight{op, 0, {begin, end, 0, 0, {}}, Stage::kAsked, {}});
  return Turn::kBegun;
}

ClientSession::Turn ClientSession::begin_clear(const std::shared_ptr<ClearOperation>& op) {
  const std::uint16_t slot = op->request ? slot_of(op->request) : kNoScope;
  const std::uint64_t number = next_number_++;
  port_->send(encode_clear(number, slot));
  flights_.emplace(number, Flight{op, 0, {0, 1, 0, 0, {}}, Stage::kAsked, {}});
  return Turn::kBegun;
}

ClientSession::Part ClientSession::plan_read(const ReadRequest& request, std::size_t begin) const {
  Part part{begin, begin, 0, 0, {}};
  for (; part.end < request.items.size() && part.places.size() < kMaxItems; ++part.end) {
    std::uint64_t bytes = part.bytes;
    const Place place = add_place(bytes, payload_bytes(request.items[part.end].payload));
    if (part.end > begin && bytes > room_.size() / 4) break;
    part.places.push_back(place);
    part.bytes = bytes;
  }
  return part;
}

ClientSession::Part ClientSession::plan_write(const WriteRequest& request, std::size_t begin) const {
  Part part{begin, begin, 0, 0, {}};
  for (; part.end < request.groups.size() && part.end - begin < kMaxItems; ++part.end) {
    std::uint64_t bytes = part.bytes;
    std::vector<Place> places;
    for (const WriteItem& item : request.groups[part.end].items) {
      places.push_back(add_place(bytes, payload_bytes(item.payload)));
    }
    const bool is_first = part.end == begin;
    if (!is_first && (bytes > room_.size() / 4 || part.places.size() + places.size() > kMaxItems)) break;
    part.places.insert(part.places.end(), places.begin(), places.end());
    part.bytes = bytes;
  }
  return part;
}

ClientSession::Turn ClientSession::take_room(Part& part, std::uint64_t from) {
  const std::optional<std::uint64_t> offset = room_.take(part.bytes, from);
  if (!offset) return Turn::kNoRoom;
  part.offset = *offset;
  for (Place& place : part.places) {
    if (place.bytes > 0) place.offset += part.offset;
  }
  return Turn::kBegun;
}

ClientSession::Turn ClientSession::begin_read(const std::shared_ptr<ReadOperation>& op, const Waiting& waiting) {
  const ReadRequest& request = op->request;
  const std::size_t begin = waiting.begin;
  if (const Status status = begin == 0 ? check_terms(request.terms) : Status::ok(); !status.is_ok()) {
    fail_operation(op, 0, status);
    return Turn::kEnded;
  }
  Part part = plan_read(request, begin);
  if (take_room(part) == Turn::kNoRoom) return Turn::kNoRoom;
  ReadAsk ask{terms_for(request.terms, request.scope), {}};
  ask.items.reserve(part.places.size());
  for (std::size_t i = part.begin; i < part.end; ++i) {
    ask.items.push_back({request.items[i].pool, request.items[i].key, part.places[i - part.begin]});
  }
  const std::uint64_t number = next_number_++;
  port_->send(encode_read(number, ask));
  flights_.emplace(number, Flight{op, waiting.order, std::move(part), Stage::kAsked, {}});
  return Turn::kBegun;
}

ClientSession::Turn ClientSession::begin_write(const std::shared_ptr<WriteOperation>& op, const Waiting& waiting) {
  const WriteRequest& request = op->request;
  const std::size_t begin = waiting.begin;
  if (const Status status = begin == 0 ? check_terms(request.terms) : Status::ok(); !status.is_ok()) {
    fail_operation(op, 0, status);
    return Turn::kEnded;
  }
  Part part = plan_write(request, begin);
  const std::uint64_t bytes = whole_pages(part.bytes);
  // The first quarter is for reads, in one piece: a part of one has its room there, whatever writes hang.
  const std::uint64_t for_reads = whole_pages(room_.size() / 4), most = room_.size() - for_reads;
  if (bytes > 0 && writing_bytes_ > 0 && writing_bytes_ + bytes > most) return Turn::kKeptBack;
  if (take_room(part, bytes > most ? 0 : for_reads) == Turn::kNoRoom) {
    return writing_bytes_ > 0 ? Turn::kKeptBack : Turn::kNoRoom;
  }
  writing_bytes_ += bytes;
  const std::uint64_t number = next_number_++;
  Flight& flight =
      flights_.emplace(number, Flight{op, waiting.order, std::move(part), Stage::kCopyingIn, {}}).first->second;
  if (copy(number, flight, true)) on_copied(number, true);
  return Turn::kBegun;
}

void ClientSession::send_write(std::uint64_t number, const Flight& flight) {
  const WriteRequest& request = std::get<std::shared_ptr<WriteOperation>>(flight.operation)->request;
  const Part& part = flight.part;
  // The slot as of now: while the copy ran, others may have taken the one that the scope had.
  WriteAsk ask{terms_for(request.terms, request.scope), request.durable, {}, request.as_of};
  ask.groups.reserve(part.end - part.begin);
  std::size_t page = 0;
  for (std::size_t group = part.begin; group < part.end; ++group) {
    auto& items = ask.groups.emplace_back();
    for (const WriteItem& item : request.groups[group].items) {
      items.push_back({item.pool, item.key, item.parent, part.places[page++]});
    }
  }
  port_->send(encode_write(number, ask));
}

bool ClientSession::copy(std::uint64_t number, const Flight& flight, bool is_into_arena) {
  const auto job = std::make_shared<CopyJob>();
  job->arena = arena_;
  job->port = port_;
  job->operation = flight.operation;
  job->number = number;
  job->begin = flight.part.begin;
  job->end = flight.part.end;
  job->places = flight.part.places;
  std::uint64_t bytes = is_into_arena ? flight.part.bytes : 0;
  for (std::size_t i = 0; i < flight.statuses.size(); ++i) {
    job->wanted.push_back(flight.statuses[i].is_ok());
    if (job->wanted.back()) bytes += job->places[i].bytes;
  }
  if (bytes <= kInlineCopyBytes) {
    job->is_told = false;
    job->run();
    return true;
  }
  if (!executor_.post([job] { job->run(); }).is_ok()) job->run();
  return false;
}

void ClientSession::on_copied(std::uint64_t number, bool is_done) {
  const auto at = flights_.find(number);
  if (at == flights_.end() || at->second.stage == Stage::kAsked) return;
  Flight& flight = at->second;
  if (!is_done) {
    const Status why = cancelled("the executor dropped the copy of a payload");
    end_part(number, std::vector<Status>(flight.part.end - flight.part.begin, why));
  } else if (flight.stage == Stage::kCopyingIn) {
    flight.stage = Stage::kAsked;
    send_write(number, flight);
  } else {
    end_part(number, std::move(flight.statuses));
  }
}

Status ClientSession::on_frame(const Head& head, std::string_view body) {
  switch (head.kind) {
    case Kind::kPresence: return on_presence(head.operation, body);
    case Kind::kStatuses: return on_statuses(head.operation, body);
    case Kind::kStats: {
      LARDER_ASSIGN_OR_RETURN(const BackendStats stats, decode_stats(body));
      is_asking_stats_ = false;
      port_->on_stats(stats);
      return Status::ok();
    }
    default: return broken_host("a message that only a client sends, or a second welcome");
  }
}

Status ClientSession::on_presence(std::uint64_t number, std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(ExistsResult answer, decode_presence(body));
  const auto at = flights_.find(number);
  const auto* const found =
      at == flights_.end() ? nullptr : std::get_if<std::shared_ptr<ExistsOperation>>(&at->second.operation);
  if (found == nullptr) return broken_host("an answer that nobody asked for");
  const std::shared_ptr<ExistsOperation> op = *found;
  const std::size_t begin = at->second.part.begin, end = at->second.part.end;
  flights_.erase(at);
  if (!answer.status.is_ok()) {
    fail_operation(op, 0, answer.status);
    return Status::ok();
  }
  ExistsResult& result = op->result;
  if (begin == 0) result = {Status::ok(), {}};
  bool is_right = answer.presence.size() == op->request.pools.size();
  for (std::size_t i = 0; is_right && i < answer.presence.size(); ++i) {
    PoolPresence& part = answer.presence[i];
    is_right = part.pool == op->request.pools[i] && part.present.size() <= end - begin;
    part.present.resize(is_right ? end - begin : 0, false);  // a missing tail is absent
    if (begin == 0) result.presence.push_back({part.pool, {}});
    auto& present = result.presence[i].present;
    present.insert(present.end(), part.present.begin(), part.present.end());
  }
  if (!is_right) {
    fail_operation(op, 0, unavailable("the host of a shared store gave presence of another shape"));
    return broken_host("presence of another shape");
  }
  if (end < op->request.keys.size()) (void)begin_exists(op, end);
  return Status::ok();
}

Status ClientSession::on_statuses(std::uint64_t number, std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(std::vector<Status> statuses, decode_statuses(body));
  const auto at = flights_.find(number);
  if (at == flights_.end() || at->second.stage != Stage::kAsked ||
      std::holds_alternative<std::shared_ptr<ExistsOperation>>(at->second.operation)) {
    return broken_host("an answer that nobody asked for");
  }
  Flight& flight = at->second;
  if (statuses.size() != flight.part.end - flight.part.begin) return broken_host("another number of statuses");
  if (std::holds_alternative<std::shared_ptr<ReadOperation>>(flight.operation)) {
    flight.statuses = std::move(statuses);
    flight.stage = Stage::kCopyingOut;
    if (!copy(number, flight, false)) return Status::ok();
    statuses = std::move(flight.statuses);
  }
  end_part(number, std::move(statuses));
  return Status::ok();
}

void ClientSession::end_part(std::uint64_t number, std::vector<Status> statuses) {
  const auto at = flights_.find(number);
  Flight flight = std::move(at->second);
  flights_.erase(at);
  (void)room_.give_back(flight.part.offset, flight.part.bytes);
  if (std::holds_alternative<std::shared_ptr<WriteOperation>>(flight.operation)) {
    writing_bytes_ -= whole_pages(flight.part.bytes);
  }
  std::size_t count = 0;
  const auto tell = [&](std::vector<Status>& out) {
    std::move(statuses.begin(), statuses.end(), out.begin() + static_cast<std::ptrdiff_t>(flight.part.begin));
    count = out.size();
  };
  if (const auto* read = std::get_if<std::shared_ptr<ReadOperation>>(&flight.operation)) {
    tell((*read)->result.items);
  } else if (const auto* write = std::get_if<std::shared_ptr<WriteOperation>>(&flight.operation)) {
    tell((*write)->result.groups);
  } else if (const auto* clear = std::get_if<std::shared_ptr<ClearOperation>>(&flight.operation); clear && *clear) {
    (*clear)->result = std::move(statuses.front());
  }
  if (flight.part.end < count) {
    auto& line = line_[static_cast<std::size_t>(urgency_of(flight.operation))].of(flight.operation);
    line.push_front({std::move(flight.operation), flight.order, flight.part.end});
  }
  pump();
}

void ClientSession::end_clears() {
  std::vector<ClientOperation> ended;  // `done` runs when all is in order here
  const Status why =
      cancelled("the store was closed before the clear had ended; the process that hosts it may still do it");
  for (auto& [number, flight] : flights_) {
    auto* const clear = std::get_if<std::shared_ptr<ClearOperation>>(&flight.operation);
    if (clear == nullptr) continue;
    fail_operation(*clear, 0, why);
    ended.emplace_back(std::exchange(*clear, nullptr));
  }
  for (Line& line : line_) {
    std::erase_if(line.writes, [&](Waiting& waiting) {
      if (!std::holds_alternative<std::shared_ptr<ClearOperation>>(waiting.operation)) return false;
      fail_operation(waiting.operation, 0, why);
      ended.push_back(std::move(waiting.operation));
      return true;
    });
  }
}

void ClientSession::end(const Status& why) {
  std::vector<ClientOperation> ended;  // `done` runs when all is in order here
  for (auto& [number, flight] : flights_) {
    fail_operation(flight.operation, flight.part.begin, why);
    ended.push_back(std::move(flight.operation));
  }
  for (Line& line : line_) {
    for (auto* const all : {&line.writes, &line.others}) {
      for (Waiting& waiting : *all) {
        fail_operation(waiting.operation, waiting.begin, why);
        ended.push_back(std::move(waiting.operation));
      }
      all->clear();
    }
  }
  flights_.clear();
}

}  // namespace larder::share
