// SPDX-License-Identifier: Apache-2.0
// The reference system's metadata protocol: POST /{rank}/{call} with JSON bodies, over a MetadataService.
//
// Purpose: its unmodified client works against this server. Bodies, status codes and the text of its own errors are the
// reference's; the table with all of them is in docs/metadata_server.md.
//
//   call                               asks                        answers
//   initialize                         num_pages                   204
//   exists                             keys: [text]                {"exists":[bool]}
//   get_page_indices                   keys: [text]                {"indices":[page or null]}
//   reserve_and_allocate_page_indices  keys: [[key, prefix_key]]   {"indices":[[already_written, page]]}
//   confirm_write                      written_keys_to_confirm: [[key, page]], pages_to_release: [page]; 204
//   delete_keys                        keys: [text]                204
//   clear                              {}                          204
// All take "namespace" ("kv"). Unknown fields are ignored; of a field that comes twice the last counts.
//
// Where we differ, and why:
//   Malformed JSON is 400, a missing or wrong field 422, both with {"detail": text}. The reference says 500, which its
//   client asks again three times.
//   Its clients have no sessions, so each reserve is a writer of its own:
//     reserved by another     [true, -1]: nothing to write. Two writers never get one page, also not when they are one
//                             client that asks again because an answer was lost. exists and get_page_indices do not
//                             show the key before it is confirmed; if its writer never does, it expires.
//     no page to be had       [false, -1]; the reference fails with 500.
//     never confirmed         the page comes back after `ttl` and the service's max_io_lifetime; the reference loses
//     it.
//   What is in pages_to_release may still be written to (its client releases whatever failed, a time-out too): the key
//   is free at once, the page after the service's max_io_lifetime. The reference gives it to the next writer.
//   confirm_write of what is not reserved any more, or was confirmed already, changes nothing: 204. A page in
//   pages_to_release that was not reserved through these routes stays as it is.
//   A writer that let its time pass may still come, and its page be another's by then; nothing in the request tells.
//   So for kOverdueLifetime a release of that page does nothing (a page not confirmed comes back as above), and where
//   that writer had the key that is written now, one confirmation does nothing. A restart forgets those writers.
//   get_page_indices leases what it finds for `lease`, so that no page is rewritten under a reader.
//   Keys of no or more than kMaxKeyBytes bytes are kept under their SHA-256, so any text is a key.
// Threads: any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "server/http_message.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder {

class ReferenceBody;

// From the end of a reservation on, at least. A mount that hangs gives its client back when it likes.
inline constexpr Nanos kOverdueLifetime = std::chrono::hours(1);

struct ReferenceOptions {
  std::array<std::uint64_t, 2> process{};  // of the sessions that stand for these clients
  Nanos ttl = std::chrono::seconds(60);    // from reserve to confirm
  Nanos lease = std::chrono::seconds(60);  // of get_page_indices
  // Overdue writers that are known; then the oldest is forgotten. 1000 clients that die with 128 pages each: 20 MB.
  std::size_t max_overdue = 128'000;
};

// Under which key of the service a key of the reference is kept: itself, or (empty, too long, or beginning with NUL)
// NUL and its SHA-256, whose text goes to `place`.
[[nodiscard]] std::string_view stored_key(std::string_view key, std::deque<std::string>& place);

class ReferenceRoutes {
 public:
  enum class Call : std::uint8_t { kInitialize, kExists, kReserve, kConfirm, kDelete, kClear, kGet };

  // service and clock outlive it.
  ReferenceRoutes(MetadataService& service, Clock& clock, const ReferenceOptions& options)
      : service_(service), clock_(clock), options_(options) {}

