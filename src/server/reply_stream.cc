// SPDX-License-Identifier: Apache-2.0
#include "server/reply_stream.h"

#include <cassert>
#include <utility>

#include "base/ranked_mutex.h"

namespace larder {

// What the writer and the strand share. It does not hold the exchange: that would keep an answer open that nobody
// gives.
struct ReplyStream::State {
  mutable RankedMutex mutex{LockRank::kInbox};
  RankedCondition changed;
  bool is_busy LARDER_GUARDED_BY(mutex) = false;     // an errand is under way
  bool is_gone LARDER_GUARDED_BY(mutex) = false;     // for good
  bool is_calling LARDER_GUARDED_BY(mutex) = false;  // `gone` runs
  std::function<void()> gone LARDER_GUARDED_BY(mutex);

  void lose() LARDER_EXCLUDES(mutex) {
    std::function<void()> call;
    {
      LockGuard guard(mutex);
      if (is_gone) return;
      is_gone = true;
      call.swap(gone);
      is_calling = call != nullptr;
      changed.notify_all();
    }
    if (!call) return;
    call();
    call = nullptr;  // what it holds dies before the writer goes on
    LockGuard guard(mutex);
    is_calling = false;
    changed.notify_all();
  }

  void take_errand() LARDER_EXCLUDES(mutex) {
    LockGuard guard(mutex);
    is_busy = true;
  }
  void end_errand() LARDER_EXCLUDES(mutex) {
    LockGuard guard(mutex);
    is_busy = false;
    changed.notify_all();
  }
  // True when no errand is under way; false when the client is gone.
  bool wait_free() LARDER_EXCLUDES(mutex) {
    LockGuard guard(mutex);
    while (is_busy && !is_gone) changed.wait(mutex);
    return !is_gone;
  }
};

// Something that the strand does for the writer. One that is destroyed before its end was dropped on the way, with the
// connection or with the listener: so the writer wakes whatever happens.
class ReplyStream::Errand {
 public:
  explicit Errand(std::shared_ptr<State> state) : state_(std::move(state)) { state_->take_errand(); }
  ~Errand() {
    if (!is_done_) state_->lose();
  }
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;

  void end() {  // strand
    is_done_ = true;
    state_->end_errand();
  }

 private:
  const std::shared_ptr<State> state_;
  bool is_done_ = false;  // owned by the strand, and then by who drops it
};

ReplyStream::ReplyStream(std::shared_ptr<HttpExchange> exchange)
    : exchange_(std::move(exchange)), state_(std::make_shared<State>()) {
  hand_over([state = state_](HttpExchange& strand, const std::shared_ptr<Errand>& errand) {
    strand.on_gone([state] { state->lose(); });
    errand->end();
  });
}

ReplyStream::~ReplyStream() {
  if (stage_ == Stage::kBegun) state_->wait_free();
  std::function<void()> unrun;
  {
    LockGuard guard(state_->mutex);
    unrun.swap(state_->gone);
    while (state_->is_calling) state_->changed.wait(state_->mutex);
  }
  if (stage_ != Stage::kComplete) exchange_->break_off();
}

void ReplyStream::on_gone(std::function<void()> gone) {
  {
    LockGuard guard(state_->mutex);
    if (!state_->is_gone) {
      assert(!state_->gone);
      state_->gone = std::move(gone);
      return;
    }
  }
  gone();
}

bool ReplyStream::hand_over(Work work) {
  if (!state_->wait_free()) return false;
  auto errand = std::make_shared<Errand>(state_);
  exchange_->post(
      [exchange = exchange_, errand = std::move(errand), work = std::move(work)] { work(*exchange, errand); });
  return true;
}

void ReplyStream::begin(HttpResponse head) {
  assert(stage_ == Stage::kFresh);
  stage_ = Stage::kBegun;
  hand_over([head = std::move(head)](HttpExchange& strand, const std::shared_ptr<Errand>& errand) mutable {
    strand.begin_stream(std::move(head));
    strand.write({}, false, [errand] { errand->end(); });
  });
}

bool ReplyStream::write(std::string bytes) {
  assert(stage_ == Stage::kBegun);
  if (bytes.empty()) return !is_gone();
  return hand_over([bytes = std::move(bytes)](HttpExchange& strand, const std::shared_ptr<Errand>& errand) mutable {
    strand.write(std::move(bytes), false, [errand] { errand->end(); });
  });
}

bool ReplyStream::end() {
  assert(stage_ == Stage::kBegun);
  stage_ = Stage::kComplete;
  hand_over([](HttpExchange& strand, const std::shared_ptr<Errand>& errand) {
    strand.write({}, true, [errand] { errand->end(); });
  });
  return state_->wait_free();
}

void ReplyStream::respond(HttpResponse response) {
  if (stage_ != Stage::kFresh) return;
  stage_ = Stage::kComplete;
  exchange_->respond(std::move(response));
}

bool ReplyStream::is_gone() const {
  LockGuard guard(state_->mutex);
  return state_->is_gone;
}

}  // namespace larder
