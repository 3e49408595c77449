// SPDX-License-Identifier: Apache-2.0
// llama-server's answer on its way to the client, and what it says of itself.
//
//   begin_waiting() ─► (head and pings: waiting_stream.h) ─► forward(): the answer as it comes, or, behind a head that
//                                                            was sent before, an event that says why there is none
//
// Threads: confined, but for the pings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/http_client.h"
#include "base/status.h"
#include "server/http_message.h"
#include "server/llama/answer_count.h"
#include "server/llama/output_count.h"
#include "server/llama/waiting_stream.h"
#include "server/reply_stream.h"

namespace larder::llama {

class CompletionReply {
 public:
  static constexpr unsigned kClientLeft = 499;

  // All outlive it.
  CompletionReply(HttpClient& client, ReplyStream& reply, const HttpRequest& request, Clock& clock)
      : client_(client), reply_(reply), request_(request), clock_(clock) {}

  // The client asks for a stream: it has its head when that takes longer.
  void begin_waiting(Nanos every);
  // Of ours, for the head of an answer with 200.
  void set_fields(HttpResponse fields);
  struct Watch {
    std::function<void()> on_piece;    // of a stream
    std::function<void()> before_end;  // the answer is there, and its end is not sent yet
  };
  // Sends the request with `body`, and its answer on to the client. Its HTTP status, or kClientLeft. Not ok:
  // llama-server was lost.
  [[nodiscard]] Result<unsigned> forward(std::string body, const Watch& watch);
  // Nothing says yet why there is no answer.
  [[nodiscard]] bool is_untold() const { return http_status_ == 0 || (is_begun_ && http_status_ != 200); }
  void fail(const Status& status);

  // Of llama-server's answer; 0: it gave none.
  [[nodiscard]] unsigned http_status() const { return http_status_; }
  [[nodiscard]] const AnswerCount& count() const { return count_; }
  [[nodiscard]] std::uint64_t output_tokens() const { return output_.tokens(); }
  // Of the answer, at most. most: of one that is not there to its end.
  [[nodiscard]] std::uint64_t tokens(bool is_whole, std::uint64_t most) const;
  // Of a stream.
  [[nodiscard]] const std::optional<TimePoint>& first_output() const { return first_output_; }

 private:
  void take_head(const HttpReplyHead& head);
  [[nodiscard]] bool take_bytes(std::string_view piece, const Watch& watch);
  // From then on nobody else writes to the reply.
  void end_waiting();
  // Ends a stream that has begun with an event.
  void refuse(unsigned status, std::string_view body);

  HttpClient& client_;
  ReplyStream& reply_;
  const HttpRequest& request_;
  Clock& clock_;
  std::optional<WaitingStream> waiting_;
  HttpResponse fields_;
  bool is_streamed_ = false;  // the answer, as server-sent events
  bool is_begun_ = false;     // its head was sent before llama-server's came
  std::string refusal_;       // what llama-server says instead of an answer, if so
  unsigned http_status_ = 0;
  AnswerCount count_;
  OutputCount output_;
  std::optional<TimePoint> first_output_;
};

}  // namespace larder::llama
