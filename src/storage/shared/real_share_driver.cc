// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/real_share_driver.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"

namespace larder::share {
namespace {

constexpr std::chrono::milliseconds kFirstBackOff{5}, kMostBackOff{1000};
constexpr std::chrono::milliseconds kLookAgain{1000};
constexpr std::chrono::milliseconds kConflictPatience{2000};  // longer than a host needs to be found again
constexpr std::chrono::milliseconds kExpireAgain{50};
constexpr int kAcceptAgainMs = 100;                             // after an error, such as too many open files
constexpr std::size_t kMostQueuedBytes = std::size_t{8} << 20;  // answers that a client does not fetch
constexpr std::string_view kComponent = "storage/shared";

// Answers of the inner backend, from any thread, to one client.
class GuestSink final : public AnswerSink {
 public:
  GuestSink(std::shared_ptr<ShareState> state, std::uint64_t client) : state_(std::move(state)), client_(client) {}
  void answer(std::string frame) override { state_->post_answer({client_, std::move(frame)}); }

 private:
  const std::shared_ptr<ShareState> state_;
  const std::uint64_t client_;
};

class HostPort final : public ClientPort {
 public:
  HostPort(std::shared_ptr<ShareState> state, ShareConnection& connection, Clock& clock, std::uint64_t session)
      : state_(std::move(state)), connection_(connection), clock_(clock), session_(session) {}
  // The session that sends ends before the connection.
  void send(std::string frame) override { connection_.send(std::move(frame)); }
  void on_stats(const BackendStats& stats) override { state_->set_stats(stats, clock_.now()); }
  void copied(std::uint64_t number, bool is_done) override { state_->post_copied({session_, number, is_done}); }

 private:
  const std::shared_ptr<ShareState> state_;
  ShareConnection& connection_;
  Clock& clock_;
  const std::uint64_t session_;
};

pollfd poll_entry(int descriptor, bool is_reading, bool is_writing) {
  return {descriptor, static_cast<short>((is_reading ? POLLIN : 0) | (is_writing ? POLLOUT : 0)), 0};
}

}  // namespace

ShareDriver::ShareDriver(SharedStoreOptions options, OpenInner open_inner, Executor& executor, Clock& clock,
                         std::shared_ptr<ShareState> state, EventWaker& waker, OperationGate& gate)
    : options_(std::move(options)),
      open_inner_(std::move(open_inner)),
      executor_(executor),
      clock_(clock),
      state_(std::move(state)),
      waker_(waker),
      gate_(gate),
      back_off_(kFirstBackOff) {}

ShareDriver::~ShareDriver() { stop(); }

void ShareDriver::start() {
  thread_ = std::jthread([this] { run(); });
}

void ShareDriver::stop() {
  if (!thread_.joinable()) return;
  state_->post_stop();
  thread_.join();
}

void ShareDriver::run() {
  pthread_setname_np(pthread_self(), "larder-share");
  while (!is_stopping_) {
    handle(state_->take());
    if (!is_stopping_ && phase_ == Phase::kSeeking && std::chrono::steady_clock::now() >= seek_at_) seek();
    if (!is_stopping_) keep_place();
    if (!is_stopping_) expire_waiting();
    if (!is_stopping_ && state_->may_wait()) wait();
  }
  finish();
}

void ShareDriver::handle(ShareState::Batch batch) {
  is_stopping_ = batch.is_stopping;
  for (ClientOperation& operation : batch.operations) {
    if (session_) {
      session_->submit(std::move(operation));
    } else {  // taken while the connection broke
      fail_operation(operation, 0, unavailable("the host of the shared store has gone"));
    }
  }
  for (const ShareState::Copied& copied : batch.copied) {
    if (session_ && copied.session == session_number_) session_->on_copied(copied.number, copied.is_done);
  }
  if (batch.is_ending_clears && session_) session_->end_clears();
  if (batch.is_asking_stats && session_) session_->ask_stats();
  for (ShareState::Answer& answer : batch.answers) {
    const auto guest = guests_.find(answer.client);
    if (guest != guests_.end()) guest->second.connection.send(std::move(answer.frame));
  }
  if (batch.opened) on_opened(std::move(*batch.opened));
  // Most of what was said can be written at once, and needs no poll.
  if (connection_) serve_host(false);
  for (auto at = guests_.begin(); at != guests_.end();) {
    const std::uint64_t id = (at++)->first;  // serve() may end this one
    serve(id, false);
  }
}

void ShareDriver::wait() {
  std::vector<pollfd> polled{poll_entry(waker_.descriptor(), true, false)};
  std::vector<std::uint64_t> ids;
  if (connection_) polled.push_back(poll_entry(connection_->descriptor(), true, connection_->queued_bytes() > 0));
  const std::size_t first_guest = polled.size();
  for (const auto& [id, guest] : guests_) {
    const std::size_t queued = guest.connection.queued_bytes();
    const bool has_room = queued < kMostQueuedBytes;
    polled.push_back(poll_entry(guest.connection.descriptor(), has_room, queued > 0));
    ids.push_back(id);
  }
  const bool is_accepting = phase_ == Phase::kHosting && !std::exchange(is_accept_failing_, false);
  if (is_accepting) polled.push_back(poll_entry(listener_.socket.get(), true, false));
  const int ready = ::poll(polled.data(), polled.size(), wait_limit_ms(is_accepting));
  state_->end_wait();
  if (ready <= 0) return;
  if (polled[0].revents != 0) waker_.clear();
  if (first_guest == 2 && polled[1].revents != 0) serve_host(polled[1].revents != POLLOUT);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const short events = polled[first_guest + i].revents;
    if (events != 0) serve(ids[i], events != POLLOUT);
  }
  if (is_accepting && polled.back().revents != 0) accept_guests();
}

