// SPDX-License-Identifier: Apache-2.0
// The port to the page-index service: which page of the shared files holds which key.
//
// Purpose: shared files (storage/hf3fs) are arrays of equal pages. Many processes read and write them; this service
// alone says which page is whose. It never touches the files. metadata/ implements it: in the process, over HTTP, on
// Redis; all pass the same conformance suite (tests/metadata).
//
// Words
//   namespace   one array of pages with its keys: (rank, name), as text "<rank>:<name>", e.g. "0:kv". The files of a
//               namespace have `pages` pages, numbered from 0. Nothing is shared between namespaces.
//   key         any bytes, 1..kMaxKeyBytes. Our own client: namespace digest (32) + page key (32).
//   page        a number; its generation grows with each use, within a namespace, for ever, also over crashes. A page
//               on disk carries the generation that it was written with, so a reader can tell what it got.
//   session     one writing operation of one process. Whoever repeats a request with its session gets the same answer.
//   lease       until when a page that was looked up will not be given to another key.
//
// Life of a page
//                reserve                 confirm
//     free ──────────────────► reserved ─────────► stored ──┐
//      ▲                          │ release,        │        │ find: leased for a time
//      │ nobody can touch         │ expiry          │ remove, clear, eviction
//      │ it any more              ▼                 ▼
//      └─────────────────────── quarantined ◄───────┘
//   A key that is reserved by one session is kBusy for the others until it is confirmed, released or expired. A page
//   whose reservation was released by its writer (nothing of it is in flight) or that has no lease is free at once; an
//   expired one waits `max_io_lifetime` (its writer may still write), and so does a released one whose writer cannot
//   say that nothing is in flight (`released_rest`); a leased one waits until its lease ends.
//   Reserving with no page free evicts the least recently used stored pages without stored children and without lease,
//   so tails go before heads; never what the same request found stored, nor the parents it named: a chain longer than
//   the namespace keeps its beginning. All pages reserved, leased or quarantined: kFull, per item.
//
// Threads: every method from any thread; each blocks for at most the implementation's time-out.
// Errors of a call: kUnavailable, kDeadlineExceeded: the service was not reached, or no answer came; what it did is
// unknown, and repeating the call with the same session is safe. kInvalidArgument: bad input. kNotFound: a namespace
// that was never initialised (e.g. the service lost its memory): initialise again.
// Everything else is a status per item. Answers have exactly one entry per item, in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace larder {

inline constexpr std::size_t kMaxKeyBytes = 512;
inline constexpr std::size_t kMaxNamespaceBytes = 128;
// How long a reservation may be, unless a service is told otherwise.
inline constexpr Nanos kUsualMaxReservation = std::chrono::seconds(120);
inline constexpr std::uint64_t kMaxNamespacePages = std::uint64_t{1} << 31;
inline constexpr std::size_t kKeysSeenAtOnce = 4096;  // by find()

struct MetadataNamespace {
  std::int64_t rank = 0;
  std::string name = "kv";  // no ':' and no control characters
  [[nodiscard]] std::string text() const { return std::to_string(rank) + ':' + name; }
  friend auto operator<=>(const MetadataNamespace&, const MetadataNamespace&) = default;
};

struct PageRef {
  std::uint64_t page = 0;
  std::uint64_t generation = 0;  // 0: unknown (a client that has none, e.g. one of the reference system)
  friend bool operator==(const PageRef&, const PageRef&) = default;
};

// 128 bits, drawn at random by each process, plus the number of the operation in it.
struct MetadataSession {
  std::array<std::uint64_t, 2> process{};
  std::uint64_t operation = 0;
  friend bool operator==(const MetadataSession&, const MetadataSession&) = default;
};

// Keys are views: the caller keeps the bytes until the call returns.
struct MetadataKeys {
  const MetadataNamespace* name_space = nullptr;
  std::vector<std::string_view> keys;
};

struct ReserveItem {
  std::string_view key;
  std::string_view parent{};  // the key before it in its chain; empty: none or unknown
};
struct ReserveItems {
  const MetadataNamespace* name_space = nullptr;
  std::vector<ReserveItem> items;
};
enum class ReserveOutcome : std::uint8_t {
  kReserved,  // write `ref`, then confirm or release it before the deadline
  kStored,    // is there already, at `ref`
  kBusy,      // another session is writing it
  kFull,      // no page is free, and none can be evicted now
};
struct Reserved {
  ReserveOutcome outcome = ReserveOutcome::kFull;
  PageRef ref;
};

