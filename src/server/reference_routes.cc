// SPDX-License-Identifier: Apache-2.0
#include "server/reference_routes.h"

#include <fmt/format.h>

#include <charconv>

#include "base/log.h"
#include "metadata/page_table.h"
#include "server/api_error.h"
#include "server/json_reader.h"
#include "server/json_text.h"
#include "server/reference_body.h"

namespace larder {
namespace {

struct NamedCall {
  std::string_view name;
  ReferenceRoutes::Call call;
};
constexpr NamedCall kCalls[] = {
    {"exists", ReferenceRoutes::Call::kExists},
    {"get_page_indices", ReferenceRoutes::Call::kGet},
    {"reserve_and_allocate_page_indices", ReferenceRoutes::Call::kReserve},
    {"confirm_write", ReferenceRoutes::Call::kConfirm},
    {"delete_keys", ReferenceRoutes::Call::kDelete},
    {"initialize", ReferenceRoutes::Call::kInitialize},
    {"clear", ReferenceRoutes::Call::kClear},
};

HttpResponse no_content() { return json_response({}, 204); }

// {"detail": text}, as FastAPI says it. The text may hold pieces of the request: it is UTF-8, as that was checked.
HttpResponse detail(unsigned status, std::string_view text) {
  // A message about bad bytes may show them.
  return json_response(dump_json({{"detail", cut_text(text, kMostErrorBytes)}}), status);
}

HttpResponse bad_rank(std::string_view rank) {
  std::string body =
      "{\"detail\":[{\"type\":\"int_parsing\",\"loc\":[\"path\",\"rank\"],\"msg\":\"Input should be a valid integer, "
      "unable to parse string as an integer\",\"input\":\"";
  for (const char c : rank.substr(0, 200)) {  // percent-decoded: any bytes
    const char shown = static_cast<unsigned char>(c) < 0x80 ? c : '?';
    append_json_escaped({&shown, 1}, body);
  }
  body += "\"}]}";
  return json_response(std::move(body), 422);
}

std::optional<std::int64_t> parse_rank(std::string_view text) {
  std::int64_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return rank;
}

}  // namespace

std::optional<ReferenceRoutes::Route> ReferenceRoutes::route_of(std::string_view path) {
  if (!path.starts_with('/')) return std::nullopt;
  path.remove_prefix(1);
  const std::size_t slash = path.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  for (const NamedCall& named : kCalls) {
    if (path.substr(slash + 1) == named.name) return Route{named.call, path.substr(0, slash)};
  }
  return std::nullopt;
}

std::string_view ReferenceRoutes::name_of(Call call) {
  for (const NamedCall& named : kCalls) {
    if (named.call == call) return named.name;
  }
  return "unknown";
}

HttpResponse ReferenceRoutes::answer(const Route& route, std::string_view text, std::uint64_t& keys) {
  const std::optional<std::int64_t> rank = parse_rank(route.rank);
  if (!rank) return bad_rank(route.rank);
  ReferenceBody body;
  if (const Status read = body.read(route.call, text); !read.is_ok()) {
    if (read.code() != StatusCode::kInvalidArgument) return detail(http_status_of(read.code()), read.message());
    return detail(body.is_malformed ? 400 : 422, read.message());
  }
  const MetadataNamespace name_space{*rank, std::string(body.name_space)};
  keys = body.keys.size() + body.wishes.size() + body.written.size() + body.released.size();
  switch (route.call) {
    case Call::kInitialize: {
      const std::uint64_t wanted = body.num_pages < 0 ? 0 : static_cast<std::uint64_t>(body.num_pages);
      const Result<std::uint64_t> pages = service_.initialize(name_space, wanted);
      if (!pages.is_ok()) return error(name_space, pages.status());
      if (*pages != wanted) {
        log_warning("server", fmt::format("{} is initialised with {} pages; it has {} and keeps them",
                                          name_space.text(), wanted, *pages));
      }
      return no_content();
    }
    case Call::kExists: return find(name_space, body, false);
    case Call::kGet: return find(name_space, body, true);
    case Call::kReserve: return reserve(name_space, body);
    case Call::kConfirm: return confirm(name_space, body);
    case Call::kDelete: return remove(name_space, body);
    case Call::kClear: {
      const Result<std::uint64_t> cleared = service_.clear(name_space, {});
      return cleared.is_ok() ? no_content() : error(name_space, cleared.status());
    }
  }
  return detail(404, "Not Found");
}

HttpResponse ReferenceRoutes::error(const MetadataNamespace& name_space, const Status& status) const {
  if (status.code() == StatusCode::kNotFound) {
    return detail(404, fmt::format("Rank {} namespace '{}' not initialized. Please call /{}/initialize first.",
                                   name_space.rank, name_space.name, name_space.rank));
  }
  if (status.code() == StatusCode::kInvalidArgument) return detail(422, status.message());
  return detail(http_status_of(status.code()), status.message());
}

HttpResponse ReferenceRoutes::find(const MetadataNamespace& name_space, ReferenceBody& body, bool for_reading) {
  const MetadataKeys wanted{&name_space, std::move(body.keys)};
  const auto found = service_.find({&wanted, 1}, for_reading ? options_.lease : Nanos{0});
  if (!found.is_ok()) return error(name_space, found.status());
  std::string out = for_reading ? "{\"indices\":[" : "{\"exists\":[";
  const auto& refs = found->front();
  out.reserve(out.size() + refs.size() * 8 + 2);
  const char* comma = "";
  for (const auto& ref : refs) {
    out += comma;
    comma = ",";
    if (!for_reading) {
      out += ref ? "true" : "false";
    } else {
      out += ref ? std::to_string(ref->page) : "null";
    }
  }
  out += "]}";
  return json_response(std::move(out));
}

HttpResponse ReferenceRoutes::reserve(const MetadataNamespace& name_space, ReferenceBody& body) {
  const std::uint64_t operation = next_operation_.fetch_add(1, std::memory_order_relaxed);
  const ReserveItems wanted{&name_space, std::move(body.wishes)};
  const auto given = service_.reserve({options_.process, operation}, {&wanted, 1}, options_.ttl);
  if (!given.is_ok()) return error(name_space, given.status());
  remember(name_space, operation, wanted.items, given->front());
  std::string out = "{\"indices\":[";
  out.reserve(out.size() + given->front().size() * 16 + 2);
  bool is_first = true;
  for (const Reserved& one : given->front()) {
    if (!is_first) out += ',';
    is_first = false;
    switch (one.outcome) {
      case ReserveOutcome::kReserved: out += "[false," + std::to_string(one.ref.page) + ']'; break;
      case ReserveOutcome::kStored: out += "[true," + std::to_string(one.ref.page) + ']'; break;
      case ReserveOutcome::kBusy: out += "[true,-1]"; break;
      case ReserveOutcome::kFull: out += "[false,-1]"; break;
    }
  }
  out += "]}";
  return json_response(std::move(out));
}

HttpResponse ReferenceRoutes::confirm(const MetadataNamespace& name_space, ReferenceBody& body) {
  std::deque<std::string> place;
  Status failed;
  for (const ConfirmRequest& request : plan(name_space, body, place)) {
    // Their statuses are not told: what cannot be confirmed any more is not there, which the client will see.
    if (failed.is_ok()) failed = service_.confirm(request).status();
    settle(request, failed.is_ok());
  }
  if (!failed.is_ok()) return error(name_space, failed);
  const MetadataKeys nothing{&name_space, {}};
  const auto known = service_.find({&nothing, 1}, Nanos{0});  // is the namespace there?
  return known.is_ok() ? no_content() : error(name_space, known.status());
}

HttpResponse ReferenceRoutes::remove(const MetadataNamespace& name_space, ReferenceBody& body) {
  if (body.keys.empty()) {  // only whether the namespace is there
    HttpResponse known = find(name_space, body, false);
    return known.status == 200 ? no_content() : known;
  }
  std::vector<ConfirmItem> items;
  items.reserve(body.keys.size());
  for (const std::string_view key : body.keys) items.push_back({&name_space, key, {}});
  const auto removed = service_.remove(items);
  return removed.is_ok() ? no_content() : error(name_space, removed.status());
}

void ReferenceRoutes::remember(const MetadataNamespace& name_space, std::uint64_t operation,
                               const std::vector<ReserveItem>& items, const std::vector<Reserved>& given) {
  const TimePoint now = clock_.now();
  LockGuard guard(mutex_);
  forget_expired(now);
  Pages& pages = writes_[name_space];
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (given[i].outcome != ReserveOutcome::kReserved) continue;
    const PageRef& ref = given[i].ref;
    Write& write = pages[ref.page];
    if (write.operation == operation) continue;  // a key that was there twice
    // The one before has not expired here, or was told to ask again; unless it has just given the page back.
    if (write.operation != 0 && !write.is_ending) add_overdue(name_space, ref.page, write, now);
    end_write(write.operation);
    OpenCall& call = open_calls_.try_emplace(operation, OpenCall{now + options_.ttl, name_space, {}}).first->second;
    call.pages.push_back(ref.page);
    ++call.writes;
    write = {operation, ref.generation, std::string(items[i].key)};
  }
}

