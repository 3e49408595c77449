// SPDX-License-Identifier: Apache-2.0
#include "storage/clear_order.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <list>
#include <new>
#include <string>
#include <utility>

#include "base/ranked_mutex.h"
#include "base/rng.h"
#include "storage/operation.h"

namespace larder {

ClearHistory ClearHistory::anew(const Clock& clock, std::uint64_t salt) {
  // Stirred before time is added: a salt that was made of the same clock would cancel it.
  Rng stirred(salt);
  Rng rng(stirred.next_u64() + static_cast<std::uint64_t>(clock.now().time_since_epoch().count()) +
          (static_cast<std::uint64_t>(clock.wall_unix_seconds()) << 32));
  ClearHistory out;
  while (out.store == 0) out.store = rng.next_u64();
  return out;
}

std::uint64_t ClearHistory::begin(const Digest256* namespace_digest) {
  if (namespace_digest == nullptr) {
    floor = whole = ++count;
    namespaces.clear();
    return count;
  }
  std::uint64_t& at = namespaces.try_emplace(*namespace_digest, 0).first->second;
  at = ++count;
  if (namespaces.size() <= kMostNamespaces) return count;
  // The oldest is forgotten, and what came before it is refused, whatever its namespace is.
  const auto oldest = std::min_element(namespaces.begin(), namespaces.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  floor = std::max(floor, oldest->second);
  namespaces.erase(oldest);
  return count;
}

std::uint64_t ClearHistory::cleared_at(const Digest256& namespace_digest) const {
  const auto at = namespaces.find(namespace_digest);
  return at == namespaces.end() ? floor : std::max(floor, at->second);
}

namespace {

Status closing_status() { return cancelled("the store was closed before the clear began; it has cleared nothing"); }

}  // namespace

class ClearOrder::State : public std::enable_shared_from_this<State> {
 public:
  // A clear from submit to `done`, which runs once, whatever becomes of the rest.
  class Clear {
   public:
    Clear(std::shared_ptr<State> state, OperationGate::Ticket ticket, std::shared_ptr<const StoreScope> scope,
          ClearDone done)
        : ticket_(std::move(ticket)), state_(std::move(state)), scope_(std::move(scope)), done_(std::move(done)) {}
    ~Clear() { end(std::move(if_dropped_)); }
    Clear(const Clear&) = delete;
    Clear& operator=(const Clear&) = delete;

    [[nodiscard]] const std::shared_ptr<const StoreScope>& scope() const { return scope_; }
    [[nodiscard]] const Digest256* digest() const { return scope_ ? &scope_->namespace_digest : nullptr; }
    void end(Status status) {
      if (has_ended_.exchange(true, std::memory_order_relaxed)) return;  // a single fact
      try {
        done_(std::move(status));
      } catch (...) {  // NOLINT: a callback that throws is the caller's bug; it must not take a worker down
      }
    }
    // The inner backend has done it, or failed to: a part of it may be gone.
    void end_of_inner(Status status) {
      if (!scope_) state_->emptied(mark);
      end(std::move(status));
    }
    // Refused at submit: `done` is the caller's to forget.
    void disarm() { has_ended_.store(true, std::memory_order_relaxed); }

    std::uint64_t mark = 0;  // set under the state's lock, before others see it

   private:
    const OperationGate::Ticket ticket_;  // first, so that it goes last: close() waits for `done`
    const std::shared_ptr<State> state_;
    const std::shared_ptr<const StoreScope> scope_;
    const ClearDone done_;
    Status if_dropped_ = cancelled("the clear was dropped before it ran; it has cleared nothing");
    std::atomic<bool> has_ended_{false};
  };
  using Clears = std::list<std::shared_ptr<Clear>>;  // one goes from list to list without memory

  // A write from its admission until its `done` has run, or the backend has dropped that.
  class Write {
   public:
    Write(std::shared_ptr<State> state, const Digest256& digest) : state_(std::move(state)), digest_(digest) {}
    ~Write() { end(); }
    Write(const Write&) = delete;
    Write& operator=(const Write&) = delete;
    // Not ok: it is refused, and counts for nothing.
    [[nodiscard]] Status admit(const ClearMark& as_of) {
      LARDER_RETURN_IF_ERROR(state_->admit(digest_, as_of, count_));
      has_ended_.store(false, std::memory_order_relaxed);  // nobody else has it yet
      return Status::ok();
    }
    void end() {
      if (!has_ended_.exchange(true, std::memory_order_relaxed)) state_->write_ended(digest_, count_);
    }

   private:
    const std::shared_ptr<State> state_;
    const Digest256 digest_;
    std::uint64_t count_ = 0;
    std::atomic<bool> has_ended_{true};
  };

  class ToldWords final : public Told {
   public:
    ToldWords(std::shared_ptr<State> state, std::shared_ptr<ClearWords> words)
        : state_(std::move(state)), words_(std::move(words)), node_(1, words_.get()), at_(node_.begin()) {
      LockGuard guard(state_->mutex_);
      state_->words_.splice(state_->words_.end(), node_);
      state_->tell();
    }
    ~ToldWords() override {
      LockGuard guard(state_->mutex_);
      node_.splice(node_.begin(), state_->words_, at_);
    }
    ToldWords(const ToldWords&) = delete;
    ToldWords& operator=(const ToldWords&) = delete;

   private:
    const std::shared_ptr<State> state_;
    const std::shared_ptr<ClearWords> words_;
    std::list<ClearWords*> node_;
    const std::list<ClearWords*>::iterator at_;
  };

  State(StorageBackend& inner, ClearHistory history, std::unique_ptr<ClearKeeper> keeper, Executor* executor)
      : inner_(inner),
        executor_(executor),
        keeper_(std::move(keeper)),
        gate_(inner.info().name, kMostClears),
        passing_(inner.info().name, kMostClears),
        history_(std::move(history)),
        emptied_(history_.whole) {
    assert(history_.store != 0 && (keeper_ == nullptr || executor_ != nullptr));
  }

  [[nodiscard]] Status submit(std::shared_ptr<const StoreScope> scope, ClearDone done) LARDER_EXCLUDES(mutex_);
  // The count as of which an admitted write is counted.
  [[nodiscard]] Status admit(const Digest256& digest, const ClearMark& as_of, std::uint64_t& count)
      LARDER_EXCLUDES(mutex_);
  void write_ended(const Digest256& digest, std::uint64_t count) LARDER_EXCLUDES(mutex_);
  void emptied(std::uint64_t mark) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] ClearMark clear_mark() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] ClearMark emptied_mark() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t waiting() const LARDER_EXCLUDES(mutex_);
  // Refuses what comes, and ends what has not begun.
  void begin_close() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool wait_idle(Nanos limit) { return gate_.wait_idle(limit); }
  // After begin_close(): nobody calls the inner backend, or will.
  void let_go() { passing_.drain(); }