int ShareDriver::wait_limit_ms(bool is_accepting) const {
  const bool is_expiring = session_ && session_->is_waiting();
  if (phase_ != Phase::kSeeking && !listener_.socket.is_open() && !is_expiring) return -1;
  const Time until = is_expiring ? expire_at_ : phase_ == Phase::kSeeking ? seek_at_ : look_at_;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  const int limit = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  return phase_ == Phase::kHosting && !is_accepting ? std::min(limit, kAcceptAgainMs) : limit;
}

void ShareDriver::finish() {
  if (opener_.joinable()) opener_.join();
  ShareState::Batch rest = state_->take();
  for (const ClientOperation& operation : rest.operations) {
    fail_operation(operation, 0, cancelled("the shared store was closed"));
  }
  session_.reset();  // ends its operations
  connection_.reset();
  arena_.reset();
  words_.reset();
  state_->release_words();
  for (auto& [id, guest] : guests_) (void)guest.connection.flush();
  guests_.clear();
  leave_place();
  hosted_.reset();
  if (rest.opened && rest.opened->is_ok()) rest.opened->value().reset();
  rest.opened.reset();
  lock_.reset();
}

// --- finding a role

void ShareDriver::seek() {
  Result<ShareDirectory> directory = ShareDirectory::open(options_.directory);
  if (!directory.is_ok()) return retry_later(directory.status(), true);
  Result<HeldLock> held = directory->try_lock();
  if (!held.is_ok()) return retry_later(held.status(), true);
  Result<Descriptor> host = directory->connect();
  // Who answers is the host, whoever has the lock: its own may have been deleted. It wants the new one, let go here.
  if (host.is_ok()) return greet(std::move(*host));
  const StatusCode why = host.status().code();
  if (held->lock && why != StatusCode::kNotFound) return retry_later(host.status(), why != StatusCode::kOverloaded);
  if (!held->lock) return retry_later(host.status(), false);
  open_store(std::move(*directory), std::move(*held));
}