void ReferenceRoutes::end_write(std::uint64_t operation) {
  const auto call = open_calls_.find(operation);
  if (call != open_calls_.end() && --call->second.writes == 0) open_calls_.erase(call);
}

void ReferenceRoutes::forget_expired(TimePoint now) {
  while (!open_calls_.empty() && open_calls_.begin()->second.end < now) {
    const auto& [operation, due] = *open_calls_.begin();
    Pages& pages = writes_[due.name_space];
    for (const std::uint64_t page : due.pages) {
      const auto write = pages.find(page);
      if (write == pages.end() || write->second.operation != operation) continue;
      add_overdue(due.name_space, page, write->second, now);
      pages.erase(write);
    }
    open_calls_.erase(open_calls_.begin());
  }
  while (!overdue_ends_.empty() && overdue_ends_.front().at < now) forget_oldest_overdue();
}

void ReferenceRoutes::add_overdue(const MetadataNamespace& name_space, std::uint64_t page, const Write& write,
                                  TimePoint now) {
  // Doubted once is enough: else one client that died could keep a key out for as long as others write it there.
  const std::uint64_t key_hash = write.is_doubted ? 0 : metadata::hash_key(write.key);
  overdue_[name_space].insert_or_assign(page, Overdue{write.operation, key_hash});
  overdue_ends_.push_back({now + kOverdueLifetime, name_space, page, write.operation});
  if (overdue_ends_.size() > options_.max_overdue) forget_oldest_overdue();
}

