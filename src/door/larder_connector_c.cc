// SPDX-License-Identifier: Apache-2.0
// The connectors of include/larder/larder.h on top of EngineConnector.
#include <larder/larder.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "door/attached_store.h"
#include "door/c_call.h"
#include "door/engine_connector.h"

struct larder_connector {
  larder::c::AttachedStore attached;  // goes after the engine, which may work with it
  std::unique_ptr<larder::EngineConnector> engine;
};

namespace {

using larder::Result;
using larder::Status;
using larder::c::guarded;
using larder::c::read_struct;
using larder::c::wrong;

constexpr larder::Nanos kCloseWait = std::chrono::seconds(5), kLongestPrefetch = std::chrono::hours(24);
// Between two polls, of who does not wait in them: was_cleared() has to be asked.
constexpr larder::Nanos kLongestAway = std::chrono::seconds(1);

// Of no lookup and no transfer: who goes on after a call that failed does not go on with those of another prompt.
constexpr std::uint64_t kNoNumber = 0;

static_assert(sizeof(larder_segment) == sizeof(larder::Segment) && offsetof(larder_segment, size) == sizeof(void*));
static_assert(sizeof(larder::TokenId) == sizeof(std::uint32_t));
static_assert(LARDER_EVENT_LOOKUP == static_cast<std::uint32_t>(larder::ConnectorEventKind::kLookup));
static_assert(LARDER_EVENT_TRANSFER == static_cast<std::uint32_t>(larder::ConnectorEventKind::kTransfer));
static_assert(static_cast<int>(LARDER_SAVE_ALL) == static_cast<int>(larder::SaveStop::kNone));
static_assert(static_cast<int>(LARDER_SAVE_NO_ROOM) == static_cast<int>(larder::SaveStop::kNoRoom));
static_assert(static_cast<int>(LARDER_SAVE_PARENT_MISSING) == static_cast<int>(larder::SaveStop::kParentMissing));
static_assert(static_cast<int>(LARDER_SAVE_COPY_FAILED) == static_cast<int>(larder::SaveStop::kCopyFailed));

Status read_policy(const larder_connector_options& from, larder::CacheConfig& out) {
  switch (from.prefetch_policy) {
    case LARDER_PREFETCH_TIMEOUT: out.prefetch_policy = larder::PrefetchPolicy::kTimeout; break;
    case LARDER_PREFETCH_BEST_EFFORT: out.prefetch_policy = larder::PrefetchPolicy::kBestEffort; break;
    case LARDER_PREFETCH_WAIT_COMPLETE: out.prefetch_policy = larder::PrefetchPolicy::kWaitComplete; break;
    default: return larder::invalid_argument("larder_connector_options.prefetch_policy is unknown");
  }
  if (from.prefetch_tokens > 0) out.prefetch_threshold = from.prefetch_tokens;
  larder::Nanos wait{0};
  if (!larder::c::read_seconds(from.prefetch_seconds, wait).is_ok() || wait > kLongestPrefetch) {
    return larder::invalid_argument("larder_connector_options.prefetch_seconds is " +
                                    std::to_string(from.prefetch_seconds) + ", must be 0 to 86400");
  }
  if (wait > larder::Nanos{0}) {
    out.prefetch_timeout_base = wait;
    out.prefetch_timeout_max = std::max(out.prefetch_timeout_max, wait);
  }
  return Status::ok();
}

Status open_connector(const larder_connector_options* from, larder_connector** out) {
  larder_connector_options options;
  LARDER_RETURN_IF_ERROR(read_struct(from, "larder_connector_options", options));
  if (options.model == nullptr) return larder::invalid_argument("larder_connector_options.model is null");
  if (options.reserved != 0) return larder::invalid_argument("larder_connector_options.reserved is not 0");
  larder::EngineConnectorOptions wanted;
  LARDER_RETURN_IF_ERROR(larder::c::read_space(options.model, wanted.model));
  wanted.host_bytes = options.host_bytes;
  if (options.copy_threads > 0) wanted.copy_threads = std::min(options.copy_threads, 64u);
  if (options.lease_share != 0) wanted.config.lease_share = options.lease_share;
  if (options.save_share != 0) wanted.config.save_share = options.save_share;
  if (options.max_lookups > 0) wanted.config.max_lookups = options.max_lookups;
  if (options.max_transfers > 0) wanted.config.max_transfers = options.max_transfers;
  if (options.max_points > 0) wanted.config.max_points = options.max_points;
  LARDER_RETURN_IF_ERROR(read_policy(options, wanted.config.tiers));
  LARDER_ASSIGN_OR_RETURN(auto opened, larder::EngineConnector::open(wanted));
  auto handle = std::make_unique<larder_connector>();
  handle->engine = std::move(opened);
  *out = handle.release();
  return Status::ok();
}

Status read_places(const larder_connector& connector, const larder_place* from, std::size_t count,
                   std::vector<larder::PagePlace>& out) {
  if (from == nullptr && count != 0) return larder::invalid_argument("places is null, and place_count is not 0");
  const std::vector<larder::PoolName>& numbers = connector.engine->model().numbers;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const larder_place& place = from[i];
    if (place.pool >= numbers.size()) {
      return larder::invalid_argument("place " + std::to_string(i) + ": the model has " +
                                      std::to_string(numbers.size()) + " pools");
    }
    if (place.segments == nullptr && place.segment_count != 0) {
      return larder::invalid_argument("place " + std::to_string(i) + ": segments is null");
    }
    out.push_back({numbers[place.pool],
                   place.page,
                   {reinterpret_cast<const larder::Segment*>(place.segments), place.segment_count}});
  }
  return Status::ok();
}