  struct Route {
    Call call = Call::kExists;
    std::string_view rank;  // a view into the path; not checked
  };
  // None: the path is none of these.
  [[nodiscard]] static std::optional<Route> route_of(std::string_view path);
  // Does it wait for a disk or look at every page, so that an I/O thread should not run it?
  [[nodiscard]] static bool may_wait(Call call) { return call == Call::kInitialize || call == Call::kClear; }
  [[nodiscard]] static bool changes(Call call) { return call != Call::kExists && call != Call::kGet; }
  [[nodiscard]] static std::string_view name_of(Call call);
  // `keys`: how many were asked for.
  [[nodiscard]] HttpResponse answer(const Route& route, std::string_view body, std::uint64_t& keys);
  // Calls of reserve that are kept: a page of theirs may still be confirmed, as far as is known.
  [[nodiscard]] std::size_t open_calls() const LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    return open_calls_.size();
  }

 private:
  // A reservation of a client without sessions, by its page.
  struct Write {
    std::uint64_t operation = 0;
    std::uint64_t generation = 0;
    std::string key;
    bool is_doubted = false;  // a confirmation of it was taken for that of an overdue writer
    bool is_ending = false;   // its client has told of it, and the service has not answered yet
  };
  using Pages = std::unordered_map<std::uint64_t, Write>;
  // One call of reserve, until none of its pages has its Write any more.
  struct OpenCall {
    TimePoint end;
    MetadataNamespace name_space;
    std::vector<std::uint64_t> pages;
    std::size_t writes = 0;
  };
  // A writer whose time passed without a word from it, by its page.
  struct Overdue {
    std::uint64_t operation = 0;
    std::uint64_t key_hash = 0;  // of what it may confirm; 0: nothing more
  };
  struct Deadline {
    TimePoint at;
    MetadataNamespace name_space;
    std::uint64_t page = 0;
    std::uint64_t operation = 0;
  };

  [[nodiscard]] HttpResponse find(const MetadataNamespace& name_space, ReferenceBody& body, bool for_reading);
  [[nodiscard]] HttpResponse reserve(const MetadataNamespace& name_space, ReferenceBody& body);
  [[nodiscard]] HttpResponse confirm(const MetadataNamespace& name_space, ReferenceBody& body);
  [[nodiscard]] HttpResponse remove(const MetadataNamespace& name_space, ReferenceBody& body);
  [[nodiscard]] HttpResponse error(const MetadataNamespace& name_space, const Status& status) const;
  void remember(const MetadataNamespace& name_space, std::uint64_t operation, const std::vector<ReserveItem>& items,
                const std::vector<Reserved>& given) LARDER_EXCLUDES(mutex_);
  // One request per session whose pages are named. The views live as long as `place`.
  [[nodiscard]] std::vector<ConfirmRequest> plan(const MetadataNamespace& name_space, const ReferenceBody& body,
                                                 std::deque<std::string>& place) LARDER_EXCLUDES(mutex_);
  // After the service's answer. Not `is_done`: the client asks again.
  void settle(const ConfirmRequest& request, bool is_done) LARDER_EXCLUDES(mutex_);
  // A Write of this call is no more.
  void end_write(std::uint64_t operation) LARDER_REQUIRES(mutex_);
  void forget_expired(TimePoint now) LARDER_REQUIRES(mutex_);
  void add_overdue(const MetadataNamespace& name_space, std::uint64_t page, const Write& write, TimePoint now)
      LARDER_REQUIRES(mutex_);
  void forget_oldest_overdue() LARDER_REQUIRES(mutex_);
  // Null: there is none.
  [[nodiscard]] Overdue* overdue_at(const MetadataNamespace& name_space, std::uint64_t page) LARDER_REQUIRES(mutex_);
  // Is a confirmation to be taken for that of an overdue writer? Of each for one.
  [[nodiscard]] bool takes_late_confirmation(const MetadataNamespace& name_space, std::uint64_t page,
                                             std::string_view key) LARDER_REQUIRES(mutex_);

  // constant after construction
  MetadataService& service_;
  Clock& clock_;
  const ReferenceOptions options_;

  std::atomic<std::uint64_t> next_operation_{1};  // relaxed: only its being unique counts
  mutable RankedMutex mutex_{LockRank::kServer};
  std::map<MetadataNamespace, Pages> writes_ LARDER_GUARDED_BY(mutex_);  // those that may still be confirmed
  // By operation, and so by their ends, but for calls that cross.
  std::map<std::uint64_t, OpenCall> open_calls_ LARDER_GUARDED_BY(mutex_);
  std::map<MetadataNamespace, std::unordered_map<std::uint64_t, Overdue>> overdue_ LARDER_GUARDED_BY(mutex_);
  std::deque<Deadline> overdue_ends_ LARDER_GUARDED_BY(mutex_);  // ascending; at most max_overdue
};

}  // namespace larder