// Whatever it throws would end the process, on a thread of ours.
ShareState::Opened ShareDriver::open_inner() {
  try {
    LARDER_ASSIGN_OR_RETURN(std::unique_ptr<StorageBackend> opened, open_inner_());
    if (opened == nullptr) return internal_error("the inner store of a shared store is null");
    KeptClears clears = open_clears(options_.directory, options_.store, clock_);
    clears_ = std::move(clears.file);
    return std::make_unique<ClearOrder>(std::move(opened), std::move(clears.history), std::move(clears.keeper),
                                        &executor_);
  } catch (const std::bad_alloc&) {
    return overloaded("there is no memory to open a shared store");
  } catch (const std::exception& error) {
    return unavailable(std::string("opening a shared store failed: ") + error.what());
  }
}

void ShareDriver::open_store(ShareDirectory directory, HeldLock held) {
  // Clients may connect from now on: their greeting waits in the socket until the store is open.
  Result<ShareListener> listener = directory.listen(static_cast<int>(options_.max_clients));
  if (!listener.is_ok()) return retry_later(listener.status(), true);
  lock_ = std::move(held.lock);
  lock_file_ = held.file;
  listener_ = std::move(*listener);
  directory_ = std::move(directory);
  look_at_ = std::chrono::steady_clock::now() + kLookAgain;
  phase_ = Phase::kOpening;
  state_->set_opening();
  // close() waits for this one, as for an operation.
  auto ticket = std::make_shared<OperationGate::Ticket>(gate_.hold());
  try {
    opener_ = std::jthread([this, ticket]() mutable {
      state_->post_opened(open_inner());
      ticket.reset();
    });
  } catch (const std::system_error& error) {
    state_->post_opened(unavailable(std::string("no thread can be started to open a shared store: ") + error.what()));
  }
}

void ShareDriver::on_opened(ShareState::Opened opened) {
  if (opener_.joinable()) opener_.join();
  if (!opened.is_ok()) {
    leave_place();
    lock_.reset();
    return retry_later(opened.status(), !may_pass(opened.status()));
  }
  hosted_ = std::make_shared<HostedStore>(HostedStore{std::move(lock_), std::move(*opened)});
  phase_ = Phase::kHosting;
  state_->set_host(hosted_);
  tell_role(SharedRole::kHost);
}

bool ShareDriver::may_pass(const Status& why) {
  // A host whose files were deleted has the store, and answers soon. One that was killed loses its lock before its
  // store.
  if (why.code() != StatusCode::kConflict) return false;
  const Time now = std::chrono::steady_clock::now();
  if (!conflict_since_) conflict_since_ = now;
  return now - *conflict_since_ < kConflictPatience;
}

void ShareDriver::greet(Descriptor socket) {
  Result<Arena> arena = make_client_arena(options_.arena_bytes);
  if (!arena.is_ok()) return retry_later(arena.status(), true);
  connection_ = std::make_unique<ShareConnection>(std::move(socket));
  arena_ = std::move(arena->memory);
  words_ = std::move(arena->words);
  connection_->pass(std::move(arena->descriptor));
  connection_->send(encode_hello({kVersion, options_.arena_bytes, options_.store}));
  phase_ = Phase::kGreeting;
  serve_host(false);
}

void ShareDriver::retry_later(const Status& why, bool is_final) {
  phase_ = Phase::kSeeking;
  seek_at_ = std::chrono::steady_clock::now() + back_off_;
  back_off_ = std::min(back_off_ * 2, kMostBackOff);
  state_->set_error(why, is_final);
}

void ShareDriver::tell_role(SharedRole role) {
  if (role != SharedRole::kSeeking) {
    back_off_ = kFirstBackOff;
    conflict_since_.reset();
  }
  log_info(kComponent, "the store shared in " + options_.directory + ": " + std::string(shared_role_name(role)));
  if (options_.on_role) options_.on_role(role);
}

// --- as host

void ShareDriver::keep_place() {
  const Time now = std::chrono::steady_clock::now();
  if (!listener_.socket.is_open() || now < look_at_) return;
  look_at_ = now + kLookAgain;
  const Status found = renew_place();
  if (!found.is_ok() && place_.is_ok()) {
    log_warning(kComponent, "other processes may not find the host of the store shared in " + options_.directory +
                                ": " + found.message());
  }
  place_ = found;
  if (phase_ != Phase::kHosting) return;
  if (found.is_ok()) keep_clears();
  tell_stats();
}