Status status_of(larder_code code) {
  if (code == LARDER_OK) return Status::ok();
  if (code < LARDER_OK || code > LARDER_INTERNAL) return larder::internal_error("the callback returned no larder_code");
  return {static_cast<larder::StatusCode>(code), "the callback returned " + std::string(larder_code_name(code))};
}

larder::PageReader reader_of(const larder_connector& connector, larder_page_fn page, void* context) {
  if (page == nullptr) return {};
  const larder::EngineModel* const model = &connector.engine->model();
  return [=](larder::PoolName pool, std::uint64_t number, std::span<const larder::Segment> bytes) {
    return status_of(page(context, static_cast<std::uint32_t>(model->index_of(pool)), number,
                          reinterpret_cast<const larder_segment*>(bytes.data()), bytes.size()));
  };
}

larder::PageWriter writer_of(const larder_connector& connector, larder_page_fn page, void* context) {
  if (page == nullptr) return {};
  const larder::EngineModel* const model = &connector.engine->model();
  return [=](larder::PoolName pool, std::uint64_t number, std::span<const larder::ConstBytes> bytes) {
    std::vector<larder_segment> segments;
    segments.reserve(bytes.size());
    for (const larder::ConstBytes& piece : bytes) {
      segments.push_back({const_cast<std::byte*>(piece.data()), piece.size()});  // read only, by contract
    }
    return status_of(
        page(context, static_cast<std::uint32_t>(model->index_of(pool)), number, segments.data(), segments.size()));
  };
}

Status look_up(larder_connector& connector, const larder_lookup_options* from, std::uint64_t* out) {
  larder_lookup_options options;
  LARDER_RETURN_IF_ERROR(read_struct(from, "larder_lookup_options", options));
  if (options.tokens == nullptr) return larder::invalid_argument("larder_lookup_options.tokens is null");
  if ((options.flags & ~LARDER_LOOKUP_HOST_ONLY) != 0) {
    return larder::invalid_argument("larder_lookup_options.flags has bits that this version does not know");
  }
  larder::LookupRequest request;
  request.tokens = {reinterpret_cast<const larder::TokenId*>(options.tokens), options.token_count};
  request.has = {options.own_pages, options.own_window};
  request.adapter = larder::c::text_of(options.adapter);
  request.salt = larder::c::text_of(options.salt);
  request.asks_storage = (options.flags & LARDER_LOOKUP_HOST_ONLY) == 0;
  LARDER_ASSIGN_OR_RETURN(const larder::LookupId id, connector.engine->connector().lookup(request));
  *out = id.v;
  return Status::ok();
}

Status find_points(larder_connector& connector, std::uint64_t lookup, larder_point* points, std::size_t capacity,
                   std::size_t* count) {
  LARDER_ASSIGN_OR_RETURN(const larder::LookupResult found,
                          connector.engine->connector().points(larder::LookupId(lookup)));
  *count = found.points.size();
  const std::size_t given = std::min(capacity, found.points.size());
  for (std::size_t i = 0; i < given; ++i) {
    const larder::LoadPoint& point = found.points[found.points.size() - given + i];
    points[i] = {point.pages, point.full_from, point.window_from, point.bytes, point.has_state ? 1u : 0u, 0};
  }
  return Status::ok();
}