 private:
  // Saving what is unsaved, as a task. If it is dropped unrun, those clears end all the same.
  struct SaveJob {
    explicit SaveJob(std::shared_ptr<State> owner) : state(std::move(owner)) {}
    ~SaveJob() {
      if (is_owed) state->drop_unsaved();
    }
    SaveJob(const SaveJob&) = delete;
    SaveJob& operator=(const SaveJob&) = delete;
    const std::shared_ptr<State> state;
    bool is_owed = false;
  };

  [[nodiscard]] bool has_earlier(const Clear& clear) const LARDER_REQUIRES(mutex_);
  // Moves those that wait for nothing any more.
  void take_ready(Clears& ready) LARDER_REQUIRES(mutex_);
  void tell() LARDER_REQUIRES(mutex_);
  void pass(const Clears& ready) noexcept LARDER_EXCLUDES(mutex_);
  void pass(const std::shared_ptr<Clear>& clear) LARDER_EXCLUDES(mutex_);
  void post_save() LARDER_EXCLUDES(mutex_);
  void save_unsaved() LARDER_EXCLUDES(mutex_);
  // False: there was nothing to save, and the next clear posts a job of its own.
  [[nodiscard]] bool save_some() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status begin_all(const Clears& clears, ClearHistory& next) const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status save(const ClearHistory& history);
  void drop_unsaved() LARDER_EXCLUDES(mutex_);

  StorageBackend& inner_;  // used with a ticket of passing_ only
  Executor* const executor_;
  const std::unique_ptr<ClearKeeper> keeper_;
  OperationGate gate_;     // clears, from submit to `done`
  OperationGate passing_;  // threads that are about to pass a clear to the inner backend

  mutable RankedMutex mutex_{LockRank::kStorage};
  ClearHistory history_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t emptied_ LARDER_GUARDED_BY(mutex_);                                                // count of that mark
  std::map<std::pair<Digest256, std::uint64_t>, std::uint64_t> writes_ LARDER_GUARDED_BY(mutex_);  // -> under way
  Clears unsaved_ LARDER_GUARDED_BY(mutex_);  // their marks have not begun
  Clears waiting_ LARDER_GUARDED_BY(mutex_);  // for earlier writes
  std::list<ClearWords*> words_ LARDER_GUARDED_BY(mutex_);
  bool is_saving_ LARDER_GUARDED_BY(mutex_) = false;  // somebody is to save what is unsaved
  bool is_closed_ LARDER_GUARDED_BY(mutex_) = false;
};

