// SPDX-License-Identifier: Apache-2.0
// A store that several processes of one host share: the first hosts it, the others use it through that one.
//
// Purpose: an engine runs one process per tensor-parallel rank, and a store such as `file` locks its directory for one
// process; yet what ranks have in common should be stored once and be readable by each. A SharedBackend is a
// StorageBackend in front of any other:
//
//   process A (host)                                process B (client)
//   caller ─► inner backend ─► disk                 caller ─► line of operations ─► I/O thread
//                 ▲                                              │ payloads      │ messages
//                 └──── I/O thread ◄── messages, a Unix socket ──┼───────────────┘
//                 └──── payloads ◄──── arena: memory of B that A has mapped, too
//
// Roles. Whoever gets the lock "<directory>/larder-share.lock" opens the inner backend and hosts it on
// "<directory>/larder-share.sock". The others connect. The kernel gives the lock back when a host ends, however it
// ends; then each client looks for its role anew: after its connection broke, and with a back-off of up to a second.
// There is no other election, and a host stays host until close(), also when its lock or socket are deleted: it makes
// them again within a second, its clients notice nothing, and newcomers that do not find it meanwhile wait.
//   kSeeking ──► kHost            the lock was free, and the inner backend is open
//   kSeeking ──► kClient ──► kSeeking      connected; the host has gone
// When the host goes, a client's operations in flight end kUnavailable at once; whether a write among them was done is
// not known (writing it again is ok and cheap). Until it has a role again, it refuses with kUnavailable. What a host
// acknowledged is there for the next host if the inner backend is persistent, and gone if it is not (`memory`).
//
// Clears. The host orders the writes and clears of all (storage/clear_order.h). Its clients read the marks in memory
// that it writes, behind their arenas, so they are as they are now; without a host they are the last ones. The next
// host goes on with what the file "<directory>/larder-share.clears" says (the host makes it again within a second where
// somebody deletes it); without it, it begins anew, and refuses what is as of earlier marks. A write gets its mark at
// submit, if it has none.
//
// Threads: any. A SharedBackend has one I/O thread, and a second one while it opens the inner backend. `done` of a
// client's operation runs on the I/O thread, on the executor's, or inside close(); of a host's, as the inner backend
// says. It must not take long: it holds up all operations of this process.
//
// Lifetime: executor, clock, and what open_inner captured outlive the backend: open_inner may be called at any time
// until close(), but not twice at once. The executor runs copies of large payloads, and writes the file of clears.
//
// Errors: as the port says, and kUnavailable as above; a clear whose file cannot be written says so. kInvalidArgument
// for a page, or a group of pages, that is larger than the arena, or has more than 8192 pages: it can never be moved.
// kOverloaded: queue_limit operations are taken.
//
// Limits: SharedStoreOptions. An operation that is larger than a quarter of the arena goes in parts, one after the
// other. A host takes at most `queue_limit` operations of a client at once, and no more of its messages while 8 MiB of
// answers wait for it. Deadlines and cancel count until the first part has begun, and while a part waits for room in
// the arena; of that, writes have at most three quarters.
//
// Safety: only processes of the same user are heard, and the directory is theirs alone (0700). What a peer sends is
// checked before it is used; a broken peer loses its connection. The arena cannot shrink under its host (sealed memfd).
// A process that forks without exec hands the lock on to its child, as it does with the file store's.
//
// Cost: a client copies each payload once, and an operation costs four changes of threads more than at the host: some
// 100 us for a small page, when one is moved at a time. A host's own operations cost a few uncontended locks. Closing a
// client whose host is stuck takes 10 seconds; then its connection is dropped, since its buffers are its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/executor.h"
#include "base/status.h"
#include "storage/backend.h"

namespace larder {

enum class SharedRole : std::uint8_t { kSeeking, kHost, kClient };
// "seeking", "host", "client".
[[nodiscard]] std::string_view shared_role_name(SharedRole role);

struct SharedStoreOptions {
  // Of the lock and the socket; made if absent, for this user alone. Not the inner store's own: that refuses strange
  // files. On a local file system. Any length.
  std::string directory;
  // Which store the inner backend is. The host refuses clients that mean another one (kConflict), and tells them
  // `store_text` of its own: their pages would go where nobody looks for them.
  Digest256 store{};
  std::string store_text;
  // As a client: the most payload in flight, bytes of memory; touched as it is used. At least 64 KiB. In each role: a
  // read with a larger page, or a write with a larger group, is refused (kInvalidArgument). Who hosts is chance, so all
  // processes should have the same.
  std::size_t arena_bytes = std::size_t{256} << 20;
  std::string arena_option = "arena_bytes";  // what errors call it
  // As a host: the largest arena that a client may bring.
  std::size_t max_arena_bytes = std::size_t{16} << 30;
  // As a host: clients at once; more are refused with kOverloaded.
  std::size_t max_clients = 64;
  // As a client: operations taken and not yet done. As a host: the same of each client.
  std::size_t queue_limit = 1024;
  // The most that open_shared_store() waits for another process to open the inner backend.
  std::chrono::nanoseconds open_limit = std::chrono::seconds(120);
  // Called after each change of role, without a lock, on the I/O thread (the first time perhaps before
  // open_shared_store() returns). Must not call back. May be empty.
  std::function<void(SharedRole)> on_role{};
};

class SharedBackend : public StorageBackend {
 public:
  // As of now; another thread may change it.
  [[nodiscard]] virtual SharedRole role() const = 0;
};

// Opens the inner backend; blocks as long as that takes.
using OpenInner = std::function<Result<std::unique_ptr<StorageBackend>>()>;

// Blocks until this process is the host of an open inner backend, or a client of one. info().name is "shared(<inner>)";
// info() stays as it was at that time.
// Errors: those of open_inner (kConflict only after 2 seconds of tries); kInvalidArgument: options; kUnavailable: the
// directory, or open_limit ended; kConflict: the directory belongs to another user, or its host has another store;
// kOverloaded: the host has as many clients as it takes; kUnsupported: the host is of another version.
[[nodiscard]] Result<std::unique_ptr<SharedBackend>> open_shared_store(const SharedStoreOptions& options,
                                                                       OpenInner open_inner, Executor& executor,
                                                                       Clock& clock);

}  // namespace larder