Status load_pages(larder_connector& connector, const larder_load_options* from, std::uint64_t* out) {
  larder_load_options options;
  LARDER_RETURN_IF_ERROR(read_struct(from, "larder_load_options", options));
  if (options.reserved != 0) return larder::invalid_argument("larder_load_options.reserved is not 0");
  std::vector<larder::PagePlace> places;
  LARDER_RETURN_IF_ERROR(read_places(connector, options.places, options.place_count, places));
  larder::LoadRequest request;
  request.lookup = larder::LookupId(options.lookup);
  request.pages = options.pages;
  request.places = places;
  request.writer = writer_of(connector, options.page, options.context);
  LARDER_ASSIGN_OR_RETURN(const larder::TransferId id, connector.engine->connector().load(request));
  *out = id.v;
  return Status::ok();
}

Status save_pages(larder_connector& connector, const larder_save_options* from, std::uint64_t* out) {
  larder_save_options options;
  LARDER_RETURN_IF_ERROR(read_struct(from, "larder_save_options", options));
  if (options.tokens == nullptr) return larder::invalid_argument("larder_save_options.tokens is null");
  if (options.states == nullptr && options.state_count != 0) {
    return larder::invalid_argument("larder_save_options.states is null, and state_count is not 0");
  }
  if ((options.flags & ~LARDER_SAVE_MAY_WAIT) != 0) {
    return larder::invalid_argument("larder_save_options.flags has bits that this version does not know");
  }
  std::vector<larder::PagePlace> places;
  LARDER_RETURN_IF_ERROR(read_places(connector, options.places, options.place_count, places));
  larder::SaveRequest request;
  request.tokens = {reinterpret_cast<const larder::TokenId*>(options.tokens), options.token_count};
  request.adapter = larder::c::text_of(options.adapter);
  request.salt = larder::c::text_of(options.salt);
  request.from = options.from_page;
  request.to = options.to_page;
  request.window_pages = options.window_pages;
  request.states = {options.states, options.state_count};
  request.places = places;
  request.reader = reader_of(connector, options.page, options.context);
  request.may_wait = (options.flags & LARDER_SAVE_MAY_WAIT) != 0;
  LARDER_ASSIGN_OR_RETURN(const larder::TransferId id, connector.engine->connector().save(request));
  *out = id.v;
  return Status::ok();
}

Status take(larder_connector& connector, std::uint64_t transfer, larder_transfer_result* out, larder_error* error) {
  LARDER_RETURN_IF_ERROR(larder::c::check_struct_size(out->struct_size, "larder_transfer_result"));
  larder_transfer_result result{};
  larder::Connector& c = connector.engine->connector();
  const larder::TransferId id(transfer);
  Status copied;
  if (const Result<larder::LoadResult> load = c.load_result(id); load.is_ok()) {
    copied = load->status;
    result.pages = load->pages;
    result.bytes = load->bytes;
  } else if (load.status().code() == larder::StatusCode::kOverloaded) {
    return load.status();
  } else {
    const Result<larder::SaveResult> save = c.save_result(id);
    if (save.status().code() == larder::StatusCode::kNotFound) {
      return larder::not_found("no such transfer, or its result was taken");
    }
    if (!save.is_ok()) return save.status();
    copied = save->status;
    result.pages = save->stop == larder::SaveStop::kParentMissing ? save->path_pages : save->kept;
    result.bytes = save->bytes;
    result.known_pages = save->known_pages;
    result.stop = static_cast<std::uint32_t>(save->stop);
  }
  result.code = static_cast<std::int32_t>(copied.code());
  (void)larder::c::fail(copied, error);
  larder::c::write_struct(result, out);
  return Status::ok();
}

static_assert(static_cast<int>(larder::MissReason::kStorageFailed) == LARDER_MISS_STORAGE_FAILED);
static_assert(static_cast<int>(larder::MissReason::kFlushed) == LARDER_MISS_FLUSHED);

