// SPDX-License-Identifier: Apache-2.0
// include/larder/larder.h on top of PageStore: checks what C cannot, turns codes, keeps exceptions in.
#include <larder/larder.h>
#include <larder_version_text.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "base/log.h"
#include "door/c_call.h"
#include "door/page_store.h"
#include "door/store_config.h"

namespace {

using larder::Status;
using larder::StatusCode;
using larder::c::copy_text;
using larder::c::guarded;
using larder::c::read_seconds;
using larder::c::read_struct;
using larder::c::text_of;
using larder::c::wrong;

static_assert(static_cast<int>(LARDER_OK) == static_cast<int>(StatusCode::kOk));
static_assert(static_cast<int>(LARDER_INVALID_ARGUMENT) == static_cast<int>(StatusCode::kInvalidArgument));
static_assert(static_cast<int>(LARDER_NOT_FOUND) == static_cast<int>(StatusCode::kNotFound));
static_assert(static_cast<int>(LARDER_CONFLICT) == static_cast<int>(StatusCode::kConflict));
static_assert(static_cast<int>(LARDER_OVERLOADED) == static_cast<int>(StatusCode::kOverloaded));
static_assert(static_cast<int>(LARDER_DEADLINE_EXCEEDED) == static_cast<int>(StatusCode::kDeadlineExceeded));
static_assert(static_cast<int>(LARDER_CANCELLED) == static_cast<int>(StatusCode::kCancelled));
static_assert(static_cast<int>(LARDER_CORRUPT) == static_cast<int>(StatusCode::kCorrupt));
static_assert(static_cast<int>(LARDER_UNAVAILABLE) == static_cast<int>(StatusCode::kUnavailable));
static_assert(static_cast<int>(LARDER_UNSUPPORTED) == static_cast<int>(StatusCode::kUnsupported));
static_assert(static_cast<int>(LARDER_INTERNAL) == static_cast<int>(StatusCode::kInternal));

Status read_terms(const larder_terms* from, larder::CallTerms& out) {
  larder_terms terms;
  LARDER_RETURN_IF_ERROR(read_struct(from, "larder_terms", terms));
  LARDER_RETURN_IF_ERROR(read_seconds(terms.timeout_seconds, out.timeout));
  if ((terms.flags & ~(LARDER_PUT_DURABLE | LARDER_PUT_RETRY)) != 0) {
    return larder::invalid_argument("larder_terms.flags has bits that this version does not know");
  }
  out.durable = (terms.flags & LARDER_PUT_DURABLE) != 0;
  out.retry = (terms.flags & LARDER_PUT_RETRY) != 0;
  if (terms.cancel != nullptr) out.cancel = terms.cancel->flag;
  return Status::ok();
}

larder::PageKey key_at(const std::uint8_t* bytes) {
  larder::PageKey key;
  if (bytes != nullptr) std::memcpy(key.bytes.data(), bytes, key.bytes.size());
  return key;
}

struct LogUser {
  const larder_store* store;
  larder_log_fn log;
  void* context;
};

// The log is one per process: that of the newest open store that was opened with one.
std::mutex log_mutex;            // NOLINT: a plain lock around set-up, never on a data path
std::vector<LogUser> log_users;  // guarded by log_mutex; oldest first
std::once_flag log_silenced;     // NOLINT

// With log_mutex.
void use_newest_log() {
  if (log_users.empty()) {
    larder::set_log_level(larder::LogLevel::kOff);
    // An empty sink is stderr, where a line would go that was on its way.
    return larder::set_log_sink([](larder::LogLevel, std::string_view, std::string_view) {});
  }
  larder::set_log_sink([user = log_users.back()](larder::LogLevel level, std::string_view where,
                                                 std::string_view message) {
    user.log(user.context, static_cast<std::int32_t>(level), std::string(where).c_str(), std::string(message).c_str());
  });
  larder::set_log_level(larder::LogLevel::kInfo);
}

void use_log(const larder_store* store, larder_log_fn log, void* context) {
  std::call_once(log_silenced, [] { larder::set_log_level(larder::LogLevel::kOff); });
  if (log == nullptr) return;
  const std::lock_guard<std::mutex> guard(log_mutex);
  log_users.push_back({store, log, context});
  use_newest_log();
}

void leave_log(const larder_store* store) {
  const std::lock_guard<std::mutex> guard(log_mutex);
  if (std::erase_if(log_users, [&](const LogUser& user) { return user.store == store; }) > 0) use_newest_log();
}

Status open_store(const larder_store_options* from, larder_store** out) {
  larder_store_options options;
  LARDER_RETURN_IF_ERROR(read_struct(from, "larder_store_options", options));
  if (options.reserved != 0) return larder::invalid_argument("larder_store_options.reserved is not 0");
  if (options.backend == nullptr) return larder::invalid_argument("larder_store_options.backend is null");
  larder::StoreOptions wanted;
  LARDER_RETURN_IF_ERROR(larder::c::read_memory(options.memory, options.memory_count, wanted.memory));
  wanted.backend = options.backend;
  wanted.config = text_of(options.config);
  // Leaves the log also where opening throws: nobody may use the caller's context then.
  const auto drop = [](larder_store* unopened) {
    leave_log(unopened);
    delete unopened;
  };
  std::unique_ptr<larder_store, decltype(drop)> handle(new larder_store, drop);
  use_log(handle.get(), options.log, options.log_context);
  LARDER_ASSIGN_OR_RETURN(handle->store, larder::PageStore::open(wanted));
  *out = handle.release();
  return Status::ok();
}

Status open_space(larder_store* store, const larder_space_options* from, larder_space** out) {
  larder::SpaceDescription space;
  LARDER_RETURN_IF_ERROR(larder::c::read_space(from, space));
  LARDER_ASSIGN_OR_RETURN(auto made, larder::PageSpace::create(std::move(space)));
  *out = new larder_space{store, std::move(made)};
  ++store->spaces;
  return Status::ok();
}

Status run_pages(larder_space* space, larder_page* pages, std::size_t count, const larder_terms* from, bool is_put) {
  larder::CallTerms terms;
  LARDER_RETURN_IF_ERROR(read_terms(from, terms));
  if (count > LARDER_MAX_PAGES) {
    return larder::invalid_argument(std::to_string(count) + " pages; at most " + std::to_string(LARDER_MAX_PAGES) +
                                    " go into one call");
  }
  static_assert(sizeof(larder_segment) == sizeof(larder::Segment) && offsetof(larder_segment, size) == sizeof(void*));
  std::vector<larder::CallPage> work(count);
  for (std::size_t i = 0; i < count; ++i) {
    const larder_page& page = pages[i];
    if (page.key == nullptr || (page.segments == nullptr && page.segment_count != 0)) {
      return larder::invalid_argument("larder_page " + std::to_string(i) + ": key or segments is null");
    }
    if (page.reserved != 0) return larder::invalid_argument("larder_page " + std::to_string(i) + ": reserved is not 0");
    work[i].key = key_at(page.key);
    work[i].parent = key_at(page.parent);
    work[i].pool = page.pool;
    work[i].segments = {reinterpret_cast<const larder::Segment*>(page.segments), page.segment_count};
  }
  if (is_put) {
    space->owner->store->put(space->space, work, terms);
  } else {
    space->owner->store->get(space->space, work, terms);
  }
  for (std::size_t i = 0; i < count; ++i) pages[i].code = static_cast<std::int32_t>(work[i].status.code());
  // Of a wrong page rather than of those before it that are cancelled for it.
  auto told = std::find_if(work.begin(), work.end(), [](const larder::CallPage& page) {
    return page.status.code() == StatusCode::kInvalidArgument;
  });
  if (told == work.end()) {
    told = std::find_if(work.begin(), work.end(), [](const larder::CallPage& page) { return !page.status.is_ok(); });
  }
  if (told == work.end()) return Status::ok();
  return Status(told->status.code(), "page " + std::to_string(told - work.begin()) + ": " + told->status.message());
}

larder_code pages_call(larder_space* space, larder_page* pages, std::size_t count, const larder_terms* terms,
                       larder_error* error, bool is_put) {
  if (pages == nullptr && count != 0) return wrong("pages is null", error);
  bool is_answered = false;
  const larder_code code = guarded(error, [&]() -> Status {
    for (std::size_t i = 0; i < count; ++i) pages[i].code = LARDER_INTERNAL;  // until it is answered
    if (space == nullptr) return larder::invalid_argument("the namespace is null");
    const Status status = run_pages(space, pages, count, terms, is_put);
    is_answered = count == 0 || pages[0].code != LARDER_INTERNAL || status.code() == StatusCode::kInternal;
    return status;
  });
  for (std::size_t i = 0; !is_answered && i < count; ++i) pages[i].code = code;
  return code;
}

}  // namespace

