// SPDX-License-Identifier: Apache-2.0
#include "server/llama/completion_reply.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/llama/llama_request.h"

namespace larder::llama {
namespace {

// With it llama-server goes on for a client that has left, in a slot that is another request's by then.
constexpr std::string_view kGoesOnField = "X-Conversation-Id";
constexpr std::size_t kMostRefusal = std::size_t{64} << 10;

}  // namespace

void CompletionReply::begin_waiting(Nanos every) {
  try {
    waiting_.emplace(reply_, clock_, every);
  } catch (const std::system_error&) {  // no thread to be had: it is as silent as llama-server
  }
}

void CompletionReply::set_fields(HttpResponse fields) {
  fields_ = std::move(fields);
  if (waiting_) waiting_->set_fields(fields_);
}

Result<unsigned> CompletionReply::forward(std::string body, const Watch& watch) {
  HttpRelayRequest call;
  call.method = request_.is_head ? "HEAD" : std::string_view(request_.method);
  call.target = request_.target;
  std::vector<HttpField> fields = request_.fields;
  if (route_use(request_.method, request_.path) == RouteUse::kSlot) remove_field(fields, kGoesOnField);
  call.fields = fields;
  call.body = body;
  end_waiting();
  const auto on_head = [this](const HttpReplyHead& head) {
    take_head(head);
    return !reply_.is_gone();
  };
  const auto on_bytes = [&](std::string_view piece) { return take_bytes(piece, watch); };
  const Status sent = client_.relay(call, on_head, on_bytes);
  count_.end();
  output_.end();
  if (sent.is_ok()) {
    watch.before_end();
    if (is_begun_ && http_status_ != 200) {
      refuse(http_status_, refusal_);
    } else {
      (void)reply_.end();
    }
    return http_status_;
  }
  if (sent.code() == StatusCode::kCancelled || reply_.is_gone()) return kClientLeft;
  return sent;
}

void CompletionReply::take_head(const HttpReplyHead& head) {
  http_status_ = head.status;
  HttpResponse passed = passed_head(head.status, head.fields);
  is_streamed_ = passed.content_type.starts_with("text/event-stream");
  if (is_begun_) return;
  if (head.status == 200) {
    for (const auto& field : fields_.headers) passed.headers.push_back(field);
  }
  reply_.begin(std::move(passed));
}

bool CompletionReply::take_bytes(std::string_view piece, const Watch& watch) {
  if (is_begun_ && http_status_ != 200) {
    refusal_ += piece.substr(0, kMostRefusal - std::min(refusal_.size(), kMostRefusal));
    return !reply_.is_gone();
  }
  count_.feed(piece);
  output_.feed(piece);
  if (is_streamed_ && !first_output_ && count_.has_output()) first_output_ = clock_.now();
  if (is_streamed_) watch.on_piece();
  return reply_.write(std::string(piece));
}

std::uint64_t CompletionReply::tokens(bool is_whole, std::uint64_t most) const {
  const std::uint64_t told = std::max(output_.tokens(), count_.outputs());
  return is_whole || is_streamed_ ? told : std::max(told, most);
}

void CompletionReply::end_waiting() {
  if (!waiting_) return;
  is_begun_ = waiting_->stop();
  waiting_.reset();
}

void CompletionReply::refuse(unsigned status, std::string_view body) {
  (void)reply_.write(error_event(!route_takes_slot(request_.method, request_.path), status, body));
  (void)reply_.end();
}

void CompletionReply::fail(const Status& status) {
  end_waiting();
  const unsigned code = status.code() == StatusCode::kOverloaded ? 503 : 502;
  const std::string text = "larder proxy: " + status.message();
  if (is_begun_) return refuse(code, text);
  HttpResponse response = error_response(code, text);
  response.headers.emplace_back("Retry-After", "1");
  reply_.respond(std::move(response));
}

}  // namespace larder::llama