void ShareDriver::keep_clears() {
  const Status kept = clears_->keep();
  if (!kept.is_ok() && clears_kept_.is_ok()) {
    log_warning(kComponent,
                "what was cleared of the store shared in " + options_.directory +
                    " is not kept for the process that hosts it next: somebody deleted the file: " + kept.message());
  }
  clears_kept_ = kept;
}

void ShareDriver::tell_stats() {
  if (guests_.empty()) return;
  std::string frame = encode_stats(hosted_->inner->stats());
  if (frame == told_stats_) return;
  told_stats_ = std::move(frame);
  for (auto at = guests_.begin(); at != guests_.end();) {
    auto& [id, guest] = *at++;  // serve() may end this one
    if (!guest.session || guest.connection.queued_bytes() >= kMostQueuedBytes) continue;
    guest.connection.send(told_stats_);
    serve(id, false);
  }
}

Status ShareDriver::renew_place() {
  // By its path: the directory itself may have been deleted.
  LARDER_ASSIGN_OR_RETURN(ShareDirectory directory, ShareDirectory::open(options_.directory));
  const bool has_lock = directory.lock_file() == lock_file_;
  if (has_lock && directory.socket_file() == listener_.file) return Status::ok();
  if (!has_lock) {
    LARDER_ASSIGN_OR_RETURN(HeldLock held, directory.try_lock());
    // A newcomer that has just made it is a client soon, or finds the store locked: then it lets go.
    if (!held.lock) return unavailable("its lock was deleted, and another process has the new one");
    (hosted_ ? hosted_->lock : lock_) = std::move(held.lock);
    lock_file_ = held.file;
  }
  // Clients have connections of their own. Who waits to be accepted connects again.
  LARDER_ASSIGN_OR_RETURN(listener_, directory.listen(static_cast<int>(options_.max_clients)));
  directory_ = std::move(directory);
  log_warning(kComponent, "lock or socket of the store shared in " + options_.directory +
                              " were deleted, and are made again; does a cleaner of old files go there?");
  return Status::ok();
}

void ShareDriver::leave_place() {
  if (directory_) directory_->remove_socket(listener_.file);
  directory_.reset();
  listener_ = {};
  place_ = Status::ok();
}

void ShareDriver::accept_guests() {
  while (true) {
    Result<Descriptor> socket = accept_own(listener_.socket);
    is_accept_failing_ = !socket.is_ok();
    if (!socket.is_ok() || !socket->is_open()) return;
    Guest& guest = guests_.try_emplace(next_guest_++, std::move(*socket)).first->second;
    if (guests_.size() <= options_.max_clients) continue;
    Welcome refusal;
    refusal.status = overloaded("the host of the shared store has " + std::to_string(options_.max_clients) +
                                " clients, the most it takes");
    guest.connection.send(encode_welcome(refusal));
    guest.is_leaving = true;
    serve(next_guest_ - 1, false);
  }
}

void ShareDriver::serve(std::uint64_t id, bool is_readable) {
  const auto at = guests_.find(id);
  if (at == guests_.end()) return;
  Guest& guest = at->second;
  Status status = is_readable && !guest.is_leaving ? read_guest(id, guest) : Status::ok();
  if (status.is_ok()) status = guest.connection.flush();
  const bool is_told = guest.is_leaving && guest.connection.queued_bytes() == 0;
  if (status.is_ok() && !is_told) return;
  if (status.code() == StatusCode::kCorrupt) log_warning(kComponent, status.to_string());
  guests_.erase(at);  // its operations in flight keep the arena
}

Status ShareDriver::read_guest(std::uint64_t id, Guest& guest) {
  LARDER_RETURN_IF_ERROR(guest.connection.receive());
  while (!guest.is_leaving) {
    LARDER_ASSIGN_OR_RETURN(const std::optional<ShareConnection::Received> received, guest.connection.next());
    if (!received) break;
    LARDER_RETURN_IF_ERROR(guest.session ? guest.session->on_frame(received->head, received->body)
                                         : greet_guest(id, guest, *received));
  }
  return Status::ok();
}

