// SPDX-License-Identifier: Apache-2.0
// The I/O thread of a SharedBackend: looks for a role, and moves frames.
//
//   seeking ─ lock, and nobody answers ─► opening (a thread of its own calls open_inner) ─ open ─► hosting
//      ▲  └─ connected ─► greeting ─ welcome ─► client ─┐
//      └──────── the host has gone, or an error ────────┘
//
// Cleaners of old files, and people, delete lock and socket. A host looks after them every second, and makes them
// again. Until it has, a newcomer may get a lock of its own: if the host answers, it is a client all the same, and lets
// go of that lock; else it finds the inner store locked, and tries again for a while. So what keeps two hosts of one
// store apart then is the inner store's own lock; of one that has none there may be two until one of them ends.
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
#include "storage/shared/real_clears_keeper.h"
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
    std::unique_ptr<ClearOrder::Told> told;  // of clears; null: it has not said hello
    std::unique_ptr<HostSession> session;    // null: it has not said hello
    bool is_leaving = false;                 // refused: ends when it has been told
  };
  using Time = std::chrono::steady_clock::time_point;  // of when to try and look again only

  void run();
  void handle(ShareState::Batch batch);
  void wait();
  [[nodiscard]] int wait_limit_ms(bool is_accepting) const;
  void finish();

  // Looks for a role once.
  void seek();
  void open_store(ShareDirectory directory, HeldLock held);
  // On the opener's thread.
  [[nodiscard]] ShareState::Opened open_inner();
  void on_opened(ShareState::Opened opened);
  // Whether the inner store may open soon that did not now.
  [[nodiscard]] bool may_pass(const Status& why);
  void greet(Descriptor socket);
  // No role this time: again after a while. is_final: open_shared_store() has nothing to wait for.
  void retry_later(const Status& why, bool is_final);
  void tell_role(SharedRole role);

  // As host.
  void keep_place();
  [[nodiscard]] Status renew_place();
  void keep_clears();
  // Clients that ask for nothing hear how things stand, too.
  void tell_stats();
  void leave_place();
  void accept_guests();
  void serve(std::uint64_t id, bool is_readable);
  [[nodiscard]] Status read_guest(std::uint64_t id, Guest& guest);
  [[nodiscard]] Status greet_guest(std::uint64_t id, Guest& guest, const ShareConnection::Received& frame);

  // As client.
  void serve_host(bool is_readable);
  void expire_waiting();
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
  std::optional<Time> conflict_since_;  // another process has the inner store
  bool is_stopping_ = false;

  // As host.
  std::unique_ptr<ShareLock> lock_;  // while opening; then the HostedStore's
  FileId lock_file_;
  std::optional<ShareDirectory> directory_;
  ShareListener listener_;
  Time look_at_{};  // whether the files still lie there
  Status place_;    // as of the last look
  std::shared_ptr<HostedStore> hosted_;
  std::shared_ptr<ClearsFile> clears_;  // the opener's while it runs
  Status clears_kept_;                  // as of the last look
  std::string told_stats_;              // the last frame of tell_stats()
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t next_guest_ = 1;
  bool is_accept_failing_ = false;

  // As client.
  std::unique_ptr<ShareConnection> connection_;
  std::shared_ptr<ShareMemory> arena_;       // until there is a session
  std::shared_ptr<const ClearWords> words_;  // likewise, behind it
  std::unique_ptr<ClientSession> session_;
  std::uint64_t session_number_ = 0;
  Time expire_at_{};  // when to look at what waits in the session

  std::jthread opener_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace larder::share
