// SPDX-License-Identifier: Apache-2.0
// An answer written by a thread that may wait, as the answer of another server that is passed on.
//
// Purpose: turns the strand of an HttpExchange (server/http_listener.h) into calls that block: a piece is taken once
// the one before it is out, so that a client that reads slowly slows down where the pieces come from, and the memory of
// an answer is two pieces: one on its way, one waiting.
//
// Picture:
//   begin(head), write(piece)..., end()     an answer in pieces; each is on its way when the call returns
//   respond(response)                       a whole answer instead
//   neither, or no end()                    the destructor breaks off: 500, or a connection that ends too early
//
// Threads: confined to one thread at a time, but for is_gone(): any. begin(), write() and end() wait for the
// connection's strand and must not be called on it (in the handler); the constructor, respond(), on_gone() and the
// destructor may be, the destructor only while nothing has been begun.
// Waits: each ends, because the listener drops a client that does not take a piece within its write_limit, and wakes
// the writer whenever the connection or the listener itself ends.
// Lifetime: outlives the listener if need be; it then finds its client gone. It takes over on_gone of its exchange.
// Cost: a task on the strand and one wake of the writer per piece; takes rank kInbox.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http_listener.h"

namespace larder {

class ReplyStream {
 public:
  explicit ReplyStream(std::shared_ptr<HttpExchange> exchange);
  // Waits for a piece on its way, if there is no end() behind it, and for the function of on_gone() if it runs.
  ~ReplyStream();
  ReplyStream(const ReplyStream&) = delete;
  ReplyStream& operator=(const ReplyStream&) = delete;

  // Once, before begin() and respond(). `gone` runs at most once, when the client leaves before its answer is complete,
  // or the listener ends: on the strand, or in a call of this class that finds it out (this one too). It does not run
  // once the destructor has returned, and must not block, throw or use this object.
  void on_gone(std::function<void()> gone);

  // Sends the head at once, without waiting for a piece; `head` has no body. It says nothing of a length: an answer in
  // pieces is chunked (to HEAD, and with a status without a body, the pieces are not sent).
  void begin(HttpResponse head);
  // After begin(). Hands over a piece, once the one before it is out. False: the client is gone, and nothing is sent
  // any more. An empty piece is nothing.
  [[nodiscard]] bool write(std::string bytes);
  // After begin(). Ends the answer, and waits until it is out. False: the client left before, or the
  // listener ended before it knew.
  bool end();
  // The whole answer. Dropped after begin(), and after another one.
  void respond(HttpResponse response);

  // The client left before its answer was complete, as far as it is known.
  [[nodiscard]] bool is_gone() const;

 private:
  enum class Stage : unsigned char { kFresh, kBegun, kComplete };
  struct State;
  class Errand;
  using Work = std::function<void(HttpExchange& exchange, const std::shared_ptr<Errand>& errand)>;
  // Has the strand do `work`, once it has done the errand before; this one ends when `work` says so or drops it. False:
  // the client is gone.
  bool hand_over(Work work);

  const std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<State> state_;  // shared with the strand
  Stage stage_ = Stage::kFresh;         // owned by the writing thread
};

}  // namespace larder