void ReferenceRoutes::forget_oldest_overdue() {
  const Deadline& end = overdue_ends_.front();
  const Overdue* const oldest = overdue_at(end.name_space, end.page);
  if (oldest != nullptr && oldest->operation == end.operation) overdue_[end.name_space].erase(end.page);
  overdue_ends_.pop_front();
}

ReferenceRoutes::Overdue* ReferenceRoutes::overdue_at(const MetadataNamespace& name_space, std::uint64_t page) {
  const auto pages = overdue_.find(name_space);
  if (pages == overdue_.end()) return nullptr;
  const auto found = pages->second.find(page);
  return found == pages->second.end() ? nullptr : &found->second;
}

bool ReferenceRoutes::takes_late_confirmation(const MetadataNamespace& name_space, std::uint64_t page,
                                              std::string_view key) {
  Overdue* const before = overdue_at(name_space, page);
  if (before == nullptr || before->key_hash != metadata::hash_key(key)) return false;
  before->key_hash = 0;
  return true;
}

std::vector<ConfirmRequest> ReferenceRoutes::plan(const MetadataNamespace& name_space, const ReferenceBody& body,
                                                  std::deque<std::string>& place) {
  std::map<std::uint64_t, ConfirmRequest> by_operation;
  LockGuard guard(mutex_);
  const auto pages = writes_.find(name_space);
  if (pages == writes_.end()) return {};
  const auto write_at = [&](std::int64_t page) -> Write* {
    const auto found = page < 0 ? pages->second.end() : pages->second.find(static_cast<std::uint64_t>(page));
    return found == pages->second.end() ? nullptr : &found->second;
  };
  const auto request_of = [&](Write& write) -> ConfirmRequest& {
    write.is_ending = true;
    ConfirmRequest& request = by_operation[write.operation];
    request.session = {options_.process, write.operation};
    request.released_rest = true;  // its client gives up what failed, and does not know whether it may still land
    return request;
  };
  for (const auto& [key, page] : body.written) {
    Write* const write = write_at(page);
    const auto number = static_cast<std::uint64_t>(page);
    const bool is_late = takes_late_confirmation(name_space, number, key);
    if (write == nullptr || write->key != key) continue;
    // Published for another, readers would get what its own writer has not written yet.
    write->is_doubted |= is_late;
    if (is_late) continue;
    request_of(*write).groups.push_back({{&name_space, key, {number, write->generation}}});
  }
  for (const std::int64_t page : body.released) {
    Write* const write = write_at(page);
    const auto number = static_cast<std::uint64_t>(page);
    // Of which writer is it? Freed for another, the page would go to a third while its own still writes to it.
    if (write == nullptr || overdue_at(name_space, number) != nullptr) continue;
    request_of(*write).release.push_back({&name_space, place.emplace_back(write->key), {number, write->generation}});
  }
  std::vector<ConfirmRequest> requests;
  for (auto& [operation, request] : by_operation) requests.push_back(std::move(request));
  return requests;
}

void ReferenceRoutes::settle(const ConfirmRequest& request, bool is_done) {
  std::vector<ConfirmItem> items = request.release;
  for (const auto& group : request.groups) items.push_back(group.front());
  const std::uint64_t operation = request.session.operation;
  const TimePoint now = clock_.now();
  LockGuard guard(mutex_);
  for (const ConfirmItem& item : items) {
    Pages& pages = writes_[*item.name_space];
    const auto write = pages.find(item.ref.page);
    if (write == pages.end()) continue;
    const bool is_its = write->second.operation == operation;
    if (is_done && is_its) {
      pages.erase(write);
      end_write(operation);
    } else if (is_its) {
      write->second.is_ending = false;
    } else if (!is_done) {  // it will tell of the page again, which is another's already
      add_overdue(*item.name_space, item.ref.page, {operation, 0, std::string(item.key)}, now);
    }
  }
}

}  // namespace larder
