// SPDX-License-Identifier: Apache-2.0
#include "server/llama/waiting_stream.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_error.h"
#include "server/json_reader.h"

namespace larder::llama {
namespace {

constexpr Nanos kPingLook = std::chrono::milliseconds(100);

}  // namespace

WaitingStream::WaitingStream(ReplyStream& reply, Clock& clock, Nanos every)
    : reply_(reply), clock_(clock), every_(every), next_(clock.now() + every) {
  head_.content_type = "text/event-stream";
  // Without a thread it is as silent as llama-server.
  (void)thread_.post([this] { run(); });
}

void WaitingStream::set_fields(const HttpResponse& from) {
  LockGuard guard(mutex_);
  head_.headers = from.headers;
}

bool WaitingStream::stop() {
  {
    LockGuard guard(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  thread_.wait_idle();
  return is_begun_;
}

bool WaitingStream::wait() {
  LockGuard guard(mutex_);
  if (!is_over_) changed_.wait_for(mutex_, kPingLook);
  return !is_over_;
}

void WaitingStream::run() {
  while (wait()) {
    if (clock_.now() < next_ || reply_.is_gone()) continue;
    if (!is_begun_) {
      HttpResponse head;
      {
        LockGuard guard(mutex_);
        head = head_;
      }
      reply_.begin(std::move(head));
      is_begun_ = true;
    }
    (void)reply_.write(":\n\n");
    next_ = clock_.now() + every_;
  }
}

std::string error_event(bool is_messages, unsigned status, std::string_view body) {
  using Json = nlohmann::ordered_json;
  const auto has_error = [](const Json& one) { return one.is_object() && one.contains("error"); };
  Json parsed = check_json_size(body).is_ok() ? Json::parse(body, nullptr, false) : Json();
  if (!has_error(parsed)) parsed = Json::parse(error_body(status, body));
  Json error = {{"error", parsed["error"]}};
  if (!is_messages) return "data: " + dump_json(error) + "\n\n";
  Json event = {{"type", "error"}};
  event.update(error);
  return "event: error\ndata: " + dump_json(event) + "\n\n";
}

}  // namespace larder::llama
