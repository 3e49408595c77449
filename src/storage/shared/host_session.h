// SPDX-License-Identifier: Apache-2.0
// The host's side of one connection: messages in, operations on the inner backend, answers out.
//
//   frame ─► on_frame(): checked ─► inner.submit_*() ─► (any thread) done ─► AnswerSink
//
// Rule 3: each operation in flight holds the arena, so it stays mapped until the inner backend has let go of it, also
// after the session has ended. Payload memory is the client's own: a client that writes into it meanwhile spoils its
// own pages only (the inner backend's checksums find out).
// Statistics: with the answer that leaves no operation of this client in flight go the inner backend's statistics, so
// that a client that waits for its answers knows them as they are.
//
// Threads: on_frame() confined to one thread; answers come from any. Lifetime: the inner backend and the clock outlive
// every operation; a session may end before them.
// Limits: kMaxScopes scopes; `queue_limit` operations in flight, more are answered with kOverloaded.
// Errors: on_frame() is not ok (kCorrupt) for anything that a right client does not send: the caller ends the
// connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "storage/backend.h"
#include "storage/shared/share_memory.h"
#include "storage/shared/share_wire.h"

namespace larder::share {

// Where frames for one client go.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // Any thread. Dropped if the connection is gone.
  virtual void answer(std::string frame) = 0;
};

class HostSession {
 public:
  HostSession(StorageBackend& inner, Clock& clock, std::shared_ptr<ShareMemory> arena, std::shared_ptr<AnswerSink> sink,
              std::size_t queue_limit);
  [[nodiscard]] Status on_frame(const Head& head, std::string_view body);
  // Operations in flight.
  [[nodiscard]] std::uint64_t in_flight() const;

 private:
  struct Link;

  [[nodiscard]] Status on_scope(std::string_view body);
  [[nodiscard]] Status on_exists(std::uint64_t operation, std::string_view body);
  [[nodiscard]] Status on_read(std::uint64_t operation, std::string_view body);
  [[nodiscard]] Status on_write(std::uint64_t operation, std::string_view body);
  [[nodiscard]] Status on_clear(std::uint64_t operation, std::string_view body);
  // null: no such scope.
  [[nodiscard]] const std::shared_ptr<const StoreScope>& scope_of(std::uint16_t slot) const;
  [[nodiscard]] OperationTerms terms_of(const Terms& terms) const;
  // Adds the payload's segment. False: it does not lie in the arena.
  [[nodiscard]] bool add_segment(const Place& place, std::vector<Segment>& out) const;
  // kOverloaded: too many are in flight.
  [[nodiscard]] Status begin();

  StorageBackend& inner_;
  Clock& clock_;
  const std::size_t queue_limit_;
  const std::shared_ptr<Link> link_;                       // shared with the operations in flight
  std::vector<std::shared_ptr<const StoreScope>> scopes_;  // by slot
};

}  // namespace larder::share