extern "C" {

uint32_t larder_abi_version(void) { return LARDER_ABI_VERSION; }
const char* larder_version(void) { return LARDER_VERSION_TEXT; }

const char* larder_code_name(int32_t code) {
  if (code < 0 || code > LARDER_INTERNAL) return "?";
  return larder::status_code_name(static_cast<StatusCode>(code)).data();
}

size_t larder_page_keys(const uint32_t* tokens, size_t token_count, uint32_t page_size, const uint8_t* prior,
                        uint8_t* keys) {
  if (page_size == 0 || tokens == nullptr || keys == nullptr) return 0;
  static_assert(sizeof(larder::TokenId) == sizeof(uint32_t));
  const auto* at = reinterpret_cast<const larder::TokenId*>(tokens);
  std::optional<larder::PageKey> last;
  if (prior != nullptr) last = key_at(prior);
  const std::size_t pages = token_count / page_size;
  for (std::size_t i = 0; i < pages; ++i) {
    last = larder::page_key({at + i * page_size, page_size}, last);
    std::memcpy(keys + i * LARDER_KEY_BYTES, last->bytes.data(), LARDER_KEY_BYTES);
  }
  return pages;
}

larder_code larder_store_open(const larder_store_options* options, larder_store** store, larder_error* error) {
  if (options == nullptr || store == nullptr) return wrong("options or store is null", error);
  *store = nullptr;
  return guarded(error, [&] { return open_store(options, store); });
}

larder_code larder_store_close(larder_store* store, double timeout_seconds, larder_error* error) {
  if (store == nullptr) return LARDER_OK;
  return guarded(error, [&]() -> Status {
    if (const std::uint64_t spaces = store->spaces.load(); spaces != 0) {
      return larder::invalid_argument("namespaces of the store are open (" + std::to_string(spaces) +
                                      "): larder_space_close() each before");
    }
    if (const std::uint64_t connectors = store->connectors.load(); connectors != 0) {
      return larder::invalid_argument("the store is attached to connectors (" + std::to_string(connectors) +
                                      "): larder_connector_detach() or larder_connector_close() each before");
    }
    larder::Nanos limit{0};
    LARDER_RETURN_IF_ERROR(read_seconds(timeout_seconds, limit));
    LARDER_RETURN_IF_ERROR(store->store->close(limit));
    store->store.reset();
    leave_log(store);
    delete store;
    return Status::ok();
  });
}

const char* larder_backends(void) {
  static const std::string names = larder::store_backend_names();
  return names.c_str();
}

size_t larder_store_option_help(const char* backend, char* text, size_t size) {
  std::size_t length = 0;
  (void)guarded(nullptr, [&] {
    const auto* options = backend == nullptr ? &larder::store_option_help() : larder::store_backend_options(backend);
    std::string out;
    for (std::size_t i = 0; options != nullptr && i < options->size(); ++i) {
      const larder::BackendOptionHelp& option = (*options)[i];
      out += option.key + "\t" + option.default_text + "\t" + option.help + "\n";
    }
    length = copy_text(out, text, size);
    return Status::ok();
  });
  return length;
}

size_t larder_store_stats(const larder_store* store, char* text, size_t size) {
  std::size_t length = 0;
  if (store == nullptr) return length;
  (void)guarded(nullptr, [&] {
    length = copy_text(store->store->stats_json(), text, size);
    return Status::ok();
  });
  return length;
}

size_t larder_store_metrics(const larder_store* store, char* text, size_t size) {
  std::size_t length = 0;
  if (store == nullptr) return length;
  (void)guarded(nullptr, [&] {
    length = copy_text(store->store->metrics_text(), text, size);
    return Status::ok();
  });
  return length;
}

larder_code larder_store_add_memory(larder_store* store, const larder_segment* memory, size_t memory_count,
                                    larder_error* error) {
  if (store == nullptr) return wrong("the store is null", error);
  return guarded(error, [&]() -> Status {
    std::vector<larder::Segment> regions;
    LARDER_RETURN_IF_ERROR(larder::c::read_memory(memory, memory_count, regions));
    return store->store->add_memory(regions);
  });
}

larder_code larder_store_clear(larder_store* store, double timeout_seconds, larder_error* error) {
  if (store == nullptr) return wrong("the store is null", error);
  return guarded(error, [&]() -> Status {
    larder::CallTerms terms;
    LARDER_RETURN_IF_ERROR(read_seconds(timeout_seconds, terms.timeout));
    return store->store->clear(nullptr, terms);
  });
}

larder_code larder_space_open(larder_store* store, const larder_space_options* options, larder_space** space,
                              larder_error* error) {
  if (store == nullptr || options == nullptr || space == nullptr) {
    return wrong("store, options or space is null", error);
  }
  *space = nullptr;
  return guarded(error, [&] { return open_space(store, options, space); });
}

void larder_space_close(larder_space* space) {
  if (space == nullptr) return;
  --space->owner->spaces;
  delete space;
}

larder_code larder_space_clear(larder_space* space, double timeout_seconds, larder_error* error) {
  if (space == nullptr) return wrong("the namespace is null", error);
  return guarded(error, [&]() -> Status {
    larder::CallTerms terms;
    LARDER_RETURN_IF_ERROR(read_seconds(timeout_seconds, terms.timeout));
    return space->owner->store->clear(&space->space, terms);
  });
}

larder_code larder_space_digest(const larder_space* space, uint8_t digest[LARDER_KEY_BYTES]) {
  if (space == nullptr || digest == nullptr) return LARDER_INVALID_ARGUMENT;
  std::memcpy(digest, space->space.digest().bytes.data(), LARDER_KEY_BYTES);
  return LARDER_OK;
}

larder_cancel* larder_cancel_new(void) {
  try {
    return new larder_cancel;
  } catch (...) {  // NOLINT: nothing may leave
    return nullptr;
  }
}
void larder_cancel_set(larder_cancel* cancel) {
  if (cancel != nullptr) cancel->flag->store(true, std::memory_order_release);
}
void larder_cancel_free(larder_cancel* cancel) { delete cancel; }

larder_code larder_exists(larder_space* space, const uint8_t* keys, size_t key_count, const larder_need* needs,
                          size_t need_count, const larder_terms* terms, uint64_t* restorable, uint64_t* present,
                          larder_error* error) {
  // Whatever comes of the call, the words are no old ones. A count beyond the limits may be no count: of its words,
  // only as many as a call may have are touched.
  const std::size_t words = (std::min<std::size_t>(key_count, LARDER_MAX_KEYS) + 63) / 64;
  const std::size_t own = space == nullptr ? 0 : space->space.pools().size(),
                    asked = needs == nullptr && need_count == 0 ? own : need_count;
  if (restorable != nullptr) std::fill_n(restorable, words, 0);
  if (present != nullptr) std::fill_n(present, words * std::min<std::size_t>(asked, LARDER_MAX_POOLS), 0);
  if (space == nullptr) return wrong("the namespace is null", error);
  if (restorable == nullptr || (keys == nullptr && key_count != 0)) return wrong("keys or restorable is null", error);
  if (needs == nullptr && need_count != 0) return wrong("needs is null, and need_count is not 0", error);
  if (key_count > LARDER_MAX_KEYS || need_count > LARDER_MAX_POOLS) {
    return wrong("too many keys or needs for one call (LARDER_MAX_KEYS, LARDER_MAX_POOLS)", error);
  }
  return guarded(error, [&]() -> Status {
    const auto& pools = space->space.pools();
    std::vector<larder::PoolNeed> list;
    const std::span<std::uint64_t> joint(restorable, words);
    const std::span<std::uint64_t> each(present, present == nullptr ? 0 : words * asked);
    if (needs == nullptr) {
      for (std::size_t i = 0; i < pools.size(); ++i) list.push_back({i, pools[i].policy, pools[i].trailing_pages});
    }
    for (std::size_t i = 0; i < need_count; ++i) {
      if (needs[i].hit_policy > LARDER_TRAILING_PAGES)
        return larder::invalid_argument("a need's hit_policy is unknown");
      list.push_back({needs[i].pool, static_cast<larder::HitPolicy>(needs[i].hit_policy), needs[i].trailing_pages});
    }
    larder::CallTerms call;
    LARDER_RETURN_IF_ERROR(read_terms(terms, call));
    std::vector<larder::PageKey> chain(key_count);
    if (key_count != 0) std::memcpy(static_cast<void*>(chain.data()), keys, key_count * LARDER_KEY_BYTES);
    return space->owner->store->exists(space->space, std::move(chain), list, call, joint, each);
  });
}

larder_code larder_get(larder_space* space, larder_page* pages, size_t page_count, const larder_terms* terms,
                       larder_error* error) {
  return pages_call(space, pages, page_count, terms, error, false);
}

larder_code larder_put(larder_space* space, larder_page* pages, size_t page_count, const larder_terms* terms,
                       larder_error* error) {
  return pages_call(space, pages, page_count, terms, error, true);
}

}  // extern "C"