Status ClearOrder::State::admit(const Digest256& digest, const ClearMark& as_of, std::uint64_t& count) {
  LockGuard guard(mutex_);
  const bool is_foreign = as_of.store != history_.store || as_of.count > history_.count;
  if (!as_of.is_none() && is_foreign) {
    return cancelled("what was cleared since the pages came into being is not known any more: they are not written");
  }
  if (!as_of.is_none() && as_of.count < history_.cleared_at(digest)) {
    return cancelled("the namespace was cleared meanwhile: pages of before the clear are not written");
  }
  ++writes_[{digest, history_.count}];
  count = history_.count;
  return Status::ok();
}

void ClearOrder::State::write_ended(const Digest256& digest, std::uint64_t count) {
  Clears ready;
  {
    LockGuard guard(mutex_);
    const auto at = writes_.find({digest, count});
    if (at == writes_.end() || --at->second > 0) return;
    writes_.erase(at);
    take_ready(ready);
  }
  pass(ready);
}

void ClearOrder::State::emptied(std::uint64_t mark) {
  LockGuard guard(mutex_);
  emptied_ = std::max(emptied_, mark);
  tell();
}

ClearMark ClearOrder::State::clear_mark() const {
  LockGuard guard(mutex_);
  return {history_.store, history_.count};
}

ClearMark ClearOrder::State::emptied_mark() const {
  LockGuard guard(mutex_);
  return {history_.store, emptied_};
}

std::uint64_t ClearOrder::State::waiting() const {
  LockGuard guard(mutex_);
  return unsaved_.size() + waiting_.size();
}

void ClearOrder::State::tell() {
  for (ClearWords* const words : words_) {
    words->count.store(history_.count, std::memory_order_release);  // pairs with the load of who reads them
    words->emptied.store(emptied_, std::memory_order_release);
  }
}

bool ClearOrder::State::has_earlier(const Clear& clear) const {
  if (const Digest256* const digest = clear.digest()) {
    const auto first = writes_.lower_bound({*digest, 0});
    return first != writes_.end() && first->first.first == *digest && first->first.second < clear.mark;
  }
  return std::any_of(writes_.begin(), writes_.end(),
                     [&](const auto& write) { return write.first.second < clear.mark; });
}

void ClearOrder::State::take_ready(Clears& ready) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto clear = at++;
    if (!has_earlier(**clear)) ready.splice(ready.end(), waiting_, clear);
  }
}

void ClearOrder::State::pass(const Clears& ready) noexcept {
  for (const std::shared_ptr<Clear>& clear : ready) {
    try {
      pass(clear);
    } catch (const std::bad_alloc&) {
      clear->end(Status(StatusCode::kOverloaded, {}));  // there is no memory for words
    } catch (...) {
      clear->end(internal_error("the storage backend threw an exception when it was given a clear"));
    }
  }
}

void ClearOrder::State::pass(const std::shared_ptr<Clear>& clear) {
  const Result<OperationGate::Ticket> ticket = passing_.enter_inline();
  if (!ticket.is_ok()) return clear->end(closing_status());
  Status status =
      inner_.submit_clear(clear->scope(), [clear](Status result) { clear->end_of_inner(std::move(result)); });
  if (!status.is_ok()) clear->end(std::move(status));
}

Status ClearOrder::State::submit(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  LARDER_ASSIGN_OR_RETURN(OperationGate::Ticket ticket, gate_.enter());
  Clears one(1), ready;
  one.front() = std::make_shared<Clear>(shared_from_this(), std::move(ticket), std::move(scope), std::move(done));
  const std::shared_ptr<Clear> clear = one.front();
  bool must_save = false;
  try {
    LockGuard guard(mutex_);
    if (!is_closed_ && keeper_) {
      unsaved_.splice(unsaved_.end(), one);
      must_save = !std::exchange(is_saving_, true);
    } else if (!is_closed_) {
      clear->mark = history_.begin(clear->digest());
      tell();
      waiting_.splice(waiting_.end(), one);
      take_ready(ready);
    }
  } catch (const std::bad_alloc&) {
    clear->disarm();
    throw;
  }
  if (!one.empty()) {
    clear->disarm();
    return unavailable("storage backend '" + inner_.info().name + "' is closed");
  }
  if (must_save) post_save();
  pass(ready);
  return Status::ok();
}

void ClearOrder::State::post_save() {
  std::shared_ptr<SaveJob> job;
  try {
    job = std::make_shared<SaveJob>(shared_from_this());
    Task task = [job] {
      job->is_owed = false;
      job->state->save_unsaved();
    };
    job->is_owed = true;
    if (executor_->post(std::move(task)).is_ok()) return;
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it needs less memory here
  }
  if (job) job->is_owed = false;
  save_unsaved();
}