Status ShareDriver::greet_guest(std::uint64_t id, Guest& guest, const ShareConnection::Received& frame) {
  if (frame.head.kind != Kind::kHello) return corrupt("shared store: a client did not say hello");
  LARDER_ASSIGN_OR_RETURN(const Hello hello, decode_hello(frame.body));
  Welcome welcome;
  Descriptor passed = guest.connection.take_passed();
  if (hello.version != kVersion) {
    welcome.status = unsupported("the host of the shared store speaks version " + std::to_string(kVersion) +
                                 ", the client version " + std::to_string(hello.version));
  } else if (hello.store != options_.store) {
    welcome.status = conflict("another store is shared there: " + options_.store_text);
  } else {
    Result<Arena> arena = map_client_arena(std::move(passed), hello.arena_bytes, options_.max_arena_bytes);
    welcome.status = arena.status();
    if (arena.is_ok()) {
      ClearOrder& inner = *hosted_->inner;
      guest.told = inner.tell(std::move(arena->words));  // before the client looks there
      guest.session = std::make_unique<HostSession>(inner, clock_, std::move(arena->memory),
                                                    std::make_shared<GuestSink>(state_, id), options_.queue_limit);
      welcome.clears_store = inner.clear_mark().store;
      welcome.info = inner.info();
      welcome.stats = inner.stats();
    }
  }
  guest.is_leaving = !welcome.status.is_ok();
  guest.connection.send(encode_welcome(welcome));
  return Status::ok();
}

// --- as client

void ShareDriver::serve_host(bool is_readable) {
  Status status = is_readable ? read_host() : Status::ok();
  if (status.is_ok() && connection_) status = connection_->flush();
  if (!status.is_ok()) lose_host(status);
}

void ShareDriver::expire_waiting() {
  const Time now = std::chrono::steady_clock::now();
  if (!session_ || !session_->is_waiting() || now < expire_at_) return;
  expire_at_ = now + kExpireAgain;
  session_->expire();  // what it sends goes with the next wait
}

Status ShareDriver::read_host() {
  LARDER_RETURN_IF_ERROR(connection_->receive());
  while (true) {
    LARDER_ASSIGN_OR_RETURN(const std::optional<ShareConnection::Received> received, connection_->next());
    if (!received) return Status::ok();
    LARDER_RETURN_IF_ERROR(session_ ? session_->on_frame(received->head, received->body) : on_welcome(*received));
  }
}

Status ShareDriver::on_welcome(const ShareConnection::Received& frame) {
  if (frame.head.kind != Kind::kWelcome) return corrupt("shared store: the host did not welcome");
  LARDER_ASSIGN_OR_RETURN(const Welcome welcome, decode_welcome(frame.body));
  if (!welcome.status.is_ok()) return welcome.status;
  const auto port = std::make_shared<HostPort>(state_, *connection_, clock_, ++session_number_);
  session_ = std::make_unique<ClientSession>(std::move(arena_), port, clock_, executor_);
  phase_ = Phase::kClient;
  state_->set_client(welcome.info, welcome.stats, clock_.now(), welcome.clears_store, std::move(words_));
  tell_role(SharedRole::kClient);
  return Status::ok();
}

void ShareDriver::lose_host(const Status& why) {
  const Phase before = phase_;
  // From now on operations are refused; those that were taken before end here.
  state_->set_seeking(why);
  if (before == Phase::kClient) tell_role(SharedRole::kSeeking);
  if (session_) session_->end(unavailable("the host of the shared store has gone: " + why.message()));
  session_.reset();
  connection_.reset();
  arena_.reset();
  words_.reset();
  // A host that ends before it welcomes failed to open the store: it is this process's turn. A host that refuses this
  // client would do so again.
  const bool is_refusal = before == Phase::kGreeting && why.code() != StatusCode::kUnavailable;
  retry_later(why, is_refusal);
}

}  // namespace larder::share
