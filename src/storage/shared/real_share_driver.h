// SPDX-License-Identifier: Apache-2.0
// The I/O thread of a SharedBackend: looks for a role, and moves frames.
//
//   seeking ─ lock ─► opening (a thread of its own calls open_inner) ─ open ─► hosting
//      ▲  └─ no lock, connected ─► greeting ─ welcome ─► client ─┐
//      └───────────── the host has gone, or an error ────────────┘
//
// Threads: start() and stop() by the owner; the rest is confined to the I/O thread, which hears of other threads
// through ShareState. Lifetime: gate, executor and clock outlive it. stop() waits for an open_inner that is running,
// and ends a client's operations.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "storage/operation.h"
#include "storage/shared/client_session.h"
#include "storage/shared/host_session.h"
#include "storage/shared/real_share_socket.h"
#include "storage/shared/share_state.h"
#include "storage/shared/shared_backend.h"

namespace larder::share {

class ShareDriver {
 public:
  ShareDriver(SharedStoreOptions options, OpenInner open_inner, Executor& executor, Clock& clock,
              std::shared_ptr<ShareState> state, EventWaker& waker, OperationGate& gate);
  ~ShareDriver();
  ShareDriver(const ShareDriver&) = delete;
  ShareDriver& operator=(const ShareDriver&) = delete;
  void start();
  // Idempotent. The HostedStore stays with the state.
  void stop();

 private:
  enum class Phase : std::uint8_t { kSeeking, kOpening, kHosting, kGreeting, kClient };
  // One client of this host.
  struct Guest {
    explicit Guest(Descriptor socket) : connection(std::move(socket)) {}
    ShareConnection connection;
    std::unique_ptr<HostSession> session;  // null: it has not said hello
    bool is_leaving = false;               // refused: ends when it has been told
  };
  using Time = std::chrono::steady_clock::time_point;  // of the back-off only

  void run();
  void handle(ShareState::Batch batch);
  void wait();
  void finish();

  // Looks for a role once.
  void seek();
  void open_store(const ShareDirectory& directory);
  void on_opened(ShareState::Opened opened);
  void greet(const ShareDirectory& directory);
  // No role this time: again after a while. is_final: open_shared_store() has nothing to wait for.
  void retry_later(const Status& why, bool is_final);
  void tell_role(SharedRole role);

  // As host.
  void accept_guests();
  void serve(std::uint64_t id, bool is_readable);
  [[nodiscard]] Status read_guest(std::uint64_t id, Guest& guest);
  [[nodiscard]] Status greet_guest(std::uint64_t id, Guest& guest, const ShareConnection::Received& frame);

  // As client.
  void serve_host(bool is_readable);
  [[nodiscard]] Status read_host();
  [[nodiscard]] Status on_welcome(const ShareConnection::Received& frame);
  void lose_host(const Status& why);

  // constant after construction
  const SharedStoreOptions options_;
  const OpenInner open_inner_;
  Executor& executor_;
  Clock& clock_;
  const std::shared_ptr<ShareState> state_;
  EventWaker& waker_;
  OperationGate& gate_;

  Phase phase_ = Phase::kSeeking;
  Time seek_at_{};
  std::chrono::milliseconds back_off_;
  bool is_stopping_ = false;

  // As host.
  std::unique_ptr<ShareLock> lock_;  // while opening; then the HostedStore's
  std::optional<ShareDirectory> directory_;
  Descriptor listener_;
  std::shared_ptr<HostedStore> hosted_;
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t next_guest_ = 1;
  bool is_accept_failing_ = false;

  // As client.
  std::unique_ptr<ShareConnection> connection_;
  std::shared_ptr<ShareMemory> arena_;
  std::unique_ptr<ClientSession> session_;
  std::uint64_t session_number_ = 0;

  std::jthread opener_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace larder::share