void ClearOrder::State::save_unsaved() {
  try {
    const Result<OperationGate::Ticket> ticket = passing_.enter_inline();
    while (ticket.is_ok() && save_some()) {}
    if (ticket.is_ok()) return;
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): what was taken has ended, and the rest ends below
  }
  drop_unsaved();
}

bool ClearOrder::State::save_some() {
  Clears batch, ready;
  {
    LockGuard guard(mutex_);
    if (unsaved_.empty()) return is_saving_ = false;
    batch.splice(batch.end(), unsaved_);
  }
  ClearHistory next;
  Status status = begin_all(batch, next);
  // Kept before anybody hears of the marks: who orders the clears after this process knows each that was heard.
  if (status.is_ok()) status = save(next);
  if (status.is_ok()) {
    LockGuard guard(mutex_);
    history_ = std::move(next);
    tell();
    if (is_closed_) {
      status = closing_status();
    } else {
      waiting_.splice(waiting_.end(), batch);
      take_ready(ready);
    }
  }
  pass(ready);
  for (const std::shared_ptr<Clear>& clear : batch) clear->end(status);
  return true;
}

// Nobody else changes the history meanwhile: with a keeper, only who saves does.
Status ClearOrder::State::begin_all(const Clears& clears, ClearHistory& next) const {
  try {
    LockGuard guard(mutex_);
    next = history_;
    for (const std::shared_ptr<Clear>& clear : clears) clear->mark = next.begin(clear->digest());
    return Status::ok();
  } catch (const std::bad_alloc&) {
    return overloaded("there is no memory for a clear; it has cleared nothing");
  }
}

Status ClearOrder::State::save(const ClearHistory& history) {
  try {
    return keeper_->save(history);
  } catch (const std::bad_alloc&) {
    return overloaded("there is no memory to keep the mark of a clear; it has cleared nothing");
  }
}

void ClearOrder::State::drop_unsaved() {
  Clears dropped;
  {
    LockGuard guard(mutex_);
    dropped.splice(dropped.end(), unsaved_);
    is_saving_ = false;
  }
}

void ClearOrder::State::begin_close() {
  gate_.close();
  const Status why = closing_status();
  Clears ended;
  {
    LockGuard guard(mutex_);
    is_closed_ = true;
    ended.splice(ended.end(), unsaved_);
    ended.splice(ended.end(), waiting_);
  }
  for (const std::shared_ptr<Clear>& clear : ended) clear->end(why);
}

ClearOrder::ClearOrder(std::unique_ptr<StorageBackend> inner, ClearHistory history, std::unique_ptr<ClearKeeper> keeper,
                       Executor* executor)
    : state_(std::make_shared<State>(*inner, std::move(history), std::move(keeper), executor)),
      inner_(std::move(inner)) {}

ClearOrder::~ClearOrder() {
  state_->begin_close();
  state_->let_go();
}

Status ClearOrder::submit_write(WriteRequest request, WriteDone done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  // Held here, too: it ends after the inner backend's own part of a submit that fails, or throws.
  const auto write = std::make_shared<State::Write>(state_, request.scope->namespace_digest);
  if (const Status admitted = write->admit(request.as_of); !admitted.is_ok()) {
    done({std::vector<Status>(request.groups.size(), admitted)});
    return Status::ok();
  }
  const Status submitted =
      inner_->submit_write(std::move(request), [write, done = std::move(done)](WriteResult result) {
        done(std::move(result));
        write->end();
      });
  if (!submitted.is_ok()) write->end();
  return submitted;
}

Status ClearOrder::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  LARDER_RETURN_IF_ERROR(check_request(scope, done));
  if (!info().supports_clear) return inner_->submit_clear(std::move(scope), std::move(done));
  return state_->submit(std::move(scope), std::move(done));
}

BackendStats ClearOrder::stats() const {
  BackendStats out = inner_->stats();
  out.queued += state_->waiting();
  return out;
}

ClearMark ClearOrder::clear_mark() const { return state_->clear_mark(); }
ClearMark ClearOrder::emptied_mark() const { return state_->emptied_mark(); }

Status ClearOrder::close(std::chrono::nanoseconds limit) {
  state_->begin_close();
  LARDER_RETURN_IF_ERROR(inner_->close(limit));
  if (state_->wait_idle(std::max(limit, std::chrono::nanoseconds(0)))) return Status::ok();
  return deadline_exceeded("storage backend '" + info().name + "': clears are still under way");
}

std::unique_ptr<ClearOrder::Told> ClearOrder::tell(std::shared_ptr<ClearWords> words) {
  return std::make_unique<State::ToldWords>(state_, std::move(words));
}

}  // namespace larder