Status find_miss(larder_connector& connector, std::uint64_t lookup, larder_miss* out) {
  LARDER_RETURN_IF_ERROR(larder::c::check_struct_size(out->struct_size, "larder_miss"));
  LARDER_ASSIGN_OR_RETURN(const auto found, connector.engine->connector().points(larder::LookupId(lookup)));
  larder::Miss miss = found.miss;
  miss.by = {};  // a lookup that has ended, perhaps
  larder_miss given{};
  given.reason = static_cast<std::uint32_t>(miss.reason);
  given.at_token = miss.at_token;
  constexpr std::array<std::uint32_t, larder::kComponentCount> kTrailing = {0, 2, 1};  // full, window, state
  given.trailing = kTrailing[larder::index_of(miss.component)];
  given.for_operators = miss.for_tenant().reason == miss.reason ? 0 : 1;
  given.seconds_ago = miss.ago ? std::chrono::duration<double>(*miss.ago).count() : -1;
  const std::string text = miss_sentence(miss);
  std::memcpy(given.text, text.data(), std::min(text.size(), sizeof given.text - 1));
  larder::c::write_struct(given, out);
  return Status::ok();
}

}  // namespace

extern "C" {

larder_code larder_connector_open(const larder_connector_options* options, larder_connector** connector,
                                  larder_error* error) {
  if (options == nullptr || connector == nullptr) return wrong("options or connector is null", error);
  *connector = nullptr;
  return guarded(error, [&] { return open_connector(options, connector); });
}

larder_code larder_connector_close(larder_connector* connector, double timeout_seconds, larder_error* error) {
  if (connector == nullptr) return LARDER_OK;
  return guarded(error, [&]() -> Status {
    larder::Nanos limit{0};
    LARDER_RETURN_IF_ERROR(larder::c::read_seconds(timeout_seconds, limit));
    LARDER_RETURN_IF_ERROR(connector->engine->close(limit > larder::Nanos{0} ? limit : kCloseWait));
    delete connector;
    return Status::ok();
  });
}

size_t larder_connector_memory(const larder_connector* connector, larder_segment* memory, size_t capacity) {
  if (connector == nullptr) return 0;
  const larder::Segment all = connector->engine->host().memory();
  if (memory != nullptr && capacity > 0) *memory = {all.data, all.size};
  return 1;
}

larder_code larder_connector_attach(larder_connector* connector, larder_store* store, larder_error* error) {
  if (connector == nullptr || store == nullptr) return wrong("connector or store is null", error);
  return guarded(error, [&]() -> Status {
    return connector->attached.attach(
        *store, [&] { return connector->engine->connector().attach_storage(store->store->backend()); });
  });
}

larder_code larder_connector_detach(larder_connector* connector, larder_error* error) {
  if (connector == nullptr) return wrong("the connector is null", error);
  return guarded(error, [&]() -> Status {
    if (!connector->attached.is_attached()) return larder::not_found("no store is attached");
    connector->engine->connector().detach_storage();
    connector->attached.detached();
    return Status::ok();
  });
}

int32_t larder_connector_poll(larder_connector* connector, double timeout_seconds) {
  bool changed = false;
  if (connector == nullptr) return 0;
  (void)guarded(nullptr, [&]() -> Status {
    // No error can be told here, and a poll that does nothing would leave every transfer without an end.
    larder::Nanos wait{0};
    LARDER_RETURN_IF_ERROR(larder::c::read_seconds(timeout_seconds > 0 ? std::min(timeout_seconds, 1e7) : 0, wait));
    if (connector->attached.was_cleared()) connector->engine->connector().storage_cleared();
    changed = connector->engine->connector().poll(wait);
    return Status::ok();
  });
  return changed ? 1 : 0;
}

void larder_connector_wake(larder_connector* connector) {
  if (connector != nullptr) connector->engine->connector().wake();
}

larder_code larder_connector_fd(larder_connector* connector, int32_t* fd, larder_error* error) {
  if (connector == nullptr || fd == nullptr) return wrong("connector or fd is null", error);
  *fd = -1;
  return guarded(error, [&]() -> Status {
    LARDER_ASSIGN_OR_RETURN(*fd, connector->engine->descriptor());
    return Status::ok();
  });
}

double larder_connector_next_poll(larder_connector* connector) {
  larder::Nanos left = kLongestAway;
  if (connector != nullptr) {
    (void)guarded(nullptr, [&] {
      left = std::min(left, connector->engine->connector().until_due().value_or(left));
      return Status::ok();
    });
  }
  return std::chrono::duration<double>(left).count();
}

size_t larder_connector_events(larder_connector* connector, larder_event* events, size_t capacity) {
  std::size_t count = 0;
  if (connector == nullptr || events == nullptr) return count;
  (void)guarded(nullptr, [&] {
    std::array<larder::ConnectorEvent, 64> some;
    while (count < capacity) {
      const std::size_t room = std::min(some.size(), capacity - count);
      const std::size_t given = connector->engine->connector().take_events({some.data(), room});
      for (std::size_t i = 0; i < given; ++i)
        events[count++] = {static_cast<std::uint32_t>(some[i].kind), 0, some[i].id};
      if (given < room) break;
    }
    return Status::ok();
  });
  return count;
}

uint64_t larder_connector_in_flight(const larder_connector* connector) {
  return connector == nullptr ? 0 : connector->engine->connector().operations_in_flight();
}

uint64_t larder_connector_flush(larder_connector* connector) {
  std::uint64_t pages = 0;
  if (connector == nullptr) return pages;
  (void)guarded(nullptr, [&] {
    pages = connector->engine->connector().flush();
    return Status::ok();
  });
  return pages;
}

size_t larder_connector_stats(const larder_connector* connector, char* text, size_t size) {
  std::size_t length = 0;
  if (connector == nullptr) return length;
  (void)guarded(nullptr, [&] {
    length = larder::c::copy_text(connector->engine->stats_json(), text, size);
    return Status::ok();
  });
  return length;
}

size_t larder_connector_metrics(const larder_connector* connector, char* text, size_t size) {
  std::size_t length = 0;
  if (connector == nullptr) return length;
  (void)guarded(nullptr, [&] {
    length = larder::c::copy_text(connector->engine->metrics_text(), text, size);
    return Status::ok();
  });
  return length;
}

larder_code larder_lookup(larder_connector* connector, const larder_lookup_options* options, uint64_t* lookup,
                          larder_error* error) {
  if (connector == nullptr || options == nullptr || lookup == nullptr) {
    return wrong("connector, options or lookup is null", error);
  }
  *lookup = kNoNumber;
  return guarded(error, [&] { return look_up(*connector, options, lookup); });
}

larder_code larder_points(larder_connector* connector, uint64_t lookup, larder_point* points, size_t capacity,
                          size_t* count, larder_error* error) {
  if (connector == nullptr || count == nullptr) return wrong("connector or count is null", error);
  *count = 0;
  if (points == nullptr && capacity != 0) return wrong("points is null, and capacity is not 0", error);
  return guarded(error, [&] { return find_points(*connector, lookup, points, capacity, count); });
}

larder_code larder_lookup_miss(larder_connector* connector, uint64_t lookup, larder_miss* miss, larder_error* error) {
  if (connector == nullptr || miss == nullptr) return wrong("connector or miss is null", error);
  return guarded(error, [&] { return find_miss(*connector, lookup, miss); });
}

void larder_release(larder_connector* connector, uint64_t lookup) {
  if (connector == nullptr) return;
  (void)guarded(nullptr, [&] {
    connector->engine->connector().release(larder::LookupId(lookup));
    return Status::ok();
  });
}

larder_code larder_load(larder_connector* connector, const larder_load_options* options, uint64_t* transfer,
                        larder_error* error) {
  if (connector == nullptr || options == nullptr || transfer == nullptr) {
    return wrong("connector, options or transfer is null", error);
  }
  *transfer = kNoNumber;
  return guarded(error, [&] { return load_pages(*connector, options, transfer); });
}

larder_code larder_save(larder_connector* connector, const larder_save_options* options, uint64_t* transfer,
                        larder_error* error) {
  if (connector == nullptr || options == nullptr || transfer == nullptr) {
    return wrong("connector, options or transfer is null", error);
  }
  *transfer = kNoNumber;
  return guarded(error, [&] { return save_pages(*connector, options, transfer); });
}

larder_code larder_transfer_take(larder_connector* connector, uint64_t transfer, larder_transfer_result* result,
                                 larder_error* error) {
  if (connector == nullptr || result == nullptr) return wrong("connector or result is null", error);
  const larder_code code = guarded(error, [&] { return take(*connector, transfer, result, error); });
  if (code != LARDER_OK) result->code = code;  // which a struct of zeros would call LARDER_OK
  return code;
}

}  // extern "C"