struct ConfirmItem {
  const MetadataNamespace* name_space = nullptr;
  std::string_view key;
  PageRef ref;
};
// Of one session. Groups are confirmed whole or not at all: a group with an item that is not reserved any more (its
// deadline has passed) is kNotFound, and its other items are released. `release`: nothing of these pages is in flight,
// unless released_rest.
struct ConfirmRequest {
  MetadataSession session;
  std::vector<std::vector<ConfirmItem>> groups;
  std::vector<ConfirmItem> release;
  bool durable = false;        // answer only when the confirmation survives a power cut of the service
  bool released_rest = false;  // writes to `release` may still land: its keys are free at once, its pages later
};

struct NamespaceStats {
  std::uint64_t pages = 0;  // all of the namespace; = free + reserved + stored + quarantined
  std::uint64_t free = 0, reserved = 0, stored = 0, quarantined = 0;
  std::uint64_t leased = 0;  // of the stored and the quarantined
  // Counts since the service began: pages evicted, reservations expired, items answered kFull.
  std::uint64_t evicted = 0, expired = 0, refused = 0;
};

class MetadataService {
 public:
  virtual ~MetadataService() = default;
  // True: calls leave the process, and may take as long as the time-out.
  [[nodiscard]] virtual bool is_remote() const { return false; }
  // True: initialize(), reserve(), confirm(), remove() and clear() may wait, for a line or for a disk. False: memory
  // only.
  [[nodiscard]] virtual bool changes_may_wait() const { return true; }
  // Makes the namespace, or checks it. Gives its number of pages: that of the first who came (a later, different number
  // changes nothing). kInvalidArgument: 0 pages, more than kMaxNamespacePages, a bad name.
  [[nodiscard]] virtual Result<std::uint64_t> initialize(const MetadataNamespace& name_space, std::uint64_t pages) = 0;
  // One vector per entry of `wanted`. A lease above 0 refreshes the recency of what it finds. Of a group that is being
  // confirmed it sees all or nothing if it asks for kKeysSeenAtOnce keys in all, or fewer. A longer one may miss pages
  // of such a group, and any may miss those of a group that is being removed or evicted: for its caller that is a miss,
  // since what it did find is stored, and proven by what lies in the page.
  [[nodiscard]] virtual Result<std::vector<std::vector<std::optional<PageRef>>>> find(
      std::span<const MetadataKeys> wanted, Nanos lease) = 0;
  // Keys in chain order. Repeated with the same session: the same pages, and their deadline is never earlier. `ttl` is
  // cut to the service's own limit. What is found stored, and stored parents that are named, become recent.
  [[nodiscard]] virtual Result<std::vector<std::vector<Reserved>>> reserve(const MetadataSession& session,
                                                                           std::span<const ReserveItems> wanted,
                                                                           Nanos ttl) = 0;
  // One status per group. Repeated: the same answers (as long as what was confirmed is still stored).
  [[nodiscard]] virtual Result<std::vector<Status>> confirm(const ConfirmRequest& request) = 0;
  // Drops stored keys. With a generation: only if the key is still at that page and generation. Gives how many.
  [[nodiscard]] virtual Result<std::uint64_t> remove(std::span<const ConfirmItem> items) = 0;
  // Drops every stored key that begins with `prefix`, and refuses the confirmation of those now reserved.
  [[nodiscard]] virtual Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) = 0;
  [[nodiscard]] virtual Result<std::map<MetadataNamespace, NamespaceStats>> stats() = 0;
};

// Which service, and how it is reached. metadata/open_metadata.h makes it.
struct MetadataOptions {
  std::string url;        // "" : in this process; "http://host:port"; "redis://host:port[/database]"; https, rediss
  std::string directory;  // in this process: where its journal is kept; empty: nowhere, all is forgotten at the end
  std::string api_key;    // of the server; empty: none
  std::string ca_file{};  // over TLS: who may have issued the server's certificate, PEM; empty: as the system says
  Nanos timeout = std::chrono::seconds(5);  // of one call
};

}  // namespace larder
